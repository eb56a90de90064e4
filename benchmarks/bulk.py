"""Bulk produce and fetch by librdkafka in C, beside Apache Kafka and librdkafka's own mock cluster (in memory, nothing
checked or kept)."""

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from io import RawIOBase
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.apache import Peer, kafka
from benchmarks.measure import Contenders, Figures, Row, Scale, cpu_seconds, numbered
from benchmarks.native import program
from broker.client.blocking import BlockingClient
from broker.client.core import LATEST
from broker.client.errors import ClientError
from tests.compat.server_process import ServerProcess

MOCK_TOPIC = "bench"
LEADERS_SECONDS = 20
RECORD_OVERHEAD_BYTES = 10
BATCH_BYTES = 1_000_000  # librdkafka's, when it is in a hurry
AT_HAND_BYTES_MAX = 2 << 30


def run_program(*argv: str) -> list[float]:
    """The numbers a load program prints; RuntimeError with what it says when it fails."""
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{Path(argv[0]).name}: {done.stderr.strip()}")
    return [float(word) for word in done.stdout.split()]


@contextmanager
def child(*argv: str) -> Iterator[tuple[int, str]]:
    """(pid, the first line it prints) of a server of ours in C, which ends when its standard input does."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout is not None
        yield process.pid, process.stdout.readline().strip()
    finally:
        process.communicate()


@contextmanager
def flakelog(**settings: str) -> Iterator[ServerProcess]:
    """A server in a directory of its own. As with its peer, what a deleted topic took is free at once."""
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        with ServerProcess(Path(directory) / "data", {"log.segment.delete.delay.ms": "0"} | settings) as server:
            yield server


class Topics:
    """A fresh topic for each run, taken away after it: what a run left dirty must not slow the next one down."""

    def __init__(self, address: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        self._address = address
        self._numbers = numbered()

    @contextmanager
    def fresh(self, partitions: int = 1, **config: str) -> Iterator[str]:
        name = f"bench-{next(self._numbers)}"
        topic = NewTopic(name, partitions, 1, config={key.replace("_", "."): value for key, value in config.items()})
        self._admin.create_topics([topic])[name].result()
        self._await_leaders(name, partitions)
        try:
            yield name
        finally:
            self._admin.delete_topics([name])[name].result()

    def _await_leaders(self, name: str, partitions: int) -> None:
        """Until each partition answers: Kafka says who leads it before that one knows."""
        deadline = time.monotonic() + LEADERS_SECONDS
        with BlockingClient(self._address) as client:
            for partition in range(partitions):
                while True:
                    try:
                        client.find_offset(name, partition, LATEST)
                        break
                    except ClientError:
                        if time.monotonic() > deadline:
                            raise


def kept_bytes(messages: int, size: int) -> int:
    """What a log keeps of them."""
    return messages * (size + RECORD_OVERHEAD_BYTES)


def have_memory_at_hand(size: int) -> None:
    """Right before a run that keeps `size` bytes, whosever it is. A virtual machine may have to ask its host for memory
    that it has not used for a second, page by page, which costs more than any log: several times as much is taken and
    let go, in pieces as large as those that will be asked for, as a kernel keeps free memory by the size of its pieces.
    """
    for _ in range(2):
        with TemporaryFile(buffering=0) as file:
            _fill(file, min(5 * size, AT_HAND_BYTES_MAX))


def _fill(file: RawIOBase, size: int) -> None:
    block = bytes(BATCH_BYTES)
    for _ in range(0, size, len(block)):
        file.write(block)


def plain_file(messages: int, size: int) -> Figures:
    """So many bytes to a new file and nothing else: what any log on this machine has to pay its page cache."""
    kept = kept_bytes(messages, size)
    have_memory_at_hand(kept)
    with TemporaryFile(buffering=0) as file:
        began, cpu = time.perf_counter(), time.process_time()
        _fill(file, kept)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"MB/s": messages * size / seconds / 1e6, "msg/s": messages / seconds, "CPU s": cpu}


def produce(address: str, pid: int, topic: str, messages: int, size: int, partitions: int) -> Figures:
    before = cpu_seconds(pid)
    settings = [f"bootstrap.servers={address}"]
    (seconds,) = run_program(program("bulk_produce"), topic, str(partitions), str(messages), str(size), *settings)
    return {
        "MB/s": messages * size / seconds / 1e6,
        "msg/s": messages / seconds,
        "CPU s": cpu_seconds(pid) - before,
    }


@contextmanager
def _produce_row(messages: int, size: int, partitions: int, scale: Scale) -> Iterator[Contenders]:
    count = scale.of(messages)
    mock = program("mock_cluster"), MOCK_TOPIC, str(partitions)

    def to_fresh_topics(peer: Peer) -> Callable[[], Figures]:
        topics = Topics(peer.address)

        def run() -> Figures:
            with topics.fresh(partitions) as topic:
                have_memory_at_hand(kept_bytes(count, size))
                return produce(peer.address, peer.pid, topic, count, size, partitions)

        return run

    with flakelog() as server, child(*mock) as (mock_pid, mock_address):
        peers = {"flakelog": Peer(server.address, server.pid)} | kafka(scale)
        contenders = {name: to_fresh_topics(peer) for name, peer in peers.items()}

        def mocks() -> Figures:
            have_memory_at_hand(kept_bytes(count, size))
            return produce(mock_address, mock_pid, MOCK_TOPIC, count, size, partitions)

        yield contenders | {"librdkafka's mock": mocks, "a plain file": partial(plain_file, count, size)}


@contextmanager
def _fetch_row(messages: int, size: int, scale: Scale) -> Iterator[Contenders]:
    """From the page cache: it was just written. The mock keeps only the newest few megabytes, so it is no peer here."""
    count = scale.of(messages)

    def fetch(peer: Peer, topic: str) -> Figures:
        before = cpu_seconds(peer.pid)
        settings = f"bootstrap.servers={peer.address}", "group.id=bench", "enable.auto.commit=false"
        seconds, received = run_program(program("bulk_fetch"), topic, str(count), *settings)
        cpu = cpu_seconds(peer.pid) - before
        return {"MB/s": received / seconds / 1e6, "msg/s": count / seconds, "CPU s": cpu}

    with flakelog() as server, ExitStack() as stack:
        contenders = {}
        for name, peer in ({"flakelog": Peer(server.address, server.pid)} | kafka(scale)).items():
            topic = stack.enter_context(Topics(peer.address).fresh())
            produce(peer.address, peer.pid, topic, count, size, 1)
            contenders[name] = partial(fetch, peer, topic)
        yield contenders


ROWS = [
    Row("produce-100", "bulk produce, 100 B, 1 partition, librdkafka", partial(_produce_row, 3_000_000, 100, 1)),
    Row("produce-100-long", "the same, for about ten seconds", partial(_produce_row, 30_000_000, 100, 1)),
    Row("produce-100-8p", "bulk produce, 100 B, 8 partitions, librdkafka", partial(_produce_row, 2_000_000, 100, 8)),
    Row("produce-1k", "bulk produce, 1 KiB, 1 partition, librdkafka", partial(_produce_row, 300_000, 1024, 1)),
    Row("fetch-1k", "fetch, 1 KiB, from the page cache, librdkafka", partial(_fetch_row, 1_000_000, 1024)),
]
