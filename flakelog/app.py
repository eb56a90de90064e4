"""A server process put together: broker, id service, HTTP.

The order of the start lets it fail at any step without damage. The server reports `ready:` when it serves, and stops
cleanly.

    lock the data directory -> bind the ports -> open metadata and logs -> claim worker numbers -> serve
"""

import os
import random
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import CancelledError, Deferred, inlineCallbacks, maybeDeferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.protocol import Factory
from twisted.internet.task import LoopingCall, deferLater
from twisted.internet.threads import deferToThread
from twisted.python.failure import Failure

from broker.engine.engine import Engine
from broker.log.checkpoint import CheckpointDamaged
from broker.log.journal import JournalUnreadable
from broker.log.log_manager import LogManager
from broker.log.storage.os_storage import DIRECTORY_MODE, OsStorage
from broker.log.storage.port import StorageError
from broker.metadata.metadata import FileMetadataStore, Metadata, MetadataDamaged, Node
from broker.net.address import host_port
from broker.net.server import BrokerServer
from broker.now import Now
from broker.services.context import BrokerServices
from broker.services.lower_replication import lowered_default
from broker.stamping.id_stamper import AheadIds
from broker.waiting.purgatory import Purgatory
from broker.wire.errors import ApiError
from coordination.deferred import executor
from coordination.port import CoordinationError, Coordinator
from coordination.sessions import open_session
from flakelog.console.security import console_address
from flakelog.listeners import EVERYWHERE, Listener
from flakelog.machine import file_limit, partition_files
from flakelog.settings import Settings
from idgen.claim import EXHAUSTED_RETRY_MS, WorkerClaim, registry_of, worker_claim
from idgen.clock import IdClock
from idgen.errors import IdError
from idgen.http_hosts import OwnHosts, parse_hosts
from idgen.http_port import HttpFactory
from idgen.peers import Peers
from idgen.registry import AHEAD, IDS, LOG
from idgen.server import ClaimDriver, IdFactory, IdQueue, ThriftFactory
from idgen.service import IdService
from idgen.settings import InvalidSetting
from idgen.snowflake import IDS_DIRECTORY

if TYPE_CHECKING:
    from broker.fault_injection.faulty_engine import FaultyEngine
    from flakelog.new_topic import NewTopic

Report = Callable[[str], None]

KAFKA_FILE = "meta.properties"  # marks a data directory of Kafka, whose logs must not be touched
DAY_S = 86_400
SAY_S = 1.0  # a start that waits longer says for what
SAY_AGAIN_S = 4.0  # and repeats it, because a silent start looks dead
LISTEN_BACKLOG = 1_024  # for ids and HTTP; with Twisted's 50, a burst of clients fills the queue and has to wait 1 s


class StartError(Exception):
    """The reason why the server does not start, in one line."""


def _saying(reactor: Any, say: Callable[[], None]) -> Callable[[Any], Any]:
    """Call `say` after SAY_S and again every SAY_AGAIN_S, until the returned callback of a Deferred is called."""
    again = LoopingCall(say)
    again.clock = reactor
    first = reactor.callLater(SAY_S, again.start, SAY_AGAIN_S)

    def end(result: Any) -> Any:
        if first.active():
            first.cancel()
        if again.running:
            again.stop()
        return result

    return end


