"""Small requests: one record each on many connections, beside a bare epoll loop in C that answers as many bytes."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bulk import Topics, child, flakelog, run_program
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.native import program
from broker.client.blocking import BlockingClient
from broker.client.core import LATEST
from broker.record.records import Record, encode_batch
from broker.wire import produce
from broker.wire.frame import request_header
from broker.wire.produce import PartitionRecords, ProduceRequest

CONNECTIONS = 50
VALUE = bytes(100)
VERSION = 9


def produce_frame(topic: str) -> bytes:
    """One Produce of one record of 100 bytes, acks=1."""
    batch = encode_batch([Record(0, 0, None, VALUE, ())], base_timestamp_ms=1_700_000_000_000)
    request = ProduceRequest(None, 1, 1000, [PartitionRecords(topic, 0, memoryview(batch))], wants_ids=False)
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


@contextmanager
def _single_row(scale: Scale) -> Iterator[Contenders]:
    requests = scale.of(200_000)
    with TemporaryDirectory() as directory, flakelog() as server, Topics(server.address).fresh() as topic:
        load = FrameLoad(Path(directory), produce_frame(topic), CONNECTIONS, 1, requests)
        load.run(server.address, server.pid)
        reply = load.reply
        result = produce.decode_response(VERSION, memoryview(reply)[9:], 0)[0]
        assert result.error_code == 0, f"the broker refuses: {result}"
        with BlockingClient(server.address) as client:
            stored = client.find_offset(topic, 0, LATEST)
        assert stored == requests, f"{stored} records of {requests} are in the log"
        with child(program("frame_floor"), str(len(reply))) as (floor_pid, floor_port):
            yield {
                "flakelog": lambda: load.run(server.address, server.pid),
                "C epoll floor": lambda: load.run(f"127.0.0.1:{floor_port}", floor_pid),
            }


ROWS = [
    Row("single-100", f"one 100 B record per request, {CONNECTIONS} connections, one outstanding each", _single_row),
]
