"""The events of a consumer in the registry, for the program around it."""

from typing import NamedTuple

from broker.client.connector.assignment import TopicView
from broker.client.registry.nodes import StreamId
from broker.cluster.documents import TopicPartition


class Claimed(NamedTuple):
    """The consumer owns the partition. Read it from `offset` on; None: from smallest or largest, and say `placed`.

    The offset is one of the topic in `topic`. Do not read another topic that has got the name meanwhile.
    """

    partition: TopicPartition
    stream: StreamId
    offset: int | None
    topic: TopicView


class Stopped(NamedTuple):
    """The partition goes to another stream: drop its records that the program has not taken."""

    partition: TopicPartition


class Released(NamedTuple):
    """The offset of a stopped partition is committed, and others may claim the partition."""

    partition: TopicPartition


class Lost(NamedTuple):
    """The partition may have another owner: drop its records. The new owner reads again from the last commit."""

    partition: TopicPartition
    why: str


class Committed(NamedTuple):
    """A commit has ended that began after `number` calls of `commit`. `failed` has the partitions it left out."""

    number: int
    failed: tuple[TopicPartition, ...]


class MadeAgain(NamedTuple):
    """The topic was deleted and made again: its partitions begin as if the group had no offsets."""

    topic: str


class LookAgain(NamedTuple):
    """The topic is another than the offsets belong to: ask for Metadata again in METADATA_LAG_MAX_MS."""

    topic: str


class Trouble(NamedTuple):
    """The consumer meets a difficulty and tries again."""

    text: str


class RebalanceFailed(NamedTuple):
    """The consumer has left the group for good. `error` says why, and what would be right."""

    error: str


class Closed(NamedTuple):
    """The consumer has released its partitions and left the group."""


Event = Claimed | Stopped | Released | Lost | Committed | MadeAgain | LookAgain | Trouble | RebalanceFailed | Closed
