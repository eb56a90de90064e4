"""The topics in a consumer's ConsumerProtocolSubscription, the only part that the coordinator reads.

    version i16 | topics: count i32, each a string (length i16, UTF-8) | fields of later versions

Kafka reads this common prefix of all versions to know which topics a group uses, because their offsets do not expire
(KIP-211). If the group uses another protocol or the bytes cannot be read, the topics are unknown, and no offset of the
group expires while it has members.
"""

import struct
from collections.abc import Iterable

from broker.wire.errors import WireError
from broker.wire.primitives import read_count, read_string

CONSUMER_PROTOCOL_TYPE = "consumer"

_VERSION_BYTES = 2
_STRING_BYTES_MIN = 2


def subscribed_topics(protocol_type: str | None, metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics of all members' subscriptions, or None if they cannot be read."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    try:
        return frozenset(topic for subscription in metadata for topic in _topics(subscription))
    except (WireError, IndexError, struct.error):
        return None


def _topics(metadata: bytes) -> list[str]:
    count, position = read_count(metadata, _VERSION_BYTES, False, _STRING_BYTES_MIN)
    topics: list[str] = []
    for _ in range(count):
        topic, position = read_string(metadata, position, False)
        topics.append(topic or "")
    return topics
