import pytest

from broker.cluster.controller_context import ControllerContext, Replica
from broker.cluster.documents import (
    NEW_DIRECTORY,
    NO_LIFE,
    Assignment,
    Endpoint,
    LeaderAndIsr,
    Registration,
    Topic,
)
from broker.cluster.leader_election import (
    elect_for_shutdown,
    elect_new,
    elect_offline,
    elect_preferred,
    elect_unclean,
    exclude_untrusted,
)
from tests.broker.cluster import members
from tests.broker.cluster.members import PARTITION, not_whole, state_of, whole

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
    state, recipients, _ = elect_offline(context_of(live=(2, 3)), PARTITION, leadership(1, 1, 3))
    assert (state.leader, state.isr, state.leader_epoch, recipients) == (3, (3,), 5, (2, 3))


def test_offline_partition_without_a_live_member_waits():
    """Unclean election is off: a replica that may lack records does not lead."""
    assert elect_offline(context_of(live=(2, 3)), PARTITION, leadership(1, 1)) is None
    assert elect_offline(context_of((1,), live=(2,)), PARTITION, leadership(-1, 1)) is None


def test_offline_partition_of_one_copy_comes_back_with_its_broker():
    state, _, _ = elect_offline(context_of((1,)), PARTITION, leadership(-1, 1))
    assert (state.leader, state.isr, state.leader_epoch) == (1, (1,), 5)


def test_unclean_leader_is_marked_for_recovery():
    state, _, _ = elect_unclean(context_of(live=(2, 3)), PARTITION, leadership(-1, 1))
    assert (state.leader, state.isr, state.recovery_state) == (2, (2,), 1)
    state, _, _ = elect_unclean(context_of(), PARTITION, leadership(-1, 3))
    assert (state.leader, state.recovery_state) == (3, 0)
    assert elect_unclean(context_of(live=()), PARTITION, leadership(-1, 1)) is None


def test_preferred_replica_leads_if_it_is_live_and_in_the_isr():
    state, recipients, _ = elect_preferred(context_of(), PARTITION, leadership(2, 2, 1))
    assert (state.leader, state.isr, recipients) == (1, (2, 1), (1, 2, 3))
    assert elect_preferred(context_of(live=(2, 3)), PARTITION, leadership(2, 2, 1)) is None
    assert elect_preferred(context_of(), PARTITION, leadership(2, 2, 3)) is None


def test_broker_that_shuts_down_leaves_the_isr_and_hears_of_it():
    state, recipients, _ = elect_for_shutdown(context_of(shutting_down=(1,)), PARTITION, leadership(1, 1, 2, 3))
    assert (state.leader, state.isr, recipients) == (2, (2, 3), (1, 2, 3))


def test_only_copy_stays_with_a_broker_that_shuts_down():
    assert elect_for_shutdown(context_of((1,), shutting_down=(1,)), PARTITION, leadership(1, 1)) is None


OURS = {1: whole(50), 2: whole(50), 3: whole(50)}
CUT = {1: not_whole(50), 2: not_whole(50), 3: not_whole(50)}
EMPTY = not_whole(NEW_DIRECTORY)
BEFORE = {1: 50, 2: 50, 3: 50}


def election(lives, isr, elr, context_lives, **options):
    """Return leader, ISR and ELR of an offline election, None without a leader."""
    elected = elect_offline(members.context_of(context_lives, **options), PARTITION, state_of(-1, isr, elr, lives))
    if elected is None:
        return None
    return elected.leadership.leader, elected.leadership.isr, elected.leadership.elr


def without(lives, *broker_ids):
    return {broker_id: life for broker_id, life in lives.items() if broker_id not in broker_ids}


@pytest.mark.parametrize(
    "isr, elr, brokers, expected",
    [
        ((3, 2), (), OURS, (2, (3, 2), ())),  # the first of the assignment
        ((2, 3), (), without(OURS, 2), (3, (3,), (2,))),  # W2: the life of an absent member counts at its return
        ((2, 3), (), {**OURS, 2: not_whole(50)}, (3, (3,), ())),
        ((2,), (3, 1), without(OURS, 2), (1, (1,), (3, 2))),  # KIP-966: from the ELR, and the old ISR goes there
        ((2,), (1,), {**OURS, 2: not_whole(50)}, (1, (1,), ())),
        ((2,), (), without(OURS, 2), None),
        ((2,), (1,), {2: not_whole(50)}, None),  # W3: no candidate while 1 may have more
        ((2, 3), (), without(CUT, 3), None),
        ((3, 2), (1,), CUT, (2, (2,), ())),  # W4
        ((3, 2), (), {**CUT, 1: whole(50)}, (2, (2,), ())),  # W4: 1 is no member
        ((3, 2), (1,), {**CUT, 1: whole(50)}, (1, (1,), ())),
        ((2,), (), {**OURS, 2: EMPTY}, None),  # W4: 1 and 3 may have more than an empty directory
        ((2,), (1, 3), {**CUT, 2: EMPTY}, (1, (1,), ())),
        ((1, 2, 3), (), {**CUT, 1: EMPTY}, (2, (2,), ())),
        ((3, 2), (1,), dict.fromkeys((1, 2, 3), EMPTY), (2, (2,), ())),  # nothing is left to lose
        ((3, 2), (), dict.fromkeys((1, 2, 3), EMPTY), None),  # 1 is no member, and may have records
    ],
)
def test_offline_election(isr, elr, brokers, expected):
    assert election(BEFORE, isr, elr, brokers) == expected


