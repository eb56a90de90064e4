"""Consumer, ConsumerConnector and Producer, beside the clients of confluent-kafka and kafka-python, on our broker."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, checkouts, flakelog
from benchmarks.bulk import produce
from benchmarks.client_program import CONNECTOR, CONSUMERS, KAFKA_PYTHON, OURS_WITH_CALLBACK, PRODUCERS
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from benchmarks.python_program import per_message, run_program
from broker.client.blocking import Client
from broker.client.core import LATEST
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.server_process import ROOT

PROGRAM = Path(__file__).with_name("client_program.py")
MESSAGES, MESSAGES_MIN = 300_000, 2_000
VALUE_BYTES = {"100 B": 100, "1 KiB": 1_024}
PARTITIONS = {"1 partition": 1, "8 partitions": 8}


def _run(root: Path, plan: dict[str, Any]) -> Figures:
    """Run a client in a separate process, which imports our clients from the checkout at `root`."""
    return per_message(plan["messages"], run_program(PROGRAM, root, plan))


def _run_producer(address: str, partitions: int, root: Path, plan: dict[str, Any]) -> Figures:
    """Run a producer on a fresh topic. RuntimeError if the log has another number of messages afterwards."""
    with Topics(address).fresh(partitions) as topic:
        figures = _run(root, plan | {"topic": topic})
        with Client(address) as client:
            stored = sum(client.find_offset(topic, partition, LATEST) for partition in range(partitions))
    if stored != plan["messages"]:
        raise RuntimeError(f"{plan['how']}: {stored} of {plan['messages']} messages are in the log")
    return figures


def _clients(scale: Scale, names: Iterable[str]) -> Iterator[tuple[str, str, Path]]:
    """Yield the contender's name, the client's name and the checkout of each contender."""
    for client in names:
        ours = client in (OURS, OURS_WITH_CALLBACK)
        for checkout, root in checkouts(scale).items() if ours else [(OURS, ROOT)]:
            yield client.replace(OURS, checkout), client, root


def _shapes(scale: Scale) -> Iterator[tuple[str, int, int]]:
    """Yield (name, bytes of a value, partitions); all of them if the run is a serious one."""
    shapes = product(VALUE_BYTES.items(), PARTITIONS.items())
    for (size, value_bytes), (width, partitions) in islice(shapes, None if scale.share == 1 else 1):
        yield f"{size}, {width}", value_bytes, partitions


@contextmanager
def _consumer_row(scale: Scale) -> Iterator[Contenders]:
    with _readers(scale, CONSUMERS, {}) as contenders:
        yield contenders


@contextmanager
def _connector_row(scale: Scale) -> Iterator[Contenders]:
    """A stream of a ConsumerConnector, whose group is in a ZooKeeper, and consumers whose groups are the broker's."""
    with TemporaryDirectory(prefix="flakelog-bench-") as directory, EmbeddedZooKeeper(directory) as zookeeper:
        more = {CONNECTOR: {"zookeeper": zookeeper.hosts}}
        with _readers(scale, (CONNECTOR, OURS, KAFKA_PYTHON), more) as contenders:
            yield contenders


@contextmanager
def _readers(scale: Scale, clients: Iterable[str], more: Mapping[str, dict[str, str]]) -> Iterator[Contenders]:
    """Yield clients that read a topic. `more` has what a client's plan says besides."""
    messages, contenders = scale.of(MESSAGES, MESSAGES_MIN), {}
    with flakelog() as server, ExitStack() as stack:
        topics = Topics(server.address)
        for shape, value_bytes, partitions in _shapes(scale):
            topic = stack.enter_context(topics.fresh(partitions))
            produce(Peer(server.address, server.pid), topic, messages, value_bytes, partitions)
            plan = {
                "produces": False,
                "servers": server.address,
                "topic": topic,
                "messages": messages,
                "value_bytes": value_bytes,
            }
            for name, how, root in _clients(scale, clients):
                contenders[f"{name}: {shape}"] = partial(_run, root, plan | {"how": how} | more.get(how, {}))
        yield contenders


@contextmanager
def _producer_row(scale: Scale) -> Iterator[Contenders]:
    messages, contenders = scale.of(MESSAGES, MESSAGES_MIN), {}
    with flakelog() as server:
        for shape, value_bytes, partitions in _shapes(scale):
            plan = {"produces": True, "servers": server.address, "messages": messages, "value_bytes": value_bytes}
            for name, how, root in _clients(scale, PRODUCERS):
                run = partial(_run_producer, server.address, partitions, root, plan | {"how": how})
                contenders[f"{name}: {shape}"] = run
        yield contenders


ROWS = [
    Row("python-consumer", "messages read one by one by Consumer and its peers in Python", _consumer_row),
    Row("connector", "messages read one by one by a stream of ConsumerConnector, beside Consumer", _connector_row),
    Row("python-producer", "messages sent one by one by Producer and its peers in Python", _producer_row),
]
