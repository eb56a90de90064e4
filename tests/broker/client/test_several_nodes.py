"""The client's core in a cluster of several brokers: which brokers it asks, and what it does while one is down."""

from uuid import UUID

import pytest

from broker.client.core import LATEST
from broker.client.errors import BrokerError, Unreachable
from broker.client.group_requests import find_coordinator
from broker.client.multifetch import multifetch
from broker.client.offset_lookup import find_offsets
from broker.client.offset_spec import Earliest, Latest
from broker.client.records import read_records
from broker.client.topic_admin import create_topic
from broker.wire.errors import ErrorCode
from tests.broker.client.several_nodes import NOBODY, Nodes, address

A, B, C, D = ("t", 0), ("t", 1), ("t", 2), ("t", 3)
SPREAD = {A: 1, B: 2, C: 3, D: 1}


def positions(nodes, *keys, spec=Latest()):
    failed = {}
    offsets = nodes.run(find_offsets(nodes.core, keys, spec, failed=failed))
    return offsets, {key: str(error) for key, error in failed.items()}


def test_each_leader_is_asked_once_for_all_its_partitions():
    nodes = Nodes(SPREAD, {B: 20, C: 30})
    assert nodes.run(nodes.core.list_offsets([A, B, C, D], LATEST)) == {A: 10, B: 20, C: 30, D: 10}
    assert nodes.requests == [(1, "metadata"), (1, "list offsets"), (2, "list offsets"), (3, "list offsets")]


def test_positions_are_found_although_a_broker_is_down():
    nodes = Nodes(SPREAD)
    nodes.down.add(2)
    offsets, failed = positions(nodes, A, B, C, D)
    assert offsets == {A: 10, C: 10, D: 10}
    assert failed == {B: f"no broker answers at {address(2)} (refused); start one with: flakelog server"}


def test_positions_are_found_although_a_partition_has_no_leader():
    nodes = Nodes(SPREAD | {B: NOBODY})
    offsets, failed = positions(nodes, A, B, C, D, spec=Earliest())
    assert (offsets, list(failed)) == ({A: 0, C: 0, D: 0}, [B]) and failed[B].startswith("t-1: LEADER_NOT_AVAILABLE")
    assert nodes.requests.count((1, "metadata")) == 1, "one look-up for all"


def test_positions_are_found_although_a_broker_refuses_a_partition_beside_them():
    nodes = Nodes(SPREAD)
    nodes.errors[A] = ErrorCode.KAFKA_STORAGE_ERROR
    offsets, failed = positions(nodes, A, B, C, D)
    assert (sorted(offsets), failed) == ([B, C, D], {A: "t-0: KAFKA_STORAGE_ERROR"})


def test_positions_are_found_although_another_topic_is_gone():
    nodes = Nodes(SPREAD)
    offsets, failed = positions(nodes, ("gone", 0), ("gone", 1), A)
    assert offsets == {A: 10} and set(failed.values()) == {"topic gone: UNKNOWN_TOPIC_OR_PARTITION"}
    assert nodes.requests.count((1, "metadata")) == 1


def test_a_leader_that_moved_is_looked_up_again():
    nodes = Nodes(SPREAD)
    assert nodes.run(nodes.core.leader(*B)) == address(2)
    nodes.leaders[B] = 3
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        nodes.run(nodes.core.fetch(*B, 0))
    assert nodes.run(nodes.core.fetch(*B, 0)).size > 0


def test_a_partition_that_does_not_exist_is_named_with_those_that_do():
    nodes = Nodes(SPREAD)
    with pytest.raises(BrokerError, match=r"t-7: UNKNOWN_TOPIC_OR_PARTITION \(the topic has partitions 0 to 3\)"):
        nodes.run(nodes.core.fetch("t", 7, 0))


def test_a_node_that_is_down_delays_only_one_look_up():
    nodes = Nodes(SPREAD)
    nodes.run(nodes.core.metadata(["t"]))
    nodes.down.add(1)
    nodes.requests.clear()
    nodes.run(nodes.core.metadata(["t"]))
    nodes.run(nodes.core.metadata(["t"]))
    assert nodes.requests == [(1, "versions"), (2, "metadata"), (2, "metadata")]


