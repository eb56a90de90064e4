"""A sans-I/O client of id services: it chooses servers, makes requests, reads answers and keeps prefetched ids.

Each operation is a generator. It yields an `CallExchange` (calls for one server, sent at once and answered in order),
receives its `Outcome`, and returns the operation's value. A shell (`blocking`, `twisted`, `asyncio`) carries the
exchanges over connections that it keeps, with a `Pipeline` on each.

If an answer is lost, the client repeats the call: once at the same server if the connection was an old one, then at the
next server. At worst some ids are never used. Ids of one server ascend; after a failure, the next server's ids may lie
up to a second below them.
"""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar, cast

from coordination.errors import FlakelogError
from idgen.errors import IdError
from idgen.layout import IdParts
from idgen.wire import Call, FrameDecoder, Reply, ThriftError, decode_reply, encode_call

T = TypeVar("T")
Waiter = TypeVar("Waiter")

DEFAULT_SERVER = "127.0.0.1:7609"
REQUEST_TIMEOUT_MS = 5_000
NO_ANSWER = "no answer in "  # begins the problem of a server that took a connection and says nothing
REST_MS = 10_000  # a failed server is tried last for this time
PREFETCH_MAX_AGE_MS = 10_000  # prefetched ids name a time at most this long ago
PORTION = 10_000  # ids in one call: below a service's default limit, flakelog.ids.max.batch
COUNT_MAX = 10_000_000  # ids of one get_ids: some 400 MB in Python
PORTIONS_AT_ONCE = 16  # calls of one get_ids in flight: 1.3 MB of answers
IN_FLIGHT_MAX = 1_024  # calls in flight on one connection; the next one is refused
REPLY_BYTES_MAX = 16 << 20  # twice the answer to get_ids of the largest batch that a service can be set to

# After these errors the client asks the next server, which may be free of them. Other errors are the caller's to cure.
SERVERS_OWN_ERRORS = frozenset(
    ("NoWorkerNumber", "WorkerIdsExhausted", "LeadExhausted", "Fenced", "ClockMovedBackwards")
)


class IdServiceError(IdError):
    """An error that the service answered; the message is the service's, and begins with the error's name."""


class IdServiceUnreachable(FlakelogError, ConnectionError):
    """No server answered; `problems` has each one's address and reason."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(f"id service at {'; '.join(problems)}; `flakelog idgen` starts one")
        self.problems = problems


class TooManyCalls(IdError):
    """A connection would have too many calls in flight; wait for some of their answers."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CallExchange(NamedTuple):
    """Calls to carry to one server. The connection assigns their seqids."""

    address: Address
    calls: Sequence[Call]


class Outcome(NamedTuple):
    """The result of an exchange: an answer to each call, or a problem. `now_ms` is the shell's steady clock.

    `stale`: the exchange used an old connection, so the connection may have failed and not the server.
    """

    now_ms: int
    replies: Sequence[Reply] | None
    problem: str = ""
    stale: bool = False


Operation: TypeAlias = Generator[CallExchange, Outcome, T]
Value: TypeAlias = int | list[int]


def parse_address(text: str) -> Address:
    """Parse host:port, with an IPv6 host in brackets. ValueError."""
    if not isinstance(cast(object, text), str):
        raise ValueError(f"{text!r} is no address of an id service; give host:port as text, like {DEFAULT_SERVER!r}")
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16):
        raise ValueError(f"{text!r} is no address of an id service; give host:port, like {DEFAULT_SERVER}")
    return Address(host.strip("[]"), int(port))


class Servers:
    """The order in which to try servers: the last to answer comes first, servers that failed lately come last."""

    def __init__(self, addresses: Sequence[Address], rest_ms: int = REST_MS) -> None:
        if not addresses or len(set(addresses)) != len(addresses):
            raise ValueError(f"one or more different servers are due, not {', '.join(map(str, addresses)) or 'none'}")
        self._order = list(addresses)
        self._rest_ms = rest_ms
        self._resting_until_ms: dict[Address, int] = {}

    def to_try(self, now_ms: int) -> list[Address]:
        """Return every server, in the order to try them."""
        return sorted(self._order, key=lambda address: self._resting_until_ms.get(address, 0) > now_ms)

    def answered(self, address: Address) -> None:
        self._resting_until_ms.pop(address, None)
        if self._order[0] != address:
            self._order.remove(address)
            self._order.insert(0, address)

    def failed(self, address: Address, now_ms: int) -> None:
        self._resting_until_ms[address] = now_ms + self._rest_ms


class IdBuffer:
    """Prefetched ids, handed out in order and dropped when they are older than `max_age_ms`."""

    def __init__(self, max_age_ms: int) -> None:
        self._max_age_ms = max_age_ms
        self._ids: list[int] = []  # reversed, so that pop() takes the next id
        self._good_until_ms = 0

    def take(self, now_ms: int) -> int | None:
        """Return the next id, or None if the buffer is empty or expired."""
        if now_ms >= self._good_until_ms:
            self._ids.clear()
        return self._ids.pop() if self._ids else None

    def fill(self, ids: Sequence[int], asked_ms: int) -> None:
        """Replace the prefetch buffer; its ids expire `max_age_ms` after `asked_ms`."""
        self._ids = list(reversed(ids))
        self._good_until_ms = asked_ms + self._max_age_ms

    def clear(self) -> None:
        self._ids.clear()


