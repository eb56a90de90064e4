"""The broker without its sockets: bytes in, replies out, time as an argument.

    receive -> connection.decoder -> api_table -> handler -> response | Delayed -> connection -> take_replies

The shell feeds `receive` with what a peer sent, sends what `take_replies` gives and says how much went out (`drained`),
runs what `take_syncs` gives in a thread, and calls `tick` when `next_deadline` has come. Nothing in here waits.

Of errors only two kinds come out: a peer that breaks the protocol has its connection closed (`take_closes` says why),
and everything else is an answer. A fault of our own closes the one connection it happened on, with its traceback.
"""

import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from broker.api_table import API_VERSIONS, APIS, PRODUCE, Api, KnownOf
from broker.connection import Connection, Slot
from broker.connection_limits import ConnectionLimits
from broker.handlers.call import Backpressure, Call, Services
from broker.log.io_jobs import IoJob, ReadJob
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.purgatory import Delayed
from broker.request_memory import RequestMemory
from broker.shortcut import Taken
from broker.wire.errors import ApiError, ErrorCode, WireError
from broker.wire.frame import LENGTH_BYTES, FileRegion, Part, read_request_header, size_of
from broker.wire.primitives import skip_tags

if TYPE_CHECKING:
    from broker.quota_manager import Meter, QuotaManager

_LENGTH_AND_ID = struct.Struct(">ii")
# On the short way what is small waits for the end of the turn, so it is copied; a larger one costs enough by itself.
COPIED_BYTES_MAX = 4096
TAKEN_MAX = 512
ACTIVE_STEP_MS = 1_000  # that a connection is active is noted so often at most, so a silent one is closed so much later


