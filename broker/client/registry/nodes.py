"""The nodes of consumer groups under /consumers: their paths and their data, in the layout of Kafka 0.8.

| node | data | kind |
|---|---|---|
| /consumers/GROUP/ids/CONSUMER | ConsumerRegistration | ephemeral |
| /consumers/GROUP/owners/TOPIC/PARTITION | the stream that owns the partition, as CONSUMER-0 | ephemeral |
| /consumers/GROUP/offsets/TOPIC | OffsetsTopic: which topic of that name the offsets belong to | persistent |
| /consumers/GROUP/offsets/TOPIC/PARTITION | the next offset, as decimal text; -1 if there is none | persistent |

CONSUMER is HOST:UUID. Kafka 0.8 leaves the data of /offsets/TOPIC empty, and so do tools: offsets below such a node
count for whatever topic has the name. A consumer of Kafka 0.8 reads -1 as an offset out of range, so it begins at
smallest or largest too. `broker.cluster.documents` has the nodes under /brokers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from broker.cluster.documents import TopicPartition
from broker.cluster.json_document import DamagedDocument, decode_json, encode_json, json_number, json_value
from coordination.errors import quoted
from coordination.port import child

CONSUMERS = "/consumers"
STATIC, WHITE_LIST, BLACK_LIST = "static", "white_list", "black_list"
PATTERNS = (STATIC, WHITE_LIST, BLACK_LIST)
STREAMS_MAX = 1_000  # of one consumer for a topic, or for a filter
OFFSET_MAX = (1 << 63) - 1
NO_OFFSET = -1


def group_path(group: str) -> str:
    """Return a group's path. Raise ValueError for a name that no node can have."""
    return _named(CONSUMERS, group)


def ids_path(group: str) -> str:
    return f"{group_path(group)}/ids"


def consumer_path(group: str, consumer: str) -> str:
    return _named(ids_path(group), consumer)


def owners_path(group: str) -> str:
    return f"{group_path(group)}/owners"


def owned_topic_path(group: str, topic: str) -> str:
    return _named(owners_path(group), topic)


def owner_path(group: str, partition: TopicPartition) -> str:
    return f"{owned_topic_path(group, partition.topic)}/{partition.partition}"


def offsets_path(group: str) -> str:
    return f"{group_path(group)}/offsets"


def offsets_topic_path(group: str, topic: str) -> str:
    return _named(offsets_path(group), topic)


def offset_path(group: str, partition: TopicPartition) -> str:
    return f"{offsets_topic_path(group, partition.topic)}/{partition.partition}"


class ConsumerId(NamedTuple):
    """The name of a consumer. The UUID makes it unique, so nodes with this name are the consumer's own."""

    host: str
    uuid: str

    def __str__(self) -> str:
        return f"{self.host}:{self.uuid}"

    @classmethod
    def parse(cls, text: str) -> "ConsumerId":
        """Return the parts of HOST:UUID. Raise ValueError for other names, such as those of Kafka 0.8."""
        host, _, uuid = text.rpartition(":")
        if not host or not uuid:
            raise ValueError(f"{text!r} is no consumer: its name is HOST:UUID")
        return cls(host, uuid)


class StreamId(NamedTuple):
    """A stream of a consumer, which owns partitions: HOST:UUID-0 is the first of consumer HOST:UUID."""

    consumer: str
    number: int

    def __str__(self) -> str:
        return f"{self.consumer}-{self.number}"

    @classmethod
    def parse(cls, text: str) -> "StreamId":
        """Return the parts of CONSUMER-NUMBER. Raise ValueError if it is something else."""
        consumer, _, digits = text.rpartition("-")
        if not consumer or not _is_number(digits):
            raise ValueError(f"{text!r} is no stream: it is a consumer and a number, as HOST:UUID-0")
        return cls(consumer, int(digits))


