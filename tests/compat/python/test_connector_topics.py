"""Topics that are deleted and made again under a group of the registry, whichever way its consumers see topics."""

from dataclasses import replace
from itertools import count

import pytest

from broker.client.blocking import Client
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.consumer_connector import ConsumerConnector
from broker.client.errors import BrokerError
from flakelog.admin import Admin
from tests.compat import numbers_topic
from tests.compat.server_process import ServerProcess
from tests.patience import until

CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=10_000,
    rebalance_backoff_ms=300,
    rebalance_goes_on=True,
    auto_commit_interval_ms=100,
    fetch_max_wait_ms=50,
)
NUMBERS = count()
POSITIONS = [(partition, offset) for partition in (0, 1) for offset in range(5)]
ALL = list(range(10))


@pytest.fixture(scope="module")
def registry(zookeeper):
    return f"{zookeeper.hosts}/connector-topics"


@pytest.fixture(scope="module")
def server(tmp_path_factory, registry):
    settings = {"zookeeper.connect": registry, "broker.id": "1"}
    with ServerProcess(tmp_path_factory.mktemp("topics") / "data", settings) as server:
        yield server


@pytest.fixture
def topic(server):
    return numbers_topic.fill(server.address, f"again-{next(NUMBERS)}")


@pytest.fixture
def connect(registry, server):
    """Connect a consumer that sees topics in ZooKeeper, or in the Metadata of the brokers."""

    def connect(source, config=CONFIG):
        return ConsumerConnector(registry, "g", server.address if source == "metadata" else None, config=config)

    return connect


def make_again(server, topic):
    with Client(server.address) as client:
        client.delete_topic(topic)

        def is_gone():
            try:
                client.topic(topic)
            except BrokerError:
                return True

        until(is_gone, "the end of the topic")
    numbers_topic.fill(server.address, topic)


def positions(records):
    return sorted((record.partition, record.offset) for record in records)


@pytest.mark.parametrize("later", ("zookeeper", "metadata"))
@pytest.mark.parametrize("earlier", ("zookeeper", "metadata"))
def test_a_topic_that_was_made_again_begins_as_if_without_offsets(server, topic, connect, caplog, earlier, later):
    """The one consumer has read all before, in either way; the other meets the new topic, in either way."""
    with connect(earlier) as connector:
        numbers_topic.take(connector.streams({topic: 1})[topic][0], 10)
    make_again(server, topic)
    with connect(later) as connector:
        records = numbers_topic.take(connector.streams({topic: 1})[topic][0], 10)
    assert positions(records) == POSITIONS and numbers_topic.values(records) == ALL
    assert f"topic {topic} was made again, so it begins at the smallest offset" in caplog.text


@pytest.mark.parametrize("source", ("zookeeper", "metadata"))
def test_a_running_consumer_begins_the_new_topic(server, topic, connect, caplog, source):
    with connect(source) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        numbers_topic.take(stream, 10)
        make_again(server, topic)
        records = numbers_topic.take(stream, 10)
    assert positions(records) == POSITIONS
    assert f"topic {topic} was made again" in caplog.text


@pytest.mark.parametrize("source", ("zookeeper", "metadata"))
def test_new_partitions_join_by_themselves(server, topic, connect, source):
    with connect(source) as connector:
        (stream,) = connector.streams({topic: 1})[topic]
        numbers_topic.take(stream, 10)
        with Admin(server.address) as admin:
            admin.add_partitions(topic, 3)
        with Client(server.address) as client:
            until(lambda: client.topic(topic).partitions == 3, "the third partition")
            numbers_topic.say(client, topic, 2, 100)
        assert numbers_topic.values(numbers_topic.take(stream, 1)) == [100]


def test_both_ways_share_the_partitions_of_one_group(server, topic, connect):
    """The order of the partitions is that of their first replicas, in ZooKeeper as in Metadata."""
    soon = replace(CONFIG, consumer_timeout_ms=numbers_topic.SOON_MS)
    with connect("zookeeper", soon) as by_zookeeper, connect("metadata", soon) as by_metadata:
        streams = [connector.streams({topic: 1})[topic][0] for connector in (by_zookeeper, by_metadata)]
        partitions = [set(), set()]

        def shared():
            with Client(server.address) as client:
                for partition in (0, 1):
                    numbers_topic.say(client, topic, partition, 100)
            for index, stream in enumerate(streams):
                partitions[index] = {record.partition for record in stream}
            return sorted(map(sorted, partitions)) == [[0], [1]]

        until(shared, "a partition for each")
