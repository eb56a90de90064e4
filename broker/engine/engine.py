"""The broker without its sockets: bytes in, replies out, time as an argument.

    receive         bytes go to the connection's decoder, the connection to the queue; nothing is executed
    execute         one turn: rounds over the queued connections, one request of each connection a round
      Produce       is decoded by a template or in full, and staged (broker.engine.produce_turn)
      other APIs    run at the end of the round, after the staged requests were committed
      commit        one write for each log; the answers go to their connections
    take_replies    the replies, each connection's in the order of its requests

The shell calls `receive` with the bytes of each readable peer, then `execute` once. It sends the replies that
`take_replies` returns, and reports the bytes that were sent (`drained`). It runs the jobs of `take_syncs` in threads,
and calls `tick` at `next_deadline`. Nothing in this module blocks.

Turns are fair: see `execute`. A handler puts an error into its answer. A WireError or ApiError that leaves the handler
closes the connection, with the error as its reason (`take_closes`). Any other exception is a fault of the broker's own:
it closes the connection of its request, and its traceback is reported.
"""

import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from traceback import format_exc, format_exception
from typing import TYPE_CHECKING, Any

from broker.engine.api_table import API_VERSIONS, APIS, PRODUCE, Api
from broker.engine.connection import Connection, Slot
from broker.engine.connection_limits import ConnectionLimits
from broker.engine.produce_turn import StagedProduce
from broker.engine.purgatory import Delayed
from broker.engine.request_memory import RequestMemory
from broker.handlers.produce import stage, when_on_disk
from broker.log.io_jobs import IoJob, ReadJob
from broker.log.partition_log import PartitionLog
from broker.now import Now
from broker.services.context import BrokerServices, RequestContext
from broker.services.id_stamper import Backpressure
from broker.wire import fetch, list_offsets
from broker.wire.errors import ApiError, ErrorCode, WireError
from broker.wire.fetch_template import FetchTemplates
from broker.wire.frame import LENGTH_BYTES, FileRegion, Part, read_request_header, size_of
from broker.wire.list_offsets_template import ListOffsetsTemplates
from broker.wire.primitives import skip_tags
from broker.wire.produce_template import FoundTemplate, ProduceTemplates
from broker.wire.templates import Templates, TemplateStore

if TYPE_CHECKING:
    from broker.quota.quota_manager import Meter, QuotaManager

_LENGTH_AND_ID = struct.Struct(">ii")
ACTIVE_STEP_MS = 1_000  # activity is noted this often at most, so a silent connection is closed as much later
ROUNDS_MAX = 32  # requests of one connection in a turn
TURN_NS = 2_000_000  # a turn that has lasted longer ends after its round
CONTENDED_NS = 10_000_000  # a backlog leaves room for this long after other connections had requests
BACKLOG_WAITS = 19  # so that one connection with a backlog takes about a twentieth of the time
OWN_FAULT = "a fault of the broker's own; see the log"
BACKLOG_BYTES = 64 * 1024  # a connection is not read while more bytes of its requests wait to be executed
_record = tuple.__new__  # as RequestContext(...), at half its price


