"""SHELL (Twisted: sockets, timers): the HTTP port. It answers plain requests for one id (idgen/http_plain.py) and hands
a connection over to the web site at the first other request.
"""

from collections.abc import Callable
from typing import Any

from coordination.reactor import DelayedCall, Reactor
from idgen.http_hosts import EVERY_HOST, OwnHosts
from idgen.http_plain import LATE, REQUEST_MS, Heads, NotPlain, PlainCaller
from idgen.server import IdConnection, IdFactory, IdQueue
from idgen.service import IdService

TLS_RECORD = b"\x16"  # the first byte of a TLS handshake; no method of HTTP begins with it


class HttpProtocol(IdConnection):
    """A connection of the HTTP port, until the site takes it over."""

    owner: "HttpFactory"
    caller: PlainCaller

    def __init__(self, caller: PlainCaller, addr: object) -> None:
        self.caller = caller
        self._addr = addr
        self._web: Any = None  # the site's protocol, after the hand-over
        self._heard = False
        self._idle_call: DelayedCall | None = None
        self._late_call: DelayedCall | None = None

    def connectionMade(self) -> None:
        super().connectionMade()
        self._look_again()

    def connectionLost(self, reason: object = None) -> None:
        super().connectionLost(reason)
        self._stop_looking()
        self._in_time()
        if self._web is not None:
            self._web.connectionLost(reason)

    def dataReceived(self, data: bytes) -> None:
        if self._web is not None:
            self._web.dataReceived(data)
            return
        self._heard = True
        super().dataReceived(data)
        if self._late_call is not None or self.caller.in_request:
            self._watch_request()

    def readConnectionLost(self) -> None:
        if self._web is not None:
            self.close()
        else:
            super().readConnectionLost()

    def answer(self, most: int, now_ms: int, skew_ms: int) -> None:
        try:
            super().answer(most, now_ms, skew_ms)
        except NotPlain:
            self._hand_over()

    def _hand_over(self) -> None:
        """Hand the connection over to the site, beginning with the first byte that is not answered."""
        unanswered = self.caller.take_unanswered()
        if unanswered.startswith(TLS_RECORD):
            self._refuse_tls()
            return
        self._stop_looking()
        self.transport.unregisterProducer()
        if not self._reading:
            self._reading = True
            self.transport.resumeProducing()
        self._web = self.owner.site.buildProtocol(self._addr)
        self._web.makeConnection(self.transport)
        self._web.dataReceived(unanswered)

    def _refuse_tls(self) -> None:
        self.owner.note(self, "it began a TLS handshake; this port is plain HTTP", "http")
        self.close()

    def _watch_request(self) -> None:
        """Give a request that is received in part its time; a request that came whole needs no timer."""
        if not self.caller.in_request or self._web is not None:
            self._in_time()
        elif self._late_call is None:
            self._late_call = self.owner.reactor.callLater(self.owner.request_ms / 1000, self._refuse_late)

    def _refuse_late(self) -> None:
        self._late_call = None
        self.transport.write(LATE)
        self.close()

    def _in_time(self) -> None:
        if self._late_call is not None:
            self._late_call.cancel()
            self._late_call = None

    def _look_again(self) -> None:
        self._idle_call = self.owner.reactor.callLater(self.owner.idle_ms / 1000, self._budget)

    def _budget(self) -> None:
        """Close the connection if it received nothing since the last check. Requests do not set a timer each."""
        self._idle_call = None
        if not self._heard:
            self.close()
            return
        self._heard = False
        self._look_again()

    def _stop_looking(self) -> None:
        if self._idle_call is not None:
            self._idle_call.cancel()
            self._idle_call = None


class HttpFactory(IdFactory):
    """The factory of the HTTP port. `make_site` makes the web site, a Twisted factory, for the first connection that is
    handed over, because loading the site takes longer than all the rest."""

    def __init__(
        self,
        service: IdService,
        line: IdQueue,
        reactor: Reactor,
        make_site: Callable[[], Any],
        *,
        connections_max: int,
        idle_ms: int,
        request_ms: int = REQUEST_MS,
        hosts: OwnHosts = EVERY_HOST,
    ) -> None:
        super().__init__(line, "flakelog.http.max.connections", connections_max)
        self.reactor = reactor
        self.idle_ms = idle_ms
        self.request_ms = request_ms
        self._hosts = hosts
        self._service = service
        self._heads = Heads()
        self._make_site = make_site
        self._site: Any = None

    @property
    def site(self) -> Any:
        if self._site is None:
            self._site = self._make_site()
            self._site.startFactory()
        return self._site

    def buildProtocol(self, addr: object) -> HttpProtocol:
        connection = HttpProtocol(PlainCaller(self._service, self._heads, self.line.budget, self._hosts), addr)
        connection.owner = self
        return connection
