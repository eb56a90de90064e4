"""A spout that emits 100 B tuples and a bolt that acks them, as processes for Storm: ours, and peers.

    python -m benchmarks.multilang_components NAME spout|bolt EMITS

EMITS is how many tuples the spout emits in answer to one `next`. If REPORT names a file, the spout writes to it how
many seconds TUPLES acks took, after WARM_UP of them. Ours begin as `python -m spout.multilang
benchmarks.multilang_components:topology spout|bolt`, with EMITS as a setting. `make bench` installs streamparse to
build/stream-packages/streamparse. It has Maven fetch the jar of storm.py, Apache Storm's own library for Python.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import OURS

ROOT = Path(__file__).parent.parent
STREAMPARSE = "streamparse"
VERSION = "5.0.1"
INSTALLED = ROOT / "build" / "stream-packages" / STREAMPARSE
STORM_PY = "storm.py"
STORM_PY_JAR = ROOT / "benchmarks" / "storm_py" / "target" / "classpath"  # a file that names the jar
BARE_LOOP = "a bare loop"
PAYLOAD = "x" * 100
REPORT, TUPLES = "MULTILANG_REPORT", "MULTILANG_TUPLES"
WARM_UP = 0.5  # of the tuples, before the clock starts: imports, caches, Java's compiler


class Clock:
    """Counts acks, and reports how long they took."""

    def __init__(self) -> None:
        self._path = os.environ.get(REPORT, "")
        tuples = int(os.environ.get(TUPLES, "0"))
        self._begin = int(tuples * WARM_UP)
        self._end = self._begin + tuples
        self._acked = 0
        self._began = (0.0, 0.0)

    def ack(self) -> None:
        """Count one ack."""
        self._acked += 1
        if not self._path:
            return
        if self._acked == self._begin:
            self._began = time.perf_counter(), time.process_time()
        elif self._acked == self._end:
            seconds, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
            path = Path(self._path)
            path.with_suffix(".new").write_text(json.dumps({"seconds": seconds, "cpu": cpu}))
            path.with_suffix(".new").rename(path)


def command(name: str, component: str, emits: int) -> list[str]:
    """Return the command line of a contender's component, "spout" or "bolt"."""
    if name == OURS:
        return [sys.executable, "-m", "spout.multilang", "benchmarks.multilang_components:topology", component]
    return [sys.executable, "-m", "benchmarks.multilang_components", name, component, str(emits)]


def environment(name: str) -> dict[str, str]:
    """Return the environment of a contender's processes."""
    paths = [str(ROOT)]
    if name == STREAMPARSE:
        paths.insert(0, str(INSTALLED))
    elif name == STORM_PY:
        paths.insert(0, f"{STORM_PY_JAR.read_text().strip()}/resources")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def configuration(emits: int) -> dict[str, object]:
    """Return Storm's configuration of the topology, which holds for all contenders."""
    return {"topology.max.spout.pending": 1_000, "flakelog.storm.emits.per.next": emits}


def topology() -> Any:
    """Return our topology."""
    from spout.api import Bolt, Spout
    from spout.topology import Topology

    class Payloads(Spout):
        output_fields = ("payload",)
        number = 0

        def open(self) -> None:
            self.clock = Clock()

        def next_tuple(self) -> None:
            self.number += 1
            self.emit((PAYLOAD,), id=self.number)

        def ack(self, id: int) -> None:
            self.clock.ack()

    class Ack(Bolt):
        def execute(self, tup: Any) -> None:
            pass

    made = Topology("multilang-bench")
    made.spout("spout", Payloads())
    made.bolt("bolt", Ack()).shuffle("spout")
    return made


# --- the bare loop


def _read() -> Any:
    lines = []
    while (line := sys.stdin.readline()) != "end\n":
        if not line:
            sys.exit()
        lines.append(line)
    return json.loads("".join(lines))


def _write(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\nend\n")


def _begin() -> None:
    pids = _read()["pidDir"]
    open(os.path.join(pids, str(os.getpid())), "w").close()
    _write({"pid": os.getpid()})
    sys.stdout.flush()


def _bare_spout(emits: int) -> None:
    _begin()
    number, clock = 0, Clock()
    while True:
        command = _read()["command"]
        if command == "ack":
            clock.ack()
        elif command == "next":
            for _ in range(emits):
                number += 1
                _write({"command": "emit", "id": number, "tuple": [PAYLOAD], "need_task_ids": False})
        _write({"command": "sync"})
        sys.stdout.flush()


def _bare_bolt(emits: int) -> None:
    _begin()
    while True:
        message = _read()
        if message["stream"] == "__heartbeat":
            _write({"command": "sync"})
        else:
            _write({"command": "ack", "id": message["id"]})
        sys.stdout.flush()


# --- streamparse


def _streamparse_spout(emits: int) -> None:
    from streamparse import Spout

    class Payloads(Spout):  # type: ignore[misc]
        outputs = ["payload"]
        number = 0
        clock = Clock()

        def ack(self, tup_id: int) -> None:
            self.clock.ack()

        def next_tuple(self) -> None:
            for _ in range(emits):
                self.number += 1
                self.emit([PAYLOAD], tup_id=self.number, need_task_ids=False)

    Payloads().run()


def _streamparse_bolt(emits: int) -> None:
    from streamparse import Bolt

    class Ack(Bolt):  # type: ignore[misc]
        def process(self, tup: Any) -> None:
            pass

    Ack().run()


# --- storm.py


def _storm_py_spout(emits: int) -> None:
    import storm

    class Payloads(storm.Spout):  # type: ignore[misc]
        number = 0
        clock = Clock()

        def ack(self, id: int) -> None:
            self.clock.ack()

        def nextTuple(self) -> None:
            for _ in range(emits):
                self.number += 1
                storm.emit([PAYLOAD], id=self.number)

    Payloads().run()


def _storm_py_bolt(emits: int) -> None:
    import storm

    class Ack(storm.BasicBolt):  # type: ignore[misc]
        def process(self, tup: Any) -> None:
            pass

    Ack().run()


RUNS = {
    (BARE_LOOP, "spout"): _bare_spout,
    (BARE_LOOP, "bolt"): _bare_bolt,
    (STREAMPARSE, "spout"): _streamparse_spout,
    (STREAMPARSE, "bolt"): _streamparse_bolt,
    (STORM_PY, "spout"): _storm_py_spout,
    (STORM_PY, "bolt"): _storm_py_bolt,
}

if __name__ == "__main__":
    RUNS[sys.argv[1], sys.argv[2]](int(sys.argv[3]))
