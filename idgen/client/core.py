"""A client of id services, without its sockets: whom it asks, what it sends, the ids it keeps in advance.

Each operation is a generator: it yields an `Exchange` (calls for one server, sent at once and answered in their order),
is sent its `Outcome`, and returns the operation's value. A shell carries them (`blocking`, `twisted`, `asyncio`), with
one connection kept to each server and a `Pipeline` on it.

A call whose answer got lost is made again, at the next server: at worst some ids are never used. Ids of one server
rise; those of another one, after a failure, may lie up to a second below them.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from idgen.errors import IdError
from idgen.layout import IdParts
from idgen.wire import Call, FrameDecoder, Reply, ThriftError, decode_reply, encode_call

T = TypeVar("T")
Waiter = TypeVar("Waiter")

DEFAULT_SERVER = "127.0.0.1:7609"
REQUEST_TIMEOUT_MS = 5_000
REST_MS = 10_000  # a server that failed is asked last for so long
PREFETCH_MAX_AGE_MS = 10_000  # ids kept in advance name a time at most this long ago
PORTION = 10_000  # ids in one call: below a service's default limit, flakelog.ids.max.batch
PORTIONS_AT_ONCE = 16  # calls of one get_ids under way: 1.3 MB of answers
IN_FLIGHT_MAX = 1_024  # calls under way on one connection; one more is refused
REPLY_BYTES_MAX = 16 << 20  # get_ids of the largest batch a service can be set to, twice over

# What another server may not suffer from. It is asked then; all else is the caller's to cure.
SERVERS_OWN_ERRORS = frozenset(
    ("NoWorkerNumber", "WorkerIdsExhausted", "LeadExhausted", "Fenced", "ClockMovedBackwards")
)


class IdServiceError(IdError):
    """The service answered with an error; the message is its own, and begins with the error's name."""


class IdServiceUnreachable(ConnectionError):
    """No server answers; `problems` has each one's address and reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"id service at {'; '.join(problems)}; `flakelog idgen` starts one")
        self.problems = problems


class TooManyCalls(IdError):
    """More calls are under way than a connection may have; wait for some of their answers."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Exchange(NamedTuple):
    """Calls to carry to one server. Their seqids are the connection's to give."""

    address: Address
    calls: Sequence[Call]


class Outcome(NamedTuple):
    """What came of an exchange: an answer to each call, or the problem. `now_ms` is the shell's steady clock.

    `stale`: the connection was an old one, so the problem may be its own and not the server's.
    """

    now_ms: int
    replies: Sequence[Reply] | None
    problem: str = ""
    stale: bool = False


Operation: TypeAlias = Generator[Exchange, Outcome, T]
Value: TypeAlias = int | list[int]


def parse_address(text: str) -> Address:
    """host:port, an IPv6 host in brackets. ValueError."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r} is no address of an id service; give host:port, like {DEFAULT_SERVER}")
    return Address(host.strip("[]"), int(port))


class Servers:
    """Whom to ask: the one that answered last; when it fails the others, those that failed lately at the end."""

    def __init__(self, addresses: Sequence[Address], rest_ms: int = REST_MS) -> None:
        if not addresses or len(set(addresses)) != len(addresses):
            raise ValueError(f"one or more different servers are due, not {', '.join(map(str, addresses)) or 'none'}")
        self._order = list(addresses)
        self._rest_ms = rest_ms
        self._resting_until_ms: dict[Address, int] = {}

    def to_try(self, now_ms: int) -> list[Address]:
        """Every server, in the order to try them."""
        return sorted(self._order, key=lambda each: self._resting_until_ms.get(each, 0) > now_ms)

    def answered(self, address: Address) -> None:
        self._resting_until_ms.pop(address, None)
        if self._order[0] != address:
            self._order.remove(address)
            self._order.insert(0, address)

    def failed(self, address: Address, now_ms: int) -> None:
        self._resting_until_ms[address] = now_ms + self._rest_ms


class IdBuffer:
    """Ids fetched in advance, handed out in their order, dropped when they are older than `max_age_ms`."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self._ids: list[int] = []  # the next one last
        self._good_until_ms = 0

    def take(self, now_ms: int) -> int | None:
        """The next id; None when there is none that is young enough."""
        if now_ms >= self._good_until_ms:
            self._ids.clear()
        return self._ids.pop() if self._ids else None

    def fill(self, ids: Sequence[int], asked_ms: int) -> None:
        """Keep these, asked for at `asked_ms`, in place of what is left."""
        self._ids = list(reversed(ids))
        self._good_until_ms = asked_ms + self._max_age_ms

    def clear(self) -> None:
        self._ids.clear()


