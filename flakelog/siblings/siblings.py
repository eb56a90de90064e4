"""SHELL (Twisted): the brokers of one machine ask each other for their pages, so that each can answer for all.

Each serves the pages of its own process at a socket in <data>/cluster/sockets, which only the owner may open. A broker
that does not answer within ANSWER_SECONDS is named in the answer, and holds it up no longer.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.internet.endpoints import UNIXClientEndpoint
from twisted.internet.protocol import Factory
from twisted.web.client import Agent, readBody
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from coordination.socket_folder import SOCKET_MODE, SocketFolder
from flakelog.listeners import LISTEN_BACKLOG

ANSWER_SECONDS = 2.0
READY_SECONDS = 0.5
"""For a probe of readiness, whose own timeout is 1 s in Kubernetes."""

Pages = Mapping[int, bytes]
"""The page of each broker that answered, by its id."""


class Siblings:
    """All brokers of this machine, of which this process is one."""

    def __init__(self, reactor: Any, sockets: SocketFolder, own_id: int, broker_ids: Iterable[int]) -> None:
        self.own_id = own_id
        self.broker_ids = tuple(sorted(broker_ids))
        self._reactor = reactor
        self._sockets = sockets
        self._agent: Any = None

    def serve(self, make_site: Callable[[], Any]) -> Any:
        """Serve the pages of this process to the others. Return the port; raise OSError."""
        path = self._sockets.free(_name(self.own_id))
        return self._reactor.listenUNIX(path, _LazyFactory(make_site), LISTEN_BACKLOG, SOCKET_MODE)

    def pages(self, path: str, own: "Deferred[bytes]", seconds: float = ANSWER_SECONDS) -> "Deferred[Pages]":
        """Fire with the pages at a path of all that answer in time; `own` fires with that of this process."""
        others = [broker_id for broker_id in self.broker_ids if broker_id != self.own_id]
        answers: Deferred[Any] = DeferredList(
            [own, *(self._ask(broker_id, path, seconds) for broker_id in others)], consumeErrors=True
        )

        def gather(outcomes: list[tuple[bool, Any]]) -> Pages:
            (is_good, page), *of_others = outcomes
            if not is_good:
                page.raiseException()
            pages = {broker_id: text for broker_id, (answered, text) in zip(others, of_others, strict=True) if answered}
            return dict(sorted({self.own_id: page, **pages}.items()))

        return answers.addCallback(gather)

    def without_answer(self, pages: Pages) -> list[int]:
        """Return the ids of the brokers that gave no page."""
        return [broker_id for broker_id in self.broker_ids if broker_id not in pages]

    def forward(self, method: bytes, path: bytes, headers: Headers, body: Any) -> "Deferred[Any]":
        """Ask the first broker for a page; fire with its response."""
        return self._request(self.broker_ids[0], method, path, headers, body)

    def _request(self, broker_id: int, method: bytes, path: bytes, *more: Any) -> "Deferred[Any]":
        if self._agent is None:
            endpoints = _Endpoints(self._reactor, self._sockets)
            self._agent = Agent.usingEndpointFactory(self._reactor, endpoints)  # type: ignore[no-untyped-call]
        answer: Deferred[Any] = self._agent.request(method, f"http://{_name(broker_id)}".encode() + path, *more)
        return answer

    def _ask(self, broker_id: int, path: str, seconds: float) -> "Deferred[bytes]":
        answer = self._request(broker_id, b"GET", path.encode())
        return answer.addCallback(readBody).addTimeout(seconds, self._reactor)


def _name(broker_id: int) -> str:
    return f"http-{broker_id}"


@implementer(IAgentEndpointFactory)
class _Endpoints:
    """The sockets of brokers as endpoints of an Agent: the host of the address is the name of the socket."""

    def __init__(self, reactor: Any, sockets: SocketFolder) -> None:
        self._reactor = reactor
        self._sockets = sockets

    def endpointForURI(self, uri: Any) -> Any:
        path = self._sockets.socket_path(uri.host.decode())
        return UNIXClientEndpoint(self._reactor, path, ANSWER_SECONDS)  # type: ignore[no-untyped-call]


class _LazyFactory(Factory):
    """A factory that makes its site for the first connection, because loading it takes longer than all the rest."""

    noisy = False

    def __init__(self, make_site: Callable[[], Any]) -> None:
        self._make_site = make_site
        self._site: Any = None

    def buildProtocol(self, addr: Any) -> Any:
        if self._site is None:
            self._site = self._make_site()
        return self._site.buildProtocol(addr)
