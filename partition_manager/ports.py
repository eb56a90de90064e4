"""What this room asks of the world, as values: a request goes out, an answer comes back, nobody waits.

A core hands out requests; whoever drives it carries each to its port and brings the answer back. So one core runs under
Twisted, in a plain program, under Apache Storm and in a simulation. An answer may come at once or much later, but
it comes exactly once, and never from another thread than the core's own.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from broker.client.records import LogRecord

FetchedRecord = LogRecord  # offset, id (None where the broker keeps none), timestamp_ms, key, value, headers


class FetchWanted(NamedTuple):
    """What a manager would like to read next: from `offset` on, at most so many records and bytes."""

    offset: int
    max_records: int
    max_bytes: int


# --- requests to a RecordFetcher


class ListPartitions(NamedTuple):
    """Which partitions has `topic`? Answer: Partitions."""

    topic: str


class FindBounds(NamedTuple):
    """Where does the partition's log begin and end? Answer: Bounds."""

    topic: str
    partition: int


class FindTime(NamedTuple):
    """The first offset whose timestamp is `timestamp_ms` or later. Answer: Found."""

    topic: str
    partition: int
    timestamp_ms: int


class FindId(NamedTuple):
    """The first offset whose Snowflake id is `id` or greater. Answer: Found."""

    topic: str
    partition: int
    id: int


class Fetch(NamedTuple):
    """Read on. Answer: Fetched or OutOfRange; an empty Fetched when nothing came within the fetcher's longest wait."""

    topic: str
    partition: int
    wanted: FetchWanted


FetcherRequest = ListPartitions | FindBounds | FindTime | FindId | Fetch

# --- requests to an OffsetStore


class LoadOffset(NamedTuple):
    """Answer: Loaded."""

    topic: str
    partition: int


class SaveOffset(NamedTuple):
    """Write `document` if the node's version still is `version` (-1: if there is none). Answer: Saved or Fenced."""

    topic: str
    partition: int
    document: bytes
    version: int


StoreRequest = LoadOffset | SaveOffset

# --- requests to a DeadLetterSink


class DeadLetter(NamedTuple):
    """A message given up, with everything one needs to look into it or to send it again.

    `reason` is one of dead_letter.REASONS, `error` the last failure's own words.
    """

    topic: str
    partition: int
    record: FetchedRecord
    ticket: int
    reason: str
    attempts: int
    error: str


class Bury(NamedTuple):
    """Keep `letter` where it survives. Answer: Buried, only once it does."""

    letter: DeadLetter


Request = FetcherRequest | StoreRequest | Bury

# --- answers


class Partitions(NamedTuple):
    """Partition numbers, and one broker's address for the offset document (0.9.3 keeps it there)."""

    numbers: tuple[int, ...]
    host: str = ""
    port: int = 0


class Bounds(NamedTuple):
    """Half-open: readable offsets are log_start <= offset < log_end."""

    log_start: int
    log_end: int


class Found(NamedTuple):
    """The offset asked for; None when the log holds nothing so late."""

    offset: int | None


class Fetched(NamedTuple):
    """Records in order of offset, some perhaps below the offset wanted; `next_offset` is where to read on."""

    records: Sequence[FetchedRecord]
    next_offset: int
    high_watermark: int


class OutOfRange(NamedTuple):
    """The log has no such offset; these are its bounds now."""

    log_start: int
    log_end: int


class Loaded(NamedTuple):
    """The document and its node's version; (None, -1) when nothing was ever stored."""

    document: bytes | None
    version: int


class Saved(NamedTuple):
    version: int


class Fenced(NamedTuple):
    """Somebody else has written since: this owner's time is over."""

    error: str


class Buried(NamedTuple):
    pass


class Failed(NamedTuple):
    """It did not work now; the one who asked will ask again later."""

    error: str


Answer = Partitions | Bounds | Found | Fetched | OutOfRange | Loaded | Saved | Fenced | Buried | Failed


class RecordFetcher(Protocol):
    """Reads a log over Kafka's protocol: Flakelog's or Apache Kafka's."""

    def ask(self, request: FetcherRequest, answer: Callable[[Answer], None]) -> None: ...

    def close(self) -> None: ...


class OffsetStore(Protocol):
    """Keeps one document for each partition, each write conditional on the version before it."""

    def ask(self, request: StoreRequest, answer: Callable[[Answer], None]) -> None: ...

    def close(self) -> None: ...


class DeadLetterSink(Protocol):
    """Where messages go that nobody could process; answers Buried only when the letter is safe."""

    def ask(self, request: Bury, answer: Callable[[Answer], None]) -> None: ...

    def close(self) -> None: ...
