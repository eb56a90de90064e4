"""A `flakelog server --processes N` as a process, whose brokers stock clients use as one cluster."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

from coordination.free_port import FreePort
from tests.compat.cluster_servers import Servers
from tests.compat.server_process import ServerProcess
from tests.patience import until

SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


class SeveralProcesses(ServerProcess):
    """A server of `processes` brokers, 1 to N. With a `stack`, each has the same port at every start."""

    def __init__(self, data_dir, processes=2, settings=None, *, stack=None, **more):
        super().__init__(data_dir, SETTINGS | (settings or {}), **more)
        self.processes = processes
        if stack is not None:
            self.settings["listeners"] = f"PLAINTEXT://127.0.0.1:{consecutive_ports(processes, stack)}"

    @property
    def argv(self):
        return [*super().argv, "--processes", str(self.processes)]

    @property
    def cluster(self):
        """The brokers as stock clients see them."""
        return Brokers(self)

    def cluster_at(self, address):
        """The brokers as clients of one of them see them."""
        return Brokers(self, address)

    def child(self, broker_id):
        """Return the process id of a broker, which is a child of this process."""
        setting = f"--set=node.id={broker_id}"
        return next((pid for pid in self._children() if setting in _arguments(pid)), None)

    def _children(self):
        return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self):
        """Send SIGKILL to the parent, and wait until its brokers have ended too."""
        brokers = self._children() if self.running else []
        super().kill()
        until(lambda: not any(map(_is_running, brokers)), "the end of the brokers")

    def kill_child(self, broker_id, number=signal.SIGKILL):
        """Send a signal to a broker. Return its process id once another process has taken its place."""
        killed = self.child(broker_id)
        os.kill(killed, number)
        until(lambda: self.child(broker_id) not in (None, killed), f"another process of broker {broker_id}")
        return killed

    def alone(self, settings=None, **more):
        """Return a server of one process in this directory."""
        return ServerProcess(self.data_dir, SETTINGS | (settings or {}), **more)


class Brokers(Servers):
    """The brokers of one server, found by its address or by one of them."""

    def __init__(self, server, bootstrap=None):
        self.servers = {1: server}
        self._bootstrap = bootstrap

    @property
    def bootstrap(self):
        return self._bootstrap or super().bootstrap


def _arguments(pid):
    """Return the command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


def _is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def consecutive_ports(number, stack):
    """Return the first of so many free ports, which are reserved until the stack ends."""
    for _ in range(100):
        with ExitStack() as reserved:
            first = reserved.enter_context(FreePort()).number
            try:
                for port in range(first + 1, first + number):
                    reserved.enter_context(FreePort(port))
            except OSError:
                continue
            stack.enter_context(reserved.pop_all())
            return first
    raise AssertionError("no free ports in a row")
