"""The id service, apart from its transports: who may ask, how many, what is answered, what is counted.

Every method takes the time and the clock's skew from the shell. `SequenceExhausted` goes through to it: who asked
waits in the line (idgen/turns.py), and is not read from meanwhile.
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
from idgen.worker import IdWorker, Run

USER_AGENT = re.compile(r"[a-zA-Z][a-zA-Z\-0-9]*")  # Twitter's rule
USER_AGENT_CHARS_MAX = 100
ID_MAX = (1 << ID_BITS) - 1
OTHERS = "(others)"  # no user agent can be called so


@dataclass
class Counters:
    """What has been answered since the start. Beyond `user_agents_max` names, the rest is counted as '(others)'."""

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
        """A request waits so long for ids that ran ahead of the clock."""
        self.waits += 1
        self.waited_ms += pause_ms

    def refused(self, error: Exception) -> None:
        name = type(error).__name__
        self.exceptions[name] = self.exceptions.get(name, 0) + 1


class Order:
    """The ids one request asks for: `due` are not there yet. Where others wait too, they come in portions."""

    __slots__ = ("user_agent", "due", "runs")

    def __init__(self, user_agent: str, count: int) -> None:
        self.user_agent = user_agent
        self.due = count
        self.runs: list[Run] = []


class IdService:
    """Answers for one claim. Times are Unix ms of the id clock; `skew_ms` is how far it is ahead of the wall clock."""

    def __init__(self, claim: WorkerClaim, config: IdgenConfig) -> None:
        self.claim = claim
        self.config = config
        self.layout = config.layout
        self.counters = Counters(config.ids_max_user_agents)
        skipped = config.ids_sequence_starts - 1 if config.ids_sequence_start != ZERO else 0
        self.turn_ids = self.layout.max_sequence + 1 - skipped
        """The ids that one millisecond has at least: some begin later, where they do not all begin with 0."""
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
        """The frame that answers a Thrift call. Raises SequenceExhausted only; all else is answered as an exception."""
        method = self._methods.get(call.method)
        if method is None:
            known = ", ".join(self._methods)
            return encode_exception(
                call.method, call.seqid, ExceptionType.UNKNOWN_METHOD, f"no method {call.method!r}; there are {known}"
            )
        try:
            return method(call, now_ms, skew_ms)
        except SequenceExhausted:
            raise
        except IdError as error:
            return self.refuse(call, error)

    def refuse(self, call: Call, error: IdError) -> bytes:
        """The frame that answers a Thrift call with an error."""
        self.counters.refused(error)
        text = f"{type(error).__name__}: {error}"
        return encode_exception(call.method, call.seqid, ExceptionType.INTERNAL_ERROR, text)

    def next_id(self, user_agent: str | None, now_ms: int, skew_ms: int) -> int:
        """One id. Any IdError."""
        agent = self._check_user_agent(user_agent)
        id = self._worker(skew_ms).next_id(now_ms)
        self.counters.issued(agent, 1)
        return id

    def next_ids(self, user_agent: str | None, count: int | None, now_ms: int, skew_ms: int) -> list[Run]:
        """`count` ids as runs. Any IdError."""
        order = self.order(user_agent, count)
        self.fill(order, order.due, now_ms, skew_ms)
        return order.runs

    def order(self, user_agent: str | None, count: int | None) -> Order:
        """To be filled, at once or in portions. InvalidUserAgent, InvalidCount."""
        agent = self._check_user_agent(user_agent)
        most = self.max_batch
        if count is None or not 1 <= count <= most:
            raise InvalidCount(f"{count} ids; 1 to {most} can be asked for at once (flakelog.ids.max.batch)")
        return Order(agent, count)

    def fill(self, order: Order, most: int, now_ms: int, skew_ms: int) -> int:
        """Give an order at most so many ids, at least one; how many those were. Any IdError."""
        count = min(order.due, most)
        order.runs += self._worker(skew_ms).next_ids(count, now_ms)
        order.due -= count
        self.counters.issued(order.user_agent, count)
        return count

    def decode(self, id: int) -> IdParts:
        """The parts of an id, by this service's layout. InvalidId."""
        try:
            return self.layout.unpack(id)
        except ValueError as error:
            raise InvalidId(str(error)) from None

    def id_range(self, start_ms: int, end_ms: int) -> tuple[int, int]:
        """(first, end): the ids of start_ms <= time < end_ms, Unix ms. InvalidTimeRange."""
        try:
            first, end = self.layout.id_range(start_ms, end_ms)
        except ValueError as error:
            raise InvalidTimeRange(str(error)) from None
        return first, min(end, ID_MAX)  # the end of a layout's last millisecond is no i64

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
            raise InvalidTimeRange("start_ms (1) and end_ms (2) are due, i64")
        return encode_i64_struct(call.method, call.seqid, self.id_range(*call.numbers))

    def _decode_id(self, call: Call, now_ms: int, skew_ms: int) -> bytes:
        if len(call.numbers) != 1:
            raise InvalidId("the id (1) is due, i64")
        return encode_i64_struct(call.method, call.seqid, self.decode(*call.numbers))


def flat(runs: list[Run]) -> list[int]:
    """Each id of the runs."""
    ids: list[int] = []
    for first, count in runs:
        ids.extend(range(first, first + count))
    return ids
