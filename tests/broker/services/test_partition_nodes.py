"""Answers name a partition's leader and replicas as the controller decided them, and which replicas are offline."""

import pytest

from broker.metadata.change import Change
from broker.metadata.image import RegisteredBroker
from broker.metadata.topic import PartitionState
from broker.services.partition_nodes import partition_nodes
from tests.broker.engine_client import EngineBroker


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    return broker


def nodes_of(broker, state, live=(1,)):
    services = broker.services
    services.metadata.register([RegisteredBroker(number, {"": ("localhost", 9092)}) for number in live])
    topic = services.metadata.topic("flights")
    services.metadata.apply([Change({"flights": type(topic)(topic.name, topic.id, (state,))})])
    answer = partition_nodes(services, services.metadata.topic("flights"), 0)
    return answer["leader_id"], list(answer["isr_nodes"]), list(answer["offline_replicas"])


def test_replicas_on_live_brokers_are_online(broker):
    assert nodes_of(broker, PartitionState(2, 5, (2, 1), (2,)), live=(1, 2)) == (2, [2], [])


def test_a_replica_on_a_dead_broker_is_offline(broker):
    assert nodes_of(broker, PartitionState(-1, 6, (2, 1), (2,)), live=(1,)) == (-1, [2], [2])


def test_a_replica_that_the_controller_found_gone_is_offline_though_its_broker_lives(broker):
    state = PartitionState(2, 5, (2, 1, 3), (2,), offline=(1,))
    assert nodes_of(broker, state, live=(1, 2)) == (2, [2], [1, 3])


def test_a_replica_that_is_offline_here_is_named_once(broker):
    broker.services.logs.get("flights", 0).offline = "damaged"
    assert nodes_of(broker, PartitionState(2, 5, (2, 1), (2,), offline=(1,)), live=(1, 2)) == (2, [2], [1])


def test_a_leader_that_has_died_is_not_named_while_no_other_is_elected(broker):
    """A client would look for it among the brokers of the answer; kafka-python 3.0 does so for ever."""
    assert nodes_of(broker, PartitionState(2, 5, (2, 1), (2, 1)), live=(1,)) == (-1, [2, 1], [2])


def test_a_partition_whose_log_is_offline_here_has_no_leader(broker):
    broker.services.logs.get("flights", 0).offline = "damaged"
    assert nodes_of(broker, PartitionState(1, 0, (1,), (1,))) == (-1, [], [1])


def test_a_log_that_is_offline_here_leaves_another_leader_in_charge(broker):
    broker.services.logs.get("flights", 0).offline = "damaged"
    assert nodes_of(broker, PartitionState(2, 5, (2, 1), (2, 1)), live=(1, 2)) == (2, [2], [1])
