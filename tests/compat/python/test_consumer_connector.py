"""ConsumerConnectors that share topics through a real ZooKeeper, with a real server."""

import subprocess
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest

from broker.client.blocking import Client
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.consumer_connector import ConsumerConnector
from broker.client.connector.topic_filter import TopicFilter
from broker.client.errors import ClientError
from tests.compat import numbers_topic
from tests.compat.python import connector_program
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.patience import until

CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=10_000,
    rebalance_goes_on=True,
    auto_commit_interval_ms=100,
    fetch_max_wait_ms=50,
)
SOON = replace(CONFIG, consumer_timeout_ms=numbers_topic.SOON_MS)
BY_HAND = replace(CONFIG, auto_commit_interval_ms=None)
ALL = list(range(10))


@pytest.fixture(scope="module")
def registry(zookeeper):
    return f"{zookeeper.hosts}/connector"


@pytest.fixture(scope="module")
def server(tmp_path_factory, registry):
    settings = {"zookeeper.connect": registry, "broker.id": "1"}
    with ServerProcess(tmp_path_factory.mktemp("connector") / "data", settings) as server:
        yield server


@pytest.fixture
def topic(server, name):
    return numbers_topic.fill(server.address, name[:60])


class Reader:
    """A connector whose one stream is read in a thread, until `end`."""

    def __init__(self, registry, topic, config=CONFIG, **arguments):
        self.records = []
        self.connector = ConsumerConnector(registry, "g", config=config, **arguments)
        (self.stream,) = self.connector.streams({topic: 1})[topic]
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for record in self.stream:
            self.records.append(record)

    @property
    def values(self):
        return [int(record.value) for record in self.records]

    @property
    def partitions(self):
        return {record.partition for record in self.records}

    def end(self):
        self.connector.shutdown()
        self.thread.join()


@pytest.fixture
def readers(registry, topic):
    with ExitStack() as stack:
        def start(**arguments):
            reader = Reader(registry, topic, **arguments)
            stack.callback(reader.end)
            return reader

        yield start


def test_a_stream_has_records_with_their_places_and_ids(registry, topic):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        records = numbers_topic.take(stream, 10)
    assert numbers_topic.values(records) == ALL
    assert sorted((record.partition, record.offset) for record in records) == [(p, o) for p in (0, 1) for o in range(5)]
    assert all(record.id is not None and record.topic == topic for record in records)


def test_a_connector_goes_on_where_the_group_has_committed(registry, topic):
    with ConsumerConnector(registry, "g", config=BY_HAND) as connector:
        first = numbers_topic.take(connector.streams({topic: 1})[topic][0], 4)
        connector.commit_offsets()
        connector.abandon()
    with ConsumerConnector(registry, "g", config=BY_HAND) as connector:
        remaining = numbers_topic.take(connector.streams({topic: 1})[topic][0], 6)
    assert numbers_topic.values(first + remaining) == ALL


def test_a_record_that_the_program_fails_on_comes_again(registry, topic):
    with pytest.raises(ZeroDivisionError):
        with ConsumerConnector(registry, "g", config=CONFIG) as connector:
            records = numbers_topic.take(connector.streams({topic: 1})[topic][0], 4)
            raise ZeroDivisionError
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        remaining = numbers_topic.take(connector.streams({topic: 1})[topic][0], 7)
    assert numbers_topic.values(records[:3] + remaining) == ALL


def test_a_stream_ends_after_the_consumer_timeout_and_may_be_asked_again(server, registry, topic):
    with ConsumerConnector(registry, "g", config=SOON) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        records = until(lambda: list(stream), "the first records")
        until(lambda: records.extend(stream) or len(records) == 10, "all records")
        with Client(server.address) as client:
            numbers_topic.say(client, topic, 0, 10)
        assert [int(record.value) for record in until(lambda: list(stream), "a new record")] == [10]


def test_a_decoder_makes_the_values(registry, topic):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1}, decoder=int)[topic]
        assert sorted(record.value for record in numbers_topic.take(stream, 10)) == ALL


