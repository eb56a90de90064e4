"""The start of a server process. The order of its steps lets it fail at any of them without damage.

    lock the data directory -> bind the ports -> open metadata and logs -> claim worker numbers -> serve

In a cluster, the session and its settings come before the logs, and the registration comes before `serve`. Listeners
that only clients use refuse connections until the controller has told the broker of the cluster.

Each step hands what it took to the Lifecycle. A start that fails releases all of that before it fails.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import inlineCallbacks
from twisted.internet.error import CannotListenError
from twisted.internet.task import LoopingCall
from twisted.python.failure import Failure

from broker.address import host_port
from broker.cluster.adoption import AdoptionRefused
from broker.cluster.adoption_marker import AdoptionIncomplete
from broker.cluster.documents import DamagedDocument
from broker.engine.engine import Engine
from broker.log.checkpoint import CheckpointDamaged
from broker.log.journal_format import JournalUnreadable
from broker.log.storage.os_storage import DIRECTORY_MODE, OsStorage
from broker.log.storage.port import StorageError
from broker.metadata.document import MetadataDamaged
from broker.security.altered_tls import AlteredTls
from broker.services.context import BrokerServices
from broker.services.replica_states import one_copy_warnings
from broker.stamping.id_stamper import AheadIds
from coordination.access import is_same_ensemble
from coordination.port import CoordinationError
from flakelog.server.bound_broker import BoundBroker, bind_broker
from flakelog.server.broker_parts import MakeEngine, open_broker, plain_engine
from flakelog.server.cluster_coordinator import (
    ClusterDirectory,
    check_belongs,
    check_broker_id,
    coordinator_of,
)
from flakelog.server.id_ports import IdPorts
from flakelog.server.lifecycle import Lifecycle, Report, Stage, StartError, StoppedWhileStarting
from flakelog.server.server import Server
from flakelog.server.tls_ports import open_tls
from flakelog.server.worker_numbers import WorkerNumbers, open_registry
from flakelog.settings import Settings, errors_with_origin
from idgen.claim import WorkerClaim
from idgen.clock import IdClock
from idgen.errors import IdError
from idgen.http_hosts import OwnHosts
from idgen.peers import Peers
from idgen.registry import AHEAD, IDS, LOG
from idgen.server import IdQueue
from idgen.service import IdService
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from broker.net.tls_listeners import TlsListeners
    from broker.security.sasl.added_scram import AddedScram
    from flakelog.new_topic import NewTopic
    from flakelog.siblings.siblings import Siblings

KAFKA_FILE = "meta.properties"  # marks a data directory of Kafka, whose logs must not be touched
DAY_S = 86_400


class Starter:
    """The start of one server process. `topics` are created before it serves, unless they exist, and
    `added_scram` are credentials that users get who have none.

    `inherited` has the descriptors of listening sockets that the process inherited, by their names: ids, http.
    `cluster_dir` is the directory in which the brokers of one machine meet; without one, that is where the data
    directory keeps it. `broker_ids` are all brokers of the machine, if a parent has started several.
    """

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        zookeeper: str | None,
        reactor: Any,
        report: Report,
        lifecycle: Lifecycle,
        *,
        topics: "Sequence[NewTopic]" = (),
        added_scram: "Sequence[AddedScram]" = (),
        make_engine: MakeEngine = plain_engine,
        inherited: Mapping[str, int] | None = None,
        cluster_dir: Path | None = None,
        broker_ids: Sequence[int] = (),
    ) -> None:
        self._settings = settings
        self._data_dir = data_dir
        self._zookeeper = zookeeper
        self._reactor = reactor
        self._report = report
        self._lifecycle = lifecycle
        self._topics = topics
        self._added_scram = added_scram
        self._make_engine = make_engine
        self._inherited = inherited
        self._cluster_dir = cluster_dir
        self._broker_ids = broker_ids
        self._cluster_coordinator = coordinator_of(data_dir, settings.server.zookeeper_connect, cluster_dir)
        self._clock = IdClock()

    @inlineCallbacks
    def start(self) -> Any:
        """Start everything and fire with the Server.

        A failure fires once all is released: StartError with its reason, or StoppedWhileStarting if the process was
        told to stop meanwhile.
        """
        try:
            try:
                with errors_with_origin(self._settings.given):
                    server = yield self._start()
            except (InvalidSetting, StorageError, MetadataDamaged, CheckpointDamaged, JournalUnreadable) as error:
                raise StartError(str(error)) from error
            except (IdError, CoordinationError, OSError) as error:
                raise StartError(str(error)) from error
            except (AdoptionRefused, AdoptionIncomplete, DamagedDocument) as error:
                raise StartError(str(error)) from error
            except CannotListenError as error:
                address = host_port(error.interface, error.port)
                raise StartError(f"cannot listen on {address}: {error.socketError.strerror}") from error
        except Exception as error:
            if self._lifecycle.stopped:
                raise StoppedWhileStarting from error
            yield self._lifecycle.stop()
            raise
        return server

    @inlineCallbacks
    def _start(self) -> Any:
        settings, lifecycle = self._settings, self._lifecycle
        shared = self._clock, self._reactor, self._report, lifecycle
        storage = self._lock_directory()
        broker = None
        tls = open_tls(settings, self._reactor, self._report, lifecycle)
        altered_tls = self._altered_tls(tls)
        if settings.server.broker_listeners:
            bound = bind_broker(settings, storage, *shared, tls, self._cluster_directory)
            cluster = yield self._join(bound, tls)
            shell = self._make_engine, self._reactor, self._report, lifecycle
            broker = open_broker(bound, settings, *shell, altered_tls, cluster, self._registry_dir)
        altered_tls.begin()
        engine = None if broker is None else broker.engine
        ports = IdPorts(settings, self._reactor, lifecycle, tls, self._inherited)
        session = yield open_registry(
            settings, self._registry_dir, self._registry, self._reactor, self._report, lifecycle
        )
        self._report_layout_ending_daily()
        numbers = WorkerNumbers(settings, session, *shared)
        service = yield self._claim(numbers, engine, ports)
        peers: Peers | None = None
        if settings.idgen.ids_sanity_check:
            peers = yield numbers.check_peers(ports.advertised)
        if broker is not None and broker.cluster is not None:
            yield broker.cluster.register()
        if lifecycle.stopped:
            raise StoppedWhileStarting
        addresses = {**(broker.addresses if broker is not None else {}), **ports.addresses}
        own_place = None if broker is None else broker.own_place
        parts = engine, own_place, service, peers, altered_tls, session, numbers.driver, lifecycle
        server = Server(settings, self._reactor, self._clock, addresses, *parts)
        if service is not None:
            self._serve_ids(server, service, ports)
        if broker is not None:
            broker.serve(self._topics, self._added_scram)
            if broker.cluster is not None:
                yield broker.cluster.informed(broker.engine.services.purgatory)
                for warning in one_copy_warnings(broker.engine.services):
                    self._report(warning)
            broker.network.serve_clients()
        if tls is not None:
            tls.serve()
        lifecycle.begin_serving()
        return server

    def _altered_tls(self, tls: "TlsListeners | None") -> AlteredTls:
        """Return the TLS of the process under settings that are altered at run time."""
        given = self._settings.properties
        if tls is None:
            return AlteredTls(given, {}, self._report)
        return AlteredTls(given, tls.listeners, self._report, tls.figures)

    @property
    def _registry(self) -> str | None:
        """The ensemble that keeps worker numbers: that of the cluster, unless another is named."""
        settings = self._settings
        return self._zookeeper or settings.idgen.ids_zookeeper_connect or settings.server.zookeeper_connect

    @property
    def _cluster_directory(self) -> ClusterDirectory | None:
        return self._cluster_coordinator if isinstance(self._cluster_coordinator, ClusterDirectory) else None

    @property
    def _registry_dir(self) -> Path:
        """The directory with the registry of worker numbers: the brokers of one machine have one."""
        directory = self._cluster_directory
        return self._data_dir if directory is None else directory.first_data_dir

    @inlineCallbacks
    def _join(self, bound: BoundBroker, tls: "TlsListeners | None") -> Any:
        """Begin to take part in a cluster if it has a coordinator; fire with the ClusterPart or None."""
        check_belongs(self._data_dir, bound.local.coordinator, self._cluster_coordinator)
        check_broker_id(self._data_dir, bound.local.document().owner_id, bound.config.node_id)
        if self._cluster_coordinator is None:
            return None
        if self._topics:
            raise StartError("--topic is for a server alone; in a cluster, `flakelog topic create` creates topics")
        from flakelog.server.cluster_part import join_cluster

        shell = self._reactor, self._report, self._lifecycle
        part = yield join_cluster(self._cluster_coordinator, self._settings, bound, tls, *shell)
        return part

    def _lock_directory(self) -> OsStorage:
        if (self._data_dir / KAFKA_FILE).exists():
            raise StartError(f"{self._data_dir} has Apache Kafka's data ({KAFKA_FILE}); give another directory")
        try:
            self._data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        except OSError as error:
            raise StartError(f"{self._data_dir} cannot be made a directory for data: {error.strerror}") from error
        storage = OsStorage(str(self._data_dir))
        storage.lock()
        self._lifecycle.take(Stage.DIRECTORY, storage.unlock)
        return storage

    def _report_layout_ending_daily(self) -> None:
        """Report it if the last year of the layout has begun; check again daily."""

        def check() -> None:
            ending = self._settings.idgen.layout.ending(self._clock.now_ms())
            if ending is not None:
                self._report(ending)

        daily = LoopingCall(check)
        daily.clock = self._reactor
        self._lifecycle.take(Stage.TIMERS, daily.stop)
        daily.start(DAY_S)

    @inlineCallbacks
    def _claim(self, numbers: WorkerNumbers, engine: Engine | None, ports: IdPorts) -> Any:
        """Claim the broker's number, which stamps messages, and the id service's; fire with the IdService or None."""
        disk_full = engine is not None and engine.services.logs.disk.is_full
        if engine is not None:
            node = engine.services.node  # the address that clients receive
            claim = yield numbers.claim(host_port(node.host, node.port), LOG, disk_full=disk_full)
            engine.services.id_stamper.worker = claim.usable_worker
            self._follow_ids(claim, engine.services)
            yield self._claim_ahead(numbers, engine.services)
        if not ports.addresses:
            return None
        idgen = self._settings.idgen
        disk_full = engine is not None and engine.services.logs.disk.is_full
        claim = yield numbers.claim(ports.advertised, IDS, number=idgen.ids_worker, disk_full=disk_full)
        return IdService(claim, idgen)

    def _follow_ids(self, claim: WorkerClaim, services: BrokerServices) -> None:
        """Let the member say when the ids end while the coordinator of the cluster is away."""
        if services.member is None:
            return
        registry, cluster = self._registry, self._settings.server.zookeeper_connect
        is_shared = registry is None or (cluster is not None and is_same_ensemble(registry, cluster))

        def ids_end_ms() -> int | None:
            is_bounded = is_shared or claim.problem is not None
            return claim.worker.limit_ms if is_bounded and claim.worker is not None else None

        services.member.coordinator_outage.ids_end_ms = ids_end_ms

    @inlineCallbacks
    def _claim_ahead(self, numbers: WorkerNumbers, services: BrokerServices) -> Any:
        """Report the partitions that are ahead of the clock, and claim a second number for them if that is allowed.

        Without one now, claim it when the first is met.
        """
        now_ms = self._clock.now_ms()
        services.clock_waits.tell_at_start(now_ms)
        # On a full disk the broker may hold no worker number yet; then it cannot tell which partitions are ahead.
        ahead = services.clock_waits.ahead(now_ms)
        max_ahead_ms = self._settings.idgen.ids_log_max_ahead_ms
        if not max_ahead_ms:
            return
        if not (ahead or services.logs.disk.is_full):
            services.clock_waits.on_wait = lambda: self._claim_ahead_late(numbers, services)
            return
        node = services.node
        needed_ms = now_ms + max((wait_ms for wait_ms in ahead.values() if wait_ms <= max_ahead_ms), default=0)
        address, disk_full = host_port(node.host, node.port), services.logs.disk.is_full
        claim = yield numbers.claim(address, AHEAD, needed_ms=needed_ms, disk_full=disk_full)

        def need(time_ms: int) -> None:
            claim.need(time_ms)
            numbers.driver.wake()

        services.id_stamper.ahead = AheadIds(claim.usable_worker, need)

    def _claim_ahead_late(self, numbers: WorkerNumbers, services: BrokerServices) -> None:
        """Claim a second number, because a partition waits for the clock. Try again when another begins to wait."""
        services.clock_waits.on_wait = lambda: None

        def failed(failure: Failure) -> None:
            self._report(f"no worker number for the partitions ahead of the clock: {failure.getErrorMessage()}")
            services.clock_waits.on_wait = lambda: self._claim_ahead_late(numbers, services)

        self._claim_ahead(numbers, services).addErrback(failed)

    def _serve_ids(self, server: Server, service: IdService, ports: IdPorts) -> None:
        siblings = self._siblings(server) if "http" in ports.addresses else None

        def site(queue: IdQueue, hosts: OwnHosts) -> Any:
            from flakelog.site import make_site

            return make_site(server, queue, hosts, siblings)

        ports.serve(service, self._clock, site)

    def _siblings(self, server: Server) -> "Siblings | None":
        """Serve the pages of this process to the other brokers of the machine; None if there are none."""
        if self._cluster_dir is None or not self._broker_ids:
            return None
        from flakelog.siblings.siblings import Siblings

        def site() -> Any:
            from flakelog.site import make_site_for_siblings

            return make_site_for_siblings(server)

        sockets = ClusterDirectory(self._cluster_dir).open_sockets()
        self._lifecycle.take(Stage.SESSION, sockets.close)
        siblings = Siblings(self._reactor, sockets, self._settings.broker.node_id, self._broker_ids)
        self._lifecycle.take(Stage.ID_PORTS, siblings.serve(site).stopListening)
        return siblings