def test_w4_leader_is_said_aloud_and_trusted_from_then_on():
    elected = elect_offline(members.context_of(CUT), PARTITION, state_of(-1, (1, 2), (), BEFORE))
    assert "brokers 1, 2, are back from unclean stops" in elected.loss
    assert (elected.leadership.recovery_state, elected.leadership.lives[1]) == (1, 101)


def test_unclean_election_where_the_topic_allows_it_says_what_it_cost():
    context = members.context_of(without(OURS, 1), allows_unclean=True)
    elected = elect_offline(context, PARTITION, state_of(-1, (1,), (), BEFORE))
    assert (elected.leadership.leader, elected.leadership.isr, elected.leadership.elr) == (2, (2,), ())
    assert elected.loss.endswith("Acknowledged records that only broker 1 had are lost")
    assert elect_offline(members.context_of(without(OURS, 1)), PARTITION, state_of(-1, (1,))) is None


def test_unclean_leader_empties_the_elr():
    context = members.context_of(without(OURS, 1, 2))
    elected = elect_unclean(context, PARTITION, state_of(-1, (1,), (2,), BEFORE))
    assert (elected.leadership.leader, elected.leadership.isr, elected.leadership.elr) == (3, (3,), ())


def test_preferred_replica_that_is_not_trusted_does_not_lead():
    context = members.context_of({**OURS, 1: not_whole(50)})
    assert elect_preferred(context, PARTITION, state_of(2, (1, 2), (), BEFORE)) is None


def test_broker_that_shuts_down_goes_to_the_elr_if_too_few_stay():
    context = members.context_of(OURS, shutting_down=(1,))
    elected = elect_for_shutdown(context, PARTITION, state_of(1, (1, 2), (), BEFORE))
    assert (elected.leadership.leader, elected.leadership.isr, elected.leadership.elr) == (2, (2,), (1,))


@pytest.mark.parametrize(
    "leader, isr, elr, brokers, expected",
    [
        (1, (1, 2), (), {**OURS, 2: not_whole(50)}, (1, (1,), (), {1: 50, 2: 50, 3: 50})),
        (1, (1,), (2, 3), {**OURS, 2: not_whole(50)}, (1, (1,), (3,), {1: 50, 2: 50, 3: 50})),
        (1, (1, 2), (), {**OURS, 1: not_whole(50)}, (2, (2,), (), {1: 50, 2: 50, 3: 50})),
        (1, (1,), (3,), {**OURS, 1: not_whole(50)}, (3, (3,), (), {1: 50, 2: 50, 3: 50})),
        (-1, (1,), (3,), {1: not_whole(50)}, (-1, (1,), (3,), {1: NO_LIFE, 2: 50, 3: 50})),
        (1, (1, 2), (), {1: not_whole(50)}, (-1, (1, 2), (), {1: NO_LIFE, 2: 50, 3: 50})),
        (-1, (1, 2), (), CUT, (1, (1,), (), {1: 101, 2: 50, 3: 50})),
        (1, (1, 2), (3,), OURS, None),
    ],
)
def test_w3_untrusted_members_are_dealt_with(leader, isr, elr, brokers, expected):
    """They leave if a trusted member is live. Else they stay, are trusted in no life, and do not lead."""
    elected = exclude_untrusted(members.context_of(brokers), PARTITION, state_of(leader, isr, elr, BEFORE))
    if expected is None:
        assert elected is None
    else:
        decision = elected.leadership
        assert (decision.leader, decision.isr, decision.elr, decision.lives) == expected
        assert decision.leader_epoch == 5  # E4


def test_w3_decision_is_made_once():
    lives = {1: NO_LIFE, 2: 50}
    context = members.context_of({1: not_whole(50)})
    assert exclude_untrusted(context, PARTITION, state_of(-1, (1, 2), (), lives)) is None


def test_replica_whose_disk_failed_leads_nothing():
    context = members.context_of(OURS)
    context.failed_disks.add(Replica(PARTITION, 1))
    assert elect_new(context, PARTITION).isr == (2, 3)
    assert elect_offline(context, PARTITION, state_of(1, (1, 2), (), BEFORE)).leadership.leader == 2
    assert elect_offline(context, PARTITION, state_of(1, (1,), (), BEFORE)) is None
