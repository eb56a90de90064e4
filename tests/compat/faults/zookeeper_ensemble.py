"""Three real ZooKeeper servers that are one ensemble, each a Java process.

    with ZooKeeperEnsemble(directory) as ensemble:
        ... ensemble.hosts ...
        ensemble.kill(1)
        ensemble.start(1)
"""

import socket
import subprocess
from contextlib import ExitStack, closing

from coordination.embedded_zookeeper import JARS, JVM_OPTIONS, MAX_SESSION_TIMEOUT_MS, TICK_MS, classpath
from coordination.free_port import FreePort
from coordination.java import find_java
from tests.patience import SECONDS, until

NUMBERS = 1, 2, 3
SERVER = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
CONFIG = """\
tickTime={tick_ms}
initLimit=20
syncLimit=10
dataDir={directory}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
4lw.commands.whitelist=srvr
maxClientCnxns=0
maxSessionTimeout={max_session_timeout_ms}
"""


class ZooKeeperEnsemble:
    def __init__(self, directory):
        self._directory = directory
        self._stack = ExitStack()
        self._ports = {number: [self._free_port() for _ in range(3)] for number in NUMBERS}
        self._processes = {}

    def _free_port(self):
        return self._stack.enter_context(closing(FreePort())).number

    @property
    def hosts(self):
        return ",".join(f"127.0.0.1:{ports[0]}" for ports in self._ports.values())

    def __enter__(self):
        for number in NUMBERS:
            self._launch(number)
        for number in NUMBERS:
            self._await(number)
        return self

    def __exit__(self, *_):
        for number in list(self._processes):
            self.kill(number)
        self._stack.close()

    @property
    def leader(self):
        """Return the number of the server that leads."""
        return next(number for number in self._processes if "Mode: leader" in self._status(number))

    def kill(self, number):
        process = self._processes.pop(number)
        process.kill()
        process.wait(SECONDS)

    def start(self, number):
        """Start a server that was killed, and wait until it serves."""
        self._launch(number)
        self._await(number)

    def _launch(self, number):
        directory = self._directory / str(number)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "myid").write_text(str(number))
        fields = {"directory": directory, "port": self._ports[number][0], "tick_ms": TICK_MS}
        config = CONFIG.format(max_session_timeout_ms=MAX_SESSION_TIMEOUT_MS, **fields)
        servers = [f"server.{n}=127.0.0.1:{ports[1]}:{ports[2]}\n" for n, ports in self._ports.items()]
        (directory / "zoo.cfg").write_text(config + "".join(servers))
        command = [str(find_java().launcher), *JVM_OPTIONS, "-cp", classpath(JARS), SERVER, str(directory / "zoo.cfg")]
        with (directory / "log").open("ab") as log:
            self._processes[number] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def _await(self, number):
        until(lambda: "Mode:" in self._status(number), f"ZooKeeper {number}")

    def _status(self, number):
        try:
            with socket.create_connection(("127.0.0.1", self._ports[number][0]), timeout=1) as connection:
                connection.sendall(b"srvr")
                return connection.makefile("rb").read().decode(errors="replace")
        except OSError:
            return ""