class Engine:
    """All connections of one broker over its services."""

    def __init__(self, services: BrokerServices, clock_ns: Callable[[], int] = lambda: 0) -> None:
        """`clock_ns` is a monotonic clock that measures durations; without one, turns are bounded by rounds only."""
        self.services = services
        self.metrics = services.metrics
        self._apis: dict[int, Api] = APIS
        self._clock_ns = clock_ns
        self._produced = self.metrics.of_api(PRODUCE)
        self._began_ns = 0
        services.advertised = [(api.key, api.advertised_oldest, api.newest) for api in APIS.values()]
        self._connections: OrderedDict[Connection, None] = OrderedDict()  # by their last activity, oldest first
        self._queue: list[Connection] = []
        """Connections with requests to be executed in the next turn."""
        self._backlog: list[Connection] = []
        """Connections with requests that earlier turns have left."""
        self._contended_ns = -CONTENDED_NS
        """When a turn last found both connections with a backlog and connections without one."""
        self._ready: list[Connection] = []
        """Connections with replies to be sent."""
        self._closes: list[Connection] = []
        self._stalled: list[Connection] = []
        """Connections that may have stopped to want data since the last `take_stalled`."""
        self._turn = services.turn
        store = TemplateStore(services.config.max_request_templates)
        self._templates = ProduceTemplates(store)
        self._repeated: dict[int, Templates] = {
            fetch.API_KEY: FetchTemplates(store),
            list_offsets.API_KEY: ListOffsetsTemplates(store),
        }
        self._answered: dict[int, int] = {}
        """The number of requests of each API that templates answered in this round."""
        self._retry: Delayed[bool] | None = None
        """The end of the wait for ids, while Produce requests are held."""
        idle_ms = services.config.connections_max_idle_ms
        self._active_step_ms = min(ACTIVE_STEP_MS, idle_ms // 100)
        self._idle_ms = idle_ms + self._active_step_ms
        self._limits = ConnectionLimits(services.listener_limits)
        memory = services.config.queued_max_request_bytes
        self._memory = RequestMemory(memory) if memory > 0 else None
        self._must_commit = False
        """The turn must be committed before the next round."""
        self._now = Now(0, 0)

    # --- connections ---------------------------------------------------------------------------------------------

    def opened(self, peer: str, now: Now, listener: str = "") -> Connection:
        """Add a connection of a peer ("host:port") to a listener; close it at once if it exceeds a connection limit."""
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
        """Return how long the shell shall accept no connection there because they come too fast; 0 nearly always."""
        return self._limits.pause_ms(self.services.config, now.ms, listener)

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    def receive(self, conn: Connection, data: memoryview, now: Now) -> bool:
        """Take bytes from a peer: writable, and valid until `execute` returns.

        Return False if there is nothing to execute, because a frame only became longer.
        """
        if now.ms > conn.active_ms + self._active_step_ms:
            self._note_active(conn, now)
        self.metrics.bytes_received += len(data)
        if conn.frame is None and (frame := conn.decoder.sole_frame(data)) is not None:
            conn.frame = frame  # nearly always
        else:
            self._unread(conn)
            if conn.close_reason is not None or not conn.decoder.feed(data):
                return False
        if not conn.queued:
            conn.queued = True
            self._queue.append(conn)
        return True

    @staticmethod
    def _unread(conn: Connection) -> None:
        """Give the frame that came alone back to the decoder, so that others can follow it."""
        frame, conn.frame = conn.frame, None
        if frame is not None:
            conn.decoder.put_back(frame)

    def drained(self, conn: Connection, sent_bytes: int, now: Now) -> None:
        """Note that `sent_bytes` of the replies were sent, and queue the requests that waited for that."""
        conn.queued_bytes -= sent_bytes
        self.metrics.bytes_sent += sent_bytes
        if now.ms > conn.active_ms + self._active_step_ms:
            self._note_active(conn, now)
        if not conn.readable:
            conn.look()
            self._resume(conn)

    def closed(self, conn: Connection) -> None:
        """Forget a closed connection, its requests and its answers."""
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
        if conn.staged:
            self._turn.drop(conn)
        conn.slots.clear()
        conn.out.clear()

    def take_replies(self) -> list[tuple[Connection, list[Part]]]:
        """Return the replies to send, for each connection in the order of its requests."""
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
        """Return the connections to close after their replies are sent; `close_reason` says why."""
        closes, self._closes = self._closes, []
        return closes

    def take_stalled(self) -> list[Connection]:
        """Return connections that the shell shall stop reading from while they want no data (`wants_data`)."""
        stalled, self._stalled = self._stalled, []
        return stalled

    def _close(self, conn: Connection, reason: str) -> None:
        if conn.close(reason):
            self._closes.append(conn)

    # --- time and disk -------------------------------------------------------------------------------------------

    def next_deadline(self, now: Now) -> int:
        """Return when `tick` is due, on the monotonic clock (ms)."""
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
        """Answer requests whose deadline has come, close connections that were silent too long, and start due syncs."""
        self._now = now
        self.services.purgatory.advance(now)
        self.services.tick_coordinators(now)
        for log in self.services.logs.tick(now):
            self.services.touch(log, now)
        while self._connections:  # no copy of them all, because each fetch that expires causes a tick
            conn = next(iter(self._connections))
            if conn.active_ms + self._idle_ms > now.ms:
                break
            half = " in the middle of a frame" if conn.decoder.in_frame else ""
            idle_ms = self.services.config.connections_max_idle_ms
            self._close(conn, f"silent for {idle_ms} ms{half} (connections.max.idle.ms)")
            self._note_active(conn, now)

    def _note_active(self, conn: Connection, now: Now) -> None:
        if conn in self._connections:
            conn.active_ms = now.ms
            self._connections.move_to_end(conn)

    def take_syncs(self, begin_round: bool = True) -> list[IoJob]:
        """Return jobs, each to be run in a thread and passed to `synced` or `sync_failed` afterwards.

        The next round of the journal is among them only with `begin_round`.
        """
        return self.services.logs.take_syncs(begin_round)

    def synced(self, sync: IoJob, now: Now) -> None:
        """Note that a job is done, and answer the requests that waited for it."""
        self._came_back(sync, self.services.logs.synced(sync), now)

    def sync_failed(self, sync: IoJob, error: Exception, now: Now) -> None:
        """Note that a job failed, and answer the requests that waited for it."""
        self._came_back(sync, self.services.logs.sync_failed(sync, error), now)

    def _came_back(self, sync: IoJob, changed: list[PartitionLog], now: Now) -> None:
        self._now = now
        for log in changed:
            self.services.touch(log, now)
        if isinstance(sync, ReadJob):
            self.services.purgatory.touch(sync.key, now)

    # --- turns ---------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True if requests are left for another turn."""
        return bool(self._queue or self._backlog)

    def execute(self, now: Now) -> None:
        """Execute one turn. The bytes that `receive` was given are invalid afterwards.

        Each round executes one request of each connection. A Produce is staged. Any other request runs at the end of
        the round, after the staged requests were committed. The turn continues while more than half of the connections
        it began with have more requests, so that connections that pipeline share its writes. It ends after ROUNDS_MAX
        rounds or TURN_NS in any case. The requests left are the backlog.

        While other connections have requests, a connection with a backlog gets one request a turn, and then waits
        BACKLOG_WAITS times as long as that took. The turn's average counts as the time of a request; the request's own
        time counts instead if it is longer, except for a Produce, which is executed together with others.
        """
        self._now = now
        self._began_ns = started_ns = self._clock_ns()
        queue, later, rounds_max = self._take_queue(started_ns)
        began, executed = len(queue), 0
        for rounds in range(1, rounds_max + 1):
            executed += len(queue)
            queue = self._round(queue)
            if not queue or rounds == rounds_max or (began > 1 and 2 * len(queue) <= began):
                break
            self._began_ns = self._clock_ns()
            if self._began_ns - started_ns > TURN_NS:
                break
        if self._turn.requests:
            self._commit()
        if queue:
            due_ns = self._clock_ns()
            due_ns += BACKLOG_WAITS * (due_ns - started_ns) // executed
            for conn in queue:
                conn.due_ns = max(conn.due_ns, due_ns)
        self._backlog = later + queue
        for conn in self._backlog:
            self._put_aside(conn)

    def _take_queue(self, now_ns: int) -> tuple[list[Connection], list[Connection], int]:
        """Choose the connections of a turn. Return them, those with a backlog that wait, and the most rounds."""
        queue, self._queue = self._queue, []
        backlog = self._backlog
        if not backlog:
            return queue, [], ROUNDS_MAX
        if queue:
            self._contended_ns = now_ns
        elif now_ns - self._contended_ns > CONTENDED_NS:
            return backlog, [], ROUNDS_MAX
        due = [conn for conn in backlog if conn.due_ns <= now_ns]
        if not queue:
            return (due, [conn for conn in backlog if conn.due_ns > now_ns], 1) if due else (backlog, [], 1)
        rounds_max = ROUNDS_MAX if len(queue) + len(due) > 1 else 1
        return due + queue, [conn for conn in backlog if conn.due_ns > now_ns], rounds_max

    def _round(self, queue: list[Connection]) -> list[Connection]:
        """Execute one request of each connection; return the connections that have more."""
        following: list[Connection] = []
        others: list[tuple[Connection, memoryview]] = []
        find_template = self._templates.open
        for conn in queue:
            if conn.staged and not conn.has_room:
                conn.readable = False
            if not conn.readable:
                self._park(conn)
                continue
            frame = conn.frame
            if frame is not None:
                conn.frame = None
                conn.queued = False
            elif (frame := self._next_frame(conn, following)) is None:
                continue
            found = find_template(frame, conn.key_end)
            if found is not None:
                self._produce_again(conn, frame, found)
            elif len(frame) > 1 and not frame[0] and not frame[1]:  # the API key of Produce
                self._handle_request(conn, frame)
            else:
                others.append((conn, frame))
        if (others or self._must_commit) and self._turn.requests:
            self._commit()
        if others:
            for conn, frame in others:
                if conn.staged:  # an earlier Produce of the connection has no ids yet
                    conn.decoder.put_back(frame)
                elif conn.close_reason is None:
                    began_ns = self._clock_ns()
                    self._handle_request(conn, frame)
                    if conn.queued:
                        now_ns = self._clock_ns()
                        conn.due_ns = now_ns + BACKLOG_WAITS * (now_ns - began_ns)
        if self._answered:
            took_ns = self._clock_ns() - self._began_ns
            for key, number in self._answered.items():
                self.metrics.of_api(key).observe(took_ns, number)
            self._answered.clear()
        return following

    def _next_frame(self, conn: Connection, following: list[Connection]) -> memoryview | None:
        """Return a connection's next request, or None; add the connection to `following` if it has more requests."""
        decoder = conn.decoder
        conn.backlogged = False
        try:
            frame = decoder.next_frame()
        except WireError as error:
            if not self._may_close(conn):  # the decoder raises the error again
                self._park(conn)
                return None
            self._close(conn, str(error))
            frame = None
        else:
            if decoder.has_frame():
                following.append(conn)
                return frame
        conn.queued = False
        if self._memory is not None:
            self._memory.settle(conn)
        return frame

    def _park(self, conn: Connection) -> None:
        """Take a connection that may not execute its next request out of the queue; `_resume` puts it back."""
        conn.queued = False
        self._put_aside(conn)

    def _put_aside(self, conn: Connection) -> None:
        """Keep the requests of a connection for another turn."""
        if conn not in self._connections:
            return  # it is closed, so its requests are dropped
        self._unread(conn)
        conn.decoder.pause()
        if self._memory is not None:
            self._memory.settle(conn)
        conn.backlogged = conn.decoder.unread_bytes > BACKLOG_BYTES
        if not conn.wants_data:
            self._stalled.append(conn)

    def _resume(self, conn: Connection) -> None:
        """Queue a connection that was parked, if it may execute its next request now."""
        if conn.readable and not conn.queued and (conn.decoder.unread_bytes or conn.decoder.partial is not None):
            conn.queued = True
            self._queue.append(conn)

    # --- requests ------------------------------------------------------------------------------------------------

    def _handle_request(self, conn: Connection, frame: memoryview) -> None:
        """Execute one request; an error closes its connection."""
        try:
            self._request(conn, frame)
        except (WireError, ApiError) as error:
            if self._may_close(conn):
                self._close(conn, str(error))
            else:
                conn.decoder.put_back(frame)  # it closes the connection when it is executed again
        except Exception as error:
            self._may_close(conn)  # a fault closes it anyway
            self._failed([conn], error)
        if not conn.readable:
            self._stalled.append(conn)

    def _may_close(self, conn: Connection) -> bool:
        """Commit the connection's staged requests, to answer them first; return False if they wait for ids."""
        if conn.staged:
            self._commit()
        return not conn.staged

    def _produce_again(self, conn: Connection, frame: memoryview, found: FoundTemplate) -> None:
        """Execute a Produce whose template was found."""
        template, correlation_id, batch = found
        if self.services.quotas is not None or self._apis is not APIS:
            self._handle_request(conn, frame)  # quotas, or failures of a test, wrap the handler
            return
        conn.key_end = template.key_end
        staged = StagedProduce(template.version, template.client_id, template.request, 1)
        staged.conn, staged.api, staged.template = conn, APIS[PRODUCE], template
        staged.correlation_id, staged.began_ns = correlation_id, self._began_ns
        conn.staged += 1
        self._turn.requests.append(staged)
        try:
            stage(self.services, staged, 0, batch, self._now)
        except Exception as error:
            self._turn.abandon(staged)
            conn.staged -= 1
            self._may_close(conn)
            self._failed([conn], error)

    def _request(self, conn: Connection, frame: memoryview) -> None:
        """Decode one request, call its handler, and send the response: now, at the commit, or when it is ready."""
        services = self.services
        templates = self._repeated.get(frame[1]) if len(frame) > 1 else None
        opened = None if templates is None else templates.open(frame)
        template = None
        if opened is not None:
            template, correlation_id, request = opened
            api = self._apis[template.api_key]
            call = _record(
                RequestContext,
                (services, template.version, template.client_id, conn.peer, request, None, {}, conn.listener, None),
            )
        else:
            decoded = self._decode(conn, frame)
            if decoded is None:
                return
            api, call, correlation_id = decoded
        served = api
        if services.quotas is not None:
            api = self._metered(conn, served, call.client_id, len(frame), services.quotas)
        try:
            response = api.handle(call, self._now)
        except Backpressure as wait:
            self._try_again(conn, frame, wait)
            return
        if response.__class__ is StagedProduce:
            response.conn, response.api = conn, api
            response.correlation_id, response.began_ns = correlation_id, self._began_ns
            conn.staged += 1
            if api is not served:
                self._commit()  # so that the client is held back from this request on, as the answer says
            self._must_commit = self._must_commit or not response.acks  # a failure closes the connection
            return
        if conn.staged:
            self._commit()  # the answers of earlier requests go first
        if response.__class__ is Delayed:
            self._wait(conn, api, call.version, correlation_id, response)
        elif response is None:
            self.metrics.of_api(api.key).observe(self._clock_ns() - self._began_ns)
        else:
            # Rows other than the table's (quotas, failures of a test) do more with an answer than encode it.
            reply = template.encode(correlation_id, response) if template is not None and api.__class__ is Api else None
            if reply is None:
                self._reply(conn, api, call.version, correlation_id, response, None)
            else:
                parts, size = reply
                conn.put(parts, size)
                self._ready.append(conn)
                self._answered[api.key] = self._answered.get(api.key, 0) + 1

    def _decode(self, conn: Connection, frame: memoryview) -> tuple[Api, RequestContext, int] | None:
        """Decode a request in full. Return (row, request, correlation id), None if it is answered already."""
        header = read_request_header(frame)
        key, version, correlation_id = header.api_key, header.version, header.correlation_id
        api = self._apis.get(key)
        if api is None:
            raise WireError(f"API key {key} (v{version}) is not known; these bytes may not be Kafka's protocol")
        if not api.oldest <= version <= api.newest:
            if key == API_VERSIONS:
                self._unsupported(conn, api, correlation_id)
                return None
            raise WireError(f"{api.name} v{version} is not served; v{api.oldest} to v{api.newest} are")
        position = header.body
        if version >= api.flexible:
            try:
                position = skip_tags(frame, position)
            except IndexError:
                raise WireError(f"the header of {api.name} v{version} ends before its tags") from None
        request, original, tags = api.decode(version, frame, position)
        if key in self._repeated:
            self._repeated[key].learn(frame, header, request)
        call = RequestContext(
            self.services, version, header.client_id, conn.peer, request, original, tags, conn.listener
        )
        return api, call, correlation_id

    # --- Produce -------------------------------------------------------------------------------------------------

    def _commit(self) -> None:
        """Append the staged batches, and answer the requests that this settles."""
        self._must_commit = False
        settled = self._turn.commit(self._now)
        for log in self._turn.take_appended():
            try:
                self.services.appended(log, self._now)
            except Exception:
                self.services.report(f"a fault of the broker's own, after an append to {log.name}:\n{format_exc()}")
        durable: dict[tuple[PartitionLog | None, int], list[tuple[StagedProduce, Slot]]] = {}
        failed: dict[int, list[StagedProduce]] = {}
        quick, began_ns = 0, 0
        for staged in settled:
            conn = staged.conn
            conn.staged -= 1
            if conn.close_reason is not None:
                pass  # an earlier request of it failed, and will not be answered
            elif staged.reply is not None:
                conn.put_reply(staged.reply)
                self._ready.append(conn)
                quick, began_ns = quick + 1, staged.began_ns
            elif staged.failure is not None:
                failed.setdefault(id(staged.failure), []).append(staged)
                self._close(conn, OWN_FAULT)
            elif staged.on_disk is not None:
                # Logs with the journal share its rounds, so their requests wait together. Other logs sync alone.
                log = staged.on_disk[0][0]
                key = None if log.journal is not None else log, staged.request.timeout_ms
                durable.setdefault(key, []).append((staged, conn.wait()))
            else:
                self._answer(staged, None)
            if not conn.readable:
                self._stalled.append(conn)
                if not conn.staged:
                    conn.unstaged()
                    self._resume(conn)
        for each in failed.values():
            self._failed([staged.conn for staged in each], each[0].failure)
        for (_, timeout_ms), waiting in durable.items():
            self._wait_for_disk(waiting, self._now.ms + timeout_ms)
        if quick:
            self._produced.observe(self._clock_ns() - began_ns, quick)
        if self._turn.retry_wall_ms is not None:
            self._wait_for_ids()

    def _answer(self, staged: StagedProduce, slot: Slot | None) -> None:
        """Answer a settled Produce; `slot` is the place of its answer if the answer had to wait."""
        conn = staged.conn
        try:
            self._answer_in_full(staged, slot)
        except (WireError, ApiError) as error:
            self._close(conn, str(error))
        except Exception:
            self._failed([conn])

    def _answer_in_full(self, staged: StagedProduce, slot: Slot | None) -> None:
        response: Any = staged.results
        if not staged.acks:
            failed = next((result for result in staged.results if result and result.error_code), None)
            if failed is not None:
                raise ApiError(ErrorCode(failed.error_code), f"a Produce with acks=0 failed: {failed.message}")
            response = None
        if staged.adapt is not None:
            response = staged.adapt(response)
        if response is None:
            self._produced.observe(self._clock_ns() - staged.began_ns)
        else:
            self._reply(staged.conn, staged.api, staged.version, staged.correlation_id, response, slot)

    def _wait_for_disk(self, waiting: list[tuple[StagedProduce, Slot]], deadline_ms: int) -> None:
        """Answer requests when their batches are on the disk; if a connection is closed the others still wait."""
        conns = [staged.conn for staged, _ in waiting]
        delayed = when_on_disk(self.services, [staged for staged, _ in waiting], deadline_ms)
        delayed.try_complete = self._guarded(conns, delayed.try_complete)
        delayed.expire = self._guarded(conns, delayed.expire)

        def done(answered: Sequence[StagedProduce] | None) -> None:
            if answered is None:
                return  # a fault; the connections are being closed
            for staged, slot in waiting:
                if staged.conn.close_reason is None:
                    slot.began_ns = staged.began_ns
                    self._answer(staged, slot)
                    self._resume(staged.conn)

        self.services.purgatory.watch(delayed, done, self._now)

    def _wait_for_ids(self) -> None:
        """Stage the held requests again when ids are due; their connections execute nothing meanwhile."""
        for staged in self._turn.requests:
            staged.conn.starve_of_ids()
            self._stalled.append(staged.conn)
        if self._retry is not None:
            return
        retry_wall_ms = self._turn.retry_wall_ms
        assert retry_wall_ms is not None
        deadline_ms = self._now.ms + max(retry_wall_ms - self._now.wall_ms, 1)
        self._retry = Delayed((), deadline_ms, lambda now: None, lambda now: True)
        # Not limited: if the purgatory answered it early, it would be retried at once, for ever. It is the only one.
        self.services.purgatory.watch(self._retry, self._stage_held, self._now, limited=False)

    def _stage_held(self, _: bool) -> None:
        self._retry = None
        for staged, place, batch in self._turn.take_held():
            try:
                stage(self.services, staged, place, batch, self._now)
            except Exception:
                self._turn.drop(staged.conn)
                self._failed([staged.conn])

    def _failed(self, conns: Sequence[Connection], error: Exception | None = None) -> None:
        """Report the traceback of an unexpected exception, and close the connections on which it happened."""
        peers = ", ".join(conn.peer for conn in conns)
        trace = format_exc() if error is None else "".join(format_exception(error))
        self.services.report(f"a fault of the broker's own, on the connection of {peers}:\n{trace}")
        for conn in conns:
            self._close(conn, OWN_FAULT)

    def _reply(
        self, conn: Connection, api: Api, version: int, correlation_id: int, response: Any, slot: Slot | None
    ) -> None:
        parts = api.encode(version, response)
        tags = b"\0" if version >= api.flexible and api.key != API_VERSIONS else b""
        size = 4 + len(tags) + size_of(parts)
        head, first = _LENGTH_AND_ID.pack(size, correlation_id) + tags, parts[0]
        if isinstance(first, FileRegion):
            parts.insert(0, head)
        else:
            parts[0] = head + first
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
            self._resume(conn)

        self.services.purgatory.watch(delayed, done, self._now)

    def _guarded(self, conns: Sequence[Connection], answer: Callable[[Now], Any]) -> Callable[[Now], Any]:
        """Wrap `answer` so that an exception closes only `conns`: `tick` or another connection's request calls it."""

        def guarded(now: Now) -> Any:
            try:
                return answer(now)
            except Exception:
                self._failed(conns)
                return None

        return guarded

    def _try_again(self, conn: Connection, frame: memoryview, wait: Backpressure) -> None:
        """Keep a request that had no effect, and execute it again later; its connection is not read meanwhile."""
        conn.hold(frame)

        def again(_: bool) -> None:
            held = conn.release()
            if held is not None and conn.close_reason is None:
                conn.decoder.put_back(held)
                self._resume(conn)

        deadline_ms = self._now.ms + max(wait.retry_wall_ms - self._now.wall_ms, 1)
        later: Delayed[bool] = Delayed((), deadline_ms, lambda now: None, lambda now: True)
        # Not limited: if the purgatory answered it early, it would be retried at once, for ever.
        self.services.purgatory.watch(later, again, self._now, limited=False)

    # --- quotas --------------------------------------------------------------------------------------------------

    def _metered(self, conn: Connection, api: Api, client_id: str | None, size: int, quotas: "QuotaManager") -> Api:
        """Return the row for one request; if the client has quotas, the row counts the request and may throttle."""
        meter = quotas.meter(client_id)
        if meter is None:
            return api
        from broker.quota.metered_api import metered  # few brokers ever need it

        return metered(api, meter, size, self._clock_ns, lambda: self._now, lambda over: self._throttle(conn, over))

    def _throttle(self, conn: Connection, over: "Meter") -> None:
        """Stop reading from a connection for a while, because its client is over a quota (KIP-219)."""
        self._mute(conn, over, lambda: self._resume(conn))

    def _count_connection(self, conn: Connection, quotas: "QuotaManager", now: Now) -> None:
        """Count a new connection; if its address is over the quota, hold the connection for a while, then close it.

        Kafka does the same (KIP-612), because a client whose connection is closed at once connects again at once.
        """
        over = quotas.connected(_address_of(conn), now.ms)
        if over is not None:
            self._now = now
            self._mute(conn, over, lambda: self._close(conn, f"its address is over {over.quota}, a client quota"))

    def _mute(self, conn: Connection, over: "Meter", then: Callable[[], None]) -> None:
        """Read nothing from a connection for the throttle time of `over`, then call `then`.

        Of two overlapping throttle times the one that ends last counts.
        """
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
        self.services.purgatory.watch(muted, is_over, self._now, limited=False)  # a connection has at most one

    def _unsupported(self, conn: Connection, api: Api, correlation_id: int) -> None:
        """Answer an unknown version of ApiVersions in v0, with the versions that are served (KIP-511)."""
        keys = [{"api_key": api.key, "min_version": api.oldest, "max_version": api.newest}]
        self._reply(conn, api, 0, correlation_id, {"error_code": ErrorCode.UNSUPPORTED_VERSION, "api_keys": keys}, None)


def _address_of(conn: Connection) -> str:
    """Return the address of the connection's peer, without the port."""
    return conn.peer.rpartition(":")[0].strip("[]").removeprefix("::ffff:")  # IPv4 on a listener of IPv6
