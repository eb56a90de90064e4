"""OffsetDelete through the wire (KIP-496)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DELETE_GROUPS, OFFSET_DELETE, EngineBroker
from tests.broker.handlers.consumer_group import Member, commit, committed, make, stable
from tests.broker.transactional import TransactionalProducer

SUBSCRIPTION = [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\7flights\0\0\0\0"}]


@pytest.fixture
def broker():
    """Return a broker on which the group "g" has offset 5 in both topics, and no members."""
    broker = make()
    broker.create("trains")
    client = broker.connect()
    commit(client, 5), commit(client, 5, "trains")
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def delete(client, *partitions, group="g"):
    """Send OffsetDelete; return the request's error, or one error for each (topic, partition)."""
    topics = [{"name": topic, "partitions": [{"partition_index": index}]} for topic, index in partitions]
    answer = client.ask(OFFSET_DELETE, 0, {"group_id": group, "topics": topics})
    return answer.error_code or [topic.partitions[0].error_code for topic in answer.topics]


def test_an_offset_is_gone_also_after_a_restart_and_others_stay(broker, client):
    assert delete(client, ("flights", 0), ("flights", 1)) == [0, 0], "there was none of partition 1, which is fine"
    for reader in (client, broker.restarted().connect()):
        assert (committed(reader), committed(reader, topic="trains")) == (-1, 5)


def test_a_partition_that_does_not_exist_is_unknown(client):
    errors = delete(client, ("flights", 2), ("buses", 0), ("flights", 0))
    assert errors == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2 + [0]


def test_offsets_of_a_topic_that_members_read_stay(broker, client):
    member = Member(broker)
    member.join(protocols=SUBSCRIPTION)
    member.joined()
    assert delete(client, ("flights", 0), ("trains", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, 0]
    assert (committed(client), committed(client, topic="trains")) == (5, -1)
    member.leave()
    assert delete(client, ("flights", 0)) == [0]


def test_all_offsets_stay_where_the_broker_cannot_tell_what_members_read(broker, client):
    stable(broker, Member(broker))
    assert delete(client, ("trains", 0)) == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC]


def test_a_group_of_another_kind_must_have_no_members(broker, client):
    member = Member(broker, group="workers")
    member.join(protocol_type="connect")
    member.joined()
    assert delete(client, ("flights", 0), group="workers") == ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_does_not_exist_is_not_found(client):
    assert delete(client, ("flights", 0), group="nobody") == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_must_be_named(client):
    assert delete(client, ("flights", 0), group="") == ErrorCode.INVALID_GROUP_ID


def test_before_anyone_looked_for_the_coordinator_the_client_is_sent_to_look():
    assert delete(EngineBroker().connect(), ("flights", 0)) == ErrorCode.NOT_COORDINATOR


def test_a_deletion_that_the_disk_refuses_is_refused(broker, client):
    broker.storage.free_bytes = 0
    assert delete(client, ("flights", 0)) == ErrorCode.COORDINATOR_NOT_AVAILABLE


def delete_group(client):
    return client.ask(DELETE_GROUPS, 2, {"groups_names": ["g"]}).results[0].error_code


def test_on_a_full_disk_offsets_stay_and_can_be_taken_away_later(broker, client):
    """An offset that is forgotten without a tombstone in the log would return at the next start."""
    broker.storage.free_bytes = 0
    assert delete(client, ("flights", 0), ("trains", 0)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (committed(client), committed(client, topic="trains")) == (5, 5)
    broker.storage.free_bytes = None
    assert delete(client, ("flights", 0)) == [0]
    for reader in (client, broker.restarted().connect()):
        assert (committed(reader), committed(reader, topic="trains")) == (-1, 5)


def test_on_a_full_disk_a_group_stays_and_can_be_deleted_later(broker, client):
    broker.storage.free_bytes = 0
    assert delete_group(client) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (committed(client), len(broker.services.coordinators.groups)) == (5, 1)
    broker.storage.free_bytes = None
    assert delete_group(client) == 0
    for reader in (client, broker.restarted().connect()):
        assert committed(reader) == committed(reader, topic="trains") == -1
        assert delete_group(reader) == ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("deletes", [delete_group, lambda client: delete(client, ("flights", 0))])
def test_what_is_committed_in_a_transaction_and_deleted_before_its_end_does_not_come_back(broker, client, deletes):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.add_offsets("g")
    producer.commit_offset("g", "flights", 9)
    assert deletes(client) in (0, [0])
    assert producer.end(True) == 0
    for reader in (client, broker.restarted().connect()):
        assert committed(reader) == -1
