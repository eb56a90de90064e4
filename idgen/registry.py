"""Worker numbers and their high-water marks, as procedures over a coordinator.

    /snowflake-servers/<number>          ephemeral, "host:port" (as Twitter's): the live holder; people read it, and a
                                         claim passes the number by
    /snowflake-servers-marks             persistent, the layout that all numbers are used with
    /snowflake-servers-marks/<number>    persistent, a Mark: the high-water mark H and the token of its claim

Uniqueness rests on the marks alone. The holder of number n issues ids of millisecond t only while t < H, after the
registry has acknowledged H. A claim of n replaces the mark by a versioned set and starts at t >= the old H. So the old
and the new holder's ids differ, whatever the old holder does and whatever any clock says. The next set of a replaced
holder fails and tells it.

If the answer to a set is lost, the token decides: a mark with our token is ours, at the version read with it.
"""

import json
from collections.abc import Callable, Generator, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

from coordination.port import BadVersion, Children, Create, Delete, Get, Node, NodeExists, NoNode, Operation, Set, child
from idgen.errors import IdError, LayoutMismatch, NoWorkerNumber, WorkerIdsExhausted
from idgen.layout import Layout, utc_text
from idgen.worker import MAX_AHEAD_MS

LEAD_MS = 30_000  # ids last this long without the registry; a crashed holder's number rests this long

JUST_NOW_MS = 1_000  # a claim younger than this came from a process that started when ours did

IDS, LOG, IN_PROCESS = "ids", "log", "in process"  # roles: the id service, a broker's stamps, a program's Snowflake
AHEAD = "log ahead"  # role: a broker's stamps for logs whose last id is ahead of the clock

T = TypeVar("T")
Steps = Generator[Operation, Any, T]  # yields operations, receives their results, returns T
Chance = Callable[[], float]  # random numbers in [0, 1)


def no_chance() -> float:
    """A `Chance` without randomness: every pause and every choice is the first possible."""
    return 0.0


class TakenOver(IdError):
    """Another claim has written the mark, so the number is no longer ours."""


class CorruptMark(IdError):
    """A mark that cannot be read; its number is not given out until an operator has looked at it."""


class NumberBusy(NoWorkerNumber):
    """The number is held or rests; `retry_at_ms` is the time when its mark passes, if known."""

    def __init__(self, message: str, retry_at_ms: int | None = None) -> None:
        super().__init__(message)
        self.retry_at_ms = retry_at_ms


class Beaten(NumberBusy):
    """Another claim took the number a moment earlier."""


@dataclass(frozen=True)
class Mark:
    """The record of a worker number. Times are Unix ms; the holder of `token` began at `start_ms`.

    `role` is the purpose of the holder's ids: IDS answers at its address by Thrift, the other roles do not.
    """

    high_water_ms: int
    start_ms: int
    token: str
    address: str
    role: str = ""

    def to_bytes(self) -> bytes:
        return json.dumps(self.__dict__).encode()

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> "Mark":
        """Parse a record that `to_bytes` wrote. CorruptMark for other data."""
        try:
            mark = cls(**json.loads(data))
            good = isinstance(mark.high_water_ms, int) and isinstance(mark.start_ms, int)
        except (ValueError, TypeError):
            good = False
        if not good:
            raise CorruptMark(f"{path} holds no high-water mark: {data[:100]!r}; delete it when its holder is gone")
        return mark


class Held(NamedTuple):
    """A number that we hold, with its acknowledged mark and that mark's version."""

    number: int
    mark: Mark
    version: int


class Worker(NamedTuple):
    """A worker number as the registry has it. `living`: a session shows it as held. `mark` is None if the holder keeps
    no mark (Twitter's servers) or if the mark cannot be read; in the second case `problem` has the reason."""

    number: int
    living: bool
    address: str
    mark: Mark | None
    problem: str | None = None


