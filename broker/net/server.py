"""SHELL (Twisted): the engine on a port. It owns one timer, the threads that sync, and nothing of the logic.

    doRead -> received -> engine.receive
    end of the turn    -> engine.execute -> take_replies  -> send
                                         -> take_syncs    -> thread -> synced
                                         -> next_deadline -> one callLater -> tick
    in a cluster                         -> take_calls      -> PeerConnections  -> called
                                         -> take_operations -> CoordinatorShell -> completed
"""

import socket
import time
from collections.abc import Callable
from traceback import format_exc
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.protocol import Factory
from twisted.internet.threads import deferToThreadPool
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from broker.address import host_port
from broker.channel.connection import Connection
from broker.engine.engine import PEER_CLOSED, Engine
from broker.log.io_jobs import METADATA_JOBS, ReadJob, SyncJournal
from broker.log.storage.page_cache import read_into_memory
from broker.log.sync_scheduler import IoJob
from broker.log.validation.open_job import OpenJob
from broker.net.close_log import CloseLog
from broker.net.deadline_timer import DeadlineTimer
from broker.net.ports import Ports
from broker.net.transport import RECEIVE_BYTES, KafkaPort, KafkaTransport, LocalPort, NullProtocol, ReceiveBuffer
from broker.net.worker_thread import WorkerThread
from broker.now import Now
from broker.settings.config import BrokerConfig
from broker.wire.frame import FileRegion
from idgen.clock import IdClock

if TYPE_CHECKING:  # a plain server alone imports none
    from broker.membership.calls import AnyCall
    from broker.net.coordination import CoordinatorShell
    from broker.net.peers import PeerConnections
    from broker.net.tls_listeners import TlsListeners

CLEANER_THREADS = 1  # it cleans one log at a time, and syncs must not wait for it
# A round of the journal begins this many polls after the last one ended, so that the clients it answered can send more:
# two half rounds cost more than the idle time of the disk.
ROUND_POLLS = 4
NO_DESCRIPTOR = "the server has no file descriptor left; raise its limit (ulimit -n, LimitNOFILE)"
CANNOT_ACCEPT_SECONDS = 0.1
FAULT_WAIT_SECONDS = 1  # between ticks that fail, so that a repeated fault does not fill the log

Log = Callable[[str], None]


