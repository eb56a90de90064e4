"""The ends of a ConsumerConnector, and the errors that its program gets, with a real ZooKeeper and server."""

import os
import re
import socket
import sys
import threading
import urllib.request
from dataclasses import replace
from itertools import count

import pytest
from kazoo.client import KazooClient

from broker.client.blocking import Client
from broker.client.connector import stream_feed
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.consumer_connector import ConsumerConnector
from broker.client.connector.topic_filter import TopicFilter
from broker.client.errors import ClientError, CommitFailed, GroupRefused, InvalidTopics
from broker.client.registry.nodes import consumer_path, owner_path
from broker.cluster.documents import TopicPartition
from broker.record.records import BatchRecord, encode_batch
from tests.compat import numbers_topic
from tests.compat.server_process import ServerProcess
from tests.patience import until

CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=10_000,
    rebalance_goes_on=True,
    auto_commit_interval_ms=None,
    fetch_max_wait_ms=50,
)
NUMBERS = count()
IMPATIENT = replace(
    CONFIG, zookeeper_session_timeout_ms=500, rebalance_retries_max=1, rebalance_backoff_ms=500, rebalance_goes_on=False
)


@pytest.fixture(scope="module")
def registry(zookeeper):
    return f"{zookeeper.hosts}/connector-ends"


@pytest.fixture(scope="module")
def server(tmp_path_factory, registry):
    settings = {"zookeeper.connect": registry, "broker.id": "1"}
    with ServerProcess(tmp_path_factory.mktemp("ends") / "data", settings) as server:
        yield server


@pytest.fixture
def topic(server):
    return numbers_topic.fill(server.address, f"ends-{next(NUMBERS)}")


@pytest.fixture(scope="module")
def kazoo(registry):
    client = KazooClient(registry)
    client.start()
    yield client
    client.stop()


def test_a_consumer_that_has_left_refuses_streams_and_commits(registry, topic, kazoo):
    """Another program's owner of partition 0 never lets go."""
    kazoo.create(owner_path("left", TopicPartition(topic, 0)), b"other:1-0", makepath=True)
    with ConsumerConnector(registry, "left", config=IMPATIENT) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        for _ in range(2):
            with pytest.raises(GroupRefused, match=f"other consumers of left still own {topic}-0"):
                for _ in stream:
                    pass
            with pytest.raises(CommitFailed, match="the consumer has left the group"):
                connector.commit_offsets()
            until(lambda: "connector left" not in [thread.name for thread in threading.enumerate()], "the thread's end")


def test_commits_end_while_another_thread_shuts_down(registry, topic):
    connector = ConsumerConnector(registry, "g", config=CONFIG)
    (stream,) = connector.streams({topic: 1})[topic]
    next(stream)
    errors = []

    def commit():
        while not errors:
            try:
                connector.commit_offsets()
            except ClientError as error:
                errors.append(error)

    threads = [threading.Thread(target=commit) for _ in range(4)]
    for thread in threads:
        thread.start()
    connector.shutdown()
    for thread in threads:
        until(lambda: not thread.is_alive(), "the end of a commit")


def test_a_stream_raises_an_error_that_ends_the_consumer(registry):
    """The registration of 4,100 topics is larger than a node of ZooKeeper."""
    topics = {f"{number:0249}": 1 for number in range(4_100)}
    with ConsumerConnector(registry, "g", config=replace(CONFIG, consumer_timeout_ms=60_000)) as connector:
        stream = connector.streams(topics)["0" * 249][0]
        with pytest.raises(ValueError, match="bytes for one node; it holds at most"):
            next(stream)


def test_a_commit_fails_if_the_last_record_comes_again(registry, topic, kazoo):
    """A tool deletes the consumer's node, so that it loses its partitions while the program works on a record."""
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        record = next(stream)
        path = consumer_path("g", connector.name)
        kazoo.delete(path)
        until(lambda: kazoo.exists(path), "the new registration")
        with pytest.raises(CommitFailed, match=f"{topic}-{record.partition} not committed"):
            connector.commit_offsets()
        assert record in numbers_topic.take(stream, 10)
        connector.commit_offsets()


