"""LeaderAndIsr and StopReplica change the partitions that a broker hosts (rules E4 and S4)."""

from uuid import UUID

import pytest

from broker.membership.hosted_partitions import plan_leader_and_isr, plan_stop_replica, without_leaders
from broker.metadata.change import Change
from broker.metadata.image import Image
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.membership.orders import TOPIC_ID, leader_and_isr, stop_replica

OWN = 1


@pytest.fixture
def hosted():
    return Image()


def lead(hosted, *leaders, topic="flights", check=lambda directory: None, **more):
    """Plan and apply a LeaderAndIsr; return the plan."""
    order = leader_and_isr(topic, *leaders, **more)
    plan = plan_leader_and_isr(hosted, OWN, order.topic_states, lambda name: {"retention.ms": "5"}, check)
    hosted.apply([Change(plan.topics)])
    return plan


def lead_offline(hosted, **offline):
    """Plan a LeaderAndIsr for a partition of two copies whose log is offline."""
    order = leader_and_isr("flights", (0, OWN, 0), replicas=(OWN, 2))
    return plan_leader_and_isr(hosted, OWN, order.topic_states, lambda name: {}, lambda directory: None, **offline)


def stop(hosted, *partitions, topic="flights", **more):
    plan = plan_stop_replica(hosted, OWN, stop_replica(topic, *partitions, **more).topic_states)
    hosted.apply([Change(plan.topics)])
    return plan


def leaders(hosted, topic="flights"):
    """Return (leader, leader epoch) of each partition."""
    hosted_topic = hosted.topic(topic)
    return None if hosted_topic is None else [(state.leader, state.leader_epoch) for state in hosted_topic.partitions]


def test_new_partitions_are_hosted_with_the_settings_of_their_topic(hosted):
    plan = lead(hosted, (0, OWN, 0), (2, OWN, 0))
    assert plan.new == [("flights", 0), ("flights", 2)] and not plan.refused
    assert leaders(hosted) == [(OWN, 0), (-1, -1), (OWN, 0)], "partition 1 has no copy here"
    assert hosted.topic("flights").id == TOPIC_ID
    assert hosted.topic("flights").properties == {"retention.ms": "5"}
    assert hosted.topic("flights").copies_on(OWN) == [0, 2]


def test_a_later_leader_epoch_is_taken_and_makes_no_log(hosted):
    lead(hosted, (0, OWN, 0))
    plan = lead(hosted, (0, -1, 3), replicas=(OWN,))
    assert not plan.new and leaders(hosted) == [(-1, 3)]


def test_a_log_whose_disk_failed_is_refused_and_may_have_lost_records(hosted):
    plan = lead_offline(hosted, is_offline=lambda topic, partition: True)
    assert plan.refused == {("flights", 0): ErrorCode.KAFKA_STORAGE_ERROR} and not plan.kept


def test_a_log_that_waits_for_space_is_refused_and_has_lost_nothing(hosted):
    plan = lead_offline(hosted, is_offline=lambda *key: True, waits_for_space=lambda *key: key == ("flights", 0))
    assert plan.refused == {("flights", 0): ErrorCode.KAFKA_STORAGE_ERROR} and plan.kept == {("flights", 0)}


@pytest.mark.parametrize("epoch", [0, 1, 2])
def test_a_leader_epoch_that_does_not_rise_is_refused_and_changes_nothing(hosted, epoch):
    lead(hosted, (0, OWN, 2))
    plan = lead(hosted, (0, 9, epoch), replicas=(OWN, 9))
    assert plan.refused == {("flights", 0): ErrorCode.STALE_CONTROLLER_EPOCH}
    assert leaders(hosted) == [(OWN, 2)]


def test_a_process_that_begins_takes_the_epoch_that_its_directory_had(hosted):
    """The controller may repeat its last decision to a life whose death it never saw."""
    lead(hosted, (0, OWN, 2))
    hosted.apply([Change(without_leaders(hosted.topics()))])
    assert leaders(hosted) == [(-1, -1)] and hosted.topic("flights").copies_on(OWN) == [0]
    plan = lead(hosted, (0, OWN, 2))
    assert not plan.refused and not plan.new and leaders(hosted) == [(OWN, 2)]


def test_a_topic_of_another_id_is_refused_while_the_old_one_is_hosted(hosted):
    lead(hosted, (0, OWN, 0))
    plan = lead(hosted, (0, OWN, 5), topic_id=UUID(int=8))
    assert plan.refused == {("flights", 0): ErrorCode.INCONSISTENT_TOPIC_ID}
    assert hosted.topic("flights").id == TOPIC_ID and leaders(hosted) == [(OWN, 0)]


def test_an_order_for_a_partition_without_a_copy_here_is_refused(hosted):
    plan = lead(hosted, (0, 2, 0))
    assert plan.refused and hosted.topic("flights") is None


def test_a_partition_whose_directory_has_other_records_is_refused_and_named(hosted):
    def check(directory):
        if directory == "flights-1":
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "flights-1 has records of another topic")

    plan = lead(hosted, (0, OWN, 0), (1, OWN, 0), check=check)
    assert plan.refused == {("flights", 1): ErrorCode.KAFKA_STORAGE_ERROR}
    assert "flights-1" in plan.problems[0]
    assert plan.new == [("flights", 0)] and hosted.topic("flights").copies_on(OWN) == [0]


def test_a_stopped_copy_has_no_leader_and_keeps_its_log(hosted):
    lead(hosted, (0, OWN, 4), (1, OWN, 4))
    plan = stop(hosted, 0, delete=False)
    assert not plan.deletes and leaders(hosted) == [(-1, 4), (OWN, 4)]
    assert hosted.topic("flights").copies_on(OWN) == [0, 1]


def test_a_stopped_copy_follows_again_in_the_same_leader_epoch(hosted):
    """The controller stops a copy whose disk has failed, and orders it again when the disk is back (rule E4)."""
    lead(hosted, (0, 2, 4), replicas=(OWN, 2))
    stop(hosted, 0, delete=False, leader_epoch=4)
    assert not lead(hosted, (0, 2, 4), replicas=(OWN, 2)).refused and leaders(hosted) == [(2, 4)]


def test_a_stopped_copy_does_not_lead_again_in_the_same_leader_epoch(hosted):
    lead(hosted, (0, OWN, 4))
    stop(hosted, 0, delete=False, leader_epoch=4)
    assert lead(hosted, (0, OWN, 4)).refused and leaders(hosted) == [(-1, 4)]


def test_deleted_copies_are_gone_and_the_topic_with_the_last(hosted):
    lead(hosted, (0, OWN, 4), (1, OWN, 4))
    assert stop(hosted, 0, delete=True).deletes
    assert hosted.topic("flights").copies_on(OWN) == [1]
    assert stop(hosted, 1, delete=True).deletes
    assert hosted.topic("flights") is None


def test_a_copy_is_not_stopped_by_an_order_of_an_earlier_leader_epoch(hosted):
    lead(hosted, (0, OWN, 4))
    plan = stop(hosted, 0, delete=True, leader_epoch=3)
    assert plan.refused == {("flights", 0): ErrorCode.FENCED_LEADER_EPOCH} and not plan.deletes
    assert leaders(hosted) == [(OWN, 4)]
    assert stop(hosted, 0, delete=True, leader_epoch=4).deletes


def test_nothing_is_stopped_where_nothing_is_hosted(hosted):
    assert not stop(hosted, 0, 5, delete=True).topics
    lead(hosted, (0, OWN, 4))
    assert not stop(hosted, 1, 7, delete=True).topics and leaders(hosted) == [(OWN, 4)]