class Engine:
    """All connections of one broker over its services."""

    def __init__(self, services: Services, clock_ns: Callable[[], int] = lambda: 0) -> None:
        """`clock_ns` is a monotonic clock to measure durations by, where anybody wants them."""
        self.services = services
        self.metrics = services.metrics
        self._apis: dict[int, Api] = APIS
        self._clock_ns = clock_ns
        self._produced = self.metrics.of_api(PRODUCE)
        self._began_ns = 0
        services.quotas_changed = self._forget_short_ways
        services.advertised = [(api.key, api.advertised_oldest, api.newest) for api in APIS.values()]
        self._connections: OrderedDict[Connection, None] = OrderedDict()  # the one silent longest comes first
        self._ready: list[Connection] = []
        self._closes: list[Connection] = []
        idle_ms = services.config.connections_max_idle_ms
        self._active_step_ms = min(ACTIVE_STEP_MS, idle_ms // 100)
        self._idle_ms = idle_ms + self._active_step_ms
        self._limits = ConnectionLimits(services.listener_limits)
        memory = services.config.queued_max_request_bytes
        self._memory = RequestMemory(memory) if memory > 0 else None
        self._resumable: deque[Connection] = deque()
        """Where an answer has made room for the next request; at most one entry for each answer of this call."""
        self._taken: list[Taken] = []
        """Of this turn, on the short way."""
        self._taken_ns = 0
        """When the first of them was taken, which is when all of them were there to be read."""
        self._now = Now(0, 0)

    # --- connections ---------------------------------------------------------------------------------------------

    def opened(self, peer: str, now: Now, listener: str = "") -> Connection:
        """A peer ("host:port") connected to a listener. One too many, of all or of its address, is closed at once."""
        config = self.services.config
        conn = Connection(
            peer, config.socket_request_max_bytes, config.max_inflight_requests, config.max_queued_bytes, listener
        )
        conn.active_ms = now.ms
        self.metrics.connections_opened += 1
        self._connections[conn] = None
        refusal = self._limits.opened(_address_of(conn), config, now.ms, listener)
        if refusal is not None:
            self._close(conn, refusal)
        elif self.services.quotas is not None:
            self._count_connection(conn, self.services.quotas, now)
        return conn

    def accept_pause_ms(self, listener: str, now: Now) -> int:
        """How long the shell is to accept no connection there, as they come too fast; mostly 0."""
        return self._limits.pause_ms(self.services.config, now.ms, listener)

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._connections)

    def receive(self, conn: Connection, data: memoryview, now: Now) -> bool:
        """Bytes from a peer: writable, valid during this call only. False where a frame has only become longer: nobody
        need look at what the engine wants then."""
        self._now = now
        if now.ms > conn.active_ms + self._active_step_ms:
            self._note_active(conn, now)
        self.metrics.bytes_received += len(data)
        stirred = True
        frame = conn.decoder.sole_frame(data) if conn.readable else None
        if frame is not None:
            self._take(conn, frame)
        elif conn.close_reason is None:
            conn.decoder.feed(data)
            stirred = self._read(conn)
        if self._resumable:
            self._resume()
            stirred = True
        return stirred

    def drained(self, conn: Connection, sent_bytes: int, now: Now) -> None:
        """So many bytes of the replies went out; requests that waited for room are read."""
        self._now = now
        conn.queued_bytes -= sent_bytes
        if not conn.readable:
            conn.look()
        self.metrics.bytes_sent += sent_bytes
        if now.ms > conn.active_ms + self._active_step_ms:
            self._note_active(conn, now)
        if conn.decoder.has_more and conn.readable:  # only what had to be put aside is read on
            self._read(conn)
            self._resume()

    def closed(self, conn: Connection) -> None:
        """The connection is gone; nobody waits for its answers."""
        if self._connections.pop(conn, self) is None:
            self._limits.closed(_address_of(conn), conn.listener)
        if self._memory is not None:
            self._memory.leave(conn)
        if conn.muted is not None:
            self.services.purgatory.cancel(conn.muted)
        conn.close("the peer closed it")
        for slot in conn.slots:
            if slot.delayed is not None:
                self.services.purgatory.cancel(slot.delayed)
        conn.slots.clear()
        conn.out.clear()

    def take_replies(self) -> list[tuple[Connection, list[Part]]]:
        """What is to be sent, for each connection in the order of its requests."""
        while self._taken:
            self._do_taken()
            self._resume()
        if not self._ready:
            return []
        ready, self._ready = self._ready, []
        replies = []
        for conn in ready:
            if conn.out:
                replies.append((conn, conn.out))
                conn.out = []
        return replies

    def take_closes(self) -> list[Connection]:
        """Connections to be closed after their replies are sent; `close_reason` says why."""
        closes, self._closes = self._closes, []
        return closes

    def _close(self, conn: Connection, reason: str) -> None:
        if conn.close(reason):
            self._closes.append(conn)

    # --- time and disk -------------------------------------------------------------------------------------------

    def next_deadline(self, now: Now) -> int:
        """When `tick` is wanted, on the monotonic clock (ms)."""
        deadline = self.services.logs.next_deadline_ms(now.ms)
        delayed = self.services.purgatory.next_deadline_ms()
        if delayed is not None and delayed < deadline:
            deadline = delayed
        coordinators = self.services.coordinators_deadline_ms()
        if coordinators is not None and coordinators < deadline:
            deadline = coordinators
        if self._connections:
            oldest = next(iter(self._connections))
            deadline = min(deadline, oldest.active_ms + self._idle_ms)
        return deadline

    def tick(self, now: Now) -> None:
        """Answer what has waited long enough, close who has been silent too long, ask for syncs that are due."""
        self._now = now
        self.services.purgatory.advance(now)
        self.services.tick_coordinators(now)
        for log in self.services.logs.tick(now):
            self.services.touch(log, now)
        while self._connections:  # no copy of them all: a tick comes with each fetch whose time is over
            conn = next(iter(self._connections))
            if conn.active_ms + self._idle_ms > now.ms:
                break
            half = " in the middle of a frame" if conn.decoder.in_frame else ""
            idle_ms = self.services.config.connections_max_idle_ms
            self._close(conn, f"silent for {idle_ms} ms{half} (connections.max.idle.ms)")
            self._note_active(conn, now)
        self._resume()

    def _note_active(self, conn: Connection, now: Now) -> None:
        if conn in self._connections:
            conn.active_ms = now.ms
            self._connections.move_to_end(conn)

    def take_syncs(self, begin_round: bool = True) -> list[IoJob]:
        """To be run in a thread each; then `synced` or `sync_failed`. The next round of the journal only with
        `begin_round`."""
        return self.services.logs.take_syncs(begin_round)

    def synced(self, sync: IoJob, now: Now) -> None:
        """A sync is done; answers that waited for it leave."""
        self._came_back(sync, self.services.logs.synced(sync), now)

    def sync_failed(self, sync: IoJob, error: Exception, now: Now) -> None:
        """A sync failed; who waited for it is told."""
        self._came_back(sync, self.services.logs.sync_failed(sync, error), now)

    def _came_back(self, sync: IoJob, changed: list[PartitionLog], now: Now) -> None:
        self._now = now
        for log in changed:
            self.services.touch(log, now)
        if isinstance(sync, ReadJob):
            self.services.purgatory.touch(sync.key, now)
        self._resume()

    # --- requests ------------------------------------------------------------------------------------------------

    def _read(self, conn: Connection) -> bool:
        """Handle the requests that are there, as far as the connection may be read; whether it came to any."""
        decoder = conn.decoder
        stirred = False
        try:
            while conn.readable:
                frame = decoder.next_frame()
                if frame is None:
                    decoder.end()
                    if self._memory is not None:
                        self._memory.settle(conn)
                    return stirred or not conn.readable
                stirred = True
                self._take(conn, frame)
            decoder.pause()
            if self._memory is not None:
                self._memory.settle(conn)
        except WireError as error:
            self._close(conn, str(error))
        return True

    def _take(self, conn: Connection, frame: memoryview) -> None:
        """One request, whatever comes of it."""
        if conn.taken:
            self._do_taken()
            if conn.close_reason is not None:
                return
            if conn.held is not None:  # what came before is to be tried again, so this one after it
                conn.decoder.put_back(frame)
                return
        again = conn.again
        if again is not None:
            if small := len(frame) <= COPIED_BYTES_MAX:
                frame = memoryview(bytearray(frame))
            conn.take()
            taken = self._taken
            if not taken:
                self._taken_ns = self._clock_ns()
            taken.append((conn, again, frame))
            if not small or len(taken) >= TAKEN_MAX:
                self._do_taken()
            return
        began_ns = self._clock_ns()
        if self._taken:
            self._do_taken()  # what came first is done first
        self._go_the_long_way(conn, frame, began_ns)

    def _go_the_long_way(self, conn: Connection, frame: memoryview, began_ns: int) -> None:
        self._began_ns = began_ns
        try:
            self._request(conn, frame)
        except (WireError, ApiError) as error:
            self._close(conn, str(error))
        except Exception:
            self._failed([conn])

    def _failed(self, conns: Sequence[Connection]) -> None:
        """An exception that nobody expected: the connections it happened on pay for it, and the log has it all."""
        peers = ", ".join(conn.peer for conn in conns)
        self.services.report(f"a fault of the broker's own, on the connection of {peers}:\n{format_exc()}")
        for conn in conns:
            self._close(conn, "a fault of the broker's own; see the log")

    def _resume(self) -> None:
        """Read on where answers have made room. Each verb ends with it, and only here: an answer is often given from
        within another request's handler, and that one, maybe of the same connection, must be answered first."""
        while self._resumable:
            conn = self._resumable.popleft()
            if conn.readable:  # else there is no room again, and all that waits would only be copied
                self._read(conn)

    def _request(self, conn: Connection, frame: memoryview) -> None:
        if conn.known and self._answer_known(conn, frame):
            return
        header = read_request_header(frame)
        key, version, correlation_id = header.api_key, header.version, header.correlation_id
        api = self._apis.get(key)
        if api is None:
            raise WireError(f"API key {key} (v{version}) is not known; these bytes may not be Kafka's protocol")
        if not api.oldest <= version <= api.newest:
            if key == API_VERSIONS:
                self._unsupported(conn, api, correlation_id)
                return
            raise WireError(f"{api.name} v{version} is not served; v{api.oldest} to v{api.newest} are")
        position = header.body
        flexible = version >= api.flexible
        if flexible:
            try:
                position = skip_tags(frame, position)
            except IndexError:
                raise WireError(f"the header of {api.name} v{version} ends before its tags") from None
        request, original, tags = api.decode(version, frame, position)
        call = Call(self.services, version, header.client_id, conn.peer, request, original, tags, conn.listener)
        if self.services.quotas is not None:
            api = self._metered(conn, api, header.client_id, len(frame), self.services.quotas)
        try:
            response = api.handle(call, self._now)
        except Backpressure as wait:
            self._try_again(conn, frame, wait)
            return
        if response.__class__ is Delayed:
            self._wait(conn, api, version, correlation_id, response)
        elif response is None:
            self.metrics.of_api(key).observe(self._clock_ns() - self._began_ns)
        else:
            self._reply(conn, api, version, correlation_id, response, None)
        if api.again is not None and response is not None:
            conn.again = api.again(call, frame)
        if api.known is not None:
            self._learn(conn, api.key, api.known, call, frame)

    def _answer_known(self, conn: Connection, frame: memoryview) -> bool:
        """Whether the request was a question that the connection asks again and again, and has been answered."""
        known = conn.known.get(frame[1]) if len(frame) > 1 else None
        answer = None if known is None else known.answer(frame, self._now)
        if known is None or answer is None:
            return False
        conn.put(*answer)
        self._ready.append(conn)
        self.metrics.of_api(known.api_key).observe(self._clock_ns() - self._began_ns)
        return True

    @staticmethod
    def _learn(conn: Connection, key: int, known_of: KnownOf, call: Call, frame: memoryview) -> None:
        """Know the question that was asked the next time."""
        known = conn.known.get(key)
        if known is None or not known.opens(frame):
            known = known_of(call, frame)
            if known is not None:
                conn.known[key] = known
            else:
                conn.known.pop(key, None)

    def _do_taken(self) -> None:
        """Do what went the short way since the last time, with one write for all that is alike."""
        taken, self._taken = self._taken, []
        began_ns = self._taken_ns
        try:
            answers, later, refused = taken[0][1].together(taken, self._now)
        except Exception:
            conns = [conn for conn, _, _ in taken]
            for conn in conns:
                conn.let_go()
            self._failed(conns)
            return
        ready = self._ready.append
        for (conn, _, _), reply in answers:
            conn.answer(reply)
            ready(conn)
        if answers:
            self._produced.observe(self._clock_ns() - began_ns, len(answers))
        for some, delayed in later:
            self._wait_together(some, delayed, began_ns)
        for conn, _, frame in refused:
            conn.let_go()
            conn.again = None
            if conn in self._connections:  # also where what came after it closes the connection
                self._go_the_long_way(conn, frame, began_ns)
                if conn.decoder.has_more:  # it may have no answer, with which it would be read on
                    self._resumable.append(conn)

    def _wait_together(self, taken: list[Taken], delayed: Delayed[list[bytes]], began_ns: int) -> None:
        """Requests that are answered by one thing that happens; one whose connection goes keeps the others waiting."""
        slots = []
        conns = []
        for conn, _, _ in taken:
            conn.let_go()
            slots.append(conn.wait())
            conns.append(conn)

        def done(replies: list[bytes] | None) -> None:
            if replies is None:
                return  # a fault; their connections are being closed
            for conn, slot, reply in zip(conns, slots, replies, strict=True):
                if conn.close_reason is None:
                    conn.fill(slot, [reply], len(reply))
                    self._ready.append(conn)
                    if conn.decoder.has_more:
                        self._resumable.append(conn)
            self._produced.observe(self._clock_ns() - began_ns, len(replies))

        delayed.try_complete = self._guarded(conns, delayed.try_complete)
        delayed.expire = self._guarded(conns, delayed.expire)
        self.services.purgatory.watch(delayed, done, self._now)

    def _reply(
        self, conn: Connection, api: Api, version: int, correlation_id: int, response: Any, slot: Slot | None
    ) -> None:
        body = api.encode(version, response)
        tags = b"\0" if version >= api.flexible and api.key != API_VERSIONS else b""
        size = 4 + len(tags) + size_of(body)
        head = _LENGTH_AND_ID.pack(size, correlation_id) + tags
        first = body[0]
        parts = [head, *body] if isinstance(first, FileRegion) else [head + first, *body[1:]]
        if slot is None:
            began_ns = self._began_ns
            conn.put(parts, size + LENGTH_BYTES)
        else:
            began_ns = slot.began_ns
            conn.fill(slot, parts, size + LENGTH_BYTES)
        self._ready.append(conn)
        self.metrics.of_api(api.key).observe(self._clock_ns() - began_ns)

    def _wait(self, conn: Connection, api: Api, version: int, correlation_id: int, delayed: Delayed[Any]) -> None:
        slot = conn.wait()
        slot.delayed = delayed
        slot.began_ns = self._began_ns
        delayed.try_complete = self._guarded([conn], delayed.try_complete)
        delayed.expire = self._guarded([conn], delayed.expire)

        def done(response: Any) -> None:
            slot.delayed = None
            if response is None:
                return  # a fault; the connection is being closed
            try:
                self._reply(conn, api, version, correlation_id, response, slot)
            except Exception:
                self._failed([conn])
            self._resumable.append(conn)

        self.services.purgatory.watch(delayed, done, self._now)

    def _guarded(self, conns: Sequence[Connection], answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        """`answer` without its exceptions: it is called from within another connection's request, or from `tick`."""

        def guarded(now: Now) -> Any:
            try:
                return answer(now)
            except Exception:
                self._failed(conns)
                return None

        return guarded

    def _try_again(self, conn: Connection, frame: memoryview, wait: Backpressure) -> None:
        """Nothing was done for this request: keep it, read nothing more from this peer, and come back to it."""
        conn.hold(frame)

        def again(_: bool) -> None:
            held = conn.release()
            if held is not None and conn.close_reason is None:
                conn.decoder.put_back(held)
                self._resumable.append(conn)

        deadline_ms = self._now.ms + max(wait.retry_wall_ms - self._now.wall_ms, 1)
        later: Delayed[bool] = Delayed((), deadline_ms, lambda now: None, lambda now: True)
        # Answered early it would be tried again at once, and for ever; one a connection is limit enough.
        self.services.purgatory.watch(later, again, self._now, limited=False)

    # --- quotas --------------------------------------------------------------------------------------------------

    def _metered(self, conn: Connection, api: Api, client_id: str | None, size: int, quotas: "QuotaManager") -> Api:
        """The row for one request: where the client has quotas one that counts it, and holds its connection back."""
        meter = quotas.meter(client_id)
        if meter is None:
            return api
        from broker.metered_api import metered  # few brokers ever need it

        return metered(api, meter, size, self._clock_ns, lambda: self._now, lambda over: self._throttle(conn, over))

    def _throttle(self, conn: Connection, over: "Meter") -> None:
        """Its answer leaves at once, and nothing more is read for a while (KIP-219)."""
        self._mute(conn, over, lambda: self._resumable.append(conn))

    def _count_connection(self, conn: Connection, quotas: "QuotaManager", now: Now) -> None:
        """One that its address has too many of lately is held for a while, then closed, as by Kafka (KIP-612): closed
        at once it would only come again."""
        over = quotas.connected(_address_of(conn), now.ms)
        if over is not None:
            self._now = now
            self._mute(conn, over, lambda: self._close(conn, f"its address is over {over.quota}, a client quota"))

    def _mute(self, conn: Connection, over: "Meter", then: Callable[[], None]) -> None:
        """Read nothing from a connection for so long; of two times that overlap the one that ends last counts."""
        self.metrics.throttle(over.quota, over.throttle_ms)
        until_ms = self._now.ms + over.throttle_ms
        if conn.muted is not None:
            if (conn.muted.deadline_ms or 0) >= until_ms:
                return
            self.services.purgatory.cancel(conn.muted)

        def is_over(_: bool) -> None:
            conn.mute(None)
            then()

        muted: Delayed[bool] = Delayed((), until_ms, lambda now: None, lambda now: True)
        conn.mute(muted)
        self.services.purgatory.watch(muted, is_over, self._now, limited=False)  # one a connection is limit enough

    def _forget_short_ways(self) -> None:
        """Who had no quota when it was learned may have one now."""
        for conn in self._connections:
            conn.again = None
            conn.known.clear()

    def _unsupported(self, conn: Connection, api: Api, correlation_id: int) -> None:
        """KIP-511: a version of ApiVersions that is not known here is answered in v0, with those that are."""
        keys = [{"api_key": api.key, "min_version": api.oldest, "max_version": api.newest}]
        self._reply(conn, api, 0, correlation_id, {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": keys}, None)


def _address_of(conn: Connection) -> str:
    """Its peer's address without the port."""
    return conn.peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")  # IPv4 on a listener of IPv6
