"""AlterPartition (KIP-497, KIP-903, KIP-966): rules E4, E6 and R3 on the controller, over an ensemble in memory."""

import pytest

from broker.cluster.alter_partition import read_request, response_fields
from broker.cluster.documents import LeaderAndIsr, TopicPartition, state_path
from broker.cluster.policy import Policy
from broker.cluster.requests import AlterPartition, IsrMember, IsrProposal
from broker.wire import cold
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import ALTER_PARTITION, LeaderAndIsrRequest, UpdateMetadataRequest
from coordination.port import Multi
from tests.broker.cluster.test_rules import (
    T0,
    answer_of,
    create,
    lose_the_answer_of_the_next_multi,
    record_operations,
    started,
    state,
)
from tests.golden.inter_broker_frames import FILES, read

MIN_2 = Policy(min_isr=lambda topic: 2)


@pytest.fixture
def world():
    """Three brokers of ours, of which 1 is the controller, and t-0 with replicas on all, led by 2."""
    world = started(has_lives=True, policy=MIN_2)
    create(world, [(2, 3, 1)])
    world.calls.clear()
    return world


def epoch_of(world, broker_id):
    return world.machines[broker_id].model.broker_epoch


def proposal(world, isr, *, partition=0, min_isr=2, **fields):
    """Return the proposal of a leader that knows the present state, unless `fields` say otherwise."""
    present = state(world, TopicPartition("t", partition))
    topic_id = world.ensemble.image()[T0].topic_id
    members = tuple(IsrMember(b, epoch_of(world, b)) if isinstance(b, int) else b for b in isr)
    values = {"leader_epoch": present.leader_epoch, "partition_epoch": present.partition_epoch, **fields}
    return IsrProposal(**{"topic_id": topic_id, "partition": partition, "isr": members, "min_isr": min_isr, **values})


def ask(world, *proposals, leader=2, broker_epoch=None):
    """Return the whole answer."""
    epoch = epoch_of(world, leader) if broker_epoch is None else broker_epoch
    return answer_of(world, AlterPartition(leader, epoch, proposals))


def granted(world, isr, **fields):
    """Return what is granted for t-0: a state, or an error."""
    (state_or_error,) = ask(world, proposal(world, isr, **fields)).isrs.values()
    return state_or_error


def test_e4_a_grant_raises_the_partition_epoch_only_and_update_metadata_tells_it(world):
    before = state(world)
    answer = granted(world, (2, 3))
    assert answer == state(world)
    assert (answer.isr, answer.elr) == ((2, 3), ())
    assert (answer.leader_epoch, answer.partition_epoch) == (before.leader_epoch, before.partition_epoch + 1)
    assert {type(request) for _, request in world.calls} == {UpdateMetadataRequest}
    world.check_quiet()


def test_r3_a_member_that_leaves_an_isr_below_min_goes_to_the_elr(world):
    assert granted(world, (2,)).elr == (3, 1)
    assert granted(world, (2, 3)).elr == ()


def test_r3_all_brokers_are_told_the_elr(world):
    granted(world, (2,))
    told = {broker_id: request for broker_id, request in world.calls}
    assert {broker_id: request.topic_states[0].partition_states[0].elr for broker_id, request in told.items()} == {
        1: (3, 1), 2: (3, 1), 3: (3, 1)
    }  # fmt: skip


def test_r3_the_leaders_min_counts(world):
    assert granted(world, (2, 3), min_isr=3).elr == (1,)
    assert granted(world, (2, 3), min_isr=2).elr == ()  # the same ISR: the leader asks for an empty ELR
    assert state(world).elr == ()


def test_r3_a_leader_of_kafkas_names_no_min_and_gets_no_elr(world):
    assert granted(world, (2,), min_isr=None).elr == ()


def test_w2_a_member_that_joins_is_trusted_in_its_present_life(world):
    world.machines[3].lose_power()
    world.run(300)
    world.machines[3].start()
    world.run(300)
    assert 3 not in state(world).isr + state(world).elr
    assert granted(world, (2, 1, 3)).lives == {broker_id: epoch_of(world, broker_id) for broker_id in (1, 2, 3)}


def test_the_same_isr_is_answered_without_a_write(world):
    operations = record_operations(world)
    assert granted(world, (1, 2, 3)) == state(world)
    assert not [operation for operation in operations if isinstance(operation, Multi)]
    assert world.calls == []


def test_a_request_whose_answer_was_lost_is_granted_again(world):
    """It names the partition epoch from before."""
    first = proposal(world, (2,))
    granted_state = next(iter(ask(world, first).isrs.values()))
    assert next(iter(ask(world, first).isrs.values())) == granted_state == state(world)


def test_e1_a_grant_whose_multi_lost_its_answer_is_read(world):
    lose_the_answer_of_the_next_multi(world)
    assert granted(world, (2, 3)) == state(world)
    assert state(world).partition_epoch == 1


