"""Who gets ids while there are none left to give: whoever waits, in turns.

Ids are given up to a bound ahead of the clock (`IdWorker.max_ahead_ms`). While they last, a request takes all it asks
for. When they are used up it joins the line; as long as there is a line every other request for ids joins its end,
whatever it came by. A turn is at most the ids of one millisecond, which the clock brings in one millisecond; who wants
more keeps what it has and comes again after the others. So nobody waits longer than a turn, one millisecond, of each
that waits already, for each turn that its own ids take: a flood is held up by its neighbours, and they not by it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from idgen.errors import IdError, SequenceExhausted
from idgen.service import IdService, Order, flat
from idgen.wire import Call, CallDecoder, encode_i64_list

UNLIMITED = 1 << 62  # ids, of a turn while nobody else waits


class Waiting(Protocol):
    """One connection in the line, or one request of it."""

    def take_turn(self, most: int, now_ms: int, skew_ms: int) -> bool:
        """Take at most so many ids; True when it waits for no more. SequenceExhausted, having taken none."""


class Line:
    """Those that wait for ids, first come first served; each is there once. Times are Unix ms of the id clock."""

    def __init__(self, turn_ids: int, waited: Callable[[int], None]) -> None:
        """`turn_ids` are one turn's; `waited` is told of each wait that has come to its end, in ms."""
        self._turn_ids = turn_ids
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
        """Give turns until nobody waits any more, or ids run out; the time when they go on, None where nobody waits.

        Whoever is alone takes all it wants at once, when there is as much.
        """
        while self._waiting:
            who = next(iter(self._waiting))
            most = self._turn_ids if len(self._waiting) > 1 else UNLIMITED
            try:
                done = who.take_turn(most, now_ms, skew_ms)
            except SequenceExhausted as error:
                return error.retry_at_ms
            if who not in self._waiting:  # it was closed by what it did
                continue
            if done:
                self._waited(max(now_ms - self._waiting.pop(who), 0))
            else:
                self._waiting.move_to_end(who)
        return None


class Caller(Protocol):
    """What was received on one connection, and is answered in its order."""

    idle: bool
    """Everything is answered; more can be received."""

    def receive(self, data: bytes) -> None:
        """What the peer sent, when all before it is answered."""

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        """Answers, until all is answered, or more than `most` ids would be needed: then it is not idle.

        SequenceExhausted where ids have to be waited for, and none were taken. Its own error for what it cannot read,
        after the answers to what came before.
        """


class ThriftCaller:
    """Thrift calls. ThriftError is what it cannot read."""

    def __init__(self, service: IdService) -> None:
        self._service = service
        self._decoder = CallDecoder(service.config.ids_max_frame_bytes)
        self._calls: Iterator[Call] = iter(())  # of the last data, as far as they are not answered
        self._held_up: Call | None = None  # the next of them
        self._order: Order | None = None  # its ids, where it has got some
        self.idle = True

    def receive(self, data: bytes) -> None:
        self._calls = self._decoder.calls(data)
        self.idle = False

    def answers(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        if most < UNLIMITED or self._order is not None:
            return self._answers_within(most, now_ms, skew_ms)
        return self._all_answers(now_ms, skew_ms)

    def _next(self) -> Call | None:
        call = self._held_up or next(self._calls, None)
        self._held_up = call
        self.idle = call is None
        return call

    def _all_answers(self, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        answer, calls = self._service.answer, self._calls
        call = self._next()
        while call is not None:
            answered = answer(call, now_ms, skew_ms)
            self._held_up = None
            yield answered
            call = self._held_up = next(calls, None)
        self.idle = True

    def _answers_within(self, most: int, now_ms: int, skew_ms: int) -> Iterator[bytes]:
        left = most
        try:
            while (call := self._next()) is not None:
                answered, taken = self._answer_within(left, call, now_ms, skew_ms)
                left -= taken
                if answered is None:
                    return
                self._held_up = None
                yield answered
        except SequenceExhausted:
            if left == most:
                raise

    def _answer_within(self, most: int, call: Call, now_ms: int, skew_ms: int) -> tuple[bytes | None, int]:
        """(the answer, None where it needs more ids; how many were taken)"""
        wanted = {"get_id": 1, "get_ids": call.count or 0}.get(call.method, 0)
        if wanted and not most:
            return None, 0
        if call.method == "get_ids":
            return self._portion(most, call, now_ms, skew_ms)
        return self._service.answer(call, now_ms, skew_ms), wanted

    def _portion(self, most: int, call: Call, now_ms: int, skew_ms: int) -> tuple[bytes | None, int]:
        """As `_answer_within`, for get_ids: what was taken for it is kept until it has all."""
        service, order, taken = self._service, self._order, 0
        try:
            if order is None:
                order = self._order = service.order(call.user_agent, call.count)
            taken = service.fill(order, most, now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError as error:
            self._order = None
            return service.refuse(call, error), 0
        if order.due:
            return None, taken
        self._order = None
        return encode_i64_list(call.method, call.seqid, flat(order.runs)), taken
