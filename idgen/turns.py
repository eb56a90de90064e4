"""Who gets ids, and when, while not all can: whoever waits, in turns.

Ids are given up to a bound ahead of the clock (`IdWorker.max_ahead_ms`). While they last, a request takes all it asks
for. When they are used up it joins the line; as long as there is a line every other request for ids joins its end,
whatever it came by. A turn is at most the ids of one millisecond, which the clock brings in one millisecond; who wants
more keeps what it has and comes again after the others. So nobody waits longer than a turn, one millisecond, of each
that waits already, for each turn that its own ids take: a flood is held up by its neighbours, and they not by it.

Nor is the rest of the process held up by it, a log that is served by the same reactor: in one look at all connections
no more is answered than a `Look` allows. When that is used up, the turn is over, and the line is where all the rest
waits for the next look.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from idgen.errors import IdError, SequenceExhausted
from idgen.service import IdService, Order
from idgen.wire import Call, CallDecoder, encode_runs

UNLIMITED = 1 << 62  # ids, of a turn while nobody else waits
TAKES_IDS = ("get_id", "get_ids")
IDS_OF_A_CALL = 64  # so many of a batch take as long as a call for one


class Look:
    """What may be answered, by all connections together, until everything else has been looked at: so many calls, each
    of at most IDS_OF_A_CALL ids; a larger one counts as several."""

    __slots__ = ("left", "_calls")

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self.left = calls

    def renew(self) -> None:
        """Everything else has been looked at."""
        self.left = self._calls

    @property
    def ids(self) -> int:
        """The most ids that a batch may still take, at least one call's."""
        return max(self.left, 1) * IDS_OF_A_CALL

    def pay(self, ids: int) -> None:
        """A call was answered, or a part of one, with so many ids."""
        self.left -= 1 + ids // IDS_OF_A_CALL


class Waiting(Protocol):
    """One connection in the line, or one request of it."""

    def take_turn(self, most: int, now_ms: int, skew_ms: int) -> bool:
        """Take at most so many ids, and what the look allows; True when it waits for no more. SequenceExhausted,
        having taken none."""


class Line:
    """Those that wait for ids, first come first served; each is there once. Times are Unix ms of the id clock."""

    def __init__(self, turn_ids: int, look: Look, waited: Callable[[int], None]) -> None:
        """`turn_ids` are one turn's; `waited` is told of each wait that has come to its end, in ms."""
        self._turn_ids = turn_ids
        self._look = look
        self._waited = waited
        self._waiting: OrderedDict[Waiting, int] = OrderedDict()  # since when

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, who: Waiting, now_ms: int) -> None:
        self._waiting.setdefault(who, now_ms)

    def leave(self, who: Waiting) -> None:
        """It is gone. Harmless for who is not there."""
        self._waiting.pop(who, None)

    def serve(self, now_ms: int, skew_ms: int) -> int | None:
        """Give turns until nobody waits any more, ids run out, or the look is used up; the time when they go on, None
        where nobody waits. It is `now_ms` for the next look.

        Whoever is alone takes all it wants, when there is as much.
        """
        while self._waiting:
            if self._look.left <= 0:
                return now_ms
            who = next(iter(self._waiting))
            most = self._turn_ids if len(self._waiting) > 1 else UNLIMITED
            try:
                done = who.take_turn(most, now_ms, skew_ms)
            except SequenceExhausted as error:
                return error.retry_at_ms
            if who not in self._waiting:  # it was closed by what it did
                continue
            if done:
                self._end_wait(now_ms - self._waiting.pop(who))
            else:
                self._waiting.move_to_end(who)
        return None

    def _end_wait(self, waited_ms: int) -> None:
        if waited_ms > 0:  # else it only let everything else be looked at
            self._waited(waited_ms)


class Caller(Protocol):
    """What was received on one connection, and is answered in its order."""

    idle: bool
    """Everything is answered; more can be received."""

    def receive(self, data: bytes) -> None:
        """What the peer sent, when all before it is answered."""

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        """Answers, until all is answered, the look is used up, or more than `most` ids would be needed: unless all is
        answered, it is not idle.

        SequenceExhausted where ids have to be waited for, and none were taken. Its own error for what it cannot read,
        after the answers to what came before.
        """


class ThriftCaller:
    """Thrift calls. ThriftError is what it cannot read."""

    def __init__(self, service: IdService, look: Look) -> None:
        self._service = service
        self._look = look
        self._decoder = CallDecoder(service.config.ids_max_frame_bytes)
        self._calls: Iterator[Call] = iter(())  # of the last data, as far as they are not answered
        self._held_up: Call | None = None  # the next of them
        self._order: Order | None = None  # its ids, where it has got some
        self.idle = True

    def receive(self, data: bytes) -> None:
        self._calls = self._decoder.calls(data)
        self.idle = False

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        answer, look, calls, left = self._service.answer, self._look, self._calls, most
        call = self._held_up or next(calls, None)
        answered: bytes | None
        try:
            while call is not None:
                self._held_up = call
                if look.left <= 0 or not left and call.method in TAKES_IDS:
                    return
                if call.method == "get_ids":
                    answered, taken = self._portion(left, call, now_ms, skew_ms)
                    left -= taken
                    if answered is None:
                        return
                else:
                    answered = answer(call, now_ms, skew_ms)
                    left -= call.method == "get_id"
                    look.left -= 1
                self._held_up = None
                yield answered
                call = next(calls, None)
            self.idle = True
        except SequenceExhausted:
            if left == most:
                raise

    def _portion(self, most: int, call: Call, now_ms: int, skew_ms: int) -> tuple[bytes | None, int]:
        """(the answer to get_ids, None where it needs more ids; how many were taken now, which are kept for it)"""
        service, order, look, taken = self._service, self._order, self._look, 0
        try:
            if order is None:
                order = self._order = service.order(call.user_agent, call.count)
            taken = service.fill(order, min(most, look.ids), now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError as error:
            self._order = None
            look.pay(0)
            return service.refuse(call, error), 0
        look.pay(taken)
        if order.due:
            return None, taken
        self._order = None
        return encode_runs(call.method, call.seqid, order.runs), taken
