"""The TLS of a server process: of the broker's listeners, of the HTTP port and of the id service."""

from typing import TYPE_CHECKING, Any

from broker.security.listener_settings import HTTP, IDS, errors_as_given
from broker.security.tls_config import TLS_SETTINGS
from flakelog.server.lifecycle import Lifecycle, Report, Stage
from flakelog.settings import Settings

if TYPE_CHECKING:
    from broker.net.tls import ListenerTls
    from broker.net.tls_listeners import TlsListeners

HINTS = {HTTP: "use https:// at the client", IDS: "use a Thrift client with TLS"}


def open_tls(settings: Settings, reactor: Any, report: Report, lifecycle: Lifecycle) -> "TlsListeners | None":
    """Read the certificates of all ports that speak TLS. Raise InvalidSetting. Return None without any."""
    configs = {**settings.listener_tls, **settings.port_tls}
    if not configs:
        return None
    from broker.net.tls_listeners import TlsListeners  # a plain server does without it

    ports = TlsListeners(reactor, settings.broker, {name: _tls_of(name, settings, report) for name in configs}, report)
    lifecycle.take(Stage.HANDSHAKES, ports.stop)
    return ports


def _tls_of(name: str, settings: Settings, report: Report) -> "ListenerTls":
    """Read the key and certificates of a listener or a port. Raise InvalidSetting."""
    from broker.net.tls import KAFKA_HINT, ListenerTls, exposed_files

    config = settings.port_tls[name] if name in settings.port_tls else settings.listener_tls[name]
    with errors_as_given(name, settings.properties, TLS_SETTINGS):
        made = ListenerTls(name, config, report, HINTS.get(name, KAFKA_HINT))
    for file in exposed_files(config):
        report(f"other users of this machine can read {file}, which has the private key of {name}: chmod 600 it")
    return made
