"""A fair queue for ids: when ids run out, the waiting requests take turns.

Ids are issued up to a bound ahead of the clock (`IdWorker.max_ahead_ms`). While they last, a request takes all the ids
it asks for. When they are used up, the request joins the queue. While one request waits, every other request for ids
joins the end of the queue, whatever its protocol. A turn gives at most the ids of one millisecond, which the clock
brings in one millisecond. A request that wants more keeps the ids it has and rejoins the queue at its end. So for each
turn that its ids take, a request waits at most one turn (one millisecond) of each request already waiting: neighbours
delay a flood, but a flood does not delay its neighbours.

A flood does not delay the rest of the process either, such as a log served by the same reactor. In one reactor
iteration, all id connections together are answered at most the calls that a `TurnBudget` allows. When that budget is
used up, the turn ends, and all other calls wait in the queue for the next iteration.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from idgen.errors import IdError, SequenceExhausted
from idgen.service import IdService, Order
from idgen.wire import Call, CallDecoder, encode_runs

UNLIMITED = 1 << 62  # ids of a turn while only one request waits
TAKES_IDS = ("get_id", "get_ids")
IDS_OF_A_CALL = 64  # this many ids of a batch take as long as a call for one id


class TurnBudget:
    """The call budget of one reactor iteration, which all id connections share.

    A call has at most IDS_OF_A_CALL ids; a larger call counts as several.
    """

    __slots__ = ("calls", "_calls_max")

    def __init__(self, calls: int) -> None:
        self._calls_max = calls
        self.calls = calls

    def renew(self) -> None:
        """Start a new budget, after the reactor has handled all other events."""
        self.calls = self._calls_max

    @property
    def ids(self) -> int:
        """The most ids that a batch may still take, at least one call's."""
        return max(self.calls, 1) * IDS_OF_A_CALL

    def pay(self, ids: int) -> None:
        """Charge the budget for a call, or for a part of one, that was answered with `ids` ids."""
        self.calls -= 1 + ids // IDS_OF_A_CALL


class Waiting(Protocol):
    """A connection in the queue, or one request of it."""

    def take_turn(self, most: int, now_ms: int, skew_ms: int) -> bool:
        """Take at most `most` ids, as far as the call budget allows; return True if it waits for no more.

        SequenceExhausted if it took no ids.
        """


class FairQueue:
    """The waiters for ids, first come first served; each is queued once. Times are Unix ms of the id clock."""

    def __init__(self, turn_ids: int, budget: TurnBudget, waited: Callable[[int], None]) -> None:
        """`turn_ids` are the ids of one turn; `waited` is called with the length of each finished wait, in ms."""
        self._turn_ids = turn_ids
        self._budget = budget
        self._waited = waited
        self._waiting: OrderedDict[Waiting, int] = OrderedDict()  # when each one joined

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, waiter: Waiting, now_ms: int) -> None:
        self._waiting.setdefault(waiter, now_ms)

    def leave(self, waiter: Waiting) -> None:
        """Remove a waiter. Harmless if it is not in the queue."""
        self._waiting.pop(waiter, None)

    def serve(self, now_ms: int, skew_ms: int) -> int | None:
        """Give turns until the queue is empty, ids run out, or the call budget is used up.

        Return when to continue (`now_ms` means in the next reactor iteration), or None if the queue is empty. A lone
        waiter takes all its ids in one turn, once they are available.
        """
        while self._waiting:
            if self._budget.calls <= 0:
                return now_ms
            waiter = next(iter(self._waiting))
            most = self._turn_ids if len(self._waiting) > 1 else UNLIMITED
            try:
                done = waiter.take_turn(most, now_ms, skew_ms)
            except SequenceExhausted as error:
                return error.retry_at_ms
            if waiter not in self._waiting:  # its turn closed it
                continue
            if done:
                self._end_wait(now_ms - self._waiting.pop(waiter))
            else:
                self._waiting.move_to_end(waiter)
        return None

    def _end_wait(self, waited_ms: int) -> None:
        if waited_ms > 0:  # a wait of 0 ms only let the reactor handle other events
            self._waited(waited_ms)


class Caller(Protocol):
    """The requests received on one connection, answered in their order."""

    idle: bool
    """True if everything is answered and more can be received."""

    def receive(self, data: bytes) -> None:
        """Take the peer's next bytes, after everything before them is answered."""

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        """Yield answers until all is answered, the call budget is used up, or more than `most` ids would be needed.

        Set `idle` only if all is answered. SequenceExhausted if ids are not available yet and none were taken. For
        bytes that it cannot read, a caller raises its protocol's error, after the answers to earlier requests.
        """


class ThriftCaller:
    """The Thrift calls of one connection. ThriftError if it cannot read a call."""

    def __init__(self, service: IdService, budget: TurnBudget) -> None:
        self._service = service
        self._budget = budget
        self._decoder = CallDecoder(service.config.ids_max_frame_bytes)
        self._calls: Iterator[Call] = iter(())  # the unanswered calls of the last data
        self._held_up: Call | None = None  # the next call to answer
        self._order: Order | None = None  # its ids so far, for a get_ids call
        self.idle = True

    def receive(self, data: bytes) -> None:
        self._calls = self._decoder.calls(data)
        self.idle = False

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        answer, budget, calls, allowance = self._service.answer, self._budget, self._calls, most
        call = self._held_up or next(calls, None)
        answered: bytes | None
        try:
            while call is not None:
                self._held_up = call
                if budget.calls <= 0 or not allowance and call.method in TAKES_IDS:
                    return
                if call.method == "get_ids":
                    answered, taken = self._portion(allowance, call, now_ms, skew_ms)
                    allowance -= taken
                    if answered is None:
                        return
                else:
                    answered = answer(call, now_ms, skew_ms)
                    allowance -= call.method == "get_id"
                    budget.calls -= 1
                self._held_up = None
                yield answered
                call = next(calls, None)
            self.idle = True
        except SequenceExhausted:
            if allowance == most:
                raise

    def _portion(self, most: int, call: Call, now_ms: int, skew_ms: int) -> tuple[bytes | None, int]:
        """Take ids for a get_ids call; return its answer (None if it needs more ids) and the count of ids taken now."""
        service, order, budget, taken = self._service, self._order, self._budget, 0
        try:
            if order is None:
                order = self._order = service.order(call.user_agent, call.count)
            taken = service.fill(order, min(most, budget.ids), now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError as error:
            self._order = None
            budget.pay(0)
            return service.refuse(call, error), 0
        budget.pay(taken)
        if order.due:
            return None, taken
        self._order = None
        return encode_runs(call.method, call.seqid, order.runs), taken
