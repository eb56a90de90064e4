"""Large requests, executed in slices so that the requests of other connections are executed in between.

    begin     a connection's request goes on in slices; the connection's later requests wait until it is done
    run       one slice of one request, or as many small ones as handle the partitions of one; requests take turns

A request waits before its first slice while AT_ONCE others are under way, because each needs memory for its items. If
its connection is closed, the request is dropped where it is. What it has changed until then stays, as if the connection
had been closed before the answer.
"""

from collections import deque

from broker.channel.connection import Connection
from broker.channel.partition_budget import PartitionBudget
from broker.channel.turn_clock import TurnClock
from broker.channel.turn_queue import TurnQueue
from broker.now import Now
from broker.steps import Steps

AT_ONCE = 8
SLICE_WAITS = 3  # while other connections have requests, so that all slices take about a quarter of the time


class Sliced:
    """A request in slices. `began_ns` is when its execution began."""

    __slots__ = ("conn", "steps", "began_ns", "started")

    def __init__(self, conn: Connection, steps: Steps[None], began_ns: int) -> None:
        self.conn = conn
        self.steps = steps
        self.began_ns = began_ns
        self.started = False

    def step(self, now: Now) -> bool:
        """Run a slice; return False if it was the last."""
        if self.conn.close_reason is not None:
            self.steps.close()
            return False
        try:
            if self.started:
                self.steps.send(now)
            else:
                self.started = True
                next(self.steps)
        except StopIteration:
            return False
        return True


class Slices:
    """The requests that are executed in slices. `steps` must catch every exception."""

    def __init__(self, queue: TurnQueue, clock: TurnClock, budget: PartitionBudget) -> None:
        self._queue = queue
        self._clock = clock
        self._budget = budget
        self.under_way: deque[Sliced] = deque()
        """The requests whose slices take turns. It is empty only if there is no request at all."""
        self._waiting: deque[Sliced] = deque()
        self._due_ns = 0

    def begin(self, conn: Connection, steps: Steps[None]) -> None:
        """Execute a request in slices, from the next call of `run` on."""
        conn.slice(1)
        request = Sliced(conn, steps, self._clock.began_ns)
        (self.under_way if len(self.under_way) < AT_ONCE else self._waiting).append(request)

    def run(self, is_busy: bool) -> None:
        """Run a slice. If `is_busy`, other connections have requests, and slices take a share of the time only."""
        clock = self._clock
        began_ns = clock.clock_ns()
        if is_busy and began_ns < self._due_ns:
            return
        budget = self._budget
        budget.begin_slices()
        handled = True
        while handled and self.under_way and budget.left > 0:
            # A request moves to the back after each slice. So a request with 10,000 partitions and one with 600 take
            # turns, and the small one is answered after a few slices.
            left = budget.left
            request = self.under_way.popleft()
            clock.began_ns = request.began_ns
            if request.step(clock.now):
                self.under_way.append(request)
            else:
                self._done(request)
            handled = budget.left < left  # other slices are of the largest size already
        ended_ns = clock.clock_ns()
        self._due_ns = ended_ns + SLICE_WAITS * (ended_ns - began_ns)

    def closed(self, conn: Connection) -> None:
        """Drop the request of a closed connection."""
        for request in [*self.under_way, *self._waiting]:
            if request.conn is conn:
                self._drop(request)

    def _done(self, request: Sliced) -> None:
        request.conn.slice(-1)
        self._queue.resume(request.conn)
        if self._waiting:
            self.under_way.append(self._waiting.popleft())

    def _drop(self, request: Sliced) -> None:
        request.steps.close()
        if request in self.under_way:
            self.under_way.remove(request)
            if self._waiting:
                self.under_way.append(self._waiting.popleft())
        else:
            self._waiting.remove(request)
