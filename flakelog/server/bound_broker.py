"""The sockets of a broker, bound before anything is touched, and its metadata."""

import socket
import uuid
from typing import Any, NamedTuple

from broker.address import host_port
from broker.log.storage.os_storage import OsStorage
from broker.metadata.image import RegisteredBroker
from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
from broker.net.server import BrokerServer
from broker.services.lower_replication import lowered_default
from broker.settings.config import BrokerConfig
from coordination.socket_folder import SocketFolder
from flakelog.listeners import Listener
from flakelog.server.cluster_coordinator import PROCESSES, ClusterDirectory, processes_endpoint
from flakelog.server.lifecycle import Lifecycle, Report, Stage
from flakelog.settings import Settings
from idgen.clock import IdClock
from idgen.settings import InvalidSetting


class BoundBroker(NamedTuple):
    """A broker whose ports are bound and whose metadata is read. Its logs are not open yet."""

    network: BrokerServer
    addresses: dict[str, str]
    config: BrokerConfig
    storage: OsStorage
    local: LocalMetadata
    sockets: SocketFolder | None
    """The sockets by which the brokers of this machine reach each other, None if they have none."""


def bind_broker(
    settings: Settings,
    storage: OsStorage,
    clock: IdClock,
    reactor: Any,
    report: Report,
    lifecycle: Lifecycle,
    cluster_directory: ClusterDirectory | None = None,
) -> BoundBroker:
    """Bind the listeners, then open the metadata, so that a port in use changes nothing.

    `cluster_directory` is where the brokers of this machine meet, None for other brokers.
    """
    network = BrokerServer(reactor, clock, report, settings.broker)
    lifecycle.take(Stage.BROKER, network.stop)
    addresses, advertised = _bind(network, settings)
    open_to_all = ", ".join(listener.name for listener in settings.server.open_listeners)
    if open_to_all:
        report(f"who reaches {open_to_all} may read, write and delete everything: no listener asks who it is")
    config = lowered_default(settings.broker, report)
    endpoints = {listener.name: (listener.host, listener.port) for listener in advertised}
    sockets = None
    if cluster_directory is not None:
        sockets = cluster_directory.open_sockets()
        lifecycle.take(Stage.SESSION, sockets.close)
        if PROCESSES in endpoints:
            wanted = f"{PROCESSES} is the listener between the processes of this machine; give another name"
            raise InvalidSetting("listeners", settings.server.listeners, wanted)
        own_socket = processes_endpoint(config.node_id)
        network.bind_local(sockets.listen(own_socket.host, config.socket_listen_backlog_size), PROCESSES)
        endpoints[PROCESSES] = own_socket.host, own_socket.port
    own = RegisteredBroker(config.node_id, endpoints, config.broker_rack)
    local = LocalMetadata(FileMetadataStore(storage), own, uuid.uuid4)
    local.load()
    return BoundBroker(network, addresses, config, storage, local, sockets)


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