# --- leader epochs (KIP-320) ---------------------------------------------------------------------------------------


def dated(epoch=5):
    """Return nodes whose partitions have a leader epoch and a topic id."""
    nodes = Nodes(SPREAD)
    nodes.epochs = dict.fromkeys(SPREAD, epoch)
    nodes.topic_ids["t"] = UUID(int=1)
    return nodes


def test_requests_name_the_epoch_of_the_leader():
    nodes = dated()
    nodes.run(nodes.core.fetch(*A, 0))
    nodes.run(nodes.core.list_offsets([B], LATEST))
    nodes.run(multifetch(nodes.core, {C: 0}))
    assert nodes.named == [(1, 5), (2, 5), (3, 5)]


def test_requests_name_no_epoch_without_a_topic_id_which_could_tell_that_epochs_begin_anew():
    nodes = Nodes(SPREAD)
    nodes.epochs = dict.fromkeys(SPREAD, 5)
    nodes.run(nodes.core.fetch(*A, 0))
    assert nodes.named == [(1, -1)]


def test_a_leader_in_a_new_epoch_is_looked_up_again_and_read_from_the_same_offset():
    """A server that crashed is its own next leader, one epoch later."""
    nodes = dated()
    nodes.run(nodes.core.fetch(*A, 0))
    nodes.epochs[A] = 6
    with pytest.raises(BrokerError, match="FENCED_LEADER_EPOCH") as refused:
        nodes.run(nodes.core.fetch(*A, 3))
    assert refused.value.retriable
    assert [record.offset for record in read_records(nodes.run(nodes.core.fetch(*A, 3)), 3).records] == [*range(3, 10)]
    assert nodes.named == [(1, 5), (1, 5), (1, 6)]


def test_a_broker_that_is_late_takes_no_client_back_to_an_older_leader():
    nodes = dated()
    nodes.leaders[B] = 3
    nodes.run(nodes.core.metadata(["t"]))
    nodes.late[2] = nodes.late[3] = {B: (2, 4)}
    nodes.down.add(1)
    (topic,) = nodes.run(nodes.core.metadata(["t"]))
    assert topic.leaders[1] == address(3) and nodes.run(nodes.core.leader(*B)) == address(3)


def test_a_broker_that_knows_no_newer_leader_is_not_asked_again_before_the_others():
    nodes = dated()
    nodes.run(nodes.core.metadata(["t"]))
    nodes.late[1] = {B: (2, 5)}
    nodes.leaders[B], nodes.epochs[B] = 3, 6
    outcomes = []
    for _ in range(3):
        try:
            outcomes.append(nodes.run(nodes.core.fetch(*B, 0)).error_code)
        except BrokerError as error:
            outcomes.append(error.code)
    assert outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NONE]
    assert [node for node, api in nodes.requests if api == "metadata"] == [1, 1, 2]


def test_the_epochs_of_a_topic_that_was_made_again_begin_anew():
    nodes = dated()
    nodes.run(nodes.core.metadata(["t"]))
    nodes.topic_ids["t"], nodes.leaders[B] = UUID(int=2), 3
    nodes.epochs = dict.fromkeys(SPREAD, 0)
    with pytest.raises(BrokerError, match="NOT_LEADER_OR_FOLLOWER"):
        nodes.run(nodes.core.fetch(*B, 0))
    nodes.run(nodes.core.fetch(*B, 0))
    assert nodes.named == [(2, 5), (3, 0)] and nodes.core.known_id("t") == UUID(int=2)


# --- nodes that vanish ---------------------------------------------------------------------------------------------


def test_partitions_of_a_node_that_is_down_are_looked_up_at_another_node():
    nodes = dated()
    nodes.run(nodes.core.metadata(["t"]))
    nodes.run(nodes.core.metadata(["t"]))
    nodes.down.add(1)
    with pytest.raises(Unreachable, match="node-1"):
        nodes.run(nodes.core.fetch(*A, 0))
    nodes.leaders[A], nodes.epochs[A] = 2, 6
    nodes.requests.clear()
    nodes.run(nodes.core.fetch(*A, 0))
    assert nodes.requests == [(2, "metadata"), (2, "fetch")]


