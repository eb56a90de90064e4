"""UpdateMetadata changes a broker's image of the cluster."""

from uuid import UUID

import pytest

from broker.membership.metadata_updates import live_brokers, topics_of
from broker.metadata.image import Image
from tests.broker.membership.orders import TOPIC_ID, update_metadata


@pytest.fixture
def image():
    return Image()


def update(image, topic, *leaders, **more):
    order = update_metadata(topic, *leaders, **more)
    return image.apply([topics_of(image, order, lambda name: {"retention.ms": "5"})])


def leaders(image, topic="flights"):
    return [(state.leader, state.leader_epoch) for state in image.topic(topic).partitions]


def test_a_topic_is_known_with_its_leaders_and_settings(image):
    update(image, "flights", (0, 1, 0), (1, 2, 0))
    assert leaders(image) == [(1, 0), (2, 0)]
    assert image.topic("flights").id == TOPIC_ID and image.topic("flights").properties == {"retention.ms": "5"}


def test_an_order_about_one_partition_keeps_the_others(image):
    update(image, "flights", (0, 1, 0), (1, 2, 0))
    update(image, "flights", (1, -1, 3))
    assert leaders(image) == [(1, 0), (-1, 3)]


def test_the_partitions_of_an_earlier_topic_of_the_name_are_forgotten(image):
    update(image, "flights", (0, 1, 4), (1, 2, 4))
    delta = update(image, "flights", (0, 2, 0), topic_id=UUID(int=8))
    assert leaders(image) == [(2, 0)] and image.topic(TOPIC_ID) is None
    assert [topic.id for topic in delta.deleted] == [TOPIC_ID]


def test_a_topic_that_is_being_deleted_is_forgotten(image):
    update(image, "flights", (0, 1, 0), (1, 2, 0))
    delta = update(image, "flights", (0, -2, -2), (1, -2, -2))
    assert image.topic("flights") is None and len(delta.deleted) == 1
    update(image, "flights", (0, -2, -2))
    assert image.topic("flights") is None


def test_a_full_order_forgets_what_it_does_not_name(image):
    update(image, "flights", (0, 1, 0))
    update(image, "storms", (0, 1, 0), topic_id=UUID(int=9))
    update(image, "storms", (0, 2, 1), topic_id=UUID(int=9), is_full=True)
    assert [topic.name for topic in image.topics()] == ["storms"] and leaders(image, "storms") == [(2, 1)]


def test_a_partition_has_its_offline_replicas_and_its_elr(image):
    order = update_metadata("flights", (0, 1, 0), offline=(2, 3), elr=(3,))
    image.apply([topics_of(image, order, lambda name: {})])
    (state,) = image.topic("flights").partitions
    assert (state.offline, state.elr) == ((2, 3), (3,))


def test_live_brokers_have_their_addresses_by_listener():
    first, second = live_brokers(update_metadata(None))
    assert (first.id, first.at("A").host, first.at("A").port, first.at("B")) == (1, "host1", 9092, None)
    assert second.id == 2
