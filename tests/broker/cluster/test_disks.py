"""Disks that fail, and the nodes by which brokers notify the controller (facts 9 and 10)."""

from dataclasses import replace

from kio.schema.errors import ErrorCode as SchemaErrorCode

from broker.cluster.documents import (
    ISR_CHANGES,
    LOG_DIR_EVENTS,
    NO_LEADER,
    NO_LIFE,
    LeaderAndIsr,
    TopicPartition,
    deletion_path,
    encode_log_dir_event,
    state_path,
)
from broker.cluster.policy import Policy
from broker.wire.inter_broker import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from coordination.port import Create, Set
from tests.broker.cluster.test_rules import T0, create, lose_the_answer_of_the_next_multi, started, state


def notify(world, path, data):
    session_id = world.ensemble.begin_session()
    world.ensemble.apply(session_id, Create(path, data, sequential=True), lambda event: None)


def fail_disk(world, broker_id, *partitions):
    """Fail the disk of a broker under some partitions; the broker notifies the controller of it."""
    world.machines[broker_id].model.failed_disks.update(partitions)
    notify(world, f"{LOG_DIR_EVENTS}/log_dir_event_", encode_log_dir_event(broker_id))
    world.run(500)


def test_replica_whose_disk_failed_loses_its_leadership_and_leaves_the_isr():
    """The broker is asked for all its replicas; KAFKA_STORAGE_ERROR names the lost ones, and the node is deleted."""
    world = started()
    create(world, [(2, 3, 1), (3, 2, 1), (2, 1, 3)])
    world.calls.clear()
    fail_disk(world, 2, T0, TopicPartition("t", 1))
    assert (state(world).leader, state(world).isr) == (3, (3, 1))
    assert (state(world, TopicPartition("t", 1)).leader, state(world, TopicPartition("t", 1)).isr) == (3, (3, 1))
    assert state(world, TopicPartition("t", 2)) == LeaderAndIsr(2, (2, 1, 3), 0, 0, 1)
    to_it = [request for broker_id, request in world.calls if broker_id == 2]
    asked = next(request for request in to_it if isinstance(request, LeaderAndIsrRequest))
    assert len(asked.topic_states[0].partition_states) == 3
    stops = [request for request in to_it if isinstance(request, StopReplicaRequest)]
    stopped = [stop for request in stops for stop in request.topic_states[0].partition_states]
    assert [(stop.partition_index, stop.delete_partition) for stop in stopped] == [(0, False), (1, False)]
    update = [request for request in to_it if isinstance(request, UpdateMetadataRequest)][-1]
    assert update.topic_states[0].partition_states[0].offline_replicas == (2,)
    assert not list(world.ensemble.names(LOG_DIR_EVENTS))


def test_replica_is_back_when_the_disk_takes_its_order():
    """The order is repeated every ten seconds; the leader lets the replica into the ISR."""
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    context = world.controller().controller.context
    assert len(context.failed_disks) == 1
    assert world.controller().controller.problems == ["the disk of broker 2 failed for t-0"]
    world.run(15_000)
    assert len(context.failed_disks) == 1
    world.machines[2].model.failed_disks.clear()
    world.run(15_000)
    assert not context.failed_disks and state(world).isr == (3,)
    assert world.machines[2].model.replicas[T0].leader == 3
    world.check_quiet()


def test_replica_is_back_although_the_answer_to_its_order_was_lost():
    """The broker answers the same order with 11 the next time, because it has taken it."""
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    world.run(15_000)
    order = [r for broker_id, r in world.calls if broker_id == 2 and isinstance(r, LeaderAndIsrRequest)][-1]
    model = world.machines[2].model
    model.failed_disks.clear()
    (answer,) = model.handle(order).topics[0].partition_errors
    assert answer.error_code == SchemaErrorCode.none and model.replicas[T0].leader == 3
    (answer,) = model.handle(order).topics[0].partition_errors
    assert answer.error_code == SchemaErrorCode.stale_controller_epoch
    world.run(15_000)
    assert not world.controller().controller.context.failed_disks
    world.check_quiet()


def test_replica_that_is_back_gets_the_decision_that_was_made_meanwhile():
    """The decision went to the others alone, because the disk had not taken the order yet."""
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    context, model = world.controller().controller.context, world.machines[2].model
    model.failed_disks.clear()
    world.calls.clear()
    while not any(broker_id == 2 and isinstance(r, LeaderAndIsrRequest) for broker_id, r in world.calls):
        world.run(1)
    decided = replace(context.leadership[T0], leader_epoch=context.leadership[T0].leader_epoch + 1)
    context.leadership[T0] = decided
    world.ensemble.decided.add((T0, context.topic_ids["t"], decided.leader, decided.leader_epoch))
    world.run(1_000)
    assert not context.failed_disks and model.replicas[T0].leader_epoch == decided.leader_epoch


def test_orders_for_a_failed_disk_are_not_repeated_more_and_more_often():
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    world.run(100_000)
    world.calls.clear()
    world.run(100_000)
    orders = [r for b, r in world.calls if b == 2 and isinstance(r, LeaderAndIsrRequest)]
    assert 5 <= len(orders) <= 11


