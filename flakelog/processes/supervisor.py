"""The core of a parent of brokers: when to start each child, when to signal it, and how everything ends.

    DEAD -> STARTING -> READY -> STOPPING -> DEAD

A child that dies is started again at once, at its next death after 1 s, then after 2, 4, .. 30 s. Each death leaves a
worker number resting, so a child that dies each second must not use up all of them. After a minute in READY the pauses
begin anew. A child in READY that does not beat is killed: a stopped process keeps the lock of its session, so it would
count as a live leader of its partitions. A child in STARTING is not held to beats, because recovery reads logs for
minutes.

The shell carries out the orders, and reports events with its time: monotonic ms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from flakelog.processes.messages import BEAT_MS, Ready

RESTART_PAUSES_MS = (0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000)
QUIET_MS = 60_000
STALL_MS = 5_000  # after such a time without a tick the parent did not run, and perhaps its children did not run
REFUSED = (1, 2)  # exit codes of `flakelog server` if it cannot start: a failure, and wrong usage
TERMINATED = -15  # a process that ended by SIGTERM, as subprocess has it


class ChildState(Enum):
    DEAD = "dead"
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"


class Signal(Enum):
    TERM = "SIGTERM"
    KILL = "SIGKILL"


class Start(NamedTuple):
    """The order to start a child."""

    child: int


class Send(NamedTuple):
    """The order to signal a child."""

    child: int
    signal: Signal


class Tell(NamedTuple):
    """The order to write a line for the operator."""

    line: str


Order = Start | Send | Tell


class Outcome(NamedTuple):
    """The end of a parent: its exit code, and the index of the child whose start was refused."""

    status: int
    refused: int | None = None
    unclean: tuple[str, ...] = ()
    """The names of children that did not stop cleanly."""


@dataclass
class _Child:
    name: str
    state: ChildState = ChildState.DEAD
    start_at_ms: int | None = None
    ready: Ready | None = None
    """Its last readiness; None before the first."""
    ready_ms: int | None = None
    """The time of the readiness in this life."""
    beat_ms: int = 0
    deaths: int = 0
    killed: bool = False

    @property
    def runs(self) -> bool:
        return self.state is not ChildState.DEAD


class Supervisor:
    """The children of one parent, by index. Each has a name for the operator."""

    def __init__(self, names: Sequence[str], *, beat_timeout_ms: int, stop_timeout_ms: int) -> None:
        """`beat_timeout_ms`: time without a beat before a KILL; `stop_timeout_ms`: time between TERM and KILL."""
        self._children = [_Child(name) for name in names]
        self._beat_timeout_ms = beat_timeout_ms
        self._stop_timeout_ms = stop_timeout_ms
        self._orders: list[Order] = []
        self._tick_ms: int | None = None
        self._kill_at_ms: int | None = None
        """None while the children are to run."""
        self._refused: int | None = None
        self._status = 0
        self._unclean: list[str] = []

    # --- for the shell -------------------------------------------------------------------------------------------

    def take_orders(self) -> list[Order]:
        orders, self._orders = self._orders, []
        return orders

    @property
    def states(self) -> tuple[ChildState, ...]:
        return tuple(child.state for child in self._children)

    @property
    def ready_children(self) -> list[Ready] | None:
        """The readiness of all children, or None while one of them is not ready."""
        ready = [child.ready for child in self._children if child.state is ChildState.READY and child.ready is not None]
        return ready if len(ready) == len(self._children) else None

    @property
    def stopping(self) -> bool:
        return self._kill_at_ms is not None

    @property
    def outcome(self) -> Outcome | None:
        """The end, once all children have ended after a stop; None before."""
        if not self.stopping or any(child.runs for child in self._children):
            return None
        return Outcome(self._status or int(bool(self._unclean)), self._refused, tuple(self._unclean))

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due; None if only events matter."""
        deadlines = [child.start_at_ms for child in self._children if child.start_at_ms is not None]
        if any(child.state is ChildState.READY for child in self._children) and self._tick_ms is not None:
            deadlines.append(self._tick_ms + BEAT_MS)
        if self._kill_at_ms is not None and self._to_kill():
            deadlines.append(self._kill_at_ms)
        return min(deadlines, default=None)

    # --- events --------------------------------------------------------------------------------------------------

    def begin(self, now_ms: int) -> None:
        """Start all children."""
        for child in self._children:
            child.start_at_ms = now_ms
        self.tick(now_ms)

    def began(self, index: int, now_ms: int) -> None:
        """Note that the child's process runs."""
        child = self._children[index]
        child.state, child.ready_ms, child.killed, child.beat_ms = ChildState.STARTING, None, False, now_ms

    def ready(self, index: int, ready: Ready, now_ms: int) -> None:
        child = self._children[index]
        if child.state is ChildState.STARTING:
            child.state = ChildState.READY
            child.ready, child.ready_ms, child.beat_ms = ready, now_ms, now_ms

    def beat(self, index: int, now_ms: int) -> None:
        self._children[index].beat_ms = now_ms

    def exited(self, index: int, status: int, now_ms: int) -> None:
        """Note that the child's process has ended, or could not begin; `status` is -N if signal N ended it."""
        child = self._children[index]
        lived_ms = 0 if child.ready_ms is None else now_ms - child.ready_ms
        interrupted_start = child.ready_ms is None and status == TERMINATED
        child.state, child.ready_ms = ChildState.DEAD, None
        ending = f"{child.name} ended by signal {-status}" if status < 0 else f"{child.name} ended with status {status}"
        if self.stopping:
            if status and not interrupted_start:
                self._unclean.append(child.name)
                self._orders.append(Tell(f"{ending} while it stopped"))
        elif child.ready is None and status in REFUSED:
            self._refused, self._status = index, status
            self.stop(now_ms)
        else:
            child.deaths = 0 if lived_ms >= QUIET_MS else child.deaths
            pause_ms = RESTART_PAUSES_MS[min(child.deaths, len(RESTART_PAUSES_MS) - 1)]
            child.deaths += 1
            child.start_at_ms = now_ms + pause_ms
            again = f"in {pause_ms // 1_000} s" if pause_ms else "at once"
            self._orders.append(Tell(f"{ending}; it is started again {again}"))

    def stop(self, now_ms: int) -> None:
        """Stop all children. A second call sends TERM again, which ends their grace periods."""
        if not self.stopping:
            self._kill_at_ms = now_ms + self._stop_timeout_ms
            self._orders = [order for order in self._orders if not isinstance(order, Start)]
            # A child that waits for its restart stopped by its death, and its next start recovers.
            waiting = [child for child in self._children if child.start_at_ms is not None]
            self._unclean += [child.name for child in waiting]
            for child in waiting:
                child.start_at_ms = None
        for index in self._to_kill():
            self._children[index].state = ChildState.STOPPING
            self._orders.append(Send(index, Signal.TERM))

    def tick(self, now_ms: int) -> None:
        """Order the starts and signals that are due. The shell first reports all beats that it has received."""
        stalled = self._tick_ms is not None and now_ms - self._tick_ms >= STALL_MS
        self._tick_ms = now_ms
        for index, child in enumerate(self._children):
            if stalled:
                child.beat_ms = now_ms
            if child.start_at_ms is not None and now_ms >= child.start_at_ms:
                child.start_at_ms = None
                self._orders.append(Start(index))
            silent_ms = now_ms - child.beat_ms
            if child.state is ChildState.READY and silent_ms >= self._beat_timeout_ms:
                self._orders.append(Tell(f"{child.name} has not answered for {silent_ms} ms; it is killed"))
                self._kill(index)
        if self._kill_at_ms is not None and now_ms >= self._kill_at_ms:
            for index in self._to_kill():
                late = f"{self._children[index].name} has not stopped within {self._stop_timeout_ms} ms; it is killed"
                self._orders.append(Tell(late))
                self._kill(index)

    def _to_kill(self) -> list[int]:
        """Return the children that run and have not been killed."""
        return [index for index, child in enumerate(self._children) if child.runs and not child.killed]

    def _kill(self, index: int) -> None:
        child = self._children[index]
        child.state, child.killed = ChildState.STOPPING, True
        self._orders.append(Send(index, Signal.KILL))


def joined(ready_children: Sequence[Ready]) -> Ready:
    """Return the addresses of all children by name, with commas between, and the scopes of their ids.

    An address that all children share is named once: HTTP, ids.
    """
    names = dict.fromkeys(name for ready in ready_children for name in ready.addresses)
    addresses: Mapping[str, dict[str, None]] = {
        name: dict.fromkeys(ready.addresses[name] for ready in ready_children if name in ready.addresses)
        for name in names
    }
    scopes = dict.fromkeys(ready.scope for ready in ready_children)
    return Ready({name: ",".join(texts) for name, texts in addresses.items()}, ", ".join(scopes))