@dataclass(frozen=True)
class Registry:
    """The `path` of the numbers, the `layout` of their ids, and our `address` and `role`, which others can read.

    `ahead_ms`: in role AHEAD, how far ids may lie ahead of the clock, besides the usual `max_ahead_ms`.
    """

    path: str = "/snowflake-servers"
    layout: Layout = field(default_factory=Layout)
    address: str = "in-process"
    lead_ms: int = LEAD_MS
    max_ahead_ms: int = MAX_AHEAD_MS
    role: str = IDS
    ahead_ms: int = 0

    @property
    def marks_path(self) -> str:
        return f"{self.path}-marks"

    def open(self) -> Steps[None]:
        """Record the layout, or compare ours with the recorded one. LayoutMismatch if they differ."""
        ours = json.dumps({"layout": self.layout.to_dict()}).encode()
        try:
            yield Create(self.marks_path, ours)
        except NodeExists:
            node: Node = yield Get(self.marks_path)
            recorded = _layout_of(self.marks_path, node.data)
            if recorded != self.layout:
                raise LayoutMismatch(
                    f"{self.marks_path} is used with {recorded}, this process is set to {self.layout}; ids of both "
                    f"could be equal. Set the recorded layout (flakelog.ids.*), or use another registry"
                ) from None

    def workers(self) -> Steps[list[Worker]]:
        """Return every number that is or was held."""
        live = yield from self._names(self.path)
        marked = yield from self._names(self.marks_path)
        return (yield from self._described(sorted(_numbers((*live, *marked)))))

    def neighbours(self, own: set[int], most: int) -> Steps[list[Worker]]:
        """Return at most `most` live workers other than `own`: those with the next higher numbers, wrapping around.

        So no two of a thousand processes ask the same peers."""
        living = _numbers((yield from self._names(self.path))) - own
        after = max(own, default=-1)
        return (yield from self._described(sorted(living, key=lambda number: (number <= after, number))[:most]))

    def _described(self, numbers: Iterable[int]) -> Steps[list[Worker]]:
        workers = []
        for number in numbers:
            living = yield from self._peek(child(self.path, str(number)))
            node = yield from self._peek(self._mark_path(number))
            workers.append(self._worker(number, living, node))
        return workers

    def _worker(self, number: int, living: Node | None, node: Node | None) -> Worker:
        mark, problem = None, None
        if node is not None:
            try:
                mark = Mark.from_bytes(self._mark_path(number), node.data)
            except CorruptMark as error:
                problem = str(error)
        shown = living.data.decode(errors="replace") if living else mark.address if mark else ""
        return Worker(number, living is not None, shown, mark, problem)

    def claim(
        self,
        numbers: Sequence[int],
        token: str,
        now_ms: int,
        chance: Chance = no_chance,
        rests: MutableMapping[int, int] | None = None,
    ) -> Steps[Held]:
        """Claim the first of `numbers` that no session shows as held and whose mark has passed. WorkerIdsExhausted.

        `rests`, which the caller keeps between attempts, holds the time until which a number rests: its mark is not
        read before. After each lost race the claim chooses at random among twice as many numbers (two, four...),
        because a thousand claims that start together would otherwise race for each number.
        """
        live = set((yield from self._names(self.path)))
        rests = {} if rests is None else rests
        free = [number for number in numbers if str(number) not in live and rests.get(number, 0) <= now_ms]
        choice = 1
        while free:
            number = free.pop(int(chance() * min(choice, len(free))))
            try:
                return (yield from self._take(number, token, now_ms))
            except NumberBusy as busy:
                choice *= 1 + isinstance(busy, Beaten)
                rests[number] = busy.retry_at_ms or 0
            except CorruptMark:
                continue
        raise WorkerIdsExhausted(f"all {len(numbers)} worker numbers of {self.path} are held or rest after a crash")

    def claim_number(self, number: int, token: str, now_ms: int, session_id: int | None = None) -> Steps[Held]:
        """Claim this number and no other. NumberBusy has its holder, or the time until which it rests.

        A node of our session is not another holder's: it is left over from a claim of ours that was taken over.
        """
        living = yield from self._peek(child(self.path, str(number)))
        if living is not None and living.owner != session_id:
            mark = yield from self._peek(self._mark_path(number))
            if mark is None or Mark.from_bytes(self._mark_path(number), mark.data).token != token:
                raise NumberBusy(f"worker number {number} is held by {living.data.decode(errors='replace')}")
        return (yield from self._take(number, token, now_ms))

    def raise_mark(self, held: Held, now_ms: int) -> Steps[Held]:
        """Raise the mark to one lead after `now_ms`; never lower it. TakenOver."""
        return (yield from self._write(held, max(held.mark.high_water_ms, now_ms + self.lead_ms)))

    def confirm(self, held: Held) -> Steps[Held]:
        """Return the current mark, after answers may have been lost. TakenOver if the number is no longer ours."""
        path = self._mark_path(held.number)
        try:
            node: Node = yield Get(path)
        except NoNode:
            raise TakenOver(f"{path} was deleted") from None
        mark = Mark.from_bytes(path, node.data)
        if mark.token != held.mark.token:
            raise TakenOver(f"worker number {held.number} was claimed by {mark.address}")
        return Held(held.number, mark, node.version)

    def register(self, number: int) -> Steps[None]:
        """Create our node among the live workers. An existing node is ours, or a dead session's that will expire."""
        try:
            yield Create(child(self.path, str(number)), self.address.encode(), ephemeral=True)
        except NodeExists:
            pass

    def withdraw(self, number: int, session_id: int | None) -> Steps[None]:
        """Delete our node of a number that was taken over: it would show the number as held while our session lives."""
        path = child(self.path, str(number))
        living = yield from self._peek(path)
        if living is not None and living.owner == session_id:
            try:
                yield Delete(path)
            except NoNode:
                pass

    def release(self, held: Held, last_ms: int) -> Steps[None]:
        """Lower the mark to just above `last_ms`, so that the number need not rest, and delete our node. TakenOver."""
        yield from self._write(held, last_ms + 1)  # first, because after a take-over the node is the new holder's
        try:
            yield Delete(child(self.path, str(held.number)))
        except NoNode:
            pass

    def _write(self, held: Held, high_water_ms: int) -> Steps[Held]:
        """Set H at the version we know. If the node's version is newer, retry if its mark is still ours. TakenOver."""
        while True:
            mark = replace(held.mark, high_water_ms=high_water_ms)
            try:
                version: int = yield Set(self._mark_path(held.number), mark.to_bytes(), held.version)
            except (BadVersion, NoNode):
                held = yield from self.confirm(held)
            else:
                return Held(held.number, mark, version)

    def _take(self, number: int, token: str, now_ms: int) -> Steps[Held]:
        """Claim a number that no session shows as held. NumberBusy before its mark has passed, Beaten in a race."""
        path = self._mark_path(number)
        node = yield from self._peek(path)
        if node is None:
            mark = self._new_mark(self._first_ms(now_ms, 0), token)
            write: Operation = Create(path, mark.to_bytes())
        else:
            old = Mark.from_bytes(path, node.data)
            if old.token == token:  # this claim wrote it, and the answer was lost
                return Held(number, old, node.version)
            self._check_passed(number, old, now_ms)
            mark = self._new_mark(self._first_ms(now_ms, old.high_water_ms), token)
            write = Set(path, mark.to_bytes(), node.version)
        try:
            result = yield write
        except (BadVersion, NodeExists, NoNode):
            raise Beaten(f"worker number {number} was claimed by someone else just now") from None
        return Held(number, mark, 0 if isinstance(write, Create) else result)

    def _first_ms(self, now_ms: int, old_high_water_ms: int) -> int:
        """Return where a new holder starts. This is the fence: no id below the old mark is ever issued again."""
        return max(now_ms, old_high_water_ms, self.layout.epoch_ms)

    def passes_at_ms(self, mark: Mark) -> int:
        """Return the time when a mark counts as passed, in Unix ms.

        A mark within the run-ahead counts too, because a clean close wrote it, and new ids start above it anyway. A
        broker whose ids may lie further ahead takes up the mark of another such broker, or its own after a restart.
        """
        ahead_ms = self.ahead_ms if mark.role == self.role == AHEAD else 0
        return mark.high_water_ms - self.max_ahead_ms - ahead_ms

    def _check_passed(self, number: int, mark: Mark, now_ms: int) -> None:
        passes_at_ms = self.passes_at_ms(mark)
        if passes_at_ms > now_ms:
            busy = Beaten if abs(now_ms - mark.start_ms) < JUST_NOW_MS else NumberBusy
            raise busy(
                f"worker number {number} rests until {utc_text(passes_at_ms) or 'a time after the year 9999'}: "
                f"{mark.address} held it and did not give it back",
                passes_at_ms,
            )

    def _new_mark(self, start_ms: int, token: str) -> Mark:
        return Mark(start_ms + self.lead_ms, start_ms, token, self.address, self.role)

    def _names(self, path: str) -> Steps[tuple[str, ...]]:
        """Return the names of a node's children; none if the node does not exist."""
        try:
            names: tuple[str, ...] = yield Children(path)
        except NoNode:
            names = ()
        return names

    def _peek(self, path: str) -> Steps[Node | None]:
        try:
            node: Node = yield Get(path)
        except NoNode:
            return None
        return node

    def _mark_path(self, number: int) -> str:
        return child(self.marks_path, str(number))


def _numbers(names: Iterable[str]) -> set[int]:
    return {int(name) for name in names if name.isdecimal()}


def _layout_of(path: str, data: bytes) -> Layout:
    try:
        return Layout.from_dict(json.loads(data)["layout"])
    except (ValueError, TypeError, KeyError) as error:
        raise LayoutMismatch(f"{path} holds no layout ({error}): {data[:100]!r}") from None
