"""A log that lost its end in a power cut and has grown past it: readers find that by the leader epoch (KIP-320).

A kill and the files of an earlier moment stand for the power cut.
"""

import shutil
import time

import pytest
from confluent_kafka import Consumer

from broker.client.blocking import Client
from tests.compat.server_process import ServerProcess
from tests.compat.storm.test_spout_progress import Lines, produce
from tests.patience import SECONDS

TOPIC = "flights"


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path / "data").keep_ports() as server:
        with Client(server.address) as client:
            client.create_topic(TOPIC)
        yield server


def write(server, *values):
    with Client(server.address) as client:
        produce(client, TOPIC, *values)


def copy(server):
    return shutil.copytree(server.data_dir / f"{TOPIC}-0", server.data_dir.with_name("copy"))


def cut_power(server, files):
    """Kill the server, and start it with these files of the partition."""
    server.kill()
    shutil.rmtree(server.data_dir / f"{TOPIC}-0")
    shutil.copytree(files, server.data_dir / f"{TOPIC}-0")
    server.start()


def test_a_running_spout_reads_what_stands_in_place_of_the_lost_end(server, tmp_path):
    write(server, *"abc")
    files = copy(server)
    write(server, *"de")
    with Lines(server.address, tmp_path / "store", TOPIC) as lines:
        assert [lines.next()[1] for _ in range(5)] == list("abcde")
        cut_power(server, files)
        write(server, *"uvwxyz")
        assert [lines.next()[1] for _ in range(6)] == list("uvwxyz")


def test_a_spout_that_was_stopped_meanwhile_does_too(server, tmp_path):
    write(server, *"abc")
    files = copy(server)
    write(server, *"de")
    with Lines(server.address, tmp_path / "store", TOPIC) as lines:
        assert [lines.next()[1] for _ in range(5)] == list("abcde")
        lines.stop()
    cut_power(server, files)
    write(server, *"uvwxyz")
    with Lines(server.address, tmp_path / "store", TOPIC) as lines:
        assert [lines.next()[1] for _ in range(6)] == list("uvwxyz")


def test_a_stock_consumer_finds_the_lost_end(server):
    write(server, *"abc")
    files = copy(server)
    write(server, *"de")
    settings = {
        "bootstrap.servers": server.address,
        "group.id": "readers",
        "auto.offset.reset": "earliest",
        "topic.metadata.refresh.interval.ms": 1_000,
        "reconnect.backoff.max.ms": 200,
        "log_level": 0,
    }
    consumer = Consumer(settings)
    consumer.subscribe([TOPIC])
    try:
        assert take(consumer, 5) == list("abcde")
        cut_power(server, files)
        write(server, *"uvwxyz")
        assert take(consumer, 6) == list("uvwxyz")
    finally:
        consumer.close()


def take(consumer, number):
    found, give_up = [], time.monotonic() + SECONDS
    while len(found) < number and time.monotonic() < give_up:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message.value().decode())
    return found
