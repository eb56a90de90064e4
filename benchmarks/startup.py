"""How soon a server answers after its start, and how much memory it uses idle. The peers are Apache Kafka and a Python
process that only imports Twisted's reactor."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import apache
from benchmarks.brokers import checkouts
from benchmarks.measure import Contenders, Figures, Row, Scale
from tests.compat.raw_connection import RawConnection, frame
from tests.compat.server_process import ServerProcess

API_VERSIONS = 18
SETTLE_SECONDS = 1.0  # the HTTP site is imported after the first answer
BARE = "from twisted.internet import reactor; print(flush=True); input()"


def _server(settle_seconds: float, root: Path) -> Figures:
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        start = time.perf_counter()
        with ServerProcess(Path(directory) / "data", root=root) as server:
            with RawConnection(server.address) as connection:
                connection.socket.sendall(frame(API_VERSIONS, 0, 1, b"", flexible=False))
                connection.read_frame()
            answered = time.perf_counter()
            time.sleep(settle_seconds)
            return {"ms": (answered - start) * 1e3, "RSS MiB": server.status("VmRSS") / 1024}


def start_ms(data_dir: Path) -> float:
    """Time a start on a data directory until the server answers, and stop it cleanly."""
    start = time.perf_counter()
    with ServerProcess(data_dir) as server:
        with RawConnection(server.address) as connection:
            connection.socket.sendall(frame(API_VERSIONS, 0, 1, b"", flexible=False))
            connection.read_frame()
        milliseconds = (time.perf_counter() - start) * 1e3
        if server.stop():
            raise RuntimeError(f"the server did not stop cleanly:\n{server.log}")
    return milliseconds


def _bare() -> Figures:
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    seconds = time.perf_counter() - start
    resident_mib = _resident_mib(process.pid)
    process.communicate(b"\n")
    return {"ms": seconds * 1e3, "RSS MiB": resident_mib}


def _kafka(settle_seconds: float) -> Figures:
    """Start Kafka on formatted data. The formatting is not timed, although our server does it during its start."""
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        start, process = apache.start_kafka(Path(directory))
        try:
            apache.await_answer((Path(directory) / "address").read_text(), process)
            answered = time.perf_counter()
            time.sleep(settle_seconds)
            return {"ms": (answered - start) * 1e3, "RSS MiB": _resident_mib(process.pid)}
        finally:
            process.kill()
            process.wait()


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def _startup_row(scale: Scale) -> Iterator[Contenders]:
    settle_seconds = SETTLE_SECONDS * scale.share
    contenders: dict[str, Callable[[], Figures]] = {
        f"{who} server": partial(_server, settle_seconds, root) for who, root in checkouts(scale).items()
    }
    contenders["python, twisted's reactor"] = _bare
    if scale.kafka and apache.why_not() is None:
        contenders[apache.NAME] = partial(_kafka, settle_seconds)
    yield contenders


ROWS = [Row("startup", "start to the first ApiVersions answer, and idle memory", _startup_row)]
