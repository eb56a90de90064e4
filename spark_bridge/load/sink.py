"""The ports of a load: `Sink` is a destination, `SourceLog` the log, `Rows` the rows of one part.

A sink keeps one chain of loads for each topic, numbered 0, 1, 2, ... The driver (spark_bridge.load.driver) does this
with the newest load, and a run that was killed anywhere is continued by the next run:

    check      the target: it is the one of the earlier loads, and has what they committed (load.target)
    prepared   the target is made if it is not there, and the load names it
    save       the load's plan, exclusively by its number: of two drivers, one saves and the other takes up that load
    write      each part, from several threads and several drivers at once, in any order; invisible to readers
    publish    the decision, which is one atomic step of the sink; then whatever readers still need

A driver saves load n + 1 only after load n is PUBLISHED, from n's ends. So ranges of loads never overlap, and a sink
has to keep two promises only:

1. `save` of one number succeeds once, whatever races.
2. `publish` of one number decides once, whatever races or repeats. The loser of a race sees the winner's decision in
   `find`, and adds no rows.

Where the promises come from, for each kind of sink:

    Parquet    exclusive creation of a file by number (spark_bridge.load.parquet_sink)
    Delta      plans: files of a FileLedger; the decision: one commit with app id (the topic's) and version (the number)
    Iceberg    plans: files of a FileLedger; the decision: a table property, set in the transaction that adds the files
    topic      plans: where the sink likes; the decision: a transaction, or the ids that the target has already

A sink whose store has no exclusive creation keeps promise 1 only for a single driver; it says so by `exclusive`, and
the command then asks for --single-writer.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import pyarrow as pa

from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import Receipt, WrittenPart
from spark_bridge.load.rejections import OnRejected
from spark_bridge.load.target import Target
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.skipped import SkippedBatch
from spark_bridge.selection.pinned import Log


class LoadState(Enum):
    """PLANNED and DECIDED loads are unfinished: a run finishes them before it plans another.

    A WITHDRAWN load brings nothing in. A run gave it up, and the next load takes its messages.
    """

    PLANNED = "planned"
    DECIDED = "decided"
    """It will be published; no rows are read for it again, but readers may not see all of them yet."""
    PUBLISHED = "published"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True)
class StoredLoad:
    """A load in a sink. A DECIDED or PUBLISHED load has a receipt."""

    load: Load
    state: LoadState
    receipt: Receipt | None = None

    @property
    def unfinished(self) -> bool:
        return self.state in (LoadState.PLANNED, LoadState.DECIDED)

    @property
    def ends(self) -> Mapping[int, int]:
        """Return the positions where the next load begins."""
        return self.load.starts if self.state is LoadState.WITHDRAWN else self.load.ends


@dataclass(frozen=True, slots=True)
class Contents:
    """The rows of a target, and the differences between it and its loads, in words.

    `rows` are those that it has now, also of other writers; None if it is not there. `problems` name what is missing or
    changed that nobody deleted. `notes` name what other writers did with the loads' messages, and what can no longer be
    told.
    """

    rows: int | None
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class LoadTaken(LoadError):
    """Another driver saved a load of this number first."""


def ignore(messages: pa.RecordBatch) -> None:
    """Do nothing with rejected messages."""


class Rows(Protocol):
    """The rows of one part in the order of their offsets. Iterating raises what the reader raises."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def skipped(self) -> Sequence[SkippedBatch]:
        """Return the batches left out so far; complete after the iteration."""
        ...

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


class Sink(Protocol):
    """A destination of one topic's loads. Methods raise LoadError, or OSError of the store.

    A killed driver may leave any call half done; each call then works again, also from another process.
    """

    @property
    def location(self) -> str:
        """Return the destination's name for messages: its URI."""
        ...

    @property
    def exclusive(self) -> bool:
        """Return True if two drivers may run at once."""
        ...

    def newest(self) -> StoredLoad | None:
        """Return the load with the highest number, or None in a new place.

        Raise LoadError if the place has data of this topic but no load: readers would see these rows twice.
        """
        ...

    def find(self, number: int) -> StoredLoad | None:
        """Return the load of a number, or None if there is no such load."""
        ...

    def check(self, newest: StoredLoad | None) -> Target | None:
        """Return the target as it is now, with the last load's commit; None if it is not there, or has no identity.

        Change nothing. Raise OtherTarget unless the target is the one that `newest` names, and has what the last load
        committed.
        """
        ...

    def prepared(self, load: Load) -> Load:
        """Make the target if it is not there, and return the load with its target."""
        ...

    def held(self, receipts: Sequence[Receipt]) -> set[int]:
        """Return the numbers of loads of which the target still has files or messages, as far as it can tell."""
        ...

    def contents(self, receipts: Sequence[Receipt]) -> Contents:
        """Compare the target with the receipts of all published loads of the chain, and files with their hashes."""
        ...

    def rows(self) -> int | None:
        """Return the number of rows that the target has now, None if its metadata does not have it: no data is read."""
        ...

    def begin_chain(self, after: int) -> None:
        """Begin the chain of loads after the one of this number. The record of the old one stays as it is.

        If another driver did already, do nothing.
        """
        ...

    def save(self, load: Load) -> None:
        """Save the plan of a load, durably, if no load of its number is there. Raise LoadTaken otherwise."""
        ...

    def written(self, load: Load, part: OffsetRange) -> WrittenPart | None:
        """Return the part if a driver has written it completely, else None."""
        ...

    def write(
        self,
        load: Load,
        part: OffsetRange,
        rows: Rows,
        lost: tuple[OffsetRange, ...] = (),
        on_rejected: OnRejected = ignore,
    ) -> WrittenPart:
        """Write all rows of a part, durably. Plain readers do not see them yet, as far as the store allows.

        `on_rejected` gets the messages whose values do not decode, and may raise an exception. `lost` are offsets of
        the part that the log no longer has. If another driver wrote the part meanwhile, return either of both: they
        differ at most in lost rows.
        """
        ...

    def publish(self, load: Load, parts: Sequence[WrittenPart]) -> Receipt:
        """Publish a load whose parts are all written; the load is then PUBLISHED. Return its receipt.

        Called again, or by two drivers, it adds nothing, and returns the receipt of the first decision. Raise
        OtherTarget, and add nothing, if the target is not the one of the plan, or lost what earlier loads committed.
        """
        ...

    def withdraw(self, load: Load) -> None:
        """Decide that a load brings nothing in: it is then WITHDRAWN, unless a driver decided otherwise before."""
        ...

    def strays(self, named: Container[str]) -> Iterator[str]:
        """Yield the names of data files that readers see, that `named` does not have, and that no other topic has."""
        ...


def last_standing(sink: Sink, newest: StoredLoad | None) -> StoredLoad | None:
    """Return the newest load that was not withdrawn; None without one."""
    if newest is None or newest.state is not LoadState.WITHDRAWN:
        return newest
    return None if newest.load.follows < 0 else sink.find(newest.load.follows)


class SourceLog(Log, Protocol):
    """The log that loads come from."""

    def bytes_per_offset(self, ranges: Sequence[OffsetRange]) -> dict[int, float]:
        """Return the estimated average bytes of a message in each partition's range; partitions may be missing.

        Only the split into files depends on it, and the saved load fixes that.
        """
        ...

    def rows(self, load: Load, within: OffsetRange) -> Rows:
        """Return the rows of a part, or of the end of one: complete, or an exception while they are iterated."""
        ...
