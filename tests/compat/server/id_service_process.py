"""The id service as a separate process: `python id_service_process.py directory|zookeeper WHERE`.

Prints "ready: worker=N thrift=PORT http=PORT" and serves until SIGTERM.
"""

import sys
import uuid

from klein import Klein
from twisted.internet import reactor
from twisted.web.server import Site

from idgen.claim import worker_claim
from idgen.clock import IdClock
from idgen.config import IdgenConfig
from idgen.http import add_id_routes
from idgen.http_port import HttpFactory
from idgen.server import ClaimDriver, IdQueue, ThriftFactory
from idgen.service import IdService
from idgen.snowflake import connect

LEAD_MS = 600_000  # the worker number of a killed service stays reserved for longer than any test takes


def main(kind, where):
    coordinator = connect(**{"directory": None, "zookeeper": None, kind: where})
    config, clock = IdgenConfig(ids_lead_ms=LEAD_MS), IdClock()
    driver = ClaimDriver(reactor, coordinator, clock)
    claim = worker_claim(config, address="127.0.0.1:0", token=uuid.uuid4().hex)
    service = IdService(claim, config)
    line = IdQueue(service, clock, reactor)
    thrift = ThriftFactory(service, line)

    def site():
        return Site(add_id_routes(Klein(), service, line).resource())

    def serve(_):
        ids = reactor.listenTCP(0, thrift, interface="127.0.0.1")
        port = HttpFactory(service, line, reactor, site, connections_max=100, idle_ms=60_000)
        http = reactor.listenTCP(0, port, interface="127.0.0.1")
        print(f"ready: worker={claim.number} thrift={ids.getHost().port} http={http.getHost().port}", flush=True)

    driver.hold(claim).addCallback(serve)
    reactor.addSystemEventTrigger("before", "shutdown", driver.stop)
    reactor.run()
    coordinator.close()


main(*sys.argv[1:])
