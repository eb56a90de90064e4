"""The ports of ids and HTTP: bound early, so that the registry gets an address, and served once there is a service."""

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.protocol import Factory

from broker.address import host_port
from flakelog.listeners import EVERYWHERE, LISTEN_BACKLOG
from flakelog.server.lifecycle import Lifecycle, Stage
from flakelog.settings import Settings
from idgen.clock import IdClock
from idgen.http_hosts import OwnHosts, parse_hosts
from idgen.http_port import HttpFactory
from idgen.server import IdFactory, IdQueue, ThriftFactory
from idgen.service import IdService

if TYPE_CHECKING:
    from broker.net.tls_listeners import TlsListeners

MakeSite = Callable[[IdQueue, OwnHosts], Any]


class IdPorts:
    """The bound ports. Connections wait in the backlog until `serve` accepts them."""

    def __init__(
        self,
        settings: Settings,
        reactor: Any,
        lifecycle: Lifecycle,
        tls: "TlsListeners | None" = None,
        inherited: Mapping[str, int] | None = None,
    ) -> None:
        """Bind the ports that the settings name; CannotListenError if one is in use. `tls` has those that speak TLS.

        `inherited` has the descriptors of listening sockets that a parent bound in place of these ports, by their
        names: ids, http. Other processes accept their connections too.
        """
        self._settings = settings
        self._reactor = reactor
        self._lifecycle = lifecycle
        self._tls = tls
        self._inherited = inherited or {}
        self.addresses: dict[str, str] = {}
        """Each port's address by its name: ids, http."""
        self._ports: dict[str, Any] = {}
        for name, address in (("ids", settings.idgen.ids_address), ("http", settings.server.http_address)):
            if address is not None:
                self._bind(name, *address)

    def _bind(self, name: str, host: str, number: int) -> None:
        if name in self._inherited:
            port = self._adopt(self._inherited[name])
        else:
            port = self._reactor.listenTCP(number, Factory(), backlog=LISTEN_BACKLOG, interface=host)
        self._lifecycle.take(Stage.ID_PORTS, port.stopListening)
        port.stopReading()
        if self._tls is not None:
            self._tls.secure(port, name)
        self._ports[name] = port
        bound = port.getHost()
        self.addresses[name] = host_port(bound.host, bound.port)

    def _adopt(self, descriptor: int) -> Any:
        """Return the port of an inherited socket. Its end does not shut down the socket, which others share."""
        with socket.socket(fileno=descriptor) as inherited:  # closed, because the port makes a duplicate
            return self._reactor.adoptStreamPort(descriptor, inherited.family, Factory())

    @property
    def advertised(self) -> str:
        """The address where other processes request ids or the time; '' if there is no such address."""
        configured = self._settings.idgen.ids_advertised_address
        if configured is not None or "ids" not in self._ports:
            return configured or ""
        bound = self._ports["ids"].getHost()
        return host_port(socket.gethostname() if bound.host in EVERYWHERE else bound.host, bound.port)

    def serve(self, service: IdService, clock: IdClock, make_site: MakeSite) -> None:
        """Accept connections; `make_site` is called when the first request needs the HTTP site."""
        queue = IdQueue(service, clock, self._reactor)
        if "ids" in self._ports:
            self._serve("ids", ThriftFactory(service, queue))
        if "http" in self._ports:
            self._serve("http", self._http_factory(service, queue, make_site))

    def _serve(self, name: str, factory: IdFactory) -> None:
        self._lifecycle.take(Stage.ID_CONNECTIONS, factory.close_connections)
        port = self._ports[name]
        port.factory = factory
        port.startReading()

    def _http_factory(self, service: IdService, queue: IdQueue, make_site: MakeSite) -> HttpFactory:
        server, hosts = self._settings.server, self._own_hosts()
        return HttpFactory(
            service,
            queue,
            self._reactor,
            lambda: make_site(queue, hosts),
            connections_max=server.http_max_connections,
            idle_ms=server.http_idle_ms,
            request_ms=server.http_request_ms,
            hosts=hosts,
        )

    def _own_hosts(self) -> OwnHosts:
        """Return the names by which clients may reach the HTTP port."""
        server, configured = self._settings.server, self._settings.server.http_address
        machine = socket.gethostname()
        own = [machine, machine.partition(".")[0], configured[0] if configured else ""]
        own += [listener.host for listener in server.advertised.values()]
        bound = self._ports["http"].getHost().host
        return OwnHosts(parse_hosts(server.http_hosts), bound, own, is_tls=server.http_ssl_enable)
