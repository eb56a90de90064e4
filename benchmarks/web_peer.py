"""A peer for ids over HTTP: POST /id as a plain resource of twisted.web, with a naive worker behind it.

`python -m benchmarks.web_peer` prints its port and serves until its standard input ends.
"""

import json
import sys

from twisted.internet import reactor, stdio
from twisted.internet.protocol import Protocol
from twisted.web.resource import Resource
from twisted.web.server import Site

from benchmarks.naive import NaiveWorker


class Id(Resource):
    """POST /id"""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._worker = NaiveWorker()

    def render_POST(self, request):  # type: ignore[no-untyped-def]
        id = self._worker.next_id()
        request.setHeader(b"content-type", b"application/json")
        return json.dumps({"id": id, "id_str": str(id)}).encode() + b"\n"


class UntilInputEnds(Protocol):
    def connectionLost(self, reason: object = None) -> None:
        reactor.stop()  # type: ignore[attr-defined]


def main() -> None:
    root = Resource()  # type: ignore[no-untyped-call]
    root.putChild(b"id", Id())  # type: ignore[no-untyped-call]
    port = reactor.listenTCP(0, Site(root), interface="127.0.0.1")  # type: ignore[attr-defined, no-untyped-call]
    stdio.StandardIO(UntilInputEnds())
    sys.stdout.write(f"{port.getHost().port}\n")
    sys.stdout.flush()
    reactor.run()  # type: ignore[attr-defined]


main()
