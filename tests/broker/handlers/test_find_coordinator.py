"""FindCoordinator through the wire: coordinators of groups and transactional ids, whose topics it creates (KIP-699)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FIND_COORDINATOR, HEARTBEAT, EngineBroker
from tests.broker.handlers.consumer_group import find, make

TXN = 1


@pytest.fixture
def broker():
    return make()


@pytest.fixture
def client(broker):
    return broker.connect()


@pytest.mark.parametrize("version", range(7))
def test_the_first_to_look_for_a_coordinator_makes_the_offsets_topic(version):
    broker = EngineBroker(offsets_topic_num_partitions=3)
    answer = find(broker.connect(), version)
    if version >= 4:
        (answer,) = answer.coordinators
        assert answer.key == "g"
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "localhost", 9092)
    topic = broker.services.metadata.topic("__consumer_offsets")
    assert len(topic.partitions) == 3 and topic.properties["cleanup.policy"] == "compact"


@pytest.mark.parametrize("version", [1, 3, 6])
def test_the_coordinator_of_a_transactional_id_is_found_and_its_topic_made(version):
    broker = EngineBroker(transaction_state_log_num_partitions=3)
    answer = find(broker.connect(), version, key_type=TXN)
    answer = answer.coordinators[0] if version >= 4 else answer
    assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "localhost", 9092)
    topic = broker.services.metadata.topic("__transaction_state")
    assert len(topic.partitions) == 3 and topic.properties["cleanup.policy"] == "compact"


def test_share_groups_are_refused(client):
    (answer,) = find(client, 6, key_type=2).coordinators
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_several_keys_are_each_answered(client):
    """FindCoordinator has several keys since v4 (KIP-699)."""
    answer = client.ask(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["a", "b"]})
    keys_and_nodes = [
        (coordinator.key, coordinator.error_code, coordinator.node_id) for coordinator in answer.coordinators
    ]
    assert keys_and_nodes == [("a", 0, 1), ("b", 0, 1)]


def test_an_offsets_topic_that_cannot_be_made_is_no_coordinator_yet():
    broker = EngineBroker()
    client = broker.connect()
    broker.storage.free_bytes = 0
    assert find(client).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert any("no groups can be coordinated" in line for line in broker.reported)
    broker.storage.free_bytes = None
    assert find(client).error_code == 0


def test_a_group_verb_before_anyone_looked_for_the_coordinator_sends_the_client_to_look():
    client = EngineBroker().connect()
    fields = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert client.ask(HEARTBEAT, 0, fields).error_code == ErrorCode.NOT_COORDINATOR
