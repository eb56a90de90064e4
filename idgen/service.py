"""The id service, independent of its transports: it checks user agents and limits, answers calls, and counts.

Every method takes the time and the clock's skew from the shell. `SequenceExhausted` passes through to the shell: the
connection waits in the queue (idgen/fair_queue.py), and the server does not read from it meanwhile.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from idgen.claim import WorkerClaim
from idgen.config import IdgenConfig
from idgen.errors import (
    ClockMovedBackwards,
    IdError,
    InvalidCount,
    InvalidId,
    InvalidTimeRange,
    InvalidUserAgent,
    SequenceExhausted,
)
from idgen.layout import ID_BITS, IdParts
from idgen.sequence_start import ZERO
from idgen.wire import Call, ExceptionType, encode_exception, encode_i64, encode_i64_struct, encode_id, encode_runs
from idgen.worker import IdRun, IdWorker

USER_AGENT = re.compile(r"[a-zA-Z][a-zA-Z\-0-9]*")  # Twitter's rule
USER_AGENT_CHARS_MAX = 100
ID_MAX = (1 << ID_BITS) - 1
OTHERS = "(others)"  # not a valid user agent, so no client has this name


@dataclass
class Counters:
    """Counts of answers since the start. User agents beyond `user_agents_max` names are counted as '(others)'."""

    user_agents_max: int
    ids: int = 0
    exceptions: dict[str, int] = field(default_factory=dict)
    by_user_agent: dict[str, int] = field(default_factory=dict)
    waits: int = 0
    waited_ms: int = 0

    def issued(self, user_agent: str, count: int) -> None:
        self.ids += count
        counts = self.by_user_agent
        name = user_agent if user_agent in counts or len(counts) < self.user_agents_max else OTHERS
        counts[name] = counts.get(name, 0) + count

    def waited(self, pause_ms: int) -> None:
        """Count a request that waited `pause_ms` for ids, because ids had run ahead of the clock."""
        self.waits += 1
        self.waited_ms += pause_ms

    def refused(self, error: Exception) -> None:
        name = type(error).__name__
        self.exceptions[name] = self.exceptions.get(name, 0) + 1


class Order:
    """The ids that one request asks for; `due` of them are missing. While others wait too, they come in portions."""

    __slots__ = ("user_agent", "due", "runs")

    def __init__(self, user_agent: str, count: int) -> None:
        self.user_agent = user_agent
        self.due = count
        self.runs: list[IdRun] = []


class IdService:
    """The service for one claim. Times are Unix ms of the id clock; `skew_ms` is its lead over the wall clock."""

    def __init__(self, claim: WorkerClaim, config: IdgenConfig) -> None:
        self.claim = claim
        self.config = config
        self.layout = config.layout
        self.counters = Counters(config.ids_max_user_agents)
        skipped = config.ids_sequence_starts - 1 if config.ids_sequence_start != ZERO else 0
        self.turn_ids = self.layout.max_sequence + 1 - skipped
        """The fewest ids that a millisecond can have: a sequence start above 0 skips some of them."""
        self.max_batch = min(config.ids_max_batch, (config.ids_max_ahead_ms + 1) * self.turn_ids)
        """The most ids one request can ask for."""
        self._good_user_agents: set[str] = set()
        self._methods: dict[str, Callable[[Call, int, int], bytes]] = {
            "get_id": self._get_id,
            "get_ids": self._get_ids,
            "get_worker_id": self._get_worker_id,
            "get_datacenter_id": self._get_datacenter_id,
            "get_timestamp": self._get_timestamp,
            "get_id_range": self._get_id_range,
            "decode_id": self._decode_id,
        }

    def answer(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        """Return the frame that answers a Thrift call. Raises SequenceExhausted only; other errors become answers."""
        method = self._methods.get(call.method)
        if method is None:
            methods = ", ".join(self._methods)
            return encode_exception(
                call.method, call.seqid, ExceptionType.UNKNOWN_METHOD, f"no method {call.method!r}; there are {methods}"
            )
        try:
            return method(call, now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError as error:
            return self.refuse(call, error)

    def refuse(self, call: Call, error: IdError) -> bytes:
        """Return the frame that answers a Thrift call with an error, and count the error."""
        self.counters.refused(error)
        text = f"{type(error).__name__}: {error}"
        return encode_exception(call.method, call.seqid, ExceptionType.INTERNAL_ERROR, text)

    def next_id(self, user_agent: str | None, now_ms: int, skew_ms: int) -> int:
        """Return one id. Any IdError."""
        agent = self._check_user_agent(user_agent)
        id = self._worker(skew_ms).next_id(now_ms)
        self.counters.issued(agent, 1)
        return id

    def next_ids(self, user_agent: str | None, count: int | None, now_ms: int, skew_ms: int) -> list[IdRun]:
        """Return `count` ids as runs. Any IdError."""
        order = self.order(user_agent, count)
        self.fill(order, order.due, now_ms, skew_ms)
        return order.runs

    def order(self, user_agent: str | None, count: int | None) -> Order:
        """Return an order to fill, at once or in portions. InvalidUserAgent, InvalidCount."""
        agent = self._check_user_agent(user_agent)
        most = self.max_batch
        if count is None or not 1 <= count <= most:
            raise InvalidCount(f"{count} ids; one call can ask for 1 to {most} (flakelog.ids.max.batch)")
        return Order(agent, count)

    def fill(self, order: Order, most: int, now_ms: int, skew_ms: int) -> int:
        """Add at most `most` ids, at least one, to an order; return how many were added. Any IdError."""
        count = min(order.due, most)
        order.runs += self._worker(skew_ms).next_ids(count, now_ms)
        order.due -= count
        self.counters.issued(order.user_agent, count)
        return count

    def decode(self, id: int) -> IdParts:
        """Return the parts of an id, by this service's layout. InvalidId."""
        try:
            return self.layout.unpack(id)
        except ValueError as error:
            raise InvalidId(str(error)) from None

    def id_range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """Return (first, end): the ids of start_ms <= time < end_ms, Unix ms. InvalidTimeRange."""
        try:
            first, end = self.layout.id_range(start_ms, end_ms)
        except ValueError as error:
            raise InvalidTimeRange(str(error)) from None
        return first, min(end, ID_MAX)  # the end of a layout's last millisecond does not fit an i64

    def _worker(self, skew_ms: int) -> IdWorker:
        if skew_ms > self.config.ids_max_skew_ms:
            raise ClockMovedBackwards(
                f"the wall clock was set back by {skew_ms} ms, more than flakelog.ids.max.skew.ms "
                f"({self.config.ids_max_skew_ms}); ids go on when it is within that"
            )
        return self.claim.usable_worker()

    def _check_user_agent(self, user_agent: str | None) -> str:
        if user_agent in self._good_user_agents:
            return user_agent
        if user_agent is None or len(user_agent) > USER_AGENT_CHARS_MAX or not USER_AGENT.fullmatch(user_agent):
            shown = None if user_agent is None else user_agent[:USER_AGENT_CHARS_MAX]
            raise InvalidUserAgent(
                f"user agent {shown!r}: it must match {USER_AGENT.pattern} "
                f"and have at most {USER_AGENT_CHARS_MAX} characters"
            )
        if len(self._good_user_agents) < self.config.ids_max_user_agents:
            self._good_user_agents.add(user_agent)
        return user_agent

    def _get_id(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        return encode_id(call.seqid, self.next_id(call.user_agent, now_ms, skew_ms))

    def _get_ids(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        runs = self.next_ids(call.user_agent, call.count, now_ms, skew_ms)
        return encode_runs(call.method, call.seqid, runs)

    def _get_worker_id(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        number = self.claim.usable_worker().worker_number
        return encode_i64(call.method, call.seqid, number & (1 << self.layout.worker_bits) - 1)

    def _get_datacenter_id(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        number = self.claim.usable_worker().worker_number
        return encode_i64(call.method, call.seqid, number >> self.layout.worker_bits)

    def _get_timestamp(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        return encode_i64(call.method, call.seqid, now_ms)

    def _get_id_range(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        if len(call.numbers) != 2:
            wanted = "get_id_range takes two numbers of i64, start_ms (1) and end_ms (2)"
            raise InvalidTimeRange(f"{wanted}; the call has {len(call.numbers)}")
        return encode_i64_struct(call.method, call.seqid, self.id_range(*call.numbers))

    def _decode_id(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        if len(call.numbers) != 1:
            raise InvalidId(f"decode_id takes one number of i64, the id (1); the call has {len(call.numbers)}")
        return encode_i64_struct(call.method, call.seqid, self.decode(*call.numbers))


def flat(runs: list[IdRun]) -> list[int]:
    """Return the ids of the runs, one by one."""
    ids: list[int] = []
    for first, count in runs:
        ids.extend(range(first, first + count))
    return ids
