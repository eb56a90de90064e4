"""A start of a server in a process that lives on: `python failed_start_program.py DATA_DIR ZOOKEEPER NAME=VALUE...`.

Prints a JSON line with the reason why it failed, and what it left open: the files and sockets of /proc/self/fd, and
threads. Then the process waits for the end of stdin, so that a test can look from outside for what it still holds.
"""

import json
import os
import sys
import threading
from pathlib import Path

from broker.net import reactor as fast

fast.install(0)
from twisted.internet import reactor  # noqa: E402
from twisted.internet.defer import inlineCallbacks  # noqa: E402
from twisted.internet.threads import deferToThread  # noqa: E402

from flakelog.server.lifecycle import Lifecycle, StartError  # noqa: E402
from flakelog.server.starter import Starter  # noqa: E402
from flakelog.settings import Settings  # noqa: E402


def open_things():
    """Return the files and sockets, and the threads beside those of the reactor's pool.

    Twisted keeps a descriptor of /dev/null in reserve, from the first port that listens to the end of the process.
    """
    descriptors = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    files = {os.readlink(path) for path in descriptors}
    threads = {thread.name for thread in threading.enumerate() if not thread.name.startswith("PoolThread")}
    return {name for name in files if not name.startswith(("/proc/", "/dev/null"))} | threads


@inlineCallbacks
def main(data_dir, zookeeper, *properties):
    yield deferToThread(int)  # starts the pool, which is not the server's
    settings = Settings(dict(text.split("=", 1) for text in properties))
    lifecycle = Lifecycle(reactor, lambda line: print(line, file=sys.stderr), 0)
    before = open_things()
    try:
        yield Starter(settings, Path(data_dir), zookeeper or None, reactor, lambda line: None, lifecycle).start()
    except StartError as error:
        print(json.dumps({"reason": str(error), "left": sorted(open_things() - before)}), flush=True)
    else:
        print(json.dumps({"reason": None, "left": []}), flush=True)
    yield deferToThread(sys.stdin.read)
    reactor.stop()


reactor.callWhenRunning(main, *sys.argv[1:])
reactor.run()
