"""The driver of loads: finish the load of a killed run, then plan, write and publish the next one.

All state is in the sink, so a run may be killed anywhere, and several may run at once. A target that is not the one of
the earlier loads is refused first, or a new chain begins (--start-over). Then the state of the newest load decides:

    newest load     this run
    WITHDRAWN       ignores it: the load before it is the newest
    PLANNED         writes the parts that are not written yet, and publishes it
    DECIDED         lets the sink finish the publication; reads nothing
    finished        plans the next load and saves it; if another driver saved that number first, takes up its load

Two drivers at work on one load write the same rows into the same parts, and the sink decides once. So double work is
harmless, and no driver waits for another, which may have been killed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from broker.client.offset_spec import Earliest
from spark_bridge.load.ledger import (
    LoadOptions,
    LostData,
    Since,
    check_log,
    check_place,
    check_since,
    check_unread,
    next_load,
)
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import Receipt, WrittenPart
from spark_bridge.load.rejections import Rejections, TooManyRejected
from spark_bridge.load.sink import LoadState, LoadTaken, Sink, SourceLog, StoredLoad, last_standing
from spark_bridge.load.target_check import OtherTarget, still_there
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss

ROUNDS_MAX = 100
"""Loads of one run. A run ends after the first load that it planned itself; before that it finishes those of others,
and meets at most one of each driver that runs beside it."""

RunAll = Callable[[Iterable[Callable[[], WrittenPart]]], Sequence[WrittenPart]]
"""Runs jobs, side by side or one after another, and returns their results in order. If a job raises an exception, the
function stops the others and raises it."""


class Watcher(Protocol):
    """Receives the progress of a run."""

    def begins(self, load: Load, unread: Sequence[OffsetRange]) -> None: ...

    def ends(self, load: Load, receipt: Receipt) -> None: ...

    def withdrawn(self, load: Load) -> None: ...


@dataclass(slots=True)
class Outcome:
    """The loads that a run published, in order."""

    loads: list[Load] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    rejected: str | None = None
    """A message that this run kept apart because its value did not decode, in words."""
    target_rows: int | None = None
    """Rows that the target has after the run, also those of other writers; None if its metadata does not say it."""
    rows_before_chain: int | None = None
    """Rows that the target had when this run began a new chain of loads in it; None for any other run."""

    @property
    def rows(self) -> int:
        return sum(receipt.rows for receipt in self.receipts)

    @property
    def lost(self) -> list[OffsetRange]:
        """Return the offsets that the log no longer had, and whose loss the user accepted."""
        return [range_ for load in self.loads for range_ in load.lost] + [
            range_ for receipt in self.receipts for range_ in receipt.lost
        ]


@dataclass(frozen=True, slots=True)
class Driver:
    """A run of `flakelog load` over its ports."""

    options: LoadOptions
    sink: Sink
    source: SourceLog
    run_all: RunAll
    watcher: Watcher
    code_version: str

    def run(self) -> Outcome:
        """Load the messages after the last load. Raise LoadError, an error of the source, or OSError of the store."""
        outcome, options = Outcome(), self.options
        if options.start_over:
            self._start_over(outcome)
        for _ in range(ROUNDS_MAX):
            last = self.sink.newest()
            newest = last_standing(self.sink, last)
            target = self.sink.check(newest)
            if newest is None:
                options = self.options
            else:
                check_place(options, newest.load)
                if options.since.start is not None:
                    check_since(options, newest.load, is_finished=not newest.unfinished)
            if newest is not None and newest.unfinished:
                self._take_up(newest, outcome)
            else:
                load = self.plan(newest, options, withdrawn=None if newest is last else last)
                if load is None:
                    return outcome
                load = self.sink.prepared(replace(load, target=target))
                if self._saved(load, options) and self._finish(load, load.parts, outcome):
                    return outcome
            options = replace(options, since=Since())  # the place has a beginning now
        raise LoadError(
            f"other drivers planned {ROUNDS_MAX} loads in {self.sink.location} during this run; run it again"
        )

    def plan(
        self, newest: StoredLoad | None, options: LoadOptions, *, withdrawn: StoredLoad | None = None
    ) -> Load | None:
        """Return the next load after a published one, or None without new messages. Change nothing."""
        return next_load(options, newest, self.source, self.code_version, withdrawn=withdrawn)

    def _start_over(self, outcome: Outcome) -> None:
        """Begin a new chain, unless a killed run has begun one. Raise OtherTarget if rows would come twice."""
        newest = self.sink.newest()
        if newest is not None and begins_chain(self.sink, newest, self.options.since):
            outcome.rows_before_chain = self.sink.rows()
            self.sink.begin_chain(newest.load.chain)

    def _saved(self, load: Load, options: LoadOptions) -> bool:
        """Save a load. Return False if another driver saved one of this number."""
        try:
            self.sink.save(load)
        except LoadTaken:
            stored = self.sink.find(load.number)
            if stored is not None:
                check_since(options, stored.load, is_finished=False)
            return False
        return True

    def _take_up(self, newest: StoredLoad, outcome: Outcome) -> None:
        """Finish a load that another run left, or is at work on."""
        load = newest.load
        if newest.state is LoadState.DECIDED:
            assert newest.receipt is not None, "a decided load has a receipt"
            self._done(load, self.sink.publish(load, newest.receipt.parts), outcome)
            return
        unread = self._unread(load)
        lost: tuple[OffsetRange, ...] = ()
        try:
            self._check_readable(load, unread)
        except LostData as error:
            if not self.options.accept_loss:
                self._give_up(load, error, outcome)
                return
            lost = error.ranges
        except LoadError as error:
            self._give_up(load, error, outcome)
            return
        self._finish(load, unread, outcome, lost)

    def _unread(self, load: Load) -> list[OffsetRange]:
        return [part for part in load.parts if self.sink.written(load, part) is None]

    def _check_readable(self, load: Load, unread: Sequence[OffsetRange]) -> None:
        if unread:
            check_log(load, self.source.describe([load.topic]))
            check_unread(load, unread, self.source)

    def _finish(
        self,
        load: Load,
        unread: Sequence[OffsetRange],
        outcome: Outcome,
        lost: tuple[OffsetRange, ...] = (),
    ) -> bool:
        """Write the parts that are not written yet, without `lost` offsets, and publish. Return False if that is open.
        """
        self.watcher.begins(load, unread)
        rejections = Rejections(load, self.options.max_rejected)
        try:
            parts = self.run_all(self._jobs(load, lost, rejections, resumed=unread != load.parts))
            receipt = self.sink.publish(load, parts)
        except DataLoss as error:
            return self._give_up(load, self._explained(load, error), outcome)
        except TooManyRejected as error:
            self.sink.withdraw(load)
            return self._give_up(load, error, outcome)
        except Exception as error:
            return self._give_up(load, error, outcome)
        outcome.rejected = outcome.rejected or rejections.example
        self._done(load, receipt, outcome)
        return True

    def _jobs(
        self, load: Load, lost: tuple[OffsetRange, ...], rejections: Rejections, *, resumed: bool
    ) -> Iterator[Callable[[], WrittenPart]]:
        """Yield a job for each part; the last part first if another driver may be at work on the first ones."""
        at_begin = {(range_.partition, range_.start): range_ for range_ in lost}
        for part in reversed(load.parts) if resumed else load.parts:
            yield partial(self._write, load, part, at_begin.get((part.partition, part.start)), rejections)

    def _write(
        self, load: Load, part: OffsetRange, lost: OffsetRange | None, rejections: Rejections
    ) -> WrittenPart:
        """Write a part if no driver has. `lost` are offsets at its beginning."""
        written = self.sink.written(load, part)
        if written is not None:
            rejections.add_written(written)
            return written
        within = part if lost is None else replace(part, start=lost.end)
        return self.sink.write(
            load, part, self.source.rows(load, within), () if lost is None else (lost,), rejections.of(part)
        )

    def _explained(self, load: Load, error: DataLoss) -> Exception:
        """Return the error with all ranges that are lost and the way out, if the log shows them."""
        try:
            self._check_readable(load, self._unread(load))
        except LoadError as better:
            return better
        return error

    def _give_up(self, load: Load, error: Exception, outcome: Outcome) -> bool:
        """Publish the load and return True if another driver decided on it meanwhile.

        Otherwise raise the error, or return False if the caller is to try again: another driver withdrew the load, or
        it lacks messages whose loss the user accepts.
        """
        stored = self.sink.find(load.number)
        if stored is not None and stored.state is LoadState.WITHDRAWN:
            if isinstance(error, TooManyRejected):
                self.watcher.withdrawn(load)
                raise error
            return False
        if stored is None or stored.state is LoadState.PLANNED:
            if stored is not None and self.options.accept_loss and isinstance(error, LostData):
                return False  # the next attempt writes the loss into the load
            raise error
        assert stored.receipt is not None, "a decided load has a receipt"
        self._done(load, self.sink.publish(load, stored.receipt.parts), outcome)
        return True

    def _done(self, load: Load, receipt: Receipt, outcome: Outcome) -> None:
        outcome.loads.append(load)
        outcome.receipts.append(receipt)
        self.watcher.ends(load, receipt)


def begins_chain(sink: Sink, newest: StoredLoad, since: Since) -> bool:
    """Return False if a killed run has begun a new chain, which is finished first.

    Raise OtherTarget if the target has messages of the old chain, and the new one would bring them too. It would not if
    the target was put back to an older state, and the user says where the new chain begins.
    """
    if newest.load.chain and not newest.load.number and newest.unfinished:
        return False
    try:
        sink.check(last_standing(sink, newest))
        is_put_back = False
    except OtherTarget:  # the reason to start over
        is_put_back = True
    if is_put_back and since.start not in (None, Earliest()):
        return True
    receipts = (sink.find(number) for number in range(newest.load.number + 1))
    held = sink.held([stored.receipt for stored in receipts if stored is not None and stored.receipt is not None])
    if held:
        raise still_there(sink.location, max(held), is_put_back=is_put_back)
    return True