class BrokerServer:
    """A listening engine. `log` takes why the engine closes connections (broker.net.close_log)."""

    _engine: Engine

    def __init__(
        self, reactor: Any, clock: IdClock, log: Log, config: BrokerConfig, tls: "TlsListeners | None" = None
    ) -> None:
        self._config = config
        self._tls = tls
        self._reactor = reactor
        self._clock = clock
        self._log = log
        self._transports: dict[Connection, KafkaTransport] = {}
        self._paused: set[KafkaTransport] = set()
        self._ended: set[KafkaTransport] = set()
        """Transports whose peers send nothing more, while their requests are executed."""
        self._ports = Ports(reactor, lambda listener: self._engine.accept_pause_ms(listener, self.now()))
        self.close_log = CloseLog(reactor, lambda: self.now().ms, log)
        self._timer: DeadlineTimer | None = None
        self._flush_now: Now | None = None  # set during a flush
        self._stirred = False  # the engine has requests to execute
        self._continues = False  # another turn is due for requests that the last one left
        self._turn: Now | None = None  # when the first bytes of this turn were received
        # Our reactor reports when it has handled all events of a poll; on any other each read is a turn.
        self._turns = hasattr(reactor, "after_events")
        self._syncs: set[Deferred[Any]] = set()
        self._polls = 0  # left before the next round of the journal
        self._stopping = False
        self._cluster: "tuple[CoordinatorShell, PeerConnections] | None" = None
        self.receive_buffer = ReceiveBuffer()
        self._pool = ThreadPool(0, 1, "sync")
        self._read_pool = ThreadPool(0, config.read_threads, "read")
        self._open_pool = ThreadPool(0, config.open_threads, "open")
        # one thread, which keeps the order of its jobs and does not wait behind syncs
        self._metadata_pool = ThreadPool(0, 1, "metadata")
        self._reads: set[Deferred[Any]] = set()
        # separate, so that its rounds do not wait behind other syncs
        self._journal_thread = WorkerThread(reactor, "journal")

    def now(self) -> Now:
        return Now(time.monotonic_ns() // 1_000_000, self._clock.now_ms())

    # --- life ----------------------------------------------------------------------------------------------------

    def bind(self, host: str, port: int, listener: str = "", *, is_late: bool = False) -> tuple[str, int]:
        """Bind a listener, and return its address; CannotListenError if it is in use. Call it for each listener.

        Its connections are accepted after `serve`. With `is_late` they are refused before `serve_clients`.
        """
        made_by = KafkaPort if self._tls is None else self._tls.port
        bound = made_by(port, _factory(), self._config, host, self._reactor, self, listener)
        (self._ports.add_late if is_late else self._ports.add)(bound)
        address = bound.getHost()
        return address.host, address.port

    def bind_local(self, listening: socket.socket, listener: str) -> None:
        """Serve a listener at a unix socket, whose peers are other brokers of this machine."""
        self._ports.add(LocalPort(listening, _factory(), self._config, self._reactor, self, listener))

    def use(self, engine: Engine) -> None:
        """Set the engine to serve; it is made after `bind`, because it must know the port."""
        self._engine = engine
        self._timer = DeadlineTimer(
            self._reactor, engine.next_answer_ms, engine.next_deadline, self._tick, self.now
        )
        self._pool.adjustPoolsize(0, engine.services.config.sync_threads + CLEANER_THREADS)

    def join(self, coordination: "CoordinatorShell", peers: "PeerConnections") -> None:
        """Serve as a part of a cluster. Call it at `serve`, after `use`."""
        self._cluster = coordination, peers
        coordination.serve(self._engine, self.turn)
        peers.answered = self._called

    def serve(self) -> None:
        """Begin to work, and accept connections at all listeners but those that wait for `serve_clients`."""
        self._pool.start()
        if self._turns:
            self._reactor.after_events(self._end_turn)
        self._journal_thread.start()
        self._read_pool.start()
        self._open_pool.start()
        self._metadata_pool.start()
        self._ports.serve()
        self._flush(self.now())

    def serve_clients(self) -> None:
        """Listen where only clients come. Raise CannotListenError if another process has begun to listen there."""
        self._ports.serve_clients()

    def stop(self) -> "Deferred[None]":
        """Accept no more connections, close the open ones, let running syncs end. The owner of the logs closes them."""

        def close(_: Any) -> "Deferred[Any]":
            self._stopping = True
            for transport in list(self._transports.values()):
                transport.abortConnection()
            if self._timer is not None:
                self._timer.stop()
            self.close_log.stop()
            return DeferredList([*self._syncs, *self._reads], consumeErrors=True)

        def end(_: Any) -> None:
            self._pool.stop()
            self._journal_thread.stop()
            self._read_pool.stop()
            self._open_pool.stop()
            self._metadata_pool.stop()

        return self._ports.stop().addBoth(close).addBoth(end)

    # --- events of transports ------------------------------------------------------------------------------------

    def connected(self, transport: KafkaTransport, peer: str, listener: str) -> Connection:
        now = self.now()
        conn = self._engine.opened(peer, now, listener)
        self._transports[conn] = transport
        if conn.close_reason is not None:
            self.close_log.refused(conn)
        if not conn.wants_data:
            self._reactor.callLater(0, self.turn)
        self._ports.pause()
        self._arm(now)  # a peer that never sends anything is closed in time
        return conn

    def secured(self, conn: Connection, user: str | None) -> None:
        """Note that a TLS handshake has succeeded, and the user of the peer's certificate, None if it showed none."""
        self._engine.secured(conn, user, self.now())
        self._reactor.callLater(0, self.turn)

    def closed_at_once(self, host: str, port: int) -> None:
        """Log a connection that was closed when it came, because no descriptor is left."""
        self.close_log.note_refusal(host, f"connection of {host_port(host, port)} closed: {NO_DESCRIPTOR}")

    def cannot_accept(self, port: KafkaPort, error: str) -> None:
        """Log that a port cannot accept, and let it rest, because a listening socket stays readable."""
        self.close_log.note_refusal(port.listener, f"a connection to {port.listener} waits: accept fails with {error}")
        self._ports.rest(port, CANNOT_ACCEPT_SECONDS)

    def received(self, conn: Connection, data: memoryview) -> None:
        """Hand the bytes of a peer to the engine; they are executed with those of all others, at the end of the turn.

        `data` lies in the receive buffer, or in a frame of the connection's decoder.
        """
        if self._turn is None:
            self._turn = self.now()
        if self._engine.receive(conn, data, self._turn):
            self._stirred = True
        if not self._turns or len(self.receive_buffer.room) < RECEIVE_BYTES:
            self._end_turn()

    def _end_turn(self) -> None:
        now, self._turn = self._turn, None
        if self._stirred:
            self._stirred = False
            self._flush(now or self.now())

    def drained(self, conn: Connection, sent_bytes: int) -> None:
        now = self._flush_now
        if now is not None:
            self._engine.drained(conn, sent_bytes, now)
            return
        now = self.now()
        self._engine.drained(conn, sent_bytes, now)
        self._flush(now)

    def broken(self, conn: Connection, reason: str) -> None:
        """Log that a promised answer cannot be sent; the transport closes the connection."""
        conn.close(reason)
        self._note(conn, reason)

    def _note(self, conn: Connection, reason: str) -> None:
        """Log why a connection is closed."""
        self.close_log.note(conn, reason, has_own_line=self._engine.logs_each_close)

    def read_ahead(self, region: FileRegion, done: Callable[[], None]) -> None:
        """Have a worker thread read a region of a file that is not cached, then call `done`."""
        if self._stopping:
            return

        def read() -> None:
            at = region.file.descriptor()  # its errors are left to the read that follows
            if at is not None:
                read_into_memory(at.fd, region.position, region.length)

        began = deferToThreadPool(self._reactor, self._read_pool, read)
        self._reads.add(began)

        def finished(_: Any) -> None:
            self._reads.discard(began)
            done()

        began.addBoth(finished)

    def ended(self, transport: KafkaTransport) -> bool:
        """Note that a peer sends nothing more. Return True if its requests are executed first, then the close."""
        if not transport.conn.has_requests:
            return False
        self._ended.add(transport)
        return True

    def _close_ended(self) -> None:
        """Close the connections whose peers have ended, and whose requests are executed."""
        for transport in [transport for transport in self._ended if not transport.conn.has_requests]:
            self._ended.discard(transport)
            transport.close()

    def disconnected(self, conn: Connection) -> None:
        transport = self._transports.pop(conn, None)
        self.close_log.forget(conn)
        if transport is not None:
            self._paused.discard(transport)
            self._ended.discard(transport)
        was_open = conn.close_reason is None
        self._engine.closed(conn)
        if was_open and conn.close_reason != PEER_CLOSED:
            self._note(conn, str(conn.close_reason))
        is_awaited = self._paused or self._engine.has_work or self._engine.has_stalled  # another may have waited for it
        if is_awaited and not self._stopping:
            self._reactor.callLater(0, self.turn)

    # --- work of the engine -----------------------------------------------------------------------------------

    def _flush(self, now: Now) -> None:
        """Execute a turn, send, close, sync and set the timer; `now` is one moment for all."""
        try:
            self._engine.execute(now)
            self.receive_buffer.clear()
            if self._cluster is not None:
                self._ask_others(now)
            self._send(now)
            for conn in self._engine.take_closes():
                self._close(conn)
            if not self._stopping:
                for sync in self._engine.take_syncs(not self._polls):
                    self._sync(sync)
            if self._ended:
                self._close_ended()
            if stalled := self._engine.take_stalled():
                transports = self._transports
                self._paused.update(transports[conn] for conn in stalled if conn in transports)
            if self._paused:
                paused = [transport for transport in self._paused if transport.pause_unless_readable()]
                self._paused = {transport for transport in paused if not transport.conn.is_dormant}
            if self._engine.has_work and not self._stopping:
                self._continue()
        finally:  # a fault leaves the deadlines
            self._arm(now)

    def turn(self) -> None:
        """Have a turn, because the engine was given work from elsewhere."""
        self._flush(self.now())

    def _ask_others(self, now: Now) -> None:
        """Send the engine's requests to other brokers, and its operations to the coordinator."""
        if self._cluster is not None and self._engine.has_calls:
            coordination, peers = self._cluster
            peers.send(self._engine.take_calls(now))
            if operations := self._engine.take_operations():
                coordination.carry_out(operations)

    def _called(self, call: "AnyCall", response: Any | None) -> None:
        """Pass the response of another broker to the engine, and send a follower's next fetch at once.

        The turn of the events goes on with it. A response from a timer has its own, because the reactor may sleep then.
        """
        now = self._turn or self.now()
        try:
            self._engine.called(call, response, now)
        except Exception:
            self._log(f"a fault of the broker's own, after an answer of broker {call.broker_id}:\n{format_exc()}")
        if self._turns and self._reactor.handles_events:
            self._turn, self._stirred = now, True
            self._ask_others(now)
        else:
            self._flush(now)

    def _continue(self) -> None:
        """Have another turn, once the reactor has looked at its events."""
        if self._turns:
            self._stirred = True
            self._reactor.poll_again()
        elif not self._continues:
            self._continues = True
            self._reactor.callLater(0, self._another_turn)

    def _another_turn(self) -> None:
        self._continues = False
        self._flush(self.now())

    def _send(self, now: Now) -> None:
        self._flush_now = now
        engine = self._engine
        transports = self._transports
        try:
            while replies := engine.take_replies():
                for conn, parts in replies:
                    transport = transports.get(conn)
                    if transport is not None:
                        if sent := transport.send(parts):
                            engine.drained(conn, sent, now)
                        if not conn.readable:
                            self._paused.add(transport)
        finally:
            self._flush_now = None

    def _close(self, conn: Connection) -> None:
        transport = self._transports.get(conn)
        if transport is not None:
            self._note(conn, str(conn.close_reason))
            transport.close()

    def _sync(self, sync: IoJob | OpenJob) -> None:
        """Run a job in a worker thread; the reactor thread hands its outcome to the engine."""

        def run() -> int:
            began_ns = time.perf_counter_ns()
            sync.run()
            return time.perf_counter_ns() - began_ns

        if isinstance(sync, SyncJournal):
            done = self._journal_thread.defer(run)
        else:
            done = deferToThreadPool(self._reactor, self._pool_for(sync), run)
        self._syncs.add(done)

        def synced(duration_ns: int) -> None:
            if not isinstance(sync, ReadJob | OpenJob):
                self._engine.metrics.flushes.observe(duration_ns)
            self._engine.synced(sync, self.now())

        def failed(failure: Failure) -> None:
            self._engine.sync_failed(sync, _exception(failure), self.now())

        def fault(failure: Failure) -> None:
            self._log(f"a fault of the broker's own, after a sync:\n{failure.getTraceback()}")

        def finished(_: Any) -> None:
            self._syncs.discard(done)
            if isinstance(sync, SyncJournal):
                self._polls = ROUND_POLLS
                self._reactor.callLater(0, self._poll_round)
            self._flush(self.now())

        done.addCallbacks(synced, failed)
        done.addErrback(fault)
        done.addCallback(finished)

    def _pool_for(self, job: IoJob | OpenJob) -> ThreadPool:
        if isinstance(job, OpenJob):
            return self._open_pool
        if isinstance(job, METADATA_JOBS):
            return self._metadata_pool
        return self._read_pool if isinstance(job, ReadJob) else self._pool

    def _poll_round(self) -> None:
        self._polls -= 1
        if self._polls:
            self._reactor.callLater(0, self._poll_round)
        else:
            self._flush(self.now())

    def _arm(self, now: Now) -> None:
        if self._timer is not None and not self._stopping:
            self._timer.arm(now)

    def _tick(self) -> None:
        """Have the engine do what is due now, then take a turn."""
        now = self.now()
        try:
            self._engine.tick(now)
        except Exception:
            self._log(f"a fault of the broker's own, at a tick:\n{format_exc()}")
            assert self._timer is not None
            self._timer.rest(FAULT_WAIT_SECONDS)
        self._flush(now)


def _exception(failure: Failure) -> Exception:
    return failure.value if isinstance(failure.value, Exception) else Exception(failure.getErrorMessage())


def _factory() -> "Factory[Any]":
    factory: Factory[Any] = Factory.forProtocol(NullProtocol)
    factory.noisy = False
    return factory
