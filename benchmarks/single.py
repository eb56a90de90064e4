"""Small requests on many connections, beside Apache Kafka and a bare epoll loop in C that answers as many bytes."""

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.apache import Peer, kafka
from benchmarks.bulk import Topics, child, flakelog, run_program
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.native import program
from broker.client.blocking import BlockingClient
from broker.client.core import LATEST
from broker.record.records import Record, encode_batch
from broker.wire import cold, fetch, produce
from broker.wire.fetch import FetchPartition, FetchRequest
from broker.wire.frame import request_header
from broker.wire.produce import PartitionRecords, PartitionResult, ProduceRequest

CONNECTIONS = 50
VALUE = bytes(100)
VERSION = 9
LIST_OFFSETS = 2
FETCH_BYTES = 60_000  # some 500 records: what a Spark task of the Kafka connector asks for at a time


def produce_frame(topic: str, partition: int = 0) -> bytes:
    """One Produce of one record of 100 bytes, acks=1."""
    batch = encode_batch([Record(0, 0, None, VALUE, ())], base_timestamp_ms=1_700_000_000_000)
    request = ProduceRequest(None, 1, 1000, [PartitionRecords(topic, partition, memoryview(batch))], wants_ids=False)
    message = request_header(produce.API_KEY, VERSION, 1, "bench", True) + produce.encode_request(VERSION, request)
    return struct.pack(">i", len(message)) + message


class FrameLoad:
    """Sends one frame over and over; `reply` is what came back."""

    def __init__(self, directory: Path, frame: bytes, connections: int, depth: int, requests: int) -> None:
        self._program = program("frame_load")
        self._frame = directory / "frame"
        self._reply = directory / "reply"
        self._frame.write_bytes(frame)
        self._counts = str(connections), str(depth), str(requests)
        self._requests = requests

    def run(self, address: str, pid: int) -> Figures:
        host, _, port = address.rpartition(":")
        before = cpu_seconds(pid)
        seconds, p50, p99 = run_program(self._program, host, port, *self._counts, str(self._frame), str(self._reply))
        cpu = cpu_seconds(pid) - before
        return {
            "req/s": self._requests / seconds,
            "p50 us": p50,
            "p99 us": p99,
            "CPU us/req": cpu / self._requests * 1e6,
        }

    @property
    def reply(self) -> bytes:
        return self._reply.read_bytes()


def run_load(peer: Peer, topics: Topics, directory: Path, load: "Load", requests: int) -> Figures:
    """One run on a fresh topic. RuntimeError where the broker refuses, or has fewer records than it answered for."""
    with topics.fresh(load.partitions, **load.config) as topic:
        frames = b"".join(produce_frame(topic, partition) for partition in range(load.partitions))
        program_ = FrameLoad(directory, frames, load.connections, 1, requests)
        figures = program_.run(peer.address, peer.pid)
        result = produce.decode_response(VERSION, memoryview(program_.reply)[9:], 0)[0]
        if result.error_code:
            raise RuntimeError(f"the broker refuses: {result}")
        with BlockingClient(peer.address) as client:
            stored = sum(client.find_offset(topic, partition, LATEST) for partition in range(load.partitions))
        if stored != requests:
            raise RuntimeError(f"{stored} records of {requests} are in the log")
        return figures


class Load(NamedTuple):
    """Connection i produces to partition i, modulo their number; `config` is the topic's."""

    connections: int = CONNECTIONS
    partitions: int = 1
    config: Mapping[str, str] = {}


DURABLE = {"flakelog_durable_acks": "true"}
KAFKA_DURABLE = {"flush_messages": "1"}  # as near as Kafka comes to it
PLAIN = "flakelog, not durable"


@contextmanager
def _single_row(load: Load, kafkas: Load, requests: int, kafka_share: float, scale: Scale) -> Iterator[Contenders]:
    """`kafkas` is what Apache Kafka is loaded with, by a share of the requests where it would take long."""
    with TemporaryDirectory() as name, flakelog() as server, ExitStack() as stack:
        directory = Path(name)
        ours = Peer(server.address, server.pid)
        topics = Topics(ours.address)
        count = scale.of(requests, load.partitions)
        contenders: dict[str, Callable[[], Figures]] = {
            "flakelog": partial(run_load, ours, topics, directory, load, count)
        }
        if load.config:
            plain = load._replace(config={})
            contenders[PLAIN] = partial(run_load, ours, topics, directory, plain, count)
        for who, peer in kafka(scale).items():
            least = max(int(count * kafka_share), kafkas.partitions)
            contenders[who] = partial(run_load, peer, Topics(peer.address), directory, kafkas, least)
        if not load.config:
            floor = stack.enter_context(child(program("frame_floor"), str(_reply_bytes())))
            frames = FrameLoad(directory, produce_frame("bench-1", 0), load.connections, 1, count)
            contenders["C epoll floor"] = partial(frames.run, f"127.0.0.1:{floor[1]}", floor[0])
        yield contenders


