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
from flakelog.listeners import Listener
from flakelog.server.lifecycle import Lifecycle, Report, Stage
from flakelog.settings import Settings
from idgen.clock import IdClock


class BoundBroker(NamedTuple):
    """A broker whose ports are bound and whose metadata is read. Its logs are not open yet."""

    network: BrokerServer
    addresses: dict[str, str]
    config: BrokerConfig
    storage: OsStorage
    local: LocalMetadata


def bind_broker(
    settings: Settings,
    storage: OsStorage,
    clock: IdClock,
    reactor: Any,
    report: Report,
    lifecycle: Lifecycle,
) -> BoundBroker:
    """Bind the listeners, then open the metadata, so that a port in use changes nothing."""
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
    return BoundBroker(network, addresses, config, storage, local)


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
