"""The broker without its sockets: bytes in, replies out, time as an argument.

    receive         bytes go to the connection's decoder, the connection to the queue; nothing is executed
    execute         one turn: rounds over the queued connections, one request of each connection a round
      Produce       is decoded by a template or in full, and staged (broker.produce.turn)
      other APIs    run at the end of the round, after the staged requests were committed
      commit        one write for each log; the answers go to their connections
    take_replies    the replies, each connection's in the order of its requests

The shell calls `receive` with the bytes of each readable peer, then `execute` once. It sends the replies that
`take_replies` returns, and reports the bytes that were sent (`drained`). It runs the jobs of `take_syncs` in threads,
and calls `tick` at `next_deadline`. Nothing in this module blocks.

    RequestChannel  connections, the queue of their requests, and their answers     broker.channel.request_channel
    RequestHandler  decodes one request and calls its handler                       broker.engine.request_handler
    BatchOpening    has threads check the records of large requests                 broker.produce.batch_opening
    ProduceCommit   writes the staged requests and answers them                     broker.produce.produce_commit
    Throttle        client quotas                                                   broker.engine.throttle
    Authenticator   requests of clients that have not proved who they are           broker.engine.authenticator

Turns are fair: see `execute`. A handler puts an error into its answer. A WireError or ApiError that leaves the handler
closes the connection, with the error as its reason (`take_closes`). Any other exception is a fault of the broker's own:
it closes the connection of its request, and its traceback is reported.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from broker.channel.connection import Connection
from broker.channel.request_channel import RequestChannel
from broker.channel.turn_queue import BACKLOG_WAITS
from broker.engine.api_table import APIS, Api, advertised_to_brokers, advertised_to_clients
from broker.engine.authenticator import Authenticator
from broker.engine.authorization import rights_of
from broker.engine.request_handler import RequestHandler
from broker.engine.throttle import Throttle
from broker.log.io_jobs import METADATA_JOBS, ReadJob
from broker.log.partition_log import PartitionLog
from broker.log.sync_scheduler import IoJob
from broker.log.validation.open_job import OpenJob
from broker.now import Now
from broker.produce.batch_opening import BatchOpening
from broker.produce.produce_commit import ProduceCommit
from broker.services.context import BrokerServices
from broker.services.start import adopt_late_logs
from broker.wire.errors import WireError
from coordination.port import CoordinationError, Event, Operation, Result

if TYPE_CHECKING:  # a server alone has no other brokers
    from broker.membership.calls import AddressedCall, AnyCall
    from broker.membership.peer_calls import PeerCall

PEER_CLOSED = "the peer closed it"
TURN_NS = 2_000_000  # a turn that has lasted longer ends after its round


class Engine:
    """All connections of one broker over its services."""

    logs_each_close = False
    """True if the log shall have a line for each closed connection, not one for each address and minute."""

    def __init__(
        self,
        services: BrokerServices,
        clock_ns: Callable[[], int] = lambda: 0,
        apis: Mapping[int, Api] = APIS,
        channel: type[RequestChannel] = RequestChannel,
    ) -> None:
        """`clock_ns` is a monotonic clock that measures durations; without one, turns are bounded by rounds only."""
        self.services = services
        self.metrics = services.metrics
        services.advertised = advertised_to_clients()
        services.advertised_to_brokers = advertised_to_brokers()
        self.channel = channel(services, clock_ns)
        clock = self._clock = self.channel.clock
        services.now_ms = lambda: clock.now.ms
        self._connections = self.channel.connections
        self._queue = self.channel.queue
        self._slices = self.channel.slices
        self._active_step_ms = self._connections.active_step_ms
        # For the shell; bound here because it calls them after each turn.
        self.take_replies = self._connections.take_replies
        self.take_closes = self._connections.take_closes
        self.take_stalled = self._connections.take_stalled
        self._pending = services.logs.pending
        self._turn = services.turn
        self._file_executor = services.file_executor
        self._member = services.member
        self._followed = None if services.replication is None else services.replication.followed
        self._peer_calls = services.peer_calls
        self._budget = services.partition_budget
        self._purgatory = services.purgatory
        self.next_answer_ms = services.purgatory.next_deadline_ms
        """Returns the first deadline of the requests that wait for their answers, None without one."""
        self._throttle = Throttle(services, self.channel)
        self._produce_commit = ProduceCommit(services, self.channel)
        self._opening = BatchOpening(services, self.channel, self._produce_commit, self._pending)
        commit, opening = self._produce_commit, self._opening
        self._authenticator = Authenticator(services, self.channel, apis)
        self._asks_users = bool(services.sasl)
        self._requests = RequestHandler(
            services, apis, self.channel, self._throttle, commit, opening, self._authenticator
        )

    # --- connections ---------------------------------------------------------------------------------------------

    def opened(self, peer: str, now: Now, listener: str = "") -> Connection:
        """Add a connection of a peer ("host:port") to a listener; close it at once if it exceeds a connection limit."""
        conn = self._connections.opened(peer, now, listener)
        if self.services.authorizer is not None and (not listener or listener != self.services.trusted_listener):
            conn.rights = rights_of(conn, self.services.authorizer, self.services.audit)
        if listener and listener == self.services.own_listener:
            conn.user = self.services.own_user
        is_of_client = listener not in self.services.protected_listeners
        if self.services.quotas is not None and conn.close_reason is None and is_of_client:
            self._throttle.count_connection(conn, self.services.quotas, now)
        if conn.close_reason is None:
            self._authenticator.opened(conn, now)
        return conn

    def secured(self, conn: Connection, user: str | None, now: Now) -> None:
        """Note that a connection speaks TLS from now on, and the user of its client's certificate, if it showed one."""
        if user is not None:
            conn.user = user
        self._authenticator.secured(conn, now)

    def accept_pause_ms(self, listener: str, now: Now) -> int:
        """Return how long the shell shall accept no connection there because they come too fast; 0 nearly always."""
        return self._connections.accept_pause_ms(listener, now)

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._connections)

    def receive(self, conn: Connection, data: memoryview, now: Now) -> bool:
        """Take bytes from a peer: writable, and valid until `execute` returns.

        Return False if there is nothing to execute, because a frame only became longer.
        """
        if now.ms > conn.active_ms + self._active_step_ms:
            self._connections.note_active(conn, now)
        self.metrics.bytes_received += len(data)
        if conn.frame is None and (frame := conn.decoder.sole_frame(data)) is not None:
            conn.frame = frame  # nearly always
        else:
            conn.unread()
            if conn.close_reason is not None or not conn.decoder.feed(data):
                return False
        if not conn.queued:
            conn.queued = True
            self._queue.arrived.append(conn)
        return True

    def drained(self, conn: Connection, sent_bytes: int, now: Now) -> None:
        """Note that `sent_bytes` of the replies were sent, and queue the requests that waited for that."""
        conn.queued_bytes -= sent_bytes
        self.metrics.bytes_sent += sent_bytes
        if now.ms > conn.active_ms + self._active_step_ms:
            self._connections.note_active(conn, now)
        if not conn.readable:
            conn.update_readable()
            self._queue.resume(conn)

    def closed(self, conn: Connection) -> None:
        """Forget a closed connection, its requests and its answers."""
        self._connections.closed(conn)
        self._queue.closed(conn)
        self._authenticator.closed(conn)
        if self._slices.under_way:
            self._slices.closed(conn)
        if conn.muted is not None:
            self.services.purgatory.cancel(conn.muted)
        conn.close(PEER_CLOSED)
        for slot in conn.slots:
            if slot.delayed is not None:
                self.services.purgatory.cancel(slot.delayed)
                slot.delayed = None  # it refers to the slot, and would keep segments open until a garbage collection
        if conn.staged:
            self._turn.drop(conn)
        self._opening.finish(conn)
        conn.slots.clear()
        conn.out.clear()

    # --- time and disk -------------------------------------------------------------------------------------------

    def next_deadline(self, now: Now) -> int:
        """Return when `tick` is due, on the monotonic clock (ms)."""
        others: tuple[int | None, ...] = (
            self.services.purgatory.next_deadline_ms(),
            self.services.coordinators.next_deadline_ms(),
            self._connections.next_deadline_ms(),
            self.channel.memory.next_deadline_ms(now.ms),
        )
        deadline = self.services.logs.next_deadline_ms(now.ms)
        if self._member is not None:
            others = (*others, self._member.next_deadline_ms())
        elif self._peer_calls is not None:
            others = (*others, self._peer_calls.next_deadline_ms())
        if self._asks_users:
            others = (*others, self._authenticator.next_deadline_ms())
        for other in others:
            if other is not None and other < deadline:
                deadline = other
        return deadline

    def tick(self, now: Now) -> None:
        """Answer requests whose deadline has come, close connections that were silent too long, and start due syncs."""
        self._clock.now = now
        if self._member is not None:
            self._member.pending.changed()  # first, so that no fault in another part stops what it does after a pause
        self.services.purgatory.advance(now)
        self.services.coordinators.tick(now)
        if self._member is not None:
            self._member.tick(now)
        elif self._peer_calls is not None:
            self._peer_calls.tick(now)
        for log in self.services.logs.tick(now):
            self.services.touch(log, now)
        adopt_late_logs(self.services, now)
        self._connections.close_idle(now)
        self._authenticator.close_late(now)
        for conn in self.channel.memory.take_stuck(now.ms):
            ms = self.channel.memory.period_ms
            reason = f"the rest of its request did not come within {ms} ms (flakelog.queued.request.ms)"
            self._connections.close(conn, reason)

    def take_syncs(self, begin_round: bool = True) -> list[IoJob | OpenJob]:
        """Return jobs, each to be run in a thread and passed to `synced` or `sync_failed` afterwards.

        The next round of the journal is among them only with `begin_round`.
        """
        if not self._pending.jobs:
            return []
        self._pending.jobs = not begin_round  # a round of the journal may be left
        jobs = [*self.services.logs.take_syncs(begin_round), *self._opening.take()]
        if self._file_executor.is_due:
            jobs += self._file_executor.take()
        return jobs

    def synced(self, sync: IoJob | OpenJob, now: Now) -> None:
        """Note that a job is done, and answer the requests that waited for it."""
        if isinstance(sync, OpenJob):
            self._opening.done(sync, now)
            return
        self._job_ended(sync, self.services.logs.synced(sync), None, now)

    def sync_failed(self, sync: IoJob | OpenJob, error: Exception, now: Now) -> None:
        """Note that a job failed, and answer the requests that waited for it."""
        if isinstance(sync, OpenJob):
            self._opening.failed(sync, error, now)
            return
        self._job_ended(sync, self.services.logs.sync_failed(sync, error), error, now)

    def _job_ended(self, sync: IoJob, changed: list[PartitionLog], error: Exception | None, now: Now) -> None:
        self._clock.now = now
        for log in changed:
            self.services.touch(log, now)
        if isinstance(sync, ReadJob):
            self.services.purgatory.touch(sync.key, now)
        elif isinstance(sync, METADATA_JOBS):
            self._file_executor.back(sync, error, now)
        if self.services.replication is not None:
            self.services.replication.job_ended(sync, error, now)

    # --- other brokers -------------------------------------------------------------------------------------------

    def take_calls(self, now: Now) -> "list[AddressedCall]":
        """Return requests to other brokers, each to be sent, and passed to `called` with its response.

        Take them after each turn, tick and answer. A server alone has none.
        """
        self._clock.now = now
        return [] if self._member is None else self._member.take_calls(now)

    @property
    def has_calls(self) -> bool:
        """True if `take_calls` or `take_operations` may have something."""
        if self._member is None:
            return False
        pending = self._member.pending
        return pending.fetches or pending.calls or pending.operations

    def called(self, call: "AnyCall", response: Any | None, now: Now) -> None:
        """Take the response of a request to another broker, None if the broker sent none."""
        self._clock.now = now
        if self._member is not None:
            self._member.called(call, response, now)
        elif self._peer_calls is not None:
            self._peer_calls.called(cast("PeerCall", call), response, now)

    # --- the coordinator of a cluster ----------------------------------------------------------------------------

    def take_operations(self) -> list[Operation]:
        """Return operations to carry out on the coordinator. Pass each result to `completed` with the same object."""
        return [] if self._member is None else self._member.take_operations()

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None:
        """Take the result or the error of an operation."""
        self._clock.now = now
        if self._member is not None:
            self._member.completed(operation, outcome, now)

    def notified(self, event: Event, now: Now) -> None:
        """Take an event of the coordinator."""
        self._clock.now = now
        if self._member is not None:
            self._member.notified(event, now)

    # --- turns ---------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """True if requests are left for another turn, or records that this broker copies."""
        if self._queue.has_work or self._slices.under_way:
            return True
        return self._followed is not None and bool(self._followed.decisions)

    @property
    def has_stalled(self) -> bool:
        """True if `take_stalled` has connections."""
        return bool(self._connections.stalled)

    def execute(self, now: Now) -> None:
        """Execute one turn. The bytes that `receive` was given are invalid afterwards.

        Each round executes one request of each connection. A Produce is staged. Any other request runs at the end of
        the round, after the staged requests were committed. The turn continues while more than half of the connections
        it began with have more requests, so that connections that pipeline share its writes. It ends after ROUNDS_MAX
        rounds or TURN_NS in any case. The requests left are the backlog.

        While other connections have requests, a connection with a backlog gets one request a turn, and then waits
        BACKLOG_WAITS times as long as that took. The turn's average counts as the time of a request; the request's own
        time counts instead if it is longer, except for a Produce, which is executed together with others.

        A turn ends with a slice of a large request, if there is one (`broker.channel.slices`), and with a slice of the
        records that another broker has answered with.
        """
        clock, clock_ns = self._clock, self._clock.clock_ns
        clock.now = now
        clock.began_ns = started_ns = clock_ns()
        queue, waiting, rounds_max = self._queue.take(started_ns)
        began, executed = len(queue), 0
        for rounds in range(1, rounds_max + 1):
            executed += len(queue)
            queue = self._round(queue)
            if not queue or rounds == rounds_max or (began > 1 and 2 * len(queue) <= began):
                break
            clock.began_ns = clock_ns()
            if clock.began_ns - started_ns > TURN_NS:
                break
        if self._turn.requests:
            self._produce_commit.commit()
        if queue or waiting:
            now_ns = clock_ns()
            self._queue.leave(waiting, queue, now_ns + BACKLOG_WAITS * (now_ns - started_ns) // max(executed, 1))
        self._purgatory.end_turn(now)
        if self._slices.under_way:
            self._slices.run(executed > 0)
        if self._followed is not None and self._followed.decisions:
            self._followed.resume(now)
        self._budget.end_turn()

    def _round(self, queue: list[Connection]) -> list[Connection]:
        """Execute one request of each connection; return the connections that have more."""
        following: list[Connection] = []
        others: list[tuple[Connection, memoryview]] = []
        requests = self._requests
        find_template = requests.produce_templates.open
        for conn in queue:
            if conn.staged and not conn.has_room:
                conn.readable = False
            if not conn.readable:
                self._queue.park(conn)
                continue
            frame = conn.frame
            if frame is not None:
                conn.frame = None
                conn.queued = False
            elif (frame := self._next_frame(conn, following)) is None:
                continue
            if conn.key_end and (opened := find_template(frame, conn.key_end)) is not None:
                conn.key_end = opened[0].key_end
                requests.handle(conn, frame, opened)
            elif len(frame) > 1 and not frame[0] and not frame[1]:  # the API key of Produce
                conn.key_end = conn.key_end or 1  # from now on its requests may have a template
                requests.handle(conn, frame)
            else:
                others.append((conn, frame))
        if (others or self._produce_commit.is_due) and self._turn.requests:
            self._produce_commit.commit()
        if others:
            self._execute_others(others)
        return following

    def _execute_others(self, others: list[tuple[Connection, memoryview]]) -> None:
        """Execute requests of other APIs than Produce; a connection with more requests waits for its share of time."""
        clock_ns = self._clock.clock_ns
        for conn, frame in others:
            if conn.staged:  # an earlier Produce of the connection has no ids yet
                conn.decoder.put_back(frame)
            elif conn.close_reason is None:
                began_ns = clock_ns() if conn.queued else None
                self._requests.handle(conn, frame)
                if began_ns is not None:
                    now_ns = clock_ns()
                    conn.due_ns = now_ns + BACKLOG_WAITS * (now_ns - began_ns)
        self._requests.end_round()

    def _next_frame(self, conn: Connection, following: list[Connection]) -> memoryview | None:
        """Return a connection's next request, or None; add the connection to `following` if it has more requests."""
        decoder = conn.decoder
        conn.backlogged = False
        try:
            frame = decoder.next_frame()
        except WireError as error:
            if not self._produce_commit.answer_first(conn):  # the decoder raises the error again
                self._queue.park(conn)
                return None
            self._connections.close(conn, str(error))
            frame = None
        else:
            if decoder.has_frame():
                following.append(conn)
                return frame
        conn.queued = False
        self._queue.settle(conn)
        return frame
