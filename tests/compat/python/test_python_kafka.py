"""Flakelog's Python API against Apache Kafka, which keeps no ids: producers stamp them into headers."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import Unsupported
from broker.client.producer import Producer
from flakelog.admin import Admin
from spark_bridge.arrow_reader import read
from tests.compat.numbers_topic import values
from tests.compat.server_process import PYTHONPATH

SCALING = Path(__file__).resolve().parents[3] / "docs" / "scaling.md"
BY_HAND = ConsumerConfig(fetch_max_wait_ms=50, auto_commit_interval_ms=None)
COMMITTED = ConsumerConfig(isolation_level="read_committed", fetch_max_wait_ms=50)
JOINS_MS = 5_000  # Kafka lets a new group wait three seconds for more members (group.initial.rebalance.delay.ms)


@pytest.fixture
def topic(kafka, name):
    """A topic of two partitions."""
    with Admin(kafka) as admin:
        admin.create_topic(name, 2)
    return name


@pytest.fixture
def stamped(kafka, topic, tmp_path):
    """Send the values 0 to 9 to both partitions, with ids."""
    with Producer(kafka, ids="header", directory=tmp_path) as producer:
        for number in range(10):
            producer.send(topic, str(number), partition=number % 2)
    return topic


def test_records_have_the_ids_of_their_headers(kafka, stamped):
    with Consumer(kafka, stamped, group=f"{stamped}-g", config=BY_HAND) as consumer:
        records = [next(consumer) for _ in range(10)]
        consumer.commit()
        assert sum(consumer.committed().values()) == 10
        with pytest.raises(Unsupported, match="keeps no ids; only Flakelog can find them"):
            consumer.seek_to_id(0)
    assert values(records) == list(range(10))
    assert len({record.id for record in records} - {None}) == 10
    for partition in (0, 1):
        mine = [record.id for record in records if record.partition == partition]
        assert mine == sorted(mine)


def test_reads_without_spark_have_the_ids_of_the_headers(kafka, stamped):
    with Consumer(kafka, stamped, config=BY_HAND) as consumer:
        wanted = {(record.partition, record.offset): record.id for record in (next(consumer) for _ in range(10))}
    rows = read(kafka, stamped).read_all().to_pylist()
    assert {(row["partition"], row["offset"]): row["id"] for row in rows} == wanted


def test_a_message_without_the_header_has_no_id(kafka, topic):
    with Producer(kafka) as producer:
        producer.send(topic, "1")
    with Consumer(kafka, topic, config=BY_HAND) as consumer:
        assert next(consumer).id is None


@pytest.mark.soak
def test_transactions_take_positions_and_stamped_messages_along(kafka, stamped, tmp_path):
    with Admin(kafka) as admin:
        admin.create_topic(f"{stamped}-out", 1)
    with (
        Consumer(kafka, stamped, group=f"{stamped}-t", config=BY_HAND) as consumer,
        Producer(kafka, transactional_id=stamped, ids="header", directory=tmp_path / "more") as producer,
        producer.transaction(),
    ):
        for _ in range(10):
            producer.send(f"{stamped}-out", next(consumer).value)
        producer.send_offsets(consumer)
    with Consumer(kafka, f"{stamped}-out", config=COMMITTED) as consumer:
        records = [next(consumer) for _ in range(10)]
    assert values(records) == list(range(10)) and None not in {record.id for record in records}
    with Admin(kafka) as admin:
        assert sum(admin.committed(f"{stamped}-t").values()) == 10


def test_the_page_on_scaling_shows_what_happens(kafka, zookeeper, capsys):
    with Admin(kafka) as admin:
        admin.create_topic("orders", 1)
    (block,) = re.findall(r"(?m)^    from flakelog import Consumer.*\n(?:(?:    .*)?\n)+", SCALING.read_text())
    program = dedent(block).replace("kafka1:9092", kafka).replace("zk1:2181", f"{zookeeper.hosts}/scaling")
    exec(program.replace("timeout_ms=10_000", f"timeout_ms={JOINS_MS}"), {})
    id, value = capsys.readouterr().out.split(" ", 1)
    assert int(id) > 0 and value == "b'order 7'\n"


SPOUT = """
import sys, threading
from flakelog import Bolt, LogSpout, StringScheme, Topology, run_in_background

class Show(Bolt):
    def execute(self, tup):
        print(tup["id"], tup["value"], flush=True)

servers, topic, store = sys.argv[1:]
topology = Topology("ids")
topology.spout("log", LogSpout(topic, servers=servers, store=store, scheme=StringScheme()))
topology.bolt("show", Show()).shuffle("log")
run_in_background(topology)
sys.stdin.read()
"""


def test_a_spout_emits_the_ids_of_the_headers(kafka, stamped, tmp_path):
    with Consumer(kafka, stamped, config=BY_HAND) as consumer:
        wanted = {f"{record.id} {record.value.decode()}\n" for record in (next(consumer) for _ in range(10))}
    argv = [sys.executable, "-c", SPOUT, kafka, stamped, str(tmp_path / "progress")]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as program:
        assert {program.stdout.readline() for _ in range(10)} == wanted
        program.stdin.close()