class Server:
    """A `flakelog server`, or a `flakelog idgen` if there are no broker listeners."""

    def __init__(
        self, settings: Settings, data_dir: Path, zookeeper: str | None, reactor: Any, report: Report
    ) -> None:
        self.settings = settings
        self.data_dir = data_dir
        self.engine: Engine | None = None
        self.service: IdService | None = None
        self.addresses: dict[str, str] = {}
        self.clock = IdClock()
        self._zookeeper = zookeeper
        self.reactor = reactor
        self._report = report
        self._storage = OsStorage(str(data_dir))
        self._broker: BrokerServer | None = None
        self._claims: ClaimDriver | None = None
        self._coordinator: Coordinator | None = None
        self._ports: dict[str, Any] = {}
        self._stopped = False
        self._started = False
        self.topics: "Sequence[NewTopic]" = ()
        """Topics to create before serving, unless they exist."""
        self.fails_on_demand = False
        """True if the engine fails on demand, for tests of clients."""
        self.faulty_engine: "FaultyEngine | None" = None
        self._id_factories: list[IdFactory] = []
        self._daily: Any = None
        self._grace: Deferred[Any] | None = None
        self.peers: Peers | None = None
        """The other id services; None if flakelog.ids.sanity.check is off."""

    @property
    def stopped(self) -> bool:
        """True once the server was asked to stop; a start that is still running then fails."""
        return self._stopped

    @property
    def serving(self) -> bool:
        """True if the server has started and was not asked to stop."""
        return self._started and not self._stopped

    @property
    def scope(self) -> str:
        """The place in which this process's ids are unique, as text."""
        return self._coordinator.scope if self._coordinator else "nowhere"

    @property
    def claims(self) -> tuple[WorkerClaim, ...]:
        """The claims of this process's worker numbers: the log's and the id service's."""
        return self._claims.claims if self._claims is not None else ()

    # --- start ---------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def start(self) -> Any:
        """Start everything and fire with the text of the `ready:` line; fail with StartError."""
        try:
            self._take_directory()
            self._open_broker()
            self._bind_ids()
            yield self._claim_numbers()
            if self.stopped:
                raise StartError("it was told to stop while it started")
            self._serve_ids()
        except (InvalidSetting, StorageError, MetadataDamaged, CheckpointDamaged, JournalUnreadable) as error:
            raise StartError(str(error)) from error
        except (IdError, CoordinationError, OSError) as error:
            raise StartError(str(error)) from error
        except CannotListenError as error:
            where = host_port(error.interface, error.port)
            raise StartError(f"cannot listen on {where}: {error.socketError.strerror}") from error
        if self.engine is not None and self._broker is not None:
            self.engine.services.load_coordinators(self._broker.now())
            self._make_topics(self.engine.services, self._broker.now())
            self._broker.serve()
        self._started = True
        return ready_line(self)

    def _make_topics(self, services: BrokerServices, now: Now) -> None:
        if not self.topics:
            return
        from flakelog.new_topic import make

        try:
            for topic in self.topics:
                make(services, topic, now)
        except (ApiError, InvalidSetting) as error:
            raise StartError(f"--topic {topic.name}: {error}") from error

    def _take_directory(self) -> None:
        if (self.data_dir / KAFKA_FILE).exists():
            raise StartError(f"{self.data_dir} has Apache Kafka's data ({KAFKA_FILE}); give another directory")
        try:
            self.data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"{self.data_dir} cannot be made a directory for data: {error.strerror}") from error
        self._storage.lock()

    def _open_broker(self) -> None:
        listeners = self.settings.server.broker_listeners
        if not listeners:
            return
        # Bind the sockets before anything is touched, so that a port in use changes nothing.
        server = self._broker = BrokerServer(self.reactor, self.clock, self._report, self.settings.broker)
        told = [self._bind(server, each) for each in listeners]
        open_to_all = ", ".join(each.name for each in self.settings.server.open_listeners)
        if open_to_all:
            self._report(f"who reaches {open_to_all} may read, write and delete everything: no listener asks who it is")
        config = lowered_default(self.settings.broker, self._report)
        node = Node(config.node_id, *told[0][1:], config.broker_rack)
        metadata = Metadata(FileMetadataStore(self._storage), node, uuid.uuid4)
        for each in told:
            metadata.advertise(*each)
        metadata.load()
        files = self._storage.descriptors.limit = config.max_open_files or partition_files(file_limit())
        logs = LogManager(self._storage, config, self._report, files)
        purgatory = Purgatory(server.now().ms, config.max_delayed_operations)
        services = BrokerServices(config, metadata, logs, purgatory, self._report, group_config=self.settings.group)
        services.transaction_config = self.settings.transaction
        services.listener_limits = self.settings.listener_limits
        where = self._storage.location
        services.given = {**self.settings.told, "log.dirs": where}
        services.fixed_configs = (replace(self.settings.server, log_dirs=where), self.settings.idgen)
        services.open_logs()
        logs.disk.check(server.now())
        self.engine = self._engine_over(services)
        server.use(self.engine)

    def _engine_over(self, services: BrokerServices) -> Engine:
        if not self.fails_on_demand:
            return Engine(services, time.perf_counter_ns)
        from broker.fault_injection.faulty_engine import FaultyEngine

        self.faulty_engine = FaultyEngine(services, time.perf_counter_ns)
        return self.faulty_engine

    def _bind(self, server: BrokerServer, listener: Listener) -> Listener:
        """Bind the listener; return it with the host and port that clients receive."""
        host, port = server.bind(listener.host, listener.port, listener.name)
        self.addresses["broker" if not self.addresses else f"broker.{listener.name}"] = host_port(host, port)
        told = self.settings.server.advertised.get(listener.name)
        if told is not None:
            return told if told.port else told._replace(port=port)
        return Listener(listener.name, host if listener.host else socket.gethostname(), port)

    def _connect(self) -> "Deferred[None]":
        """Open a session where worker numbers are kept.

        A thread waits for a ZooKeeper that does not answer; closing the coordinator ends the wait.
        """
        idgen = self.settings.idgen
        where = self._zookeeper or idgen.ids_zookeeper_connect
        session = self._coordinator = open_session(
            directory=self.data_dir / IDS_DIRECTORY if where is None else None,
            zookeeper=where,
            access=idgen.ids_zookeeper_access,
            allow_network=idgen.ids_directory_network_allow,
            wait=False,
        )
        if where is None:
            return succeed(None)  # a directory needs no waiting
        timeout_ms = self.settings.server.start_timeout_ms
        told = f"waiting for ZooKeeper at {where}, which does not answer; the start fails after {timeout_ms} ms"
        end = _saying(self.reactor, lambda: self._report(told))
        return deferToThread(session.wait_until_connected, timeout_ms).addBoth(end)

    @inlineCallbacks
    def _claim_numbers(self) -> Any:
        """Claim the broker's number, which stamps messages, and the id service's, both from one registry."""
        idgen = self.settings.idgen
        yield self._connect()
        assert self._coordinator is not None
        self._look_at_the_layout()
        self._claims = ClaimDriver(self.reactor, self._coordinator, self.clock, self._report)
        if self.engine is not None:
            node = self.engine.services.metadata.node  # the address that clients receive
            claim = yield self._hold(host_port(node.host, node.port), None, LOG)
            self.engine.services.id_stamper.worker = claim.usable_worker
            yield self._look_at_the_clock(self.engine.services)
        if self._ports:
            claim = yield self._hold(self._ids_address(), idgen.ids_worker, IDS)
            self.service = IdService(claim, idgen)
        if idgen.ids_sanity_check:
            yield self._check_peers(self._coordinator)

    @inlineCallbacks
    def _look_at_the_clock(self, services: BrokerServices) -> Any:
        """Report the partitions that are ahead of the clock, and claim a second number for them if that is allowed."""
        now_ms = self.clock.now_ms()
        services.clock_waits.tell_at_start(now_ms)
        # On a full disk no worker number may be held yet, and without one nobody knows.
        ahead = services.clock_waits.ahead(now_ms)
        max_ahead_ms = self.settings.idgen.ids_log_max_ahead_ms
        if max_ahead_ms and (ahead or services.logs.disk.is_full):
            node = services.metadata.node
            needed_ms = now_ms + max((each for each in ahead.values() if each <= max_ahead_ms), default=0)
            claim = yield self._hold(host_port(node.host, node.port), None, AHEAD, needed_ms)

            def need(time_ms: int) -> None:
                claim.need(time_ms)
                if self._claims is not None:
                    self._claims.wake()

            services.id_stamper.ahead = AheadIds(claim.usable_worker, need)

    @inlineCallbacks
    def _check_peers(self, coordinator: Coordinator) -> Any:
        """Check the other id services of the registry, and keep measuring our clock against theirs.

        If the registry cannot be read, report that and continue.
        """
        assert self._claims is not None
        idgen, claims = self.settings.idgen, self._claims
        self.peers = Peers(self.reactor, executor(coordinator, self.reactor), registry_of(idgen), idgen, claims.numbers)
        try:
            yield self.peers.check()
        except CoordinationError as error:
            self._report(f"the other id services were not asked for their numbers and clocks: {error}")
        self.peers.measure_on()

    def _look_at_the_layout(self) -> None:
        """Report it if the last year of the layout has begun; check again daily."""
        ending = self.settings.idgen.layout.ending(self.clock.now_ms())
        if ending is not None:
            self._report(ending)
        self._daily = self.reactor.callLater(DAY_S, self._look_at_the_layout)

    def _hold(self, address: str, number: int | None, role: str, needed_ms: int = 0) -> "Deferred[WorkerClaim]":
        assert self._claims is not None
        claim = worker_claim(
            self.settings.idgen,
            address=address,
            token=uuid.uuid4().hex,
            number=number,
            role=role,
            chance=random.random,
        )
        claim.need(needed_ms)
        held = self._claims.hold(claim)
        if self.engine is None or not self.engine.services.logs.disk.is_full:
            return self._wait_for(claim, held)
        # The number's mark cannot be written now. Serve reads until the disk has space.
        held.addErrback(lambda failure: self._report(f"no worker number: {failure.getErrorMessage()}"))
        return succeed(claim)

    def _wait_for(self, claim: WorkerClaim, held: "Deferred[WorkerClaim]") -> "Deferred[WorkerClaim]":
        """Report what the claim waits for; fail with StartError after flakelog.start.timeout.ms.

        While all numbers are taken, a claim that accepts any number waits on: nothing is wrong with it, and a restarted
        process would only ask more often.
        """
        timeout_ms = self.settings.server.start_timeout_ms

        def say() -> None:
            pace = f"; asked for again every {EXHAUSTED_RETRY_MS // 1_000} s or less often" if claim.crowded_out else ""
            self._report(f"waiting for a worker number: {claim.problem}{pace}")
            if not claim.crowded_out:
                timers.append(self.reactor.callLater(SAY_AGAIN_S, say))

        def late() -> None:
            if not claim.crowded_out:
                held.cancel()
                return
            say()
            timers.append(self.reactor.callLater(timeout_ms / 1000, late))

        def given_up(failure: Failure) -> None:
            failure.trap(CancelledError)  # type: ignore[no-untyped-call]
            raise StartError(f"no worker number within {timeout_ms} ms: {claim.problem}")

        def done(result: Any) -> Any:
            for timer in timers:
                if timer.active():
                    timer.cancel()
            return result

        timers = [self.reactor.callLater(SAY_S, say), self.reactor.callLater(timeout_ms / 1000, late)]
        return held.addErrback(given_up).addBoth(done)

    def _bind_ids(self) -> None:
        """Bind the ports of ids and HTTP, so that the registry gets an address that clients can connect to.

        Connections wait in the backlog until `_serve_ids` accepts them.
        """
        for name, address in (("ids", self.settings.idgen.ids_address), ("http", self.settings.server.http_address)):
            if address is not None:
                self.addresses[name] = self._listen(name, *address)

    def _listen(self, name: str, host: str, number: int) -> str:
        port = self.reactor.listenTCP(number, Factory(), backlog=LISTEN_BACKLOG, interface=host)
        port.stopReading()
        self._ports[name] = port
        bound = port.getHost()
        return host_port(bound.host, bound.port)

    def _ids_address(self) -> str:
        """Return the address where other processes request ids or the time; '' if there is no such address."""
        told = self.settings.idgen.ids_advertised_address
        if told is not None or "ids" not in self.addresses:
            return told or ""
        at = self._ports["ids"].getHost()
        return host_port(socket.gethostname() if at.host in EVERYWHERE else at.host, at.port)

    def _serve_ids(self) -> None:
        if self.service is None:
            return
        line = IdQueue(self.service, self.clock, self.reactor)
        if "ids" in self._ports:
            self._serve(self._ports["ids"], ThriftFactory(self.service, line))
        if "http" in self._ports:
            self._serve(self._ports["http"], self._http_factory(self.service, line))

    def _http_factory(self, service: IdService, line: IdQueue) -> HttpFactory:
        def site() -> Any:
            from flakelog.site import make_site

            return make_site(self, line, hosts)

        server, hosts = self.settings.server, self._own_hosts()
        return HttpFactory(
            service,
            line,
            self.reactor,
            site,
            connections_max=server.http_max_connections,
            idle_ms=server.http_idle_ms,
            request_ms=server.http_request_ms,
            hosts=hosts,
        )

    def _own_hosts(self) -> OwnHosts:
        """Return the names by which clients may reach the HTTP port."""
        server, asked = self.settings.server, self.settings.server.http_address
        machine = socket.gethostname()
        own = [machine, machine.partition(".")[0], asked[0] if asked else ""]
        own += [each.host for each in server.advertised.values()]
        return OwnHosts(parse_hosts(server.http_hosts), self._ports["http"].getHost().host, own)

    def _serve(self, port: Any, factory: IdFactory) -> None:
        """Accept connections on a bound port."""
        self._id_factories.append(factory)
        port.factory = factory
        port.startReading()

    # --- stop ----------------------------------------------------------------------------------------------------

    @inlineCallbacks
    def stop(self) -> Any:
        """Stop cleanly, so that the next start has nothing to recover.

        If flakelog.shutdown.grace.ms is set, a started server first reports that it is not ready, and serves for that
        time. Then it closes the ports, gives the worker numbers back and syncs the logs.
        """
        if self._stopped:
            return
        self._stopped = True
        grace_ms = self.settings.server.shutdown_grace_ms
        if self._started and grace_ms:
            self._report(f"told to stop: not ready any more, serving {grace_ms} ms on (flakelog.shutdown.grace.ms)")
            self._grace = deferLater(self.reactor, grace_ms / 1000)
            try:
                yield self._grace
            except CancelledError:
                pass  # asked to stop again
            self._grace = None
        if self._daily is not None and self._daily.active():
            self._daily.cancel()
        if self.peers is not None:
            self.peers.stop()
        for port in self._ports.values():
            yield maybeDeferred(port.stopListening)
        for factory in self._id_factories:
            factory.close_connections()
        if self._broker is not None:
            yield self._broker.stop()
        if self._claims is not None:
            stopping = self._claims.stop().addTimeout(5, self.reactor)
            stopping.addErrback(lambda _: self._report("the registry did not answer; the worker numbers rest"))
            yield stopping
        if self._coordinator is not None:
            self._coordinator.close()
        if self.engine is not None:
            self.engine.services.logs.close()
        self._storage.unlock()

    def end_grace(self) -> None:
        """End the grace period, because a second request to stop came; the rest of the stop is unchanged."""
        if self._grace is not None:
            self._report("told to stop again: the grace ends now")
            self._grace.cancel()


def ready_line(server: Server) -> str:
    """Return the line that says that a server serves: its addresses, the console's among them, and its ids' scope."""
    found = dict(server.addresses)
    if server.engine is not None and "http" in found:
        console = console_address(server.settings.server, found["http"], socket.gethostname())
        found |= {} if console is None else {"console": console}
    parts = [f"{name}={address}" for name, address in found.items()]
    return f"ready: {' '.join(parts)} ids unique in {server.scope}"


def default_data_dir() -> Path:
    """Return $XDG_STATE_HOME/flakelog, by default ~/.local/state/flakelog."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "flakelog"
