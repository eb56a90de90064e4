"""The sockets of a broker, bound before anything is touched, and its metadata."""

import socket
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.address import host_port
from broker.client.address import parse_addresses
from broker.log.storage.os_storage import OsStorage
from broker.metadata.image import RegisteredBroker
from broker.metadata.local_metadata import FileMetadataStore, LocalMetadata
from broker.net.server import BrokerServer
from broker.services.lower_replication import lowered_default
from broker.settings.config import BrokerConfig, parse_super_users
from coordination.socket_folder import SocketFolder
from flakelog.console.own_place import OwnPlace
from flakelog.console.security import missing_with_authorizer
from flakelog.listeners import EVERYWHERE, Listener, parse_names
from flakelog.server.cluster_coordinator import PROCESSES, ClusterDirectory, processes_endpoint
from flakelog.server.lifecycle import Lifecycle, Report, Stage
from flakelog.server.own_socket import CONSOLE, listen_at_own_socket
from flakelog.settings import Settings
from idgen.clock import IdClock
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from broker.net.tls_listeners import TlsListeners


class BoundBroker(NamedTuple):
    """A broker whose ports are bound and whose metadata is read. Its logs are not open yet."""

    network: BrokerServer
    addresses: dict[str, str]
    config: BrokerConfig
    storage: OsStorage
    local: LocalMetadata
    sockets: SocketFolder | None
    """The sockets by which the brokers of this machine reach each other, None if they have none."""
    own_place: OwnPlace
    """Where the console reaches the broker."""


def bind_broker(
    settings: Settings,
    storage: OsStorage,
    clock: IdClock,
    reactor: Any,
    report: Report,
    lifecycle: Lifecycle,
    tls: "TlsListeners | None",
    cluster_directory: ClusterDirectory | None = None,
) -> BoundBroker:
    """Bind the listeners, then open the metadata, so that a port in use changes nothing.

    `tls` has the TLS of the listeners that speak it.
    `cluster_directory` is where the brokers of this machine meet, None for other brokers.
    """
    network = BrokerServer(reactor, clock, report, settings.broker, tls)
    lifecycle.take(Stage.BROKER, network.stop)
    of_clients = _listeners_of_clients(settings, are_processes=cluster_directory is not None)
    addresses, advertised = _bind(network, settings, of_clients)
    open_to_all = ", ".join(settings.server.unproved(settings.server.open_listeners, settings.listener_tls))
    if open_to_all and not settings.broker.authorizer_class_name:
        report(f"who reaches {open_to_all} may read, write and delete everything: no listener asks who it is")
    line = _about_console(settings)
    if line is not None:
        report(line)
    is_alone = cluster_directory is None and not settings.server.zookeeper_connect
    config = lowered_default(settings.broker, report) if is_alone else settings.broker
    endpoints = {listener.name: (listener.host, listener.port) for listener in advertised}
    sockets = None
    # With an authorizer, the console connects to a separate socket, because it has another principal than its clients.
    own_place = None if config.authorizer_class_name else _first_plain(addresses, settings)
    if cluster_directory is not None:
        sockets = cluster_directory.open_sockets()
        lifecycle.take(Stage.SESSION, sockets.close)
        if PROCESSES in endpoints:
            wanted = f"{PROCESSES} is the listener between the processes of this machine; give another name"
            raise InvalidSetting("listeners", settings.server.listeners, wanted)
        own_socket = processes_endpoint(config.node_id)
        network.bind_local(sockets.listen(own_socket.host, config.socket_listen_backlog_size), PROCESSES)
        endpoints[PROCESSES] = own_socket.host, own_socket.port
        if not config.authorizer_class_name:
            own_place = own_place or OwnPlace(own_socket.host, own_socket.port, sockets)
    if CONSOLE in endpoints:
        wanted = f"{CONSOLE} is the listener of the web console; give another name"
        raise InvalidSetting("listeners", settings.server.listeners, wanted)
    if own_place is None:
        own_place, close = listen_at_own_socket(network, Path(storage.root), config.socket_listen_backlog_size)
        lifecycle.take(Stage.SESSION, close)
        endpoints[CONSOLE] = own_place.host, own_place.port
    own = RegisteredBroker(config.node_id, endpoints, config.broker_rack)
    local = LocalMetadata(FileMetadataStore(storage), own, uuid.uuid4)
    local.load()
    return BoundBroker(network, addresses, config, storage, local, sockets, own_place)


def _about_console(settings: Settings) -> str | None:
    """Return a line for the log about the rights of a console that access rules hold for."""
    server, broker = settings.server, settings.broker
    if not (broker.authorizer_class_name and server.console_enable and server.http_listener):
        return None
    closed = missing_with_authorizer(server)
    if closed is not None:
        return closed
    if server.console_principal in parse_super_users(broker.super_users):
        return f"who opens the console may do everything, because {server.console_principal} is one of super.users"
    return None


def _first_plain(addresses: dict[str, str], settings: Settings) -> OwnPlace | None:
    """Return the place of the first listener that speaks plain text and asks nothing, None without any."""
    for number, listener in enumerate(settings.server.broker_listeners):
        if listener.name in settings.server.plain_listeners:
            (bound,) = parse_addresses(addresses[f"broker.{listener.name}" if number else "broker"])
            loopback = "::1" if ":" in bound.host else "127.0.0.1"
            return OwnPlace(loopback if bound.host in EVERYWHERE else bound.host, bound.port)
    return None


def _listeners_of_clients(settings: Settings, *, are_processes: bool) -> set[str]:
    """Return the listeners of a cluster's broker that no other broker uses, so that they may listen late.

    The processes of one machine reach each other by their own sockets. With an authorizer a broker may use each
    listener of another, because access rules decide.
    """
    server = settings.server
    names = {listener.name for listener in server.broker_listeners}
    if are_processes:
        return names
    if not server.zookeeper_connect or settings.broker.authorizer_class_name:
        return set()
    return names - {server.inter_broker_listener, *parse_names(server.inter_broker_listeners_more)}


def _bind(
    network: BrokerServer, settings: Settings, of_clients: set[str]
) -> tuple[dict[str, str], list[Listener]]:
    """Bind the listeners; return their addresses, and the listeners with the host and port that clients receive.

    Those named by `of_clients` begin to listen once the broker can answer.
    """
    addresses: dict[str, str] = {}
    advertised = []
    for listener in settings.server.broker_listeners:
        is_late = listener.name in of_clients
        host, port = network.bind(listener.host, listener.port, listener.name, is_late=is_late)
        addresses["broker" if not addresses else f"broker.{listener.name}"] = host_port(host, port)
        configured = settings.server.advertised.get(listener.name)
        if configured is None:
            configured = Listener(listener.name, host if listener.host else socket.gethostname(), port)
        advertised.append(configured if configured.port else configured._replace(port=port))
    return addresses, advertised
