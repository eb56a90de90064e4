"""A child of parent_program.py: a reactor with the child's side of a parent, and what the options in argv ask for.

It writes what happens to it to stderr. SIGUSR1 hangs its reactor.
"""

import fcntl
import json
import os
import signal
import sys
import threading
from pathlib import Path

from broker.net import reactor as fast
from coordination.directory import DirectoryCoordinator
from coordination.port import Create
from flakelog.processes.child import Child, inherited_from
from flakelog.processes.messages import Ready


def tell(line):
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        return  # the parent has ended


def main():
    fast.install()  # as the command line does
    from twisted.internet import reactor

    options = json.loads(sys.argv[1])
    directory = Path(options["directory"])
    if "refuses" in options:
        tell("some lines before it")
        tell(options["refuses"])
        raise SystemExit(2)
    inherited = inherited_from(os.environ)
    tell(f"began {os.getpid()} group {os.getpgid(0)} told of systemd: {'NOTIFY_SOCKET' in os.environ}")
    lock = (directory / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_SH)  # as long as it lives
    sessions = []
    if not (directory / "no-session").exists():
        sessions.append(DirectoryCoordinator(inherited.cluster_dir))
        sessions[0].on_wake(lambda: None)
        sessions[0].execute(Create(f"/{options['name']}", ephemeral=True))

    def parent_ended():
        tell("the parent has ended")
        (directory / f"parent-ended-{os.getpid()}").touch()
        reactor.stop()

    child = Child(inherited, reactor, parent_ended)

    def begin():
        signal.signal(signal.SIGUSR1, lambda *_: reactor.callFromThread(threading.Event().wait))
        child.begin()
        child.ready(Ready({"broker": options["name"], "http": "shared"}, "a directory"))
        tell("serves")

    def stop():
        for session in sessions:
            session.close()
        tell("stops")

    reactor.callWhenRunning(begin)
    reactor.addSystemEventTrigger("before", "shutdown", stop)
    reactor.run()


if __name__ == "__main__":
    main()
