"""SHELL (Twisted): requests for the web console, which one broker of the machine serves whoever accepts them.

The console keeps sessions, and pages that were made, in its process. So all brokers pass such requests on to the first
one, each with its headers as they came, and its answer back as it comes.
"""

from typing import Any

from twisted.internet.protocol import Protocol
from twisted.python.failure import Failure
from twisted.web.client import FileBodyProducer
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from flakelog.siblings.siblings import Siblings

OF_CONNECTION = (b"connection", b"content-length", b"keep-alive", b"te", b"transfer-encoding", b"upgrade")


class ForwardedPages(Resource):
    """All pages below a path, which the first broker answers."""

    isLeaf = True

    def __init__(self, siblings: Siblings) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._siblings = siblings

    def render(self, request: Any) -> int:
        headers = Headers(
            {name: values for name, values in request.requestHeaders.getAllRawHeaders() if not _is_of_connection(name)}
        )
        body = FileBodyProducer(request.content) if request.method == b"POST" else None  # type: ignore[no-untyped-call]
        forwarded = self._siblings.forward(request.method, request.uri, headers, body)
        relay = _Relay(request)
        end = request.notifyFinish().addErrback(lambda _: relay.stop() if relay.transport else forwarded.cancel())
        end.addErrback(lambda _: None)
        forwarded.addCallbacks(relay.begin, relay.unanswered)
        return NOT_DONE_YET


def _is_of_connection(name: bytes) -> bool:
    return name.lower() in OF_CONNECTION


class _Relay(Protocol):
    """The answer of the first broker, which goes to the client as it comes."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._has_client = True

    def begin(self, response: Any) -> None:
        self._request.setResponseCode(response.code, response.phrase)
        for name, values in response.headers.getAllRawHeaders():
            self._request.responseHeaders.setRawHeaders(name, values)
        response.deliverBody(self)

    def unanswered(self, failure: Failure) -> None:
        if self._has_client and not self._request._disconnected:
            self._request.setResponseCode(503)
            self._request.setHeader(b"Content-Type", b"text/plain; charset=utf-8")
            self._request.write(b"the first broker, which serves the console, does not answer; it is being started\n")
            self._request.finish()

    def stop(self) -> None:
        """End the answer, because its client has gone."""
        self._has_client = False
        transport: Any = self.transport
        if transport is not None:
            transport.loseConnection()

    def dataReceived(self, data: bytes) -> None:
        if self._has_client:
            self._request.write(data)

    def connectionLost(self, reason: Any = None) -> None:
        if self._has_client:
            self._request.finish()