@pytest.mark.parametrize(
    "isr, fields, code",
    [
        ((2, 3), {"leader_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((2, 3), {"partition_epoch": 9}, ErrorCode.NOT_CONTROLLER),
        ((2, 3), {"leader_epoch": -1}, ErrorCode.FENCED_LEADER_EPOCH),
        ((2, 3), {"partition_epoch": -1}, ErrorCode.INVALID_UPDATE_VERSION),
        ((2, 3), {"partition": 7}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ((3, 1), {}, ErrorCode.INVALID_REQUEST),
        ((2, 3, 3), {}, ErrorCode.INVALID_REQUEST),
        ((2, IsrMember(9)), {}, ErrorCode.INVALID_REQUEST),
        ((2, 3), {"recovery_state": 1}, ErrorCode.INVALID_REQUEST),
        ((2, IsrMember(3, 7)), {}, ErrorCode.INELIGIBLE_REPLICA),
    ],
)
def test_e6_refused_proposals_change_nothing(world, isr, fields, code):
    before = dict(world.ensemble.nodes)
    partition = fields.pop("partition", 0)
    asked = proposal(world, isr, **fields)._replace(partition=partition)
    assert list(ask(world, asked).isrs.values()) == [code]
    assert world.ensemble.nodes == before and world.calls == []


def test_e6_a_sender_that_does_not_lead_is_refused(world):
    assert list(ask(world, proposal(world, (2, 3)), leader=3).isrs.values()) == [ErrorCode.INVALID_REQUEST]


def test_e6_an_unknown_topic_id_is_refused_and_the_other_proposals_are_granted(world):
    unknown = proposal(world, (2, 3))._replace(topic_id=world.uuid())
    isrs = ask(world, unknown, proposal(world, (2, 3))).isrs
    assert isrs[unknown.topic_id, 0] == ErrorCode.UNKNOWN_TOPIC_ID
    assert state(world).isr == (2, 3)


def test_e6_a_sender_of_another_life_is_refused(world):
    assert ask(world, proposal(world, (2, 3)), broker_epoch=7).error_code == ErrorCode.STALE_BROKER_EPOCH
    assert ask(world, proposal(world, (2, 3)), leader=9, broker_epoch=7).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_e6_members_of_unknown_epochs_count_as_they_are_registered(world):
    """Kafka's leaders name -1."""
    assert granted(world, (2, IsrMember(3))).isr == (2, 3)


def test_e6_a_dead_member_is_refused(world):
    asked = proposal(world, (2, 3))
    world.machines[3].kill(at_once=True)
    world.run(300)
    present = state(world)
    asked = asked._replace(leader_epoch=present.leader_epoch, partition_epoch=present.partition_epoch)
    assert list(ask(world, asked).isrs.values()) == [ErrorCode.INELIGIBLE_REPLICA]


def test_e6_a_member_that_shuts_down_is_refused(world):
    world.controller().controller.context.shutting_down.add(3)
    assert granted(world, (2, 3)) == ErrorCode.INELIGIBLE_REPLICA


def test_many_proposals_are_few_multis():
    world = started(has_lives=True, policy=MIN_2)
    create(world, [(2, 3)] * 250)
    operations = record_operations(world)
    proposals = [proposal(world, (2,), partition=number) for number in range(250)]
    answer = ask(world, *proposals)
    assert all(isinstance(granted_state, LeaderAndIsr) for granted_state in answer.isrs.values())
    sizes = [len(operation.operations) - 1 for operation in operations if isinstance(operation, Multi)]
    assert sizes == [100, 100, 50]


def test_an_order_tells_the_granted_elr(world):
    """R3: the leader waits for an empty ELR, so LeaderAndIsr names it, and a leader of Kafka's hears of none."""
    granted(world, (2, 3), min_isr=3)
    world.machines[3].kill(at_once=True)
    world.run(300)
    orders = [r for b, r in world.calls if b == 2 and isinstance(r, LeaderAndIsrRequest)]
    assert orders[-1].topic_states[0].partition_states[0].elr == state(world).elr == (1, 3)


def test_request_of_kafka_is_read_and_its_answer_has_kafkas_bytes():
    sample = read(next(path for path in FILES if path.stem == "AlterPartition-v3"))[2]
    message = cold.decode(ALTER_PARTITION, 3, "request", sample.request, 12, 3)
    request = read_request(message.original)
    (asked,) = request.proposals
    assert (request.broker_id, request.broker_epoch, asked.min_isr) == (1, 56, None)
    assert asked.isr == (IsrMember(1), IsrMember(3), IsrMember(2))
    world = started()
    epoch = epoch_of(world, 1)
    create(world, [(1, 3, 2)])
    topic_id = world.ensemble.image()[T0].topic_id
    asked = asked._replace(topic_id=topic_id, leader_epoch=0, partition_epoch=0)
    answer = answer_of(world, AlterPartition(1, epoch, (asked,)))
    ((key, granted_state),) = answer.isrs.items()
    body = cold.encode(ALTER_PARTITION, 3, "response", response_fields(answer))
    read_back = cold.decode(ALTER_PARTITION, 3, "response", body, 0, 3).original
    assert read_back.topics[0].topic_id == key[0]
    assert read_back.topics[0].partitions[0].isr == granted_state.isr == (1, 3, 2)


def test_version_2_has_no_broker_epochs():
    body = cold.encode(
        ALTER_PARTITION,
        2,
        "request",
        {"broker_id": 1, "broker_epoch": 5, "topics": [{"partitions": [{"new_isr": [1, 2], "partition_epoch": 3}]}]},
    )
    (asked,) = read_request(cold.decode(ALTER_PARTITION, 2, "request", body, 0, 3).original).proposals
    assert (asked.isr, asked.partition_epoch, asked.min_isr) == ((IsrMember(1), IsrMember(2)), 3, None)


def test_state_of_a_grant_names_the_elr_and_the_lives(world):
    granted(world, (2,))
    node = world.ensemble.nodes[state_path(T0)]
    assert b'"isr":[2],"flakelog":{"elr":[3,1],"lives":{"1":' in node.data