class IdRequests:
    """The operations of one client. IdServiceUnreachable when no server answers, IdServiceError when one refuses.

    `prefetch` ids are fetched at a time for `get_id`; with 0 each is asked for. All times are the shell's steady ms.
    """

    def __init__(
        self, servers: Sequence[str], *, user_agent: str, prefetch: int, prefetch_max_age_ms: int
    ) -> None:
        if not 0 <= prefetch <= PORTION:
            raise ValueError(f"prefetch={prefetch}; between 0 (off) and {PORTION} ids can be fetched in advance")
        if prefetch_max_age_ms < 1:
            raise ValueError(f"prefetch_max_age_ms={prefetch_max_age_ms}; ids can be kept for 1 ms or longer")
        self.prefetch = prefetch
        self.buffer = IdBuffer(prefetch_max_age_ms)
        self._servers = Servers([parse_address(each) for each in servers or (DEFAULT_SERVER,)])
        self._user_agent = user_agent

    def get_id(self, now_ms: int) -> Operation[int]:
        """One id."""
        if not self.prefetch:
            return (yield from self.number("get_id", now_ms, self._user_agent))
        id = self.buffer.take(now_ms)
        if id is None:
            id, *rest = yield from self.get_ids(self.prefetch, now_ms)
            self.buffer.fill(rest, now_ms)
        return id

    def get_ids(self, count: int, now_ms: int) -> Operation[list[int]]:
        """`count` rising ids, by calls of PORTION each, several under way at once."""
        ids: list[int] = []
        while True:
            counts = _portions(count - len(ids))
            calls = [Call("get_ids", 0, self._user_agent, each) for each in counts]
            for value in (yield from self._ask(calls, now_ms)):
                ids += _as_list(value)
            if len(ids) >= count:
                return ids

    def number(self, method: str, now_ms: int, user_agent: str | None = None) -> Operation[int]:
        """What a method that returns an i64 answers."""
        [value] = yield from self._ask([Call(method, 0, user_agent)], now_ms)
        if not isinstance(value, int):
            raise IdServiceError(f"{method} was answered by {value!r}")
        return value

    def id_range(self, start_ms: int, end_ms: int, now_ms: int) -> Operation[tuple[int, int]]:
        """(first, end): the ids of start_ms <= time < end_ms, Unix ms, by the service's layout."""
        [value] = yield from self._ask([Call("get_id_range", 0, numbers=_i64s(start_ms, end_ms))], now_ms)
        first, end = _as_list(value, 2)
        return first, end

    def decode(self, id: int, now_ms: int) -> Operation[IdParts]:
        """What is in an id, by the service's layout."""
        [value] = yield from self._ask([Call("decode_id", 0, numbers=_i64s(id))], now_ms)
        return IdParts(*_as_list(value, len(IdParts._fields)))

    def _ask(self, calls: Sequence[Call], now_ms: int) -> Operation[list[Value]]:
        """The values of the calls' answers, from the first server that gives them."""
        problems, refusal = [], None
        for address in self._servers.to_try(now_ms):
            outcome = yield Exchange(address, calls)
            if outcome.replies is None and outcome.stale:
                outcome = yield Exchange(address, calls)
            if outcome.replies is not None:
                error = next((reply.error for reply in outcome.replies if reply.error is not None), None)
                if error is None:
                    self._servers.answered(address)
                    return [reply.value for reply in outcome.replies if reply.value is not None]
                refusal = IdServiceError(error)
                if error.partition(":")[0] not in SERVERS_OWN_ERRORS:
                    raise refusal
            self._servers.failed(address, outcome.now_ms)
            problems.append(f"{address}: {outcome.problem}")
        if refusal is not None:
            raise refusal
        raise IdServiceUnreachable(problems)


def _portions(count: int) -> list[int]:
    """Counts of the next calls. One that no service would give is left for it to refuse, in its own words."""
    if count <= PORTION:
        return [count]
    whole, rest = divmod(count, PORTION)
    return ([PORTION] * min(whole, PORTIONS_AT_ONCE) + [rest] * (rest > 0))[:PORTIONS_AT_ONCE]


def _i64s(*numbers: int) -> tuple[int, ...]:
    for number in numbers:
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"{number} does not fit 64 bits: times are Unix ms, ids are in 0..2**63-1")
    return numbers


def _as_list(value: Value, length: int | None = None) -> list[int]:
    if not isinstance(value, list) or not value or length not in (None, len(value)):
        raise IdServiceError(f"the service answered {value!r}, where {length or 'some'} numbers are due")
    return value


class Pipeline(Generic[Waiter]):
    """One connection: calls out, answers in, matched by their order and checked by their seqids."""

    def __init__(self) -> None:
        self._frames = FrameDecoder(REPLY_BYTES_MAX)
        self._seqid = 0
        self._sent: deque[tuple[int, int, Waiter]] = deque()  # first seqid, how many, who waits
        self._replies: list[Reply] = []  # of the first of them
        self._in_flight = 0

    def send(self, calls: Sequence[Call], waiter: Waiter) -> bytes:
        """The bytes of these calls. TooManyCalls."""
        if self._in_flight + len(calls) > IN_FLIGHT_MAX:
            raise TooManyCalls(f"{self._in_flight} calls are under way; at most {IN_FLIGHT_MAX} can be")
        if self._seqid + len(calls) > 0x7FFFFFFF:
            self._seqid = 0
        first = self._seqid + 1
        self._seqid += len(calls)
        self._in_flight += len(calls)
        self._sent.append((first, len(calls), waiter))
        return b"".join(encode_call(call._replace(seqid=first + n)) for n, call in enumerate(calls))

    def receive(self, data: bytes) -> Iterator[tuple[Waiter, list[Reply]]]:
        """The exchanges that `data` completes. ThriftError when it cannot be answers to what was sent."""
        for frame in self._frames.frames(data):
            reply = decode_reply(frame)
            if not self._sent:
                raise ThriftError(f"answer {reply.seqid} where none is due")
            first, count, waiter = self._sent[0]
            due = first + len(self._replies)
            if reply.seqid != due:
                raise ThriftError(f"answer {reply.seqid} where {due} is due")
            self._replies.append(reply)
            self._in_flight -= 1
            if len(self._replies) == count:
                replies, self._replies = self._replies, []
                self._sent.popleft()
                yield waiter, replies

    def take_waiting(self) -> list[Waiter]:
        """Who waits for answers that will not come any more."""
        waiting = [waiter for _, _, waiter in self._sent]
        self._sent.clear()
        return waiting