def test_two_consumers_share_a_topic_and_one_takes_over_when_the_other_leaves(server, registry, topic, readers):
    first, second = readers(), readers()
    until(lambda: set(first.values + second.values) == set(ALL), "all records")
    with Client(server.address) as client:
        def shared():
            numbers_topic.say(client, topic, 0, 100)
            numbers_topic.say(client, topic, 1, 101)
            return 100 in first.values + second.values and len(second.partitions) == 1

        until(shared, "the second consumer's part", 0.05)
        second.end()
        before = len(first.records)
        numbers_topic.say(client, topic, 0, 200)
        numbers_topic.say(client, topic, 1, 201)
        until(lambda: {200, 201} <= set(first.values[before:]), "both partitions at the first consumer")
        ends = {partition: client.find_offset(topic, partition, -1) for partition in (0, 1)}
    read = {(record.partition, record.offset) for record in first.records + second.records}
    assert read == {(partition, offset) for partition, end in ends.items() for offset in range(end)}


def test_what_a_killed_consumer_had_comes_to_another(server, registry, topic, readers):
    program = [sys.executable, connector_program.__file__, registry, topic]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": PYTHONPATH}) as process:
        lines = iter(process.stdout.readline, "")
        lines = [next(line for line in lines if line.startswith("record"))]
        process.kill()
        killed = [line.split() for line in (*lines, *process.stdout) if line.startswith("record")]
    first = readers()
    with Client(server.address) as client:
        numbers_topic.say(client, topic, 0, 200)
        numbers_topic.say(client, topic, 1, 201)
    until(lambda: {200, 201} <= set(first.values), "the records after the kill")
    taken = {(int(partition), int(offset)) for _, partition, offset, _ in killed}
    read = {(record.partition, record.offset) for record in first.records}
    assert read | taken == {(partition, offset) for partition in (0, 1) for offset in range(6)}


def test_brokers_that_are_named_need_no_registration(server, topic, zookeeper, readers, name):
    elsewhere = f"{zookeeper.hosts}/elsewhere-{name[:40]}"
    with ConsumerConnector(elsewhere, "g", server.address, config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        assert numbers_topic.values(numbers_topic.take(stream, 10)) == ALL


def test_a_filter_takes_a_topic_that_is_made_later(server, registry, topic):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams(TopicFilter(f"{topic}.*"))
        assert numbers_topic.values(numbers_topic.take(stream, 10)) == ALL
        later = numbers_topic.fill(server.address, f"{topic}-later")
        assert {record.topic for record in numbers_topic.take(stream, 10)} == {later}


def test_a_black_list_leaves_out_what_matches(registry, topic):
    with ConsumerConnector(registry, "black", config=SOON) as connector:
        (stream,) = connector.streams(TopicFilter(topic, is_black_list=True))
        assert topic not in {record.topic for record in stream}


def test_largest_begins_at_the_end_of_the_log(server, registry, topic, readers):
    reader = readers(config=replace(CONFIG, auto_offset_reset="largest"))
    with Client(server.address) as client:
        until(lambda: numbers_topic.say(client, topic, 0, 100) and reader.records, "a new record", 0.05)
    assert set(reader.values) == {100}


def test_a_shutdown_ends_a_stream_that_waits(readers):
    reader = readers()
    until(lambda: len(reader.records) == 10, "all records")
    reader.end()
    assert not reader.thread.is_alive()


def test_streams_are_made_once(registry, topic):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        connector.streams({topic: 1})
        with pytest.raises(ClientError, match="has its streams already"):
            connector.streams({topic: 1})
    with pytest.raises(ClientError, match="was shut down"):
        connector.commit_offsets()


@pytest.mark.parametrize(
    "arguments, error",
    [(("a host", "g"), "host:port"), (("h:1", ""), "name of a group"), (("h:1", "a/b"), "has a slash")],
)
def test_arguments_that_cannot_work_are_refused(arguments, error):
    with pytest.raises(ValueError, match=error):
        ConsumerConnector(*arguments)
