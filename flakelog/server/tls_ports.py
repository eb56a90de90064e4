"""The TLS of a server process: of the broker's listeners, of the HTTP port and of the id service."""

import time
from typing import TYPE_CHECKING, Any

from broker.client.security.settings import TLS_SETTINGS as CLIENT_TLS
from broker.security.listener_settings import HTTP, IDS, errors_as_given, properties_of_listener
from broker.security.tls_config import TLS_SETTINGS
from flakelog.server.lifecycle import Lifecycle, Report, Stage
from flakelog.settings import Settings
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from broker.net.tls import ListenerTls
    from broker.net.tls_listeners import TlsListeners
    from flakelog.id_clients.tls import IdTls

_OF_CLIENTS = (*CLIENT_TLS, "ssl.endpoint.identification.algorithm")
HINTS = {HTTP: "use https:// at the client", IDS: "use a Thrift client with TLS"}


def open_tls(settings: Settings, reactor: Any, report: Report, lifecycle: Lifecycle) -> "TlsListeners | None":
    """Read the certificates of all ports that speak TLS. Raise InvalidSetting. Return None without any."""
    configs = {**settings.listener_tls, **settings.port_tls}
    if not configs:
        return None
    from broker.net.tls_listeners import TlsListeners  # a plain server does without it

    ports = TlsListeners(reactor, settings.broker, {name: read_tls(name, settings, report) for name in configs}, report)
    lifecycle.take(Stage.HANDSHAKES, ports.stop)
    return ports


def tls_of_peers(settings: Settings) -> "IdTls | None":
    """Return how a process asks the other id services, which speak TLS if it does; None in plain text.

    The certificate of the own port is shown, and its authorities are trusted.
    """
    if IDS not in settings.port_tls:
        return None
    from broker.client.security.settings import PROTOCOL, SSL
    from flakelog.id_clients.tls import IdTls

    own = properties_of_listener(IDS, settings.properties, TLS_SETTINGS)
    with errors_as_given(IDS, settings.properties, TLS_SETTINGS):
        return IdTls.of({PROTOCOL: SSL} | {name: own[name] for name in _OF_CLIENTS if name in own})


def read_tls(name: str, settings: Settings, report: Report) -> "ListenerTls":
    """Read the key and certificates of a listener or a port, which its `begin` serves. Raise InvalidSetting."""
    from broker.net.tls import ListenerTls, exposed_files

    config = settings.port_tls[name] if name in settings.port_tls else settings.listener_tls[name]
    if name in settings.port_tls and not config.ssl_keystore_location and not config.ssl_keystore_key:
        wanted = f"needs a private key: flakelog.{name}.ssl.keystore.location, or ssl.keystore.location"
        raise InvalidSetting(f"flakelog.{name}.ssl.enable", "true", wanted)
    with errors_as_given(name, settings.properties, TLS_SETTINGS):
        hint = HINTS.get(name) or _hint(settings.server.protocols[name])
        serves_brokers = _serves_brokers(name, settings)
        made = ListenerTls(name, config, report, hint, wall_ms=_wall_ms, serves_brokers=serves_brokers)
    for file in exposed_files(config):
        report(f"other users of this machine can read {file}, which has the private key of {name}: chmod 600 it")
    return made


def _serves_brokers(name: str, settings: Settings) -> bool:
    """Return True for the listener on which the brokers of a cluster reach each other."""
    server = settings.server
    return bool(server.zookeeper_connect and server.broker_listeners) and name == server.inter_broker_listener


def _wall_ms() -> int:
    return int(time.time() * 1000)


def _hint(protocol: str) -> str:
    return f"set security.protocol={protocol} at the client"
