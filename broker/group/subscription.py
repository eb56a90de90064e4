"""What a consumer tells its leader, as far as the coordinator looks: the topics of a ConsumerProtocolSubscription.

    version i16 | topics: count i32, each a string (length i16, UTF-8) | what later versions add

Kafka reads the prefix all versions share, to know which topics a group still uses (KIP-211: their offsets do not
expire). A group of another protocol, or bytes that are not this, leave it unknown, and nothing of the group expires
while it has members.
"""

import struct
from collections.abc import Iterable

from broker.wire.errors import WireError
from broker.wire.primitives import read_count, read_string

CONSUMER_PROTOCOL_TYPE = "consumer"

_VERSION_BYTES = 2
_STRING_BYTES_MIN = 2


def subscribed_topics(protocol_type: str | None, metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members' subscriptions; None when they cannot be known."""
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return None
    try:
        return frozenset(topic for each in metadata for topic in _topics(each))
    except (WireError, IndexError, struct.error):
        return None


def _topics(metadata: bytes) -> list[str]:
    count, position = read_count(metadata, _VERSION_BYTES, False, _STRING_BYTES_MIN)
    topics: list[str] = []
    for _ in range(count):
        topic, position = read_string(metadata, position, False)
        topics.append(topic or "")
    return topics
