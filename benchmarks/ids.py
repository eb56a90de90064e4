"""Ids: in this process beside PyPI's packages and a naive loop; by RPC beside Thrift's Twisted server; over HTTP beside
twisted.web; and how much a flood of id requests slows the log."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple
from urllib.request import urlopen

from benchmarks import id_packages
from benchmarks.apache import Peer
from benchmarks.brokers import Topics, checkouts, flakelog, report_origin
from benchmarks.load import CONNECTIONS, Load, first_answer, frame_plan, play, run_load
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from benchmarks.naive import NaiveWorker
from benchmarks.native import child, program
from idgen.clock import IdClock
from idgen.errors import SequenceExhausted
from idgen.layout import Layout
from idgen.snowflake import Snowflake
from idgen.wire import Call, decode_reply, encode_call
from idgen.worker import MAX_AHEAD_MS, IdWorker
from tests.compat.server_process import ROOT, ServerProcess

SECONDS = 2.0
CHUNK = 1000
AHEAD = 2_100_000  # ids that a service gives before it has to wait for the clock
RPC_CONNECTIONS = 10
RPC_DEPTH = 256
HTTP_CONNECTIONS = 50
THRIFT = "thrift's TTwisted, naive worker"
HTTP_REQUEST = b"POST /id HTTP/1.1\r\nHost: 127.0.0.1\r\nUser-Agent: bench\r\nAccept: */*\r\n\r\n"


def _rate(make_chunk: Callable[[], object], seconds: float) -> Figures:
    """Make CHUNK ids repeatedly for `seconds`; sleep when they run too far ahead of the clock, as callers do."""
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


def _worker(now_ms: int, ahead_ms: int = 0) -> IdWorker:
    start_ms = now_ms + ahead_ms
    return IdWorker(Layout(), 1, start_ms=start_ms, limit_ms=start_ms + 3_600_000)


def _without_lead(seconds: float) -> Figures:
    """Measure next_ids of a worker that is as far ahead of the clock as it may be from the first id on.

    A worker may lead the clock by half a second of ids. A run that begins without that lead shows more than the
    layout's limit of 4.096 M/s, which no worker keeps up.
    """
    now_ms = IdClock().now_ms
    worker = _worker(now_ms(), MAX_AHEAD_MS)
    return _rate(lambda: worker.next_ids(CHUNK, now_ms()), seconds)


@contextmanager
def _in_process_row(scale: Scale) -> Iterator[Contenders]:
    now_ms = IdClock().now_ms
    next_id = _worker(now_ms()).next_id
    seconds = SECONDS * max(scale.share, 0.05)

    def worker_chunk() -> None:
        for _ in range(CHUNK):
            next_id(now_ms())

    with TemporaryDirectory() as directory, Snowflake(directory=directory) as snowflake:
        chunks: dict[str, Callable[[], object]] = {
            "IdWorker.next_id": worker_chunk,
            "Snowflake.next_id (thread-safe)": _one_by_one(snowflake.next_id),
            "uuid.uuid4": _one_by_one(uuid.uuid4),
            "a naive worker": _one_by_one(NaiveWorker().next_id),
        }
        installed = id_packages.installed()
        missing = ", ".join(id_packages.PACKAGES.keys() - installed)
        if missing:
            sys.stderr.write(f"ids-process: not measured, as not installed by make bench: {missing}\n")
        contenders: dict[str, Callable[[], Figures]] = {"IdWorker.next_ids(1000)": partial(_without_lead, seconds)}
        contenders |= {name: partial(_rate, chunk, seconds) for name, chunk in chunks.items()}
        yield contenders | {id_packages.contender(name): partial(id_packages.run, name, seconds) for name in installed}


class Rpc(NamedTuple):
    connections: int
    depth: int
    requests: int


PIPELINED = Rpc(RPC_CONNECTIONS, RPC_DEPTH, 2_000_000)
SERIAL = Rpc(1, 1, 50_000)
BATCHES = Rpc(4, 4, 20_000)  # 20 M ids: five seconds at the layout's limit


@contextmanager
def _services(scale: Scale) -> Iterator[dict[str, ServerProcess]]:
    """Run the id service of each checkout, and yield the servers by name."""
    with ExitStack() as stack:
        servers = {}
        for who, root in checkouts(scale).items():
            servers[f"{who} idgen"] = server = stack.enter_context(flakelog_ids(root))
            if scale.against is not None:
                report_origin(who, server.pid, root)
        yield servers


def _by_rpc(peer: Peer, directory: Path, frame: bytes, rpc: Rpc, requests: int) -> Figures:
    """Call the service with one frame. A connection sends again when half of its calls are answered."""
    options = {"connections": rpc.connections, "depth": rpc.depth, "refill": rpc.depth // 2}
    return play(peer, directory, frame_plan(frame), protocol="frames", requests=requests, **options).figures


@contextmanager
def _rpc_row(rpc: Rpc, scale: Scale) -> Iterator[Contenders]:
    requests = scale.of(rpc.requests, least=rpc.connections * rpc.depth)
    frame = encode_call(Call("get_id", 1, "bench", None))
    with TemporaryDirectory() as name, _services(scale) as servers, ExitStack() as stack:
        directory = Path(name)
        peers = {who: Peer(server.ids, server.pid) for who, server in servers.items()}
        _by_rpc(peers[f"{OURS} idgen"], directory, frame, rpc, 1)
        answer = first_answer(directory)
        reply = decode_reply(answer[4:])
        assert isinstance(reply.value, int), f"the service refuses: {reply}"
        peers[THRIFT] = _child_peer(stack, sys.executable, "-m", "benchmarks.thrift_peer")
        peers["C epoll floor"] = _child_peer(stack, program("frame_floor"), str(len(answer)))
        yield {who: partial(_by_rpc, peer, directory, frame, rpc, requests) for who, peer in peers.items()}


def _child_peer(stack: ExitStack, *argv: str) -> Peer:
    pid, port = stack.enter_context(child(*argv))
    return Peer(f"127.0.0.1:{port}", pid)


@contextmanager
def _batches_row(scale: Scale) -> Iterator[Contenders]:
    requests = scale.of(BATCHES.requests, least=BATCHES.connections * BATCHES.depth)
    frame = encode_call(Call("get_ids", 1, "bench", CHUNK))
    with TemporaryDirectory() as directory, _services(scale) as servers, ExitStack() as stack:
        peers = {who: Peer(server.ids, server.pid) for who, server in servers.items()}
        peers[THRIFT] = _child_peer(stack, sys.executable, "-m", "benchmarks.thrift_peer")

        def run(peer: Peer) -> Figures:
            figures = _by_rpc(peer, Path(directory), frame, BATCHES, requests)
            return {"ids/s": figures["req/s"] * CHUNK, "p99 us": figures["p99 us"]}

        yield {who: partial(run, peer) for who, peer in peers.items()}


@contextmanager
def _http_row(connections: int, requests: int, scale: Scale) -> Iterator[Contenders]:
    count = scale.of(requests, least=connections)
    with TemporaryDirectory() as directory, _services(scale) as servers, ExitStack() as stack:
        peers = {who: Peer(server.http, server.pid) for who, server in servers.items()}
        peers["twisted.web, naive worker"] = _child_peer(stack, sys.executable, "-m", "benchmarks.web_peer")

        def run(peer: Peer) -> Figures:
            plan, options = frame_plan(HTTP_REQUEST), {"requests": count, "connections": connections}
            return play(peer, Path(directory), plan, protocol="http", **options).figures

        yield {who: partial(run, peer) for who, peer in peers.items()}


@contextmanager
def _stamping_row(scale: Scale) -> Iterator[Contenders]:
    """Measure how much a flood of id requests slows producers of the same process, whose messages get ids too.

    The flood also takes processor time from the load program, on a small machine most of its cost. So a second
    contender floods another process.
    """
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
def flakelog_ids(root: Path = ROOT) -> Iterator[ServerProcess]:
    """Run the id service of the checkout at `root`, without a broker."""
    with TemporaryDirectory() as directory:
        with ServerProcess(Path(directory) / "data", command="idgen", root=root) as server:
            yield server


def _beside(server: ServerProcess, directory: Path, run: Callable[[], Figures]) -> Figures:
    """Run once while `server` gives ids at the layout's limit; the run starts when the run-ahead is used up."""
    frames = directory / "id-calls"
    frames.write_bytes(frame_plan(encode_call(Call("get_ids", 1, "flood", CHUNK))).encode())
    options = {"connections": BATCHES.connections, "depth": BATCHES.depth, "refill": BATCHES.depth // 2}
    options |= {"requests": 10_000_000, "pid": server.pid}
    words = [f"{name}={value}" for name, value in options.items()]
    begin = _ids_issued(server)
    flood = subprocess.Popen([program("request_load"), server.ids, f"plan={frames}", "protocol=frames", *words])
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
        f"one 100 B record per request, {CONNECTIONS} connections, beside ids at the layout's limit, same process",
        _stamping_row,
    ),
]