class IdRequests:
    """The operations of one client. IdServiceUnreachable if no server answers, IdServiceError if a server refuses.

    `get_id` fetches `prefetch` ids at a time; with 0 it makes a call for each id. All times are the shell's steady ms.
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
        self._servers = Servers([parse_address(server) for server in servers or (DEFAULT_SERVER,)])
        self._user_agent = user_agent

    def get_id(self, now_ms: int) -> Operation[int]:
        """Return one id."""
        if not self.prefetch:
            return (yield from self.number("get_id", now_ms, self._user_agent))
        id = self.buffer.take(now_ms)
        if id is None:
            id, *prefetched = yield from self.get_ids(self.prefetch, now_ms)
            self.buffer.fill(prefetched, now_ms)
        return id

    def get_ids(self, count: int, now_ms: int) -> Operation[list[int]]:
        """Return `count` ascending ids, from calls of PORTION ids each, several of them in flight at once."""
        _check_whole("count", count)
        if count > COUNT_MAX:
            raise ValueError(f"count={count}: give at most {COUNT_MAX:,}; ask again for more")
        ids: list[int] = []
        while True:
            counts = _portions(count - len(ids))
            calls = [Call("get_ids", 0, self._user_agent, portion) for portion in counts]
            for value in (yield from self._ask(calls, now_ms)):
                ids += _as_list(value)
            if len(ids) >= count:
                return ids

    def number(self, method: str, now_ms: int, user_agent: str | None = None) -> Operation[int]:
        """Return the answer of a method whose result is an i64."""
        [value] = yield from self._ask([Call(method, 0, user_agent)], now_ms)
        if not isinstance(value, int):
            raise IdServiceError(f"{method} was answered by {value!r}")
        return value

    def id_range(self, start_ms: int, end_ms: int, now_ms: int) -> Operation[tuple[int, int]]:
        """Return (first, end): the ids of start_ms <= time < end_ms, Unix ms, are those of first <= id < end."""
        [value] = yield from self._ask([Call("get_id_range", 0, numbers=_i64s(start_ms, end_ms))], now_ms)
        first, end = _as_list(value, 2)
        return first, end

    def decode(self, id: int, now_ms: int) -> Operation[IdParts]:
        """Return the parts of an id, by the service's layout."""
        [value] = yield from self._ask([Call("decode_id", 0, numbers=_i64s(id))], now_ms)
        return IdParts(*_as_list(value, len(IdParts._fields)))

    def _ask(self, calls: Sequence[Call], now_ms: int) -> Operation[list[Value]]:
        """Return the values of the calls' answers, from the first server that gives them."""
        problems, refusal = [], None
        for address in self._servers.to_try(now_ms):
            outcome = yield CallExchange(address, calls)
            if outcome.replies is None and outcome.stale:
                outcome = yield CallExchange(address, calls)
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
    """Return the counts of the next calls. Pass on a count below 1, so that the service refuses it in its words."""
    if count <= PORTION:
        return [count]
    whole, remainder = divmod(count, PORTION)
    return ([PORTION] * min(whole, PORTIONS_AT_ONCE) + [remainder] * (remainder > 0))[:PORTIONS_AT_ONCE]


def _i64s(*numbers: int) -> tuple[int, ...]:
    for number in numbers:
        _check_whole("a time or an id", number)
        if not -(1 << 63) <= number < 1 << 63:
            raise ValueError(f"{number} does not fit 64 bits: times are Unix ms, ids are in 0..2**63-1")
    return numbers


def _check_whole(name: str, number: object) -> None:
    if isinstance(number, bool) or not hasattr(number, "__index__"):  # numpy's whole numbers have it
        raise TypeError(f"{name} is a whole number, not {number!r}")


def _as_list(value: Value, length: int | None = None) -> list[int]:
    if not isinstance(value, list) or not value or length not in (None, len(value)):
        raise IdServiceError(f"the service answered {value!r}, where {length or 'some'} numbers are due")
    return value


class Pipeline(Generic[Waiter]):
    """The calls and answers of one connection, matched by order and checked by seqid."""

    def __init__(self) -> None:
        self._frames = FrameDecoder(REPLY_BYTES_MAX)
        self._seqid = 0
        self._sent: deque[tuple[int, int, Waiter]] = deque()  # first seqid, number of calls, waiter
        self._replies: list[Reply] = []  # answers so far to the first entry of _sent
        self._in_flight = 0
        self._has_answered = False

    def with_hint(self, reason: str, *, is_tls: bool) -> str:
        """Return why the connection has ended, with what its service may have wanted if it has answered nothing.

        A service with TLS ends a plain connection at its first bytes. In TLS 1.3 one that refuses a certificate ends
        the connection after the handshake, and its alert may be lost.
        """
        if self._has_answered or not self._sent:
            return reason
        if is_tls:
            return f"{reason}; so ends a service that does not take this client's certificate (ssl.keystore.location)"
        return f"{reason}; if it speaks TLS, set security.protocol=SSL"

    def send(self, calls: Sequence[Call], waiter: Waiter) -> bytes:
        """Return the bytes of these calls. TooManyCalls if too many would be in flight."""
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
        """Yield the exchanges that `data` completes. ThriftError if an answer does not match the calls sent."""
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
            self._has_answered = True
            if len(self._replies) == count:
                replies, self._replies = self._replies, []
                self._sent.popleft()
                yield waiter, replies

    def take_waiting(self) -> list[Waiter]:
        """Return the waiters of all exchanges without an answer, and forget those exchanges."""
        waiting = [waiter for _, _, waiter in self._sent]
        self._sent.clear()
        return waiting
