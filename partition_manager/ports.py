"""Requests to the outside world and their answers, as values, so that no call blocks.

A core returns requests; its driver carries each to a port and brings back the answer. So one core runs under Twisted,
in a plain program, under Apache Storm and in a simulation. An answer may come at once or much later. It comes exactly
once, and always on the core's own thread.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from broker.client.offset_spec import Bounds as Bounds  # an answer
from broker.client.records import PoisonBatch, Record

TopicPartition = tuple[str, int]  # topic and partition number
FetchedRecord = Record  # offset, id (None if the broker keeps none), timestamp_ms, key, value, headers


class FetchWanted(NamedTuple):
    """The next read a manager wants: from `offset`, at most `max_records` records and `max_bytes` bytes."""

    offset: int
    max_records: int
    max_bytes: int


# --- requests to a RecordFetcher


class ListTopics(NamedTuple):
    """Ask for the names of all topics. Answer: Topics."""


class ListPartitions(NamedTuple):
    """Ask for the partitions of `topic`. Answer: Partitions."""

    topic: str


class FindBounds(NamedTuple):
    """Ask for the start and end of the partition's log. Answer: Bounds."""

    topic: str
    partition: int


class FindTime(NamedTuple):
    """Ask for the first offset whose timestamp is `timestamp_ms` or later. Answer: FoundOffset."""

    topic: str
    partition: int
    timestamp_ms: int


class FindId(NamedTuple):
    """Ask for the first offset whose Snowflake id is `id` or greater. Answer: FoundOffset."""

    topic: str
    partition: int
    id: int


class FindEpochEnd(NamedTuple):
    """Ask where records of `leader_epoch` end (OffsetForLeaderEpoch, KIP-101). Answer: EpochEnd."""

    topic: str
    partition: int
    leader_epoch: int


class Fetch(NamedTuple):
    """Ask for records. Answer: Fetched, Packed or OutOfRange, or Recreated if the topic's id is not `topic_id` now.

    Fetched is empty if no record came within the fetcher's longest wait. An empty `topic_id` is compared with nothing.
    """

    topic: str
    partition: int
    wanted: FetchWanted
    topic_id: str = ""


FetcherRequest = ListTopics | ListPartitions | FindBounds | FindTime | FindId | FindEpochEnd | Fetch

# --- requests to an OffsetStore


class LoadOffset(NamedTuple):
    """Ask for the stored offset document. Answer: Loaded.

    If `by_topic` is True, the store has one node for each topic.
    """

    topic: str
    partition: int
    by_topic: bool = False


class SaveOffset(NamedTuple):
    """Write `document` if the node's version is still `version`. Answer: Saved or Fenced.

    Version -1 means that the node must not exist.
    """

    topic: str
    partition: int
    document: bytes
    version: int
    by_topic: bool = False


class AwaitShare(NamedTuple):
    """Ask a consumer group for this task's share of `topics`, if its version is above `known_version`. Answer: Share.
    """

    topics: tuple[str, ...]
    known_version: int


class ReleasePartition(NamedTuple):
    """Give a partition back to the consumer group; its progress is stored. Answer: Released."""

    topic: str
    partition: int
    grant: int


StoreRequest = LoadOffset | SaveOffset
GroupRequest = AwaitShare | ReleasePartition

# --- requests to a DeadLetterSink


class DeadLetter(NamedTuple):
    """A message given up, with all that is needed to inspect it or send it again.

    `reason` is one of dead_letter.REASONS, `error` the text of the last failure.
    """

    topic: str
    partition: int
    record: FetchedRecord
    ticket: int
    reason: str
    attempts: int
    error: str


class Bury(NamedTuple):
    """Store `letter` durably. Answer: Buried, once it is durable, or LetterRefused."""

    letter: DeadLetter


Request = FetcherRequest | StoreRequest | GroupRequest | Bury

# --- answers


class Topics(NamedTuple):
    """The names of all topics, in any order, internal ones included."""

    names: tuple[str, ...]


class Partitions(NamedTuple):
    """Partition numbers, and one broker's address for the offset document (0.9.3 stores it there).

    `topic_id` is a UUID as text (KIP-516), "" if the broker gives topics no ids.
    """

    numbers: tuple[int, ...]
    host: str = ""
    port: int = 0
    topic_id: str = ""


