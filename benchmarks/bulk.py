"""Bulk produce and fetch by librdkafka in C, beside Apache Kafka and librdkafka's mock cluster, which keeps messages in
memory and validates nothing."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from io import RawIOBase
from tempfile import TemporaryFile

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.measure import Contenders, Figures, Row, Scale
from benchmarks.native import child, program, run_program

MOCK_TOPIC = "bench"
MIXED_SIZES, MIXED_MEAN_BYTES = "20-400", 210
RECORD_OVERHEAD_BYTES = 10
BATCH_BYTES = 1_000_000  # a full batch of librdkafka's
READY_BYTES_MAX = 2 << 30


def kept_bytes(messages: int, size: int) -> int:
    """How many bytes a log keeps for these messages."""
    return messages * (size + RECORD_OVERHEAD_BYTES)


def ready_memory(size: int) -> None:
    """Make the host of a virtual machine hand over memory, right before a run whose log keeps `size` bytes.

    The host may have taken back memory that the guest left unused for a second, and returns it page by page, which
    costs more than any log. So this writes several times `size` to a file and frees it. The pieces are as large as
    those of the run, because a kernel keeps free memory by the size of its pieces.
    """
    for _ in range(2):
        with TemporaryFile(buffering=0) as file:
            _fill(file, min(5 * size, READY_BYTES_MAX))


def _fill(file: RawIOBase, size: int) -> None:
    block = bytes(BATCH_BYTES)
    for _ in range(0, size, len(block)):
        file.write(block)


def plain_file(messages: int, size: int) -> Figures:
    """Write the messages' bytes to a new file: every log on this machine pays this to the page cache."""
    kept = kept_bytes(messages, size)
    ready_memory(kept)
    with TemporaryFile(buffering=0) as file:
        began, cpu = time.perf_counter(), time.process_time()
        _fill(file, kept)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"MB/s": messages * size / seconds / 1e6, "msg/s": messages / seconds, "CPU s": cpu}


def produce(
    peer: Peer, topic: str, messages: int, size: int, partitions: int, sizes: str = "", *settings: str
) -> Figures:
    """Produce messages in bulk, and measure the broker's CPU time. `sizes` are "least-most" bytes if they vary."""
    before = peer.cpu_seconds()
    argv = topic, str(partitions), str(messages), sizes or str(size), f"bootstrap.servers={peer.address}", *settings
    (seconds,) = run_program(program("bulk_produce"), *argv)
    return {
        "MB/s": messages * size / seconds / 1e6,
        "msg/s": messages / seconds,
        "CPU s": peer.cpu_seconds() - before,
    }


def fetch(peer: Peer, topic: str, messages: int, how: str, *settings: str) -> Figures:
    """Fetch messages in bulk, and measure the broker's CPU time; `how` is bulk_fetch's."""
    before = peer.cpu_seconds()
    argv = program("bulk_fetch"), how, topic, str(messages), f"bootstrap.servers={peer.address}", *settings
    seconds, received = run_program(*argv)
    cpu = peer.cpu_seconds() - before
    return {"MB/s": received / seconds / 1e6, "msg/s": messages / seconds, "CPU s": cpu}


@contextmanager
def _produce_row(
    messages: int, size: int, partitions: int, scale: Scale, sizes: str = "", *settings: str
) -> Iterator[Contenders]:
    """`size` is the mean if `sizes` vary. `settings` are librdkafka's."""
    count = scale.of(messages)
    mock = program("mock_cluster"), MOCK_TOPIC, str(partitions)

    def to_fresh_topics(peer: Peer) -> Callable[[], Figures]:
        topics = Topics(peer.address)

        def run() -> Figures:
            with topics.fresh(partitions) as topic:
                ready_memory(kept_bytes(count, size))
                return produce(peer, topic, count, size, partitions, sizes, *settings)

        return run

    with brokers(scale) as peers, child(*mock) as (mock_pid, mock_address):
        contenders = {name: to_fresh_topics(peer) for name, peer in peers.items()}

        def mocks() -> Figures:
            ready_memory(kept_bytes(count, size))
            return produce(Peer(mock_address, mock_pid), MOCK_TOPIC, count, size, partitions, sizes, *settings)

        yield contenders | {"librdkafka's mock": mocks, "a plain file": partial(plain_file, count, size)}


@contextmanager
def _fetch_row(messages: int, size: int, scale: Scale) -> Iterator[Contenders]:
    """The messages are in the page cache, because they were just written. The mock cluster is not measured: it keeps
    only the newest few megabytes."""
    count = scale.of(messages)
    settings = "group.id=bench", "enable.auto.commit=false"
    with brokers(scale) as peers, ExitStack() as stack:
        contenders = {}
        for name, peer in peers.items():
            topic = stack.enter_context(Topics(peer.address).fresh())
            produce(peer, topic, count, size, 1)
            contenders[name] = partial(fetch, peer, topic, count, "assign", *settings)
        yield contenders


def _mixed_row(scale: Scale) -> AbstractContextManager[Contenders]:
    return _produce_row(2_000_000, MIXED_MEAN_BYTES, 1, scale, MIXED_SIZES)


def _lz4_row(scale: Scale) -> AbstractContextManager[Contenders]:
    return _produce_row(3_000_000, 100, 1, scale, "", "compression.codec=lz4")


ROWS = [
    Row("produce-100", "bulk produce, 100 B, 1 partition, librdkafka", partial(_produce_row, 3_000_000, 100, 1)),
    Row("produce-100-long", "the same, for about ten seconds", partial(_produce_row, 30_000_000, 100, 1)),
    Row("produce-100-8p", "bulk produce, 100 B, 8 partitions, librdkafka", partial(_produce_row, 2_000_000, 100, 8)),
    Row("produce-1k", "bulk produce, 1 KiB, 1 partition, librdkafka", partial(_produce_row, 300_000, 1024, 1)),
    Row("produce-mixed", "bulk produce, 20 to 400 B, 1 partition, librdkafka", _mixed_row),
    Row("produce-lz4", "bulk produce, 100 B in lz4, 1 partition, librdkafka", _lz4_row),
    Row("fetch-1k", "fetch, 1 KiB, from the page cache, librdkafka", partial(_fetch_row, 1_000_000, 1024)),
]
