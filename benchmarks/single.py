"""Small requests on many connections, beside Apache Kafka and a bare epoll loop in C with answers of the same size."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.apache import NAME, Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.load import CONNECTIONS, Load, play, run_load
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from benchmarks.native import child, program
from benchmarks.plan import (
    ANSWER_HEAD_BYTES,
    VALUE_BYTES,
    Plan,
    fetch_request,
    list_offsets_request,
    one_each,
    produce_answer,
)
from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch

FETCH_BYTES = 60_000  # about 500 records: a Spark task of the Kafka connector fetches this much at a time
FETCH_BYTES_MIN = 50_000
ASKING_CONNECTIONS = 10
DURABLE = {"flakelog_durable_acks": "true"}
KAFKA_DURABLE = {"flush_messages": "1"}  # Kafka's nearest setting
PLAIN = f"{OURS}, not durable"


class Work(NamedTuple):
    """The load of a row and its number of requests. Kafka's topics have `kafka_config`, and Kafka gets a share of the
    requests where it is slow."""

    load: Load
    requests: int
    kafka_config: Mapping[str, str] = {}
    kafka_share: float = 1.0


DURABLY = {"kafka_config": KAFKA_DURABLE, "kafka_share": 0.2}


@contextmanager
def load_row(work: Work, scale: Scale) -> Iterator[Contenders]:
    """Send the same to each broker. A durable row also has ours without durability."""
    load = work.load
    count = scale.of(work.requests, load.partitions)
    with TemporaryDirectory() as name, brokers(scale) as peers:
        directory = Path(name)

        def contender(peer: Peer, load: Load, count: int) -> Callable[[], Figures]:
            return partial(run_load, peer, Topics(peer.address), directory, load, count)

        apache_kafka = peers.pop(NAME, None)
        contenders = {who: contender(peer, load, count) for who, peer in peers.items()}
        if load.config:
            contenders[PLAIN] = contender(peers[OURS], load._replace(config={}), count)
        if apache_kafka is not None:
            least = max(int(count * work.kafka_share), load.partitions)
            contenders[NAME] = contender(apache_kafka, load._replace(config=work.kafka_config), least)
        yield contenders


@contextmanager
def _single_row(work: Work, scale: Scale) -> Iterator[Contenders]:
    """`load_row`, and beside it the bare loop."""
    answer = bytes(ANSWER_HEAD_BYTES) + produce_answer("bench-1", 0)
    load, count = work.load, scale.of(work.requests, work.load.partitions)
    with load_row(work, scale) as contenders, TemporaryDirectory() as name, ExitStack() as stack:
        pid, port = stack.enter_context(child(program("frame_floor"), str(len(answer))))
        floor = Peer(f"127.0.0.1:{port}", pid)

        def run() -> Figures:
            plan = one_each("bench-1", 1)
            return play(floor, Path(name), plan, requests=count, connections=load.connections).figures

        yield {**contenders, "C epoll floor": run}


@contextmanager
def _scale_row(scale: Scale) -> Iterator[Contenders]:
    """Ten times the connections, or the partitions, must add little to the cost of a request."""
    count = scale.of(200_000, 500)
    loads = {
        "50 connections to 50 partitions": Load(partitions=50),
        "50 connections to 500 partitions": Load(partitions=500),
        "500 connections to 50 partitions": Load(connections=500, partitions=50),
    }
    with TemporaryDirectory() as name, brokers(scale._replace(kafka=False)) as peers:
        topics = {who: Topics(peer.address) for who, peer in peers.items()}
        yield {
            f"{who}, {what}": partial(run_load, peer, topics[who], Path(name), load, count)
            for what, load in loads.items()
            for who, peer in peers.items()
        }


@contextmanager
def _ask_row(plan_of: Callable[[str], Plan], requests: int, scale: Scale) -> Iterator[Contenders]:
    """10 connections ask small questions about a topic of 100,000 records in batches of 500."""
    count = scale.of(requests, ASKING_CONNECTIONS)

    def ask(peer: Peer, directory: Path, topic: str) -> Figures:
        return play(peer, directory, plan_of(topic), requests=count, connections=ASKING_CONNECTIONS).figures

    with TemporaryDirectory() as name, brokers(scale) as peers, ExitStack() as stack:
        contenders = {}
        for who, peer in peers.items():
            topic = stack.enter_context(Topics(peer.address).fresh(retention_ms="-1"))  # the records' times are old
            _fill(peer.address, topic)
            contenders[who] = partial(ask, peer, Path(name), topic)
        yield contenders


def _fill(address: str, topic: str) -> None:
    records = [BatchRecord(offset, 0, None, bytes(VALUE_BYTES), ()) for offset in range(500)]
    batch = encode_batch(records, base_timestamp_ms=1_700_000_000_000)
    with Client(address) as client:
        for _ in range(200):
            client.produce(topic, 0, bytearray(batch))


def _list_offsets(topic: str) -> Plan:
    return Plan([list_offsets_request(topic)])


def _small_fetch(topic: str) -> Plan:
    return Plan([fetch_request(topic, 0, 50_000, FETCH_BYTES, FETCH_BYTES_MIN)])


ROWS = [
    Row(
        "single-100",
        f"one 100 B record per request, {CONNECTIONS} connections, one outstanding each",
        partial(_single_row, Work(Load(), 200_000)),
    ),
    Row(
        "single-100-50p",
        "the same; each connection keeps one of 50 partitions",
        partial(_single_row, Work(Load(partitions=50), 200_000)),
    ),
    Row(
        "durable-100",
        "one 100 B record per request, 1 partition, each answered when it is on the disk (Kafka: flush.messages=1)",
        partial(load_row, Work(Load(config=DURABLE), 100_000, **DURABLY)),
    ),
    Row(
        "durable-100-50p",
        "the same; each connection keeps one of 50 partitions",
        partial(load_row, Work(Load(partitions=50, config=DURABLE), 100_000, **DURABLY)),
    ),
    Row(
        "sync-100",
        "one 100 B record at a time, one connection",
        partial(_single_row, Work(Load(connections=1), 30_000)),
    ),
    Row("scale", "one 100 B record per request: ten times the partitions, ten times the connections", _scale_row),
    Row("list-offsets", "where a log ends, asked by 10 connections", partial(_ask_row, _list_offsets, 100_000)),
    Row("fetch-small", "a Fetch of 60 KB, by 10 connections", partial(_ask_row, _small_fetch, 50_000)),
]