class FoundOffset(NamedTuple):
    """The offset asked for, or None if the log holds nothing that late."""

    offset: int | None


class Fetched(NamedTuple):
    """Records in order of offset; the next fetch starts at `next_offset`.

    The first records may lie below the wanted offset. `poison` are the batches whose records cannot be decoded; they
    lie between the records, in order of offset. `leader_epoch` is that of the last batch, -1 if there is none.
    `unpacked_bytes` are the bytes of the batches after decompression.
    """

    records: Sequence[FetchedRecord]
    next_offset: int
    high_watermark: int
    poison: Sequence[PoisonBatch] = ()
    leader_epoch: int = -1
    unpacked_bytes: int = 0


class OutOfRange(NamedTuple):
    """The log does not have the wanted offset; the fields are its current bounds."""

    log_start: int
    log_end: int


class EpochEnd(NamedTuple):
    """The largest epoch that is not above the one asked for, and the offset after its last record.

    Both are -1 if the broker does not know.
    """

    leader_epoch: int
    end_offset: int


class Recreated(NamedTuple):
    """The topic was deleted and made again since the fetch was asked for; `topic_id` is its id now."""

    topic_id: str


class Loaded(NamedTuple):
    """The document and its node's version; (None, -1) if no document was ever stored."""

    document: bytes | None
    version: int


class Saved(NamedTuple):
    version: int


class Share(NamedTuple):
    """The partitions of one task, with the numbers of their grants, and those among them that it shall hand over.

    A partition that the task reads was lost if its grant is not here: another member may read it already. `notes` are
    lines for the log about the membership, each with its level: "info", "warn" or "error". `waits_since_ms` is the time
    of the engine's clock since which the process waits for its group, None if it does not. The first task gets
    `fenced`, the reason if another process of the same name has taken the place of this one, and `refused`, the reason
    if the group does not take this process.
    """

    version: int
    grants: Mapping[TopicPartition, int]
    revoked: frozenset[TopicPartition] = frozenset()
    notes: tuple[tuple[str, str], ...] = ()
    waits_since_ms: int | None = None
    fenced: str = ""
    refused: str = ""


class Released(NamedTuple):
    pass


class Fenced(NamedTuple):
    """Another owner has written since, so this owner must stop."""

    error: str


class Buried(NamedTuple):
    pass


class LetterRefused(NamedTuple):
    """The dead-letter topic will never take this letter, so the same request is not made again."""

    error: str


class Failed(NamedTuple):
    """The request failed for now; the caller will retry."""

    error: str


class Packed(NamedTuple):
    """The answer to a Fetch before its batches are unpacked, because a few bytes may unpack to a hundred megabytes.

    The core calls `unpack`, once, when it has memory for the messages.
    """

    unpack: Callable[[], Fetched | OutOfRange | Failed]


Answer = (
    Topics
    | Partitions
    | Bounds
    | FoundOffset
    | EpochEnd
    | Fetched
    | OutOfRange
    | Recreated
    | Packed
    | Loaded
    | Saved
    | Share
    | Released
    | Fenced
    | Buried
    | LetterRefused
    | Failed
)


class RecordFetcher(Protocol):
    """A reader of a log over Kafka's protocol: Flakelog's or Apache Kafka's."""

    def ask(self, request: FetcherRequest, answer: Callable[[Answer], None]) -> None: ...

    def hold(self, is_held: bool) -> None:
        """While `is_held`, send no fetch, because enough messages wait; fetches that are out are still answered."""

    def close(self) -> None: ...


class OffsetStore(Protocol):
    """A store of one document for each partition; each write is conditional on the previous version."""

    def ask(self, request: StoreRequest, answer: Callable[[Answer], None]) -> None: ...

    def close(self) -> None: ...


class GroupStore(Protocol):
    """A member of a consumer group: the store of progress in the group's offsets, and the source of a task's share."""

    def ask(self, request: StoreRequest | GroupRequest, answer: Callable[[Answer], None]) -> None: ...

    def close(self) -> None: ...


class DeadLetterSink(Protocol):
    """A destination for messages that could not be processed; it answers Buried only when the letter is safe."""

    def ask(self, request: Bury, answer: Callable[[Answer], None]) -> None: ...

    def close(self) -> None: ...
