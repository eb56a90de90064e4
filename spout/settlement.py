"""Messages settled exactly once: their outputs, their dead letters and their progress are committed in one transaction.

    begin --> hold, hold, ... --> ack: complete --> cut --> the sources settle it --> transaction --> committed
                 |
                 +-- fail --> its outputs are dropped, and it comes again

All spouts (sources) and sinks of one process share a Settlement. A message is complete when the trees of all its tuples
are; until then its outputs are held under this attempt of it. So a failed or late attempt leaves nothing.

A cut takes all complete messages, in the order they became so. Only now do the sources settle them, so the progress
that they store right after covers exactly these messages. Outputs and progress are one transaction, and the next cut
waits until it is committed. If it aborts, the same transaction is made again. If this process has lost one of the
partitions, or its producer is fenced, the transaction is discarded: another attempt will make these outputs.

If a topic will never take an output, because it is too large for instance, the transaction is made again with a dead
letter of its message in place of all outputs of the message. So messages stay in memory until their outputs are
committed.

An output that came from several messages binds them together, over partitions and tasks: they are committed together
and fail together. The state of bolts is not covered.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

from partition_manager.entry import Message
from partition_manager.ports import Answer, Buried, DeadLetter, Fenced, LetterRefused
from partition_manager.retry import RetryPolicy
from spout.sink_config import SinkConfig
from spout.sink_ports import Output
from spout.transaction_ports import (
    Aborted,
    Committed,
    Letter,
    OutputsRefused,
    Save,
    Transact,
    TransactAnswer,
    Transactor,
)

OnAnswer = Callable[[Answer], None]


class TransactionalSpout(Protocol):
    """A spout whose messages are settled by transactions."""

    def message(self, id: Any) -> Message | None:
        """Return the message in flight under this id. Return None if the id is stale."""

    def settle(self, id: Any) -> None:
        """Settle a message."""

    def refuse(self, id: Any, message: Message, error: str) -> Letter | None:
        """Return the dead letter of a settled message, of which an output is refused; None if there are no letters."""

    def fail_with(self, id: Any, error: str) -> None:
        """Fail a message because of another one with which it shares an output."""

    def flush(self, now_ms: int) -> None:
        """Process the answers so far, and call `save` for each save that the source has asked for, before returning."""

    def store_progress(self, now_ms: int) -> None:
        """Flush, and call `save` for each partition whose progress has changed, before returning."""


class CannotSettle(Exception):
    """No transaction can succeed; the message says why. It ends the topology."""


_Key = tuple[TransactionalSpout, Any]


class _Grave(NamedTuple):
    letter: Letter
    size: int
    answer: OnAnswer
    is_wanted: Callable[[], bool]


class _Part(NamedTuple):
    """The messages of one unit in a transaction, and how many of its outputs are theirs."""

    messages: list[tuple[TransactionalSpout, Any, Message]]
    outputs: int
    size: int


class _Unit:
    """Messages that are settled together, with the number of open trees of each, and their outputs in order."""

    __slots__ = ("open_trees", "outputs", "size")

    def __init__(self, key: _Key, trees: int) -> None:
        self.open_trees = {key: trees}
        self.outputs: list[tuple[int, Output]] = []
        self.size = 0

    def absorb(self, other: "_Unit") -> None:
        self.open_trees |= other.open_trees
        self.outputs = sorted([*self.outputs, *other.outputs], key=lambda numbered_output: numbered_output[0])
        self.size += other.size


class Settlement:
    """The messages in flight of all spouts of this process that feed a sink with `exactly_once`, and their outputs."""

    def __init__(self, config: SinkConfig) -> None:
        self.held_bytes = 0
        self._wake: Callable[[], None] = lambda: None
        self.counts = {"committed": 0, "aborted": 0, "discarded": 0}
        self._config = config
        self._pauses = RetryPolicy(100, 2.0, 5_000)
        self._sources: list[TransactionalSpout] = []
        self._transactor: Transactor | None = None
        self._numbers = count()
        self._units: dict[_Key, _Unit] = {}  # of messages whose trees are not complete
        self._complete: deque[_Unit] = deque()
        self._complete_bytes = 0
        self._graves: list[_Grave] = []
        self._saves: list[Save] = []
        self._current: Transact | None = None
        self._current_bytes = 0
        self._parts: list[_Part] = []  # of the current transaction, in the order of its outputs
        self._answers: deque[TransactAnswer] = deque()
        self._is_asked = self._is_finishing = False
        self._aborts = 0  # in a row
        self._retry_ms = self._last_cut_ms = 0
        self._notes: list[str] = []

    # --- wiring

    def add_source(self, source: TransactionalSpout) -> None:
        """Add a spout."""
        self._sources.append(source)

    def open(self, make: Callable[[], Transactor], wake: Callable[[], None] = lambda: None) -> None:
        """Open the transactor, unless another sink has opened it. `wake` is called when an answer has come."""
        if self._transactor is None:
            self._transactor = make()
            self._wake = wake

    def close(self) -> None:
        """Close the transactor; an open transaction is aborted by the broker."""
        if self._transactor is not None:
            self._transactor.close()
            self._transactor = None

    # --- calls of the sources

    @property
    def is_full(self) -> bool:
        """Return True if the sinks hold so much that the spouts must wait."""
        return self.held_bytes >= self._config.sink_held_bytes

    def begin(self, source: TransactionalSpout, id: Any, tuples: int) -> None:
        """Begin an attempt of a message: the spout emitted it as this number of tuples."""
        self._units[source, id] = _Unit((source, id), tuples)

    def forget(self, source: TransactionalSpout, id: Any) -> None:
        """Forget a message that the spout emitted as no tuples."""
        self._units.pop((source, id), None)

    def ack(self, source: TransactionalSpout, id: Any) -> None:
        """Count one complete tree of the message. Ignore an attempt that has failed."""
        unit = self._units.get((source, id))
        if unit is None:
            return
        unit.open_trees[source, id] -= 1
        if not any(unit.open_trees.values()):
            for key in unit.open_trees:
                del self._units[key]
            self._complete.append(unit)
            self._complete_bytes += unit.size

    def fail(self, source: TransactionalSpout, id: Any, error: str) -> None:
        """Drop the outputs of a failed attempt. Messages that share an output with it fail too."""
        unit = self._units.get((source, id))
        if unit is not None:
            self._drop(unit, error, but=(source, id))

    def save(self, save: Save) -> None:
        """Store the progress of a partition with the next transaction."""
        self._saves.append(save)

    def bury(self, topic: str, letter: DeadLetter, answer: OnAnswer, is_wanted: Callable[[], bool]) -> None:
        """Write a dead letter with the next cut; it is answered Buried then, so that the cut's progress covers it."""
        addressed_letter = Letter(topic, letter)
        self._graves.append(_Grave(addressed_letter, _size_of(addressed_letter), answer, is_wanted))
        self.held_bytes += self._graves[-1].size

    # --- calls of the sinks

    def hold(self, keys: Iterable[_Key], output: Output) -> bool:
        """Hold an output of these messages until they are complete.

        Return False if one of them has failed already: then the others fail too, and the output is dropped.
        """
        keys = list(dict.fromkeys(keys))
        units = list({id(unit): unit for key in keys if (unit := self._units.get(key)) is not None}.values())
        if not all(key in self._units for key in keys):
            for unit in units:
                self._drop(unit, "another message that it shares an output with has failed", but=None)
            return False
        first, *others = sorted(units, key=lambda unit: len(unit.open_trees), reverse=True)
        for other in others:
            first.absorb(other)
            for key in other.open_trees:
                self._units[key] = first
        first.outputs.append((next(self._numbers), output))
        first.size += output.size
        self.held_bytes += output.size
        return True

    # --- transactions

    def work(self, now_ms: int) -> bool:
        """Process answers, and begin the next transaction if it is due. Return True if there is an answer already.

        Raise CannotSettle if no transaction can succeed.
        """
        while self._answers:
            self._answered(self._answers.popleft(), now_ms)
        if self._current is None:
            self._begin_next(now_ms)
        if self._current is not None and not self._is_asked and now_ms >= self._retry_ms:
            assert self._transactor is not None, "no sink has opened the transactor"
            self._is_asked = True
            self._transactor.ask(self._current, self._answer)
        return bool(self._answers)

    def finish(self) -> None:
        """Commit the complete messages without waiting for the interval; see `is_settled`."""
        self._is_finishing = True

    @property
    def is_settled(self) -> bool:
        """Return True if no transaction is under way and nothing waits for one."""
        return self._current is None and not (self._complete or self._graves or self._saves)

    def next_deadline_ms(self) -> int | None:
        """Return when to call `work`, or None if nothing but an answer or a call changes anything."""
        if self._current is not None:
            return None if self._is_asked and not self._answers else self._retry_ms
        if self._saves:
            return self._last_cut_ms
        return self.next_cut_ms()

    def next_cut_ms(self) -> int | None:
        """Return when complete messages are settled next, or None if none waits, or a transaction is under way."""
        if self._current is None and (self._complete or self._graves):
            return self._last_cut_ms + (0 if self._is_hurried else self._config.sink_commit_interval_ms)
        return None

    def take_notes(self) -> list[str]:
        """Return and clear the lines for the log: aborted and discarded transactions."""
        notes, self._notes = self._notes, []
        return notes

    # --- internals

    def _answer(self, answer: TransactAnswer) -> None:
        self._answers.append(answer)
        self._wake()

    @property
    def _is_hurried(self) -> bool:
        return self._is_finishing or self.is_full or self._complete_bytes >= self._config.sink_commit_bytes

    def _begin_next(self, now_ms: int) -> None:
        if self._saves:  # of a partition that is given up, or of messages without outputs: as of the last cut
            self._start((), (), 0)
            return
        is_due = self._is_hurried or now_ms >= self._last_cut_ms + self._config.sink_commit_interval_ms
        if is_due and (self._complete or self._graves):
            self._cut(now_ms)

    def _cut(self, now_ms: int) -> None:
        for source in self._sources:
            source.flush(now_ms)
        if self._saves:  # computed before this cut, so they come first: a partition has one save at a time
            self._start((), (), 0)
        else:
            self._settle_complete(now_ms)

    def _settle_complete(self, now_ms: int) -> None:
        self._last_cut_ms = now_ms
        outputs: list[Output] = []
        size = 0
        complete, self._complete, self._complete_bytes = self._complete, deque(), 0
        self._parts = []
        for unit in complete:
            part = self._settle(unit)
            if part is not None and part.outputs:
                outputs += [output for _, output in unit.outputs]
                size += unit.size
                self._parts.append(part)
        letters: list[Letter] = []
        graves, self._graves = self._graves, []
        for grave in graves:
            if grave.is_wanted():
                letters.append(grave.letter)
                size += grave.size
                grave.answer(Buried())
            else:
                self.held_bytes -= grave.size
        for source in self._sources:
            source.store_progress(now_ms)
        self._start(outputs, letters, size)

    def _settle(self, unit: _Unit) -> _Part | None:
        """Settle the messages of a unit. Return None, and drop its outputs, if one of them is no longer ours."""
        in_unit = [(source, id, source.message(id)) for source, id in unit.open_trees]
        messages = [(source, id, message) for source, id, message in in_unit if message is not None]
        if len(messages) == len(in_unit):
            for source, id, _ in messages:
                source.settle(id)
            return _Part(messages, len(unit.outputs), unit.size)
        self.held_bytes -= unit.size
        for source, id in unit.open_trees:
            source.fail_with(id, "another message that it shares an output with was given up")
        return None

    def _start(self, outputs: Sequence[Output], letters: Sequence[Letter], size: int) -> None:
        saves = [save for save in self._saves if save.is_wanted()]
        self._saves = []
        if outputs or letters or saves:
            self._current, self._current_bytes = Transact(outputs, letters, saves), size

    def _answered(self, answer: TransactAnswer, now_ms: int) -> None:
        current = self._current
        assert current is not None, "an answer without a transaction"
        self._is_asked = False
        if isinstance(answer, LetterRefused):
            raise CannotSettle(answer.error)
        if isinstance(answer, OutputsRefused):
            self._refuse(current, answer.errors)
            return
        if isinstance(answer, Committed):
            self._end("committed")
            for save, saved in zip(current.saves, answer.saved, strict=True):
                save.answer(saved)
            return
        if isinstance(answer, Aborted) and all(save.is_wanted() for save in current.saves):
            self._again(answer.error, now_ms)
            return
        outputs = len(current.outputs)
        self._notes.append(f"a transaction of {outputs} records is discarded, its messages come again: {answer.error}")
        self._end("discarded")
        for save in current.saves:
            save.answer(Fenced(answer.error))

    def _refuse(self, current: Transact, errors: Mapping[int, str]) -> None:
        """Make the transaction again, with dead letters in place of the messages whose outputs are refused."""
        outputs: list[Output] = []
        letters = list(current.letters)
        parts, self._parts = self._parts, []
        first = 0
        for part in parts:
            numbers = range(first, first + part.outputs)
            first = numbers.stop
            error = next((errors[number] for number in numbers if number in errors), None)
            if error is None:
                outputs += current.outputs[numbers.start : numbers.stop]
                self._parts.append(part)
            else:
                dead_letters = [_letter_of(source, id, message, error) for source, id, message in part.messages]
                letters += dead_letters
                self._count_bytes(sum(_size_of(letter) for letter in dead_letters) - part.size)
                self._notes.append(f"{error}; {len(dead_letters)} of its messages go to the dead letters")
        self._current = Transact(outputs, letters, current.saves)

    def _count_bytes(self, more: int) -> None:
        self.held_bytes += more
        self._current_bytes += more

    def _again(self, error: str, now_ms: int) -> None:
        self.counts["aborted"] += 1
        self._aborts += 1
        self._retry_ms = now_ms + self._pauses.delay_ms(self._aborts)
        if self._aborts == 1:
            self._notes.append(f"a transaction was aborted: {error}; it is made again")

    def _end(self, outcome: str) -> None:
        self.counts[outcome] += 1
        self._aborts = 0
        self.held_bytes -= self._current_bytes
        self._current, self._current_bytes = None, 0
        self._parts = []

    def _drop(self, unit: _Unit, error: str, but: _Key | None) -> None:
        self.held_bytes -= unit.size
        for key in unit.open_trees:
            del self._units[key]
        for key in unit.open_trees:
            if key != but:
                source, id = key
                source.fail_with(id, error)


def _letter_of(source: TransactionalSpout, id: Any, message: Message, error: str) -> Letter:
    letter = source.refuse(id, message, error)
    if letter is None:
        raise CannotSettle(f"{error}; flakelog.spout.dead.letter.topic is empty, so the message has nowhere to go")
    return letter


def _size_of(letter: Letter) -> int:
    record = letter.letter.record
    return Output(letter.topic, record.key, record.value, record.headers).size
