"""Produce latency of one connection while other clients keep the broker or its disk busy, beside Apache Kafka."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread

from benchmarks.apache import Peer
from benchmarks.big_log import forget
from benchmarks.brokers import Topics, brokers
from benchmarks.bulk import produce
from benchmarks.load import Load, check_stored, options_of, play
from benchmarks.measure import Contenders, Figures, Row, Scale
from benchmarks.native import program
from broker.client.blocking import Client

MESSAGE_BYTES = 1024
REQUESTS = 20_000
CREATED_MAX = 1_000
LOAD = Load(connections=1)
Beside = Callable[[], AbstractContextManager[None]]


@contextmanager
def _row(scale: Scale) -> Iterator[Contenders]:
    """A producer with one request outstanding: alone, beside a cold reader, and beside a client that creates topics."""
    messages = scale.of(scale.log_gb * 10**9 // MESSAGE_BYTES)
    contenders: Contenders = {}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="flakelog-bench-")))
        for who, peer in stack.enter_context(brokers(scale)).items():
            topics = Topics(peer.address)
            old = stack.enter_context(topics.fresh())
            produce(peer, old, messages, MESSAGE_BYTES, 1)
            beside: dict[str, Beside] = {
                "alone": ExitStack,
                "beside a cold reader": partial(_cold_reader, peer, old, messages),
                "beside a creator of topics": partial(_creator, peer),
            }
            for what, client in beside.items():
                contenders[f"{who}, {what}"] = partial(_run, peer, topics, directory, scale.of(REQUESTS, 100), client)
        yield contenders


def _run(peer: Peer, topics: Topics, directory: Path, requests: int, beside: Beside) -> Figures:
    with topics.fresh() as topic, beside():
        played = play(peer, directory, LOAD.plan(topic, 1), requests=requests, **options_of(LOAD))
        check_stored(peer, topic, 1, played)
    return {"p50 us": played.p50_us, "p99 us": played.p99_us, "max us": played.max_us}


@contextmanager
def _cold_reader(peer: Peer, topic: str, messages: int) -> Iterator[None]:
    """Read a topic that is out of the page cache, from its beginning, until the end of the block."""
    os.sync()  # only bytes that are on the disk leave the page cache
    forget(_directory_of(peer, topic))
    settings = f"bootstrap.servers={peer.address}", "group.id=bench", "enable.auto.commit=false"
    process = subprocess.Popen(
        [program("bulk_fetch"), "assign", topic, str(messages), *settings],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _directory_of(peer: Peer, topic: str) -> Path:
    """Return the directory of a topic's partition 0, by a file in it that the broker has open."""
    for descriptor in Path(f"/proc/{peer.pid}/fd").iterdir():
        try:
            path = Path(os.readlink(descriptor))
        except FileNotFoundError:
            continue  # the broker closed it meanwhile
        if path.parent.name == f"{topic}-0":
            return path.parent
    raise RuntimeError(f"the broker has no file of {topic} open")


@contextmanager
def _creator(peer: Peer) -> Iterator[None]:
    """Create one topic after another until the end of the block, then delete them."""
    ended, created = Event(), list[str]()

    def create() -> None:
        with Client(peer.address) as client:
            while not ended.is_set() and len(created) < CREATED_MAX:
                name = f"beside-{len(created)}"
                client.create_topic(name)
                created.append(name)

    thread = Thread(target=create)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        Topics(peer.address).delete(created)


ROWS = [Row("stalls", "one 100 B record at a time: alone, and beside clients that keep the broker busy", _row)]
