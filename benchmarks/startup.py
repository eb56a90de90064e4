"""How soon a server answers, and what it takes when it is idle; beside a Python that only imports Twisted's reactor."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Contenders, Figures, Row, Scale
from tests.compat.raw_connection import RawConnection, frame
from tests.compat.server_process import ServerProcess

API_VERSIONS = 18
SETTLE_SECONDS = 1.0  # the HTTP site is imported after the first answer
BARE = "from twisted.internet import reactor; print(flush=True); input()"


def _server(settle_seconds: float) -> Figures:
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        start = time.perf_counter()
        with ServerProcess(Path(directory) / "data") as server:
            with RawConnection(server.address) as connection:
                connection.socket.sendall(frame(API_VERSIONS, 0, 1, b"", flexible=False))
                connection.read_frame()
            answered = time.perf_counter()
            time.sleep(settle_seconds)
            return {"ms": (answered - start) * 1e3, "RSS MiB": server.status("VmRSS") / 1024}


def _bare() -> Figures:
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    seconds = time.perf_counter() - start
    status = Path(f"/proc/{process.pid}/status").read_text()
    process.communicate(b"\n")
    return {"ms": seconds * 1e3, "RSS MiB": int(status.partition("VmRSS:")[2].split()[0]) / 1024}


@contextmanager
def _startup_row(scale: Scale) -> Iterator[Contenders]:
    yield {"flakelog server": lambda: _server(SETTLE_SECONDS * scale.share), "python, twisted's reactor": _bare}


ROWS = [Row("startup", "start to the first ApiVersions answer, and idle memory", _startup_row)]