def _reply_bytes() -> int:
    """The length of the answer to a frame of `produce_frame`, its own length included."""
    body = produce.encode_response(VERSION, [PartitionResult("bench-1", 0, 0, 0, -1, 0)])
    return 4 + 4 + 1 + len(body)


@contextmanager
def _scale_row(scale: Scale) -> Iterator[Contenders]:
    """Ten times as many of something must cost a request little more."""
    count = scale.of(200_000, 500)
    loads = {
        "50 connections to 50 partitions": Load(50, 50),
        "50 connections to 500 partitions": Load(50, 500),
        "500 connections to 50 partitions": Load(500, 50),
    }
    with TemporaryDirectory() as name, flakelog() as server:
        ours = Peer(server.address, server.pid)
        topics = Topics(ours.address)
        yield {who: partial(run_load, ours, topics, Path(name), load, count) for who, load in loads.items()}


def _ask_frame(api_key: int, version: int, body: bytes) -> bytes:
    message = request_header(api_key, version, 1, "bench", True) + body
    return struct.pack(">i", len(message)) + message


@contextmanager
def _ask_row(frame_of: Callable[[str], bytes], requests: int, scale: Scale) -> Iterator[Contenders]:
    """Small questions about a topic of 100,000 records in batches of 500, asked by 10 connections."""
    count = scale.of(requests, 10)
    with TemporaryDirectory() as name, flakelog() as server, ExitStack() as stack:
        contenders = {}
        for who, peer in ({"flakelog": Peer(server.address, server.pid)} | kafka(scale)).items():
            topic = stack.enter_context(Topics(peer.address).fresh(retention_ms="-1"))  # their times are long past
            _fill(peer.address, topic)
            load = FrameLoad(Path(name), frame_of(topic), 10, 1, count)
            contenders[who] = partial(load.run, peer.address, peer.pid)
        yield contenders


def _fill(address: str, topic: str) -> None:
    records = [Record(offset, 0, None, VALUE, ()) for offset in range(500)]
    batch = encode_batch(records, base_timestamp_ms=1_700_000_000_000)
    with BlockingClient(address) as client:
        for _ in range(200):
            client.produce(topic, 0, bytearray(batch))


def _list_offsets(topic: str) -> bytes:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": LATEST}
    fields = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [partition]}]}
    return _ask_frame(LIST_OFFSETS, 7, cold.encode(LIST_OFFSETS, 7, "request", fields))


def _small_fetch(topic: str) -> bytes:
    wanted = FetchPartition(topic, 0, 50_000, FETCH_BYTES)
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=FETCH_BYTES, partitions=[wanted])
    return _ask_frame(fetch.API_KEY, 12, fetch.encode_request(12, request))


ROWS = [
    Row(
        "single-100",
        f"one 100 B record per request, {CONNECTIONS} connections, one outstanding each",
        partial(_single_row, Load(), Load(), 200_000, 1.0),
    ),
    Row(
        "single-100-50p",
        "the same on 50 partitions",
        partial(_single_row, Load(partitions=50), Load(partitions=50), 200_000, 1.0),
    ),
    Row(
        "durable-100",
        "the same on 1 partition, each answered when it is on the disk (Kafka: flush.messages=1)",
        partial(_single_row, Load(config=DURABLE), Load(config=KAFKA_DURABLE), 100_000, 0.2),
    ),
    Row(
        "durable-100-50p",
        "the same on 50 partitions",
        partial(_single_row, Load(50, 50, DURABLE), Load(50, 50, KAFKA_DURABLE), 100_000, 0.2),
    ),
    Row(
        "sync-100",
        "one 100 B record at a time, one connection",
        partial(_single_row, Load(1), Load(1), 30_000, 1.0),
    ),
    Row("scale", "one 100 B record per request: ten times the partitions, ten times the connections", _scale_row),
    Row("list-offsets", "where a log ends, asked by 10 connections", partial(_ask_row, _list_offsets, 100_000)),
    Row("fetch-small", "a Fetch of 60 KB, by 10 connections", partial(_ask_row, _small_fetch, 50_000)),
]
