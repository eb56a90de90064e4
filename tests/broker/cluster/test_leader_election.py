from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import Assignment, Endpoint, LeaderAndIsr, Registration, Topic, TopicPartition
from broker.cluster.leader_election import elect_for_shutdown, elect_new, elect_offline, elect_preferred, elect_unclean

PARTITION = TopicPartition("t", 0)
BROKER = Registration((Endpoint("PLAINTEXT", "PLAINTEXT", "h", 1),), 0)


def context_of(replicas=(1, 2, 3), live=(1, 2, 3), shutting_down=()):
    context = ControllerContext()
    context.add_topic("t", Topic(None, {0: Assignment(replicas)}))
    for broker_id in live:
        context.add_broker(broker_id, BROKER, 100 + broker_id)
    context.shutting_down.update(shutting_down)
    return context


def leadership(leader, *isr):
    return LeaderAndIsr(leader, isr, leader_epoch=4, partition_epoch=9)


def test_new_partition_is_led_by_its_first_live_replica():
    state = elect_new(context_of(live=(2, 3)), PARTITION)
    assert (state.leader, state.isr, state.leader_epoch) == (2, (2, 3), 0)
    assert elect_new(context_of(live=()), PARTITION) is None


def test_offline_partition_is_led_by_a_live_member_of_its_isr():
    state, recipients = elect_offline(context_of(live=(2, 3)), PARTITION, leadership(1, 1, 3))
    assert (state.leader, state.isr, state.leader_epoch, recipients) == (3, (3,), 5, (2, 3))


def test_offline_partition_without_a_live_member_waits():
    """Unclean election is off: a replica that may lack records does not lead."""
    assert elect_offline(context_of(live=(2, 3)), PARTITION, leadership(1, 1)) is None
    assert elect_offline(context_of((1,), live=(2,)), PARTITION, leadership(-1, 1)) is None


def test_offline_partition_of_one_copy_comes_back_with_its_broker():
    state, _ = elect_offline(context_of((1,)), PARTITION, leadership(-1, 1))
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 5)


def test_unclean_leader_is_marked_for_recovery():
    state, _ = elect_unclean(context_of(live=(2, 3)), PARTITION, leadership(-1, 1))
    assert (state.leader, state.isr, state.recovery_state) == (2, (2,), 1)
    state, _ = elect_unclean(context_of(), PARTITION, leadership(-1, 3))
    assert (state.leader, state.recovery_state) == (3, 0)
    assert elect_unclean(context_of(live=()), PARTITION, leadership(-1, 1)) is None


def test_preferred_replica_leads_if_it_is_live_and_in_the_isr():
    state, recipients = elect_preferred(context_of(), PARTITION, leadership(2, 2, 1))
    assert (state.leader, state.isr, recipients) == (1, (2, 1), (1, 2, 3))
    assert elect_preferred(context_of(live=(2, 3)), PARTITION, leadership(2, 2, 1)) is None
    assert elect_preferred(context_of(), PARTITION, leadership(2, 2, 3)) is None


def test_broker_that_shuts_down_leaves_the_isr_and_hears_of_it():
    state, recipients = elect_for_shutdown(context_of(shutting_down=(1,)), PARTITION, leadership(1, 1, 2, 3))
    assert (state.leader, state.isr, recipients) == (2, (2, 3), (1, 2, 3))


def test_only_copy_stays_with_a_broker_that_shuts_down():
    assert elect_for_shutdown(context_of((1,), shutting_down=(1,)), PARTITION, leadership(1, 1)) is None