@pytest.mark.parametrize("lines", (0, 1, 2, 3, 5, 8, 13, 21, 34))
def test_a_signal_handler_may_shut_down_wherever_it_interrupts_a_stream(registry, topic, lines):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        numbers_topic.take(stream, 3)
        remaining_lines = [lines]

        def trace(frame, event, argument):
            if frame.f_code.co_filename != stream_feed.__file__:
                return None
            remaining_lines[0] -= event == "line"
            if remaining_lines[0] < 0:
                sys.settrace(None)
                connector.shutdown()
            return trace

        sys.settrace(trace)
        try:
            list(stream)
        finally:
            sys.settrace(None)


def refusals_in(connector, stream):
    """Return how many of two calls say that the connector belongs to another process."""
    refusals = 0
    for call in (lambda: next(stream), connector.commit_offsets):
        try:
            call()
        except ClientError as error:
            refusals += "belongs to the process that made it" in str(error)
    return refusals


def test_a_forked_child_is_refused_and_ends_nothing_of_its_parent(registry, topic):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        records = numbers_topic.take(stream, 3)
        child = os.fork()
        if not child:
            refusals = refusals_in(connector, stream)
            connector.shutdown()
            os._exit(refusals)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
        records += numbers_topic.take(stream, 7)
        connector.commit_offsets()
    assert numbers_topic.values(records) == list(range(10))


def fetched_bytes(server, topic):
    """Return how many bytes of a topic the server has sent."""
    with urllib.request.urlopen(f"http://{server.http}/metrics") as answer:
        text = answer.read().decode()
    match = re.search(rf'^flakelog_topic_out_bytes_total{{topic="{topic}"}} (\S+)', text, re.MULTILINE)
    return float(match[1]) if match else 0


def test_a_full_queue_stops_only_its_stream(server, registry, topic):
    with Client(server.address) as client:
        for number in range(40):
            batch = encode_batch([BatchRecord(0, 0, None, b"x" * 10_000)], base_timestamp_ms=1)
            client.produce(topic, number % 2, batch)
    config = replace(CONFIG, consumer_prefetch_bytes=20_000, max_partition_fetch_bytes=10_000)
    before = fetched_bytes(server, topic)
    with ConsumerConnector(registry, "g", config=config) as connector:
        read, unread = connector.streams({topic: 2})[topic]
        assert len(numbers_topic.take(read, 25)) == 25
        assert 200_000 < fetched_bytes(server, topic) - before < 260_000, "the other stream's queue is full"
        assert len(numbers_topic.take(unread, 25)) == 25
        assert fetched_bytes(server, topic) - before > 400_000


def test_a_stream_that_waits_refuses_a_second_thread(registry, topic):
    errors = []

    def wait():
        try:
            list(stream)
        except ClientError as error:
            errors.append(str(error))

    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: errors, "the refusal")
    for thread in threads:
        thread.join()
    assert [error.partition(":")[0] for error in errors] == ["this stream is asked for a record already"]


@pytest.mark.parametrize("client_id, name", [(None, "billing"), ("reader-1", "reader-1")])
def test_requests_have_the_name_of_the_group_or_another_that_is_set(registry, client_id, name):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with ConsumerConnector(registry, "billing", address, config=replace(CONFIG, client_id=client_id)) as connector:
            connector.streams({"orders": 1})
            connection, _ = listener.accept()
            with connection:
                header = connection.recv(100)[4:]  # without the length: key, version, correlation id, client id
    assert header[8 : 10 + len(name)] == len(name).to_bytes(2, "big") + name.encode()


@pytest.mark.parametrize(
    "topics, count, error",
    [
        ("orders", 1, "topics='orders': give {'orders': 2}"),
        (["orders"], 1, r"topics=\['orders'\]: give {'orders': 2}"),
        ({"orders": 1}, 2, "count=2 is for a TopicFilter"),
        ({"or/ders": 1}, 1, "'or/ders' contains one or more characters other than"),
        ({7: 1}, 1, "7 is no topic"),
        ({"orders": "2"}, 1, "'2' streams for 'orders': give a number from 1"),
        (TopicFilter("a"), 0, "0 streams for 'a': give a number from 1"),
    ],
)
def test_streams_that_cannot_work_are_refused(registry, topics, count, error):
    with ConsumerConnector(registry, "g", config=CONFIG) as connector:
        with pytest.raises(InvalidTopics, match=error):
            connector.streams(topics, count)