def test_order_that_the_next_life_of_the_broker_refuses_is_repeated_to_that_life():
    """The repetition to the life before, which is over, does not stand in for it."""
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    world.machines[2].kill(at_once=True)
    world.machines[2].start()
    world.run(500)
    world.machines[2].model.failed_disks.clear()
    world.run(15_000)
    assert not world.controller().controller.context.failed_disks
    assert world.machines[2].model.replicas[T0].leader == 3


def test_failed_disk_is_forgotten_with_the_life_of_the_broker():
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    world.machines[2].model.failed_disks.clear()
    world.machines[2].kill(at_once=True)
    world.machines[2].start()
    world.run(500)
    assert not world.controller().controller.context.failed_disks
    world.run(15_000)
    world.check_quiet()


def test_next_controller_asks_again():
    """The node is deleted unread, because a new controller orders all replicas."""
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    world.machines[1].kill(at_once=True)
    notify(world, f"{LOG_DIR_EVENTS}/log_dir_event_", encode_log_dir_event(2))
    world.run(1_000)
    assert len(world.controller().controller.context.failed_disks) == 1
    assert not list(world.ensemble.names(LOG_DIR_EVENTS))


def test_order_of_a_topic_that_is_being_deleted_is_not_repeated():
    """It would make the log again that the deletion has just removed, and the topic's next one could not be hosted."""
    world = started()
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    world.machines[3].kill(at_once=True)  # the deletion waits for its copy
    world.ensemble.apply(world.ensemble.begin_session(), Create(deletion_path("t")), lambda event: None)
    world.run(500)
    world.calls.clear()
    world.run(15_000)
    assert not [request for _, request in world.calls if isinstance(request, LeaderAndIsrRequest)]
    world.machines[2].model.failed_disks.clear()
    world.machines[3].start()
    world.run(15_000)
    assert T0 not in world.machines[2].model.logs
    world.check_quiet()


def test_only_copy_stays_with_its_broker_while_the_disk_is_full():
    world = started()
    create(world, [(2,)])
    fail_disk(world, 2, T0)
    assert state(world) == LeaderAndIsr(2, (2,), 0, 0, 1)


def test_w2_last_member_of_the_isr_is_not_trusted_after_its_disk_failed():
    """It stays, because only it may have all records; once its disk is back it leads, and this is said aloud (W4)."""
    lines = []
    world = started(has_lives=True, policy=Policy(report=lines.append))
    create(world, [(2, 3)])
    world.machines[3].kill(at_once=True)
    world.run(500)
    fail_disk(world, 2, T0)
    assert (state(world).leader, state(world).isr, state(world).lives) == (NO_LEADER, (2,), {2: NO_LIFE})
    assert lines == []
    world.machines[2].model.failed_disks.clear()
    world.run(15_000)
    assert (state(world).leader, state(world).recovery_state) == (2, 1)
    assert len(lines) == 1 and lines[0].startswith("t-0: broker 2 leads, because all its replicas in sync")
    assert world.controller().controller.unclean_elections == 1


def test_r3_replica_whose_disk_failed_does_not_go_to_the_elr():
    world = started(has_lives=True, policy=Policy(min_isr=lambda topic: 2))
    create(world, [(2, 3)])
    fail_disk(world, 2, T0)
    assert (state(world).leader, state(world).isr, state(world).elr) == (3, (3,), ())


def test_notification_whose_deletion_lost_its_answer_is_deleted_once():
    world = started()
    create(world, [(2, 3)])
    lose_the_answer_of_the_next_multi(world)
    fail_disk(world, 2)
    world.run(500)
    assert not list(world.ensemble.names(LOG_DIR_EVENTS))
    assert world.controller().controller.is_idle


def test_damaged_notification_is_reported_and_deleted():
    lines = []
    world = started(policy=Policy(report=lines.append))
    notify(world, f"{LOG_DIR_EVENTS}/log_dir_event_", b"{}")
    world.run(500)
    assert not list(world.ensemble.names(LOG_DIR_EVENTS))
    assert len(lines) == 1 and "'broker' is None, not a number" in lines[0]


def test_isr_that_a_leader_wrote_itself_is_told_to_all_brokers():
    """Kafka before 2.7 writes `state` and notifies the controller of it."""
    world = started()
    create(world, [(2, 3)])
    node = world.ensemble.nodes[state_path(T0)]
    written = Set(state_path(T0), node.data.replace(b"[2,3]", b"[2]"), node.version)
    super(type(world.ensemble), world.ensemble).apply(world.ensemble.begin_session(), written, lambda event: None)
    world.calls.clear()
    notify(world, f"{ISR_CHANGES}/isr_change_", b'{"version":1,"partitions":[{"topic":"t","partition":0}]}')
    world.run(500)
    assert [row.isr for machine in world.machines.values() for row in machine.model.image.values()] == [(2,)] * 3
    assert {type(request) for _, request in world.calls} == {UpdateMetadataRequest}
    assert not list(world.ensemble.names(ISR_CHANGES))
    world.check_quiet()


def test_broker_that_is_asked_again_in_a_known_epoch_changes_nothing():
    """It answers 11, which a controller ignores (fact 32)."""
    world = started()
    create(world, [(2, 3)])
    before = state(world)
    fail_disk(world, 2)
    assert state(world) == before
    asked = [r for b, r in world.calls if b == 2 and isinstance(r, LeaderAndIsrRequest)][-1]
    answers = world.machines[2].model.handle(asked)
    assert answers.topics[0].partition_errors[0].error_code == SchemaErrorCode.stale_controller_epoch
