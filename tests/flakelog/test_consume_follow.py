"""`flakelog consume --follow` on a broker in memory, when a topic is deleted and made again."""

import pytest

from broker.client.errors import BrokerError, TopicRecreated, Unreachable
from broker.client.offset_spec import Earliest
from broker.record.records import BatchRecord, encode_batch
from flakelog.commands.consume import TopicIds, _records
from flakelog.commands.start import find_starts
from tests.broker.engine_client import EngineBroker
from tests.flakelog.console.world import MemoryClient


def produce(client, number):
    records = [BatchRecord(n, 0, None, b"%d" % n) for n in range(number)]
    client.produce("orders", 0, encode_batch(records, base_timestamp_ms=0))


@pytest.fixture
def client():
    client = MemoryClient(EngineBroker())
    client.create_topic("orders", 1)
    produce(client, 2)
    return client


def follow(client):
    spans = find_starts(client, [("orders", 0)], Earliest())
    return _records(client, spans, Earliest(), follow=True, committed=False, of_all_partitions=True)


def test_a_topic_that_was_deleted_and_made_again_is_named(client):
    following = follow(client)
    assert [next(following).value for _ in range(2)] == [b"0", b"1"]
    client.delete_topic("orders")
    client.create_topic("orders", 1)
    with pytest.raises(TopicRecreated, match="topic orders was deleted and made again"):
        next(following)


def test_a_new_topic_of_the_name_that_is_longer_is_not_read_on(client):
    """A fetch while there was no topic makes the next one look at the id first."""
    ids = TopicIds(client, ["orders"])
    client.delete_topic("orders")
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"), ids.checked("orders"):
        client.fetch("orders", 0, 2)
    client.create_topic("orders", 1)
    produce(client, 3)
    with pytest.raises(TopicRecreated, match="topic orders was deleted and made again"), ids.checked("orders"):
        raise AssertionError("it is not fetched from")


def test_a_topic_that_was_made_again_while_the_server_was_away_is_not_read_on(client):
    ids = TopicIds(client, ["orders"])
    with pytest.raises(Unreachable), ids.checked("orders"):
        raise Unreachable("localhost:9092", "refused")
    client.delete_topic("orders")
    client.create_topic("orders", 1)
    with pytest.raises(TopicRecreated, match="topic orders was deleted and made again"), ids.checked("orders"):
        raise AssertionError("it is not fetched from")
