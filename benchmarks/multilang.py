"""Spouts and bolts as subprocesses of Storm: acked tuples in a second, beside a bare loop and streamparse.

In the row `multilang` this process plays Storm's side of the pipes. It sends `next` while fewer than
`topology.max.spout.pending` tuples are in flight, each tuple to the bolt, and each ack of the bolt to the spout. It
takes CPU time of the same machine, so compare contenders by `CPU us/msg`, the time of the spout's and the bolt's
processes, rather than by `msg/s`.

The row `multilang-storm` is the same in a local cluster of Storm; its `CPU us/msg` is the spout's. Only this row has
storm.py, because its `emit` waits for the ids of the tasks that got the tuple, which only Storm sends.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.multilang_components import (
    BARE_LOOP,
    INSTALLED,
    REPORT,
    ROOT,
    STORM_PY,
    STORM_PY_JAR,
    STREAMPARSE,
)
from benchmarks.multilang_components import TUPLES as TUPLES_NAME
from benchmarks.multilang_components import command, configuration, environment, topology
from benchmarks.native import Unavailable
from flakelog.storm.flux import Launch, flux_document
from flakelog.storm.jars import Storm, StormNotFound, find_storm
from flakelog.storm.local_cluster import LocalCluster

TUPLES, TUPLES_MIN = 40_000, 500
TUPLES_IN_STORM = 100_000
STORM_SECONDS, POLL_SECONDS = 300, 0.2
EMITS = (1, 10, 100)
PENDING_MAX = 1_000
WARM_UP = 0.1  # of the tuples, before the clock starts: imports and caches
TASKS = {"1": "spout", "2": "bolt"}
FIELDS = ["payload"]
MESSAGE_FIELD = "__message"
END = b"\nend\n"


class Component:
    """A process, and Storm's side of its pipes."""

    def __init__(self, name: str, component: str, emits: int, directory: str) -> None:
        self.process = subprocess.Popen(
            command(name, component, emits),
            cwd=ROOT,
            env=environment(name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self._rest = b""
        self._messages: deque[dict[str, Any]] = deque()
        fields = [*FIELDS, MESSAGE_FIELD] if name == OURS else FIELDS
        number = int(next(task for task, component_name in TASKS.items() if component_name == component))
        context: dict[str, Any] = {
            "componentid": component,
            "taskid": number,
            "task->component": TASKS,
            "stream->outputfields": {"default": fields} if component == "spout" else {},
            "source->stream->fields": {"spout": {"default": fields}} if component == "bolt" else {},
        }
        self.write({"pidDir": directory, "context": context, "conf": configuration(emits)})
        assert self.read()["pid"] == self.process.pid

    def write(self, *messages: Any) -> None:
        self._in.write(b"".join([json.dumps(message, separators=(",", ":")).encode() + END for message in messages]))
        self._in.flush()

    def read(self) -> dict[str, Any]:
        """Return the next message; EOFError if the process has ended."""
        while not self._messages:
            data = os.read(self._out.fileno(), 1 << 16)
            if not data:
                raise EOFError(f"{self.process.args!r} has ended: run it by hand to see why")
            *frames, self._rest = (self._rest + data).split(END)
            self._messages.extend(map(json.loads, frames))
        return self._messages.popleft()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._in.close()
        self._out.close()


class Acks(threading.Thread):
    """The ids that a bolt acks, read as they come."""

    def __init__(self, bolt: Component) -> None:
        super().__init__(daemon=True)
        self._bolt = bolt
        self.ids: deque[int] = deque()
        self.there = threading.Event()
        self.start()

    def run(self) -> None:
        while True:
            try:
                message = self._bolt.read()
            except (EOFError, OSError, ValueError):
                return
            if message["command"] == "ack":
                self.ids.append(int(message["id"]))
                self.there.set()


def run(name: str, emits: int, tuples: int) -> Figures:
    """Emit and ack this many tuples."""
    with TemporaryDirectory() as directory, ExitStack() as stack:
        spout, bolt = (Component(name, component_name, emits, directory) for component_name in TASKS.values())
        for component in (spout, bolt):
            stack.callback(component.close)
        _command(spout, "activate", "")
        acks = Acks(bolt)
        _drive(spout, bolt, acks, int(tuples * WARM_UP))
        before, began = _cpu(spout, bolt), time.perf_counter()
        acked = _drive(spout, bolt, acks, tuples)
        return {
            "msg/s": acked / (time.perf_counter() - began),
            "CPU us/msg": max((_cpu(spout, bolt) - before) / acked * 1e6, 1e-3),
        }


def _drive(spout: Component, bolt: Component, acks: Acks, tuples: int) -> int:
    """Emit this many tuples or a few more, wait for the acks of all, and return their number."""
    acked = pending = emitted = 0
    while acked < emitted or emitted < tuples:
        if acks.ids:
            _command(spout, "ack", acks.ids.popleft())
            acked += 1
            pending -= 1
        elif pending < PENDING_MAX and emitted < tuples:
            rows = [message for message in _command(spout, "next", "") if message["command"] == "emit"]
            bolt.write(
                *[
                    {"comp": "spout", "tuple": row["tuple"], "task": 1, "stream": "default", "id": str(row["id"])}
                    for row in rows
                ]
            )
            pending += len(rows)
            emitted += len(rows)
        else:
            acks.there.clear()
            if not acks.ids:
                acks.there.wait(1.0)
    return acked


def _command(spout: Component, command: str, id: Any) -> list[dict[str, Any]]:
    """Send a command to the spout; return its answers but the last, `sync`."""
    spout.write({"id": id, "command": command})
    answers = []
    while (message := spout.read())["command"] != "sync":
        answers.append(message)
    return answers


def _cpu(*components: Component) -> float:
    return sum(cpu_seconds(component.process.pid) for component in components)


@contextmanager
def _row(scale: Scale) -> Iterator[Contenders]:
    tuples = scale.of(TUPLES, TUPLES_MIN)
    yield {_named(name, emits): partial(run, name, emits, tuples) for emits in EMITS for name in _names()}


# --- inside Storm


def run_in_storm(storm: Storm, name: str, emits: int, tuples: int) -> Figures:
    """Emit and ack tuples in a local cluster until the spout has reported."""
    with TemporaryDirectory() as directory:
        report, flux = Path(directory, "report"), Path(directory, "topology.yaml")
        flux.write_text(json.dumps(_flux(name, emits, tuples, report)))  # YAML has all of JSON
        log = open(Path(directory, "log"), "w")
        with log, LocalCluster(storm, flux, directory=directory, log=log) as cluster:
            cluster.start()
            deadline = time.monotonic() + STORM_SECONDS
            while not report.exists():
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name} acked no {tuples} tuples inside Storm in {STORM_SECONDS} s")
                time.sleep(POLL_SECONDS)
            cluster.stop()
        measured = json.loads(report.read_text())
    return {"msg/s": tuples / measured["seconds"], "CPU us/msg": measured["cpu"] / tuples * 1e6}


def _flux(name: str, emits: int, tuples: int, report: Path) -> dict[str, Any]:
    """Return the topology of a contender in Flux's form: ours, or ours with other commands and fields."""
    variables = {"PYTHONPATH": environment(name)["PYTHONPATH"], REPORT: str(report), TUPLES_NAME: str(tuples)}
    launch = Launch("benchmarks.multilang_components:topology", sys.executable, variables=variables)
    document = flux_document(topology().plan(), launch, configuration(emits))
    if name != OURS:
        for component in (*document["spouts"], *document["bolts"]):
            component["constructorArgs"] = [command(name, component["id"], emits)]
            for method in component["configMethods"]:
                if method["name"] == "setNamedStream":
                    method["args"] = ["default", FIELDS]
    return document


@contextmanager
def _storm_row(scale: Scale) -> Iterator[Contenders]:
    try:
        storm = find_storm()
    except StormNotFound as why:
        raise Unavailable(str(why)) from None
    names = _names()
    if STORM_PY_JAR.exists():
        names.append(STORM_PY)
    else:
        sys.stderr.write("storm.py is not measured: `make bench` brings it where Maven (mvn) is installed\n")
    tuples = scale.of(TUPLES_IN_STORM, TUPLES_MIN)
    kinds = EMITS if scale.share == 1 else EMITS[:1]  # a cluster takes eight seconds to start
    yield {
        _named(name, emits): partial(run_in_storm, storm, name, emits, tuples) for emits in kinds for name in names
    }


def _names() -> list[str]:
    if INSTALLED.is_dir():
        return [OURS, BARE_LOOP, STREAMPARSE]
    sys.stderr.write("streamparse is not measured: `make bench` installs it\n")
    return [OURS, BARE_LOOP]


def _named(name: str, emits: int) -> str:
    return f"{name}, {emits} emit{'' if emits == 1 else 's'} per next"


ROWS = [
    Row("multilang", "100 B tuples from a spout to a bolt, both subprocesses of a stand-in for Storm", _row),
    Row("multilang-storm", "the same inside a local cluster of Apache Storm", _storm_row),
]
