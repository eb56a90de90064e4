"""A controller that does not reach a broker, although both are in the cluster: both say so until it does."""

import pytest

from broker.membership.stale_image import STALE_MS, StaleImage
from broker.metadata.image import NO_CONTROLLER
from broker.now import Now
from tests.broker.membership.replicated_cluster import ReplicatedCluster

PATIENCE_MS = 25_000


@pytest.fixture
def cluster():
    """A cluster whose first controller has died, while its other two brokers do not reach each other."""
    cluster = ReplicatedCluster()
    cluster.create("flights")
    assert cluster.controller.id == 1
    cluster.cut_pairs = {(2, 3), (3, 2)}
    cluster.kill_and_expire(1)
    return cluster


def problems(node, words):
    return [problem for problem in node.member.problems if words in problem]


def test_the_controller_and_the_broker_that_it_does_not_reach_say_so_until_it_does(cluster):
    controller = cluster.controller
    other = cluster.nodes[5 - controller.id]
    cluster.later(1_000)
    assert not problems(controller, "answers no order") and not problems(other, "does not reach this broker")
    cluster.later(PATIENCE_MS)
    (unreached,) = problems(controller, "answers no order")
    assert unreached.startswith(f"broker {other.id} is live, but answers no order of the controller, broker")
    assert controller.member.controller.unreached == {other.id}
    (stale,) = problems(other, "does not reach this broker")
    assert f"the controller, broker {controller.id}, does" in stale and "is that of broker 1 before" in stale
    assert controller.reported.count(unreached) == other.reported.count(stale) == 1
    cluster.cut_pairs = set()
    cluster.later(1_000)
    assert not problems(controller, "answers no order") and not problems(other, "does not reach this broker")
    assert not controller.member.controller.unreached


def test_the_broker_that_is_not_reached_leads_nothing_that_the_controller_gave_it_since(cluster):
    """It shows the past, which is why its health is not well."""
    controller = cluster.controller
    other = cluster.nodes[5 - controller.id]
    cluster.later(PATIENCE_MS)
    assert other.member.image.live_ids == {1, 2, 3} and other.member.image.controller_id == 1
    assert other.member.stale_image.problem is not None and controller.member.stale_image.problem is None


def test_a_controller_that_changes_again_begins_another_wait():
    image = StaleImage()
    image.follow(2, 1, Now(0, 0))
    image.follow(3, 1, Now(STALE_MS - 1, 0))
    image.follow(3, 1, Now(STALE_MS, 0))
    assert image.problem is None and image.next_deadline_ms() == 2 * STALE_MS - 1
    image.follow(3, 1, Now(2 * STALE_MS - 1, 0))
    assert "broker 3" in image.problem and image.next_deadline_ms() is None


@pytest.mark.parametrize("controller_id", [1, NO_CONTROLLER])
def test_an_image_of_the_present_controller_or_of_none_is_not_stale(controller_id):
    image = StaleImage()
    image.follow(2, 1, Now(0, 0))
    image.follow(controller_id, 1, Now(STALE_MS, 0))
    assert image.problem is None and image.next_deadline_ms() is None


def test_before_the_first_image_nothing_is_known():
    image = StaleImage()
    for ms in (0, STALE_MS):
        image.follow(2, NO_CONTROLLER, Now(ms, 0))
    assert "whose image of the cluster is none" in image.problem
