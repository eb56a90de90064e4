"""Ids: in this process beside PyPI's packages and the loop everyone writes first; by RPC beside Thrift's own server;
over HTTP beside twisted.web; and what a flood of them costs the log."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import urlopen

from benchmarks import id_packages
from benchmarks.apache import Peer
from benchmarks.bulk import Topics, child, flakelog
from benchmarks.measure import Contenders, Figures, Row, Scale
from benchmarks.naive import NaiveWorker
from benchmarks.native import program
from benchmarks.single import CONNECTIONS, FrameLoad, Load, run_load
from idgen.clock import IdClock
from idgen.errors import SequenceExhausted
from idgen.layout import Layout
from idgen.snowflake import Snowflake
from idgen.wire import Call, decode_reply, encode_call
from idgen.worker import IdWorker
from tests.compat.server_process import ServerProcess

SECONDS = 2.0  # several times the run-ahead of 500 ms, so that the layout's 4.096 M/s show and not what is borrowed
CHUNK = 1000
AHEAD = 2_100_000  # ids, until the clock is waited for
RPC_CONNECTIONS = 10
RPC_DEPTH = 256
HTTP_CONNECTIONS = 50
HTTP_REQUEST = b"POST /id HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"


def _rate(make_chunk: Callable[[], object], seconds: float) -> Figures:
    """Make CHUNK ids again and again for so long; rest when they run too far ahead of the clock, as callers do."""
    rounds = 0
    start = time.perf_counter()
    end = start + seconds
    while time.perf_counter() < end:
        try:
            make_chunk()
            rounds += 1
        except SequenceExhausted:
            time.sleep(0.001)
    return {"ids/s": rounds * CHUNK / (time.perf_counter() - start)}


def _one_by_one(make: Callable[[], object]) -> Callable[[], None]:
    def chunk() -> None:
        for _ in range(CHUNK):
            make()

    return chunk


def _worker(now_ms: int) -> IdWorker:
    return IdWorker(Layout(), 1, start_ms=now_ms, limit_ms=now_ms + 3_600_000)


@contextmanager
def _in_process_row(scale: Scale) -> Iterator[Contenders]:
    now_ms = IdClock().now_ms
    next_id, many = _worker(now_ms()).next_id, _worker(now_ms())
    seconds = SECONDS * max(scale.share, 0.05)

    def worker_chunk() -> None:
        for _ in range(CHUNK):
            next_id(now_ms())

    with TemporaryDirectory() as directory, Snowflake(directory=directory) as snowflake:
        chunks: dict[str, Callable[[], object]] = {
            "IdWorker.next_id": worker_chunk,
            "IdWorker.next_ids(1000)": lambda: many.next_ids(CHUNK, now_ms()),
            "Snowflake.next_id (thread-safe)": _one_by_one(snowflake.next_id),
            "uuid.uuid4": _one_by_one(uuid.uuid4),
            "a naive worker": _one_by_one(NaiveWorker().next_id),
        }
        there = id_packages.installed()
        missing = ", ".join(id_packages.PACKAGES.keys() - there)
        if missing:
            sys.stderr.write(f"ids-process: not measured, as not installed by make bench: {missing}\n")
        contenders = {name: partial(_rate, chunk, seconds) for name, chunk in chunks.items()}
        yield contenders | {id_packages.contender(name): partial(id_packages.run, name, seconds) for name in there}


class Rpc(NamedTuple):
    connections: int
    depth: int
    requests: int


PIPELINED = Rpc(RPC_CONNECTIONS, RPC_DEPTH, 2_000_000)
SERIAL = Rpc(1, 1, 50_000)
BATCHES = Rpc(4, 4, 20_000)  # 20 M ids: five seconds of the format's cap


@contextmanager
def _rpc_row(rpc: Rpc, scale: Scale) -> Iterator[Contenders]:
    requests = scale.of(rpc.requests, least=rpc.connections * rpc.depth)
    frame = encode_call(Call("get_id", 1, "bench", None))
    with TemporaryDirectory() as directory:
        with ServerProcess(Path(directory) / "data", command="idgen") as server:
            load = FrameLoad(Path(directory), frame, rpc.connections, rpc.depth, requests)
            load.run(server.ids, server.pid)
            reply = decode_reply(load.reply[4:])
            assert isinstance(reply.value, int), f"the service refuses: {reply}"
            peer = child(sys.executable, "-m", "benchmarks.thrift_peer")
            floor = child(program("frame_floor"), str(len(load.reply)))
            with peer as (peer_pid, peer_port), floor as (floor_pid, floor_port):
                yield {
                    "flakelog idgen": lambda: load.run(server.ids, server.pid),
                    "thrift's TTwisted, naive worker": lambda: load.run(f"127.0.0.1:{peer_port}", peer_pid),
                    "C epoll floor": lambda: load.run(f"127.0.0.1:{floor_port}", floor_pid),
                }


@contextmanager
def _batches_row(scale: Scale) -> Iterator[Contenders]:
    requests = scale.of(BATCHES.requests, least=BATCHES.connections * BATCHES.depth)
    frame = encode_call(Call("get_ids", 1, "bench", CHUNK))
    with TemporaryDirectory() as directory:
        peer = child(sys.executable, "-m", "benchmarks.thrift_peer")
        with ServerProcess(Path(directory) / "data", command="idgen") as server, peer as (peer_pid, peer_port):
            load = FrameLoad(Path(directory), frame, BATCHES.connections, BATCHES.depth, requests)

            def run(address: str, pid: int) -> Figures:
                figures = load.run(address, pid)
                return {"ids/s": figures["req/s"] * CHUNK, "p99 us": figures["p99 us"]}

            yield {
                "flakelog idgen": lambda: run(server.ids, server.pid),
                "thrift's TTwisted, naive worker": lambda: run(f"127.0.0.1:{peer_port}", peer_pid),
            }


@contextmanager
def _http_row(connections: int, requests: int, scale: Scale) -> Iterator[Contenders]:
    count = scale.of(requests, least=connections)
    with TemporaryDirectory() as directory:
        peer = child(sys.executable, "-m", "benchmarks.web_peer")
        with ServerProcess(Path(directory) / "data", command="idgen") as server, peer as (peer_pid, peer_port):
            load = FrameLoad(Path(directory), HTTP_REQUEST, connections, 1, count)
            yield {
                "flakelog idgen": lambda: load.run(server.http, server.pid),
                "twisted.web, naive worker": lambda: load.run(f"127.0.0.1:{peer_port}", peer_pid),
            }


@contextmanager
def _stamping_row(scale: Scale) -> Iterator[Contenders]:
    """What a flood of ids costs who produces to the same process: it stamps with a worker number of its own. The flood
    takes processor time of the load's too, on a small machine most of what it costs; so it is also sent to another
    process."""
    count = scale.of(100_000, CONNECTIONS)
    with TemporaryDirectory() as name, flakelog() as server, flakelog_ids() as other:
        ours = Peer(server.address, server.pid)
        run = partial(run_load, ours, Topics(ours.address), Path(name), Load(), count)
        yield {
            "flakelog": run,
            f"flakelog, get_ids({CHUNK}) at the cap from the same process": partial(_beside, server, Path(name), run),
            f"flakelog, get_ids({CHUNK}) at the cap from another process": partial(_beside, other, Path(name), run),
        }


@contextmanager
def flakelog_ids() -> Iterator[ServerProcess]:
    """The id service alone."""
    with TemporaryDirectory() as directory:
        with ServerProcess(Path(directory) / "data", command="idgen") as server:
            yield server


def _beside(server: ServerProcess, directory: Path, run: Callable[[], Figures]) -> Figures:
    """One run while `server` gives all the ids there are, from when its run-ahead is spent."""
    frame, reply = directory / "flood", directory / "flooded"
    frame.write_bytes(encode_call(Call("get_ids", 1, "flood", CHUNK)))
    host, _, port = server.ids.rpartition(":")
    counts = str(BATCHES.connections), str(BATCHES.depth), "10000000"
    begin = _ids_issued(server)
    flood = subprocess.Popen([program("frame_load"), host, port, *counts, str(frame), str(reply)])
    try:
        while _ids_issued(server) < begin + AHEAD:
            time.sleep(0.01)
        before, start = _ids_issued(server), time.perf_counter()
        figures = run()
        ids = (_ids_issued(server) - before) / (time.perf_counter() - start)
    finally:
        flood.kill()
        flood.wait()
    return {**figures, "ids/s": ids}


def _ids_issued(server: ServerProcess) -> float:
    with urlopen(f"http://{server.http}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith("flakelog_ids_issued_total{"))


ROWS = [
    Row("ids-process", "ids in this process, one thread", _in_process_row),
    Row(
        "ids-rpc",
        f"ids by RPC: Thrift get_id, {RPC_CONNECTIONS} connections, {RPC_DEPTH} outstanding each",
        partial(_rpc_row, PIPELINED),
    ),
    Row("ids-rpc-serial", "ids by RPC: Thrift get_id, one in flight", partial(_rpc_row, SERIAL)),
    Row("ids-rpc-batches", f"ids by RPC: Thrift get_ids({CHUNK})", _batches_row),
    Row(
        "ids-http",
        f"ids over HTTP: one id per request, {HTTP_CONNECTIONS} connections kept alive, one request outstanding each",
        partial(_http_row, HTTP_CONNECTIONS, 100_000),
    ),
    Row("ids-http-serial", "ids over HTTP: one id per request, one connection", partial(_http_row, 1, 20_000)),
    Row(
        "stamping",
        f"one 100 B record per request, {CONNECTIONS} connections, in the process that gives all the ids there are",
        _stamping_row,
    ),
]