@dataclass(frozen=True)
class ConsumerRegistration:
    """What a living consumer reads: streams by topic, or by the regular expression of a filter.

    With WHITE_LIST the topics are those that match the one key of `subscription`; with BLACK_LIST, all others.
    """

    subscription: Mapping[str, int]
    pattern: str = STATIC
    timestamp_ms: int = 0

    def encode(self) -> bytes:
        return encode_json(
            {
                "version": 1,
                "subscription": dict(self.subscription),
                "pattern": self.pattern,
                "timestamp": str(self.timestamp_ms),
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> "ConsumerRegistration":
        """Return the registration. A missing pattern is STATIC, and a missing timestamp is 0, as in Kafka 0.8."""
        document = decode_json(path, data)
        counts = json_value(path, document, "subscription", dict)
        subscription = {str(name): json_number(path, counts, name) for name in counts}
        for name, count in subscription.items():
            if not 1 <= count <= STREAMS_MAX:
                raise DamagedDocument(f"{path}: {count} streams for {name!r}; it is 1 to {STREAMS_MAX}")
        pattern = document.get("pattern", STATIC)
        if pattern not in PATTERNS:
            raise DamagedDocument(f"{path}: 'pattern' is {pattern!r}, not {', '.join(PATTERNS)}")
        if pattern != STATIC and len(subscription) != 1:
            raise DamagedDocument(f"{path}: a {pattern} of {len(subscription)} regular expressions; it has one")
        return cls(subscription, pattern, json_number(path, document, "timestamp") if "timestamp" in document else 0)


@dataclass(frozen=True)
class OffsetsTopic:
    """The topic that the offsets of a group belong to, because another topic may later have its name.

    `topic_id` is the topic's id as Kafka shows it, `czxid` that of its node; each is None if it is not known. A node
    without data has neither. With `is_clearing`, the offsets below the node may still be those of the topic before.
    """

    topic_id: str | None = None
    czxid: int | None = None
    is_clearing: bool = False

    def encode(self) -> bytes:
        if self == OffsetsTopic():
            return b""
        return encode_json(
            {
                "version": 1,
                **({} if self.topic_id is None else {"topic_id": self.topic_id}),
                **({} if self.czxid is None else {"czxid": self.czxid}),
                **({"clearing": True} if self.is_clearing else {}),
            }
        )

    @classmethod
    def decode(cls, path: str, data: bytes) -> "OffsetsTopic":
        if not data:
            return cls()
        document = decode_json(path, data)
        topic_id = json_value(path, document, "topic_id", str) if "topic_id" in document else None
        czxid = json_number(path, document, "czxid") if "czxid" in document else None
        return cls(topic_id, czxid, bool(document.get("clearing")))


def encode_owner(stream: StreamId) -> bytes:
    return str(stream).encode()


def decode_owner(path: str, data: bytes) -> StreamId:
    """Return the stream that owns a partition."""
    try:
        return StreamId.parse(data.decode())
    except ValueError as error:
        raise DamagedDocument(f"{path}: {error}") from error


def encode_offset(offset: int | None) -> bytes:
    return b"%d" % (NO_OFFSET if offset is None else offset)


def decode_offset(path: str, data: bytes) -> int | None:
    """Return the next offset to read; None if the group has none, so that a consumer begins at smallest or largest."""
    text = data.decode(errors="replace").strip()
    if text == str(NO_OFFSET):
        return None
    if not _is_number(text) or int(text) > OFFSET_MAX:
        raise DamagedDocument(f"{path}: {quoted(text)} is no offset; it is a number from 0 to {OFFSET_MAX}, or -1")
    return int(text)


def partition_number(path: str, name: str) -> int:
    """Return the number of a partition whose node is `name` below `path`."""
    if not _is_number(name):
        raise DamagedDocument(f"{path}/{name}: {name!r} is no number of a partition")
    return int(name)


def _named(path: str, name: str) -> str:
    """Return the path of a child. Raise ValueError for a name that no node can have."""
    if "/" in name:
        raise ValueError(f"{name!r} is no node's name: it has a slash")
    return child(path, name)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 19
