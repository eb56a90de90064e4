"""A real server as a child of parent_program.py: argv[1] has its settings and its data directory as JSON."""

import json
import os
import sys
from pathlib import Path

from broker.net import reactor as fast
from flakelog.processes.child import Child, inherited_from
from flakelog.processes.messages import Ready
from flakelog.server.lifecycle import Lifecycle
from flakelog.server.starter import Starter
from flakelog.settings import collect


def report(line):
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        return  # the parent has ended


def main():
    fast.install()  # as the command line does
    from twisted.internet import reactor

    options = json.loads(sys.argv[1])
    inherited = inherited_from(os.environ)
    properties = collect(None, [f"{name}={text}" for name, text in options["settings"].items()])
    settings = properties.settings()
    lifecycle = Lifecycle(reactor, report, settings.server.shutdown_grace_ms)
    fast.when_stopped_again(reactor, lifecycle.end_grace)

    def parent_ended():
        lifecycle.stop().addBoth(lambda _: reactor.stop())
        lifecycle.end_grace()  # the next parent waits for the directory

    child = Child(inherited, reactor, parent_ended)
    starter = Starter(
        settings, Path(options["data_dir"]), None, reactor, report, lifecycle, inherited=inherited.sockets
    )

    def started(server):
        report(f"began {os.getpid()}")
        child.ready(Ready(server.shown_addresses, server.scope))

    def begin():
        child.begin()
        starter.start().addCallback(started)

    reactor.callWhenRunning(begin)
    reactor.addSystemEventTrigger("before", "shutdown", lifecycle.stop)
    reactor.run()


if __name__ == "__main__":
    main()