def test_partitions_of_other_nodes_are_read_without_a_look_up_while_a_node_is_down():
    nodes = dated()
    nodes.run(nodes.core.metadata(["t"]))
    nodes.down.add(1)
    with pytest.raises(Unreachable, match="node-1"):
        nodes.run(nodes.core.fetch(*A, 0))
    nodes.requests.clear()
    nodes.run(nodes.core.fetch(*B, 0))
    assert nodes.requests == [(2, "fetch")]


# --- the controller and the coordinators ---------------------------------------------------------------------------


def acts(nodes, name):
    return [node for node, api in nodes.requests if api == name]


def test_topics_are_made_by_the_controller():
    nodes = Nodes(SPREAD)
    nodes.controller = 3
    nodes.run(create_topic(nodes.core, "t"))
    assert acts(nodes, "create topics") == [3]


def test_a_broker_that_is_the_controller_no_longer_sends_the_client_to_another_node():
    nodes = Nodes(SPREAD)
    nodes.controller, nodes.controllers[1] = 3, 1
    nodes.run(nodes.core.nodes())
    nodes.requests.clear()
    nodes.run(create_topic(nodes.core, "t"))
    assert (acts(nodes, "create topics"), acts(nodes, "metadata")) == ([1, 3], [1, 2])


def test_without_a_controller_the_error_is_one_that_a_retry_may_not_meet():
    nodes = Nodes(SPREAD)
    nodes.controllers, nodes.controller = dict.fromkeys((1, 2, 3), 1), NOBODY
    with pytest.raises(BrokerError, match="NOT_CONTROLLER") as refused:
        nodes.run(create_topic(nodes.core, "t"))
    assert refused.value.retriable and acts(nodes, "create topics") == [1, 1, 1]


def test_any_broker_names_the_coordinator_also_while_the_controller_is_down():
    nodes = Nodes(SPREAD)
    nodes.run(nodes.core.nodes())
    nodes.run(nodes.core.nodes())
    nodes.down.add(1)
    assert nodes.run(find_coordinator(nodes.core, "g")) == address(3)
    assert acts(nodes, "find coordinator") == [2]


# --- multifetch ----------------------------------------------------------------------------------------------------


def fetched(nodes, offsets, wait_ms=900):
    answers = nodes.run(multifetch(nodes.core, offsets, max_wait_ms=wait_ms))
    return {key: len(read_records(answer, offsets[key]).records) for key, answer in answers.items()}


def fetches(nodes):
    return [node for node, api in nodes.requests if api == "fetch"]


def test_each_leader_gets_one_fetch_for_all_its_partitions_and_no_wait_delays_records_of_another():
    nodes = Nodes(SPREAD)
    assert fetched(nodes, {A: 10, B: 10, C: 4, D: 7}) == {A: 0, B: 0, C: 6, D: 3}
    assert (fetches(nodes), nodes.waits_ms) == ([1, 2, 3], [0, 0, 0])


def test_without_records_the_leaders_share_the_wait():
    nodes = Nodes(SPREAD)
    assert fetched(nodes, {A: 10, B: 10, C: 10}) == {A: 0, B: 0, C: 0}
    assert (fetches(nodes), nodes.waits_ms) == ([1, 2, 3, 1, 2, 3], [0, 0, 0, 300, 300, 300])


def test_one_leader_gets_one_fetch_that_waits():
    nodes = Nodes(SPREAD)
    assert fetched(nodes, {A: 10, D: 10}) == {A: 0, D: 0}
    assert (fetches(nodes), nodes.waits_ms) == ([1], [900])


def test_a_fetch_from_a_broker_that_is_down_is_an_error():
    nodes = Nodes(SPREAD)
    nodes.down.add(2)
    with pytest.raises(Unreachable, match="node-2"):
        fetched(nodes, {A: 0, B: 0})
