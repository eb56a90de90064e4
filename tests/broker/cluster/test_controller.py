"""The queue of the controller, requests that it refuses, and nodes that it cannot read."""

import pytest

from broker.cluster.assignment import Spread
from broker.cluster.documents import TOPICS, TopicPartition, deletion_path, topic_path
from broker.cluster.requests import AllocateProducerIds, CreatePartitions, CreateTopic, DeleteTopic
from broker.wire.errors import ErrorCode
from coordination.memory import Ensemble
from coordination.port import Changed, CoordinatorUnavailable, Create, Multi, Set
from tests.broker.cluster.test_rules import answer_of, create, started, state


def test_many_changes_that_need_no_operations():
    """Each of a thousand deleted topics is one change, which ends at once."""
    world = started()
    process = world.controller()
    process.controller.submit(CreateTopic("t", world.uuid(), {}), world.now)  # the changes wait behind it
    for number in range(3_000):
        process.controller.notified(Changed(f"{TOPICS}/gone-{number}"), world.now)
    process.pump()
    world.run(1_000)
    assert process.controller.is_idle
    world.check_quiet()


def test_topic_that_cannot_be_read_leaves_the_others_alone():
    world = started()
    damaged = Create(topic_path("x"), b'{"partitions":[]}')
    Ensemble.apply(world.ensemble, world.ensemble.begin_session(), damaged, lambda event: None)
    create(world, [(2,)])
    assert state(world).leader == 2
    assert "partitions" in world.controller().controller.context.damaged[topic_path("x")]
    world.machines[1].kill(at_once=True)
    world.run(500)
    create(world, [(3,)], "u")


def test_epoch_that_cannot_be_read_is_tried_again_after_a_pause():
    world = started()
    session_id = world.ensemble.begin_session()
    epoch = world.ensemble.apply(session_id, Set("/controller_epoch", b"x", 1), lambda event: None)
    world.machines[1].kill(at_once=True)
    world.run(3_000)
    assert world.controller() is None
    assert "controller_epoch" in world.machines[2].process.controller.problem
    world.ensemble.apply(session_id, Set("/controller_epoch", b"7", epoch), lambda event: None)
    world.run(3_000)
    assert world.controller().controller.context.epoch == 8


def test_a_write_that_the_coordinator_cannot_carry_out_ends_the_term_and_is_not_repeated_at_once():
    """Each other event would wait behind it for ever."""
    world = started()
    writes, apply = [], world.ensemble.apply

    def refuse(session_id, operation, notify):
        if isinstance(operation, Multi) and operation.operations[-1].path == topic_path("u"):
            writes.append(operation)
            raise CoordinatorUnavailable("no rights")
        return apply(session_id, operation, notify)

    world.ensemble.apply = refuse
    assert answer_of(world, CreateTopic("u", world.uuid(), {})).error_code == ErrorCode.NOT_CONTROLLER
    assert len(writes) == 1
    assert world.machines[1].process.controller.problem == "no rights"
    world.run(3_000)
    create(world, [(2,)])


def test_a_fault_of_the_controller_ends_its_term_and_another_begins():
    """The fault is raised before the first operation of an event that waited behind another."""
    world = started()
    process = world.controller()

    process.controller.context.broker_epochs = Faulty(process.controller.context.broker_epochs)
    world.request(CreateTopic("t", world.uuid(), {}))
    world.request(AllocateProducerIds(9, 0))
    with pytest.raises(RuntimeError):
        world.run(500)
    world.run(3_000)
    assert world.controller() is not None
    create(world, [(2,)], "u")


class Faulty(dict):
    def get(self, broker_id, default=None):
        if broker_id == 9:
            raise RuntimeError("a bug")
        return super().get(broker_id, default)


def test_topic_grows_over_the_live_brokers():
    world = started()
    create(world, [(2,)])
    answer = answer_of(world, CreatePartitions("t", 4))
    assert answer.assignments == {1: (3,), 2: (1,), 3: (2,)}  # on from the broker of partition 0, as Kafka
    assert [state(world, TopicPartition("t", index)).leader for index in range(4)] == [2, 3, 1, 2]
    world.check_quiet()


def test_deletion_of_an_unknown_topic_is_removed():
    world = started()
    world.ensemble.apply(world.ensemble.begin_session(), Create(deletion_path("nope")), lambda event: None)
    world.run(500)
    world.check_quiet()


def test_a_deletion_looks_at_no_topic_that_another_change_is_about():
    """Else the deletion of thousands of topics would keep a controller busy for minutes."""
    world = started()
    for number in range(20):
        create(world, [(2,)], f"t{number}")
    context, looks = world.controller().controller.context, []
    look = context.all_replicas_in_state
    context.all_replicas_in_state = lambda topic, state: looks.append(topic) or look(topic, state)
    answers = [world.request(DeleteTopic(f"t{number}")) for number in range(20)]
    world.run(2_000)
    assert [answer.error_code for (answer,) in answers] == [ErrorCode.NONE] * 20 and not context.assignments
    assert len(looks) <= 20 * 3
    world.check_quiet()


def test_topic_is_made_again_under_another_id():
    world = started()
    create(world, [(2,)])
    first = world.ensemble.image()[TopicPartition("t", 0)].topic_id
    answer_of(world, DeleteTopic("t"))
    create(world, [(2,)])
    assert world.ensemble.image()[TopicPartition("t", 0)].topic_id != first
    world.check_quiet()


def test_blocks_of_producer_ids_follow_each_other():
    world = started()
    blocks = []
    for broker_id in (2, 3, 2):
        request = AllocateProducerIds(broker_id, world.machines[broker_id].model.broker_epoch)
        block = answer_of(world, request).producer_ids
        blocks.append((block.broker_id, block.first, block.last))
    assert blocks == [(2, 0, 999), (3, 1_000, 1_999), (2, 2_000, 2_999)]


@pytest.mark.parametrize(
    "request_of, code",
    [
        (lambda i: CreateTopic("t", i, {}), ErrorCode.TOPIC_ALREADY_EXISTS),
        (lambda i: CreateTopic("u", i, {}, 1, 4, Spread(0, 0)), ErrorCode.INVALID_REPLICATION_FACTOR),
        (lambda i: CreateTopic("u", i, {}, assignments={0: (9,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda i: CreateTopic("u", i, {}, assignments={0: (1, 1)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda i: CreateTopic("u", i, {}, assignments={1: (1,)}), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda i: CreateTopic(".new", i, {}), ErrorCode.INVALID_REQUEST),
        (lambda i: CreateTopic("u" * 250, i, {}), ErrorCode.INVALID_REQUEST),
        (lambda i: CreateTopic("u", i, {"retention.ms": "1" * 2_000_000}), ErrorCode.INVALID_REQUEST),
        (lambda i: CreatePartitions("t", 100_000), ErrorCode.INVALID_REQUEST),
        (lambda i: CreatePartitions("u", 2), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (lambda i: CreatePartitions("t", 1), ErrorCode.INVALID_PARTITIONS),
        (lambda i: CreatePartitions("t", 2, ()), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (lambda i: DeleteTopic("u"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_refused_requests(request_of, code):
    world = started()
    create(world, [(2,)])
    before = dict(world.ensemble.nodes)
    assert answer_of(world, request_of(world.uuid())).error_code == code
    assert world.ensemble.nodes == before
