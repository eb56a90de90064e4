"""The broker of a server process: its sockets, bound before anything is touched, its metadata, logs and engine."""

import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.address import host_port
from broker.engine.engine import Engine
from broker.log.log_manager import LogManager
from broker.log.storage.os_storage import OsStorage
from broker.metadata.image import RegisteredBroker
from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
from broker.net.server import BrokerServer
from broker.services.context import BrokerServices
from broker.services.lower_replication import lowered_default
from broker.waiting.purgatory import Purgatory
from broker.wire.errors import ApiError
from flakelog.listeners import Listener
from flakelog.machine import file_limit, partition_files
from flakelog.server.lifecycle import Lifecycle, Report, Stage, StartError
from flakelog.settings import Settings
from idgen.clock import IdClock
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from flakelog.new_topic import NewTopic

MakeEngine = Callable[[BrokerServices], Engine]


class BrokerParts(NamedTuple):
    """A broker whose logs are open, and whose ports accept no connections yet."""

    network: BrokerServer
    engine: Engine
    addresses: dict[str, str]
    """Each port's address by its name: broker, broker.<listener>."""

    def serve(self, topics: "Sequence[NewTopic]") -> None:
        """Create the topics unless they exist, and accept connections; StartError if one cannot be created."""
        services, now = self.engine.services, self.network.now()
        services.load_coordinators(now)
        if topics:
            from flakelog.new_topic import make

            try:
                for topic in topics:
                    make(services, topic, now)
            except (ApiError, InvalidSetting) as error:
                raise StartError(f"--topic {topic.name}: {error}") from error
        self.network.serve()


def plain_engine(services: BrokerServices) -> Engine:
    return Engine(services, time.perf_counter_ns)


def open_broker(
    settings: Settings,
    storage: OsStorage,
    make_engine: MakeEngine,
    clock: IdClock,
    reactor: Any,
    report: Report,
    lifecycle: Lifecycle,
) -> BrokerParts:
    """Bind the listeners, then open metadata and logs, so that a port in use changes nothing."""
    network = BrokerServer(reactor, clock, report, settings.broker)
    lifecycle.take(Stage.BROKER, network.stop)
    addresses, advertised = _bind(network, settings)
    open_to_all = ", ".join(listener.name for listener in settings.server.open_listeners)
    if open_to_all:
        report(f"who reaches {open_to_all} may read, write and delete everything: no listener asks who it is")
    config = lowered_default(settings.broker, report)
    endpoints = {listener.name: (listener.host, listener.port) for listener in advertised}
    own = RegisteredBroker(config.node_id, endpoints, config.broker_rack)
    local = LocalMetadata(FileMetadataStore(storage), own, uuid.uuid4)
    local.load()
    max_open_files = storage.descriptors.limit = config.max_open_files or partition_files(file_limit())
    logs = LogManager(storage, config, report, max_open_files)
    purgatory = Purgatory(network.now().ms, config.max_delayed_operations)
    services = BrokerServices(config, local, logs, purgatory, report, group_config=settings.group)
    services.transaction_config = settings.transaction
    services.listener_limits = settings.listener_limits
    services.given = {**settings.shown, "log.dirs": storage.location}
    services.fixed_configs = (replace(settings.server, log_dirs=storage.location), settings.idgen)
    services.open_logs()
    logs.disk.check(network.now())
    engine = make_engine(services)
    lifecycle.take(Stage.LOGS, logs.close)
    network.use(engine)
    return BrokerParts(network, engine, addresses)


def _bind(network: BrokerServer, settings: Settings) -> tuple[dict[str, str], list[Listener]]:
    """Bind the listeners; return their addresses, and the listeners with the host and port that clients receive."""
    addresses: dict[str, str] = {}
    advertised = []
    for listener in settings.server.broker_listeners:
        host, port = network.bind(listener.host, listener.port, listener.name)
        addresses["broker" if not addresses else f"broker.{listener.name}"] = host_port(host, port)
        configured = settings.server.advertised.get(listener.name)
        if configured is None:
            configured = Listener(listener.name, host if listener.host else socket.gethostname(), port)
        advertised.append(configured if configured.port else configured._replace(port=port))
    return addresses, advertised
