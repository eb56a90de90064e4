"""The image shows what the controller decided: live brokers by listener, topics by name and id, what a change did."""

from uuid import UUID

import pytest

from broker.metadata.change import Change
from broker.metadata.image import Image, Node, RegisteredBroker
from broker.metadata.topic import PartitionState, Topic
from broker.wire.errors import ApiError, ErrorCode

LED_BY_1 = PartitionState(1, 0, (1,), (1,))


def topic(name, number, **properties):
    return Topic(name, UUID(int=number), (LED_BY_1,), properties)


@pytest.fixture
def image():
    image = Image("cluster")
    image.apply([Change({"flights": topic("flights", 1)})])
    return image


def test_clients_of_a_listener_see_the_brokers_that_have_it(image):
    """A broker without the listener is left out, as by Kafka (KIP-103)."""
    both = RegisteredBroker(2, {"PLAINTEXT": ("b", 9092), "INSIDE": ("b.inside", 9094)}, "rack")
    image.register([both, RegisteredBroker(1, {"PLAINTEXT": ("a", 9092)})])
    assert image.nodes("PLAINTEXT") == [Node(1, "a", 9092), Node(2, "b", 9092, "rack")]
    assert image.nodes("INSIDE") == [Node(2, "b.inside", 9094, "rack")]
    assert image.node(1, "INSIDE") is None
    assert image.node(3, "PLAINTEXT") is None


def test_a_broker_that_is_dead_is_shown_no_more(image):
    image.register([RegisteredBroker(1, {"": ("a", 9092)}), RegisteredBroker(2, {"": ("b", 9092)})])
    image.register([RegisteredBroker(2, {"": ("b", 9092)})])
    assert [node.id for node in image.nodes("")] == [2]
    assert image.live_ids == {2}


def test_a_change_says_which_topics_it_made_altered_and_deleted(image):
    altered = topic("flights", 1, **{"retention.ms": "1"})
    delta = image.apply([Change({"flights": altered, "trains": topic("trains", 2)})])
    assert (delta.made, delta.altered, delta.deleted) == (
        [topic("trains", 2)],
        [(topic("flights", 1), altered)],
        [],
    )
    assert image.apply([Change({"trains": None})]).deleted == [topic("trains", 2)]
    assert image.topic(UUID(int=2)) is None


def test_a_topic_that_was_made_again_is_a_deletion_and_a_creation(image):
    """Nothing that belongs to the first topic may go on under the second one's id."""
    delta = image.apply([Change({"flights": topic("flights", 9)})])
    assert (delta.deleted, delta.made, delta.altered) == ([topic("flights", 1)], [topic("flights", 9)], [])
    assert image.topic(UUID(int=1)) is None
    assert image.topic(UUID(int=9)) is image.topic("flights")


def test_the_deletion_of_an_unknown_topic_changes_nothing(image):
    assert image.apply([Change({"trains": None})]).deleted == []


def test_earlier_lookups_are_stale_after_a_change_of_topics_only(image):
    changes = []
    image.on_change = lambda: changes.append(image.generation)
    before = image.generation
    image.apply([Change(quotas={})])
    assert image.generation == before and not changes
    image.apply([Change({"trains": topic("trains", 2)})])
    assert image.generation == before + 1 and changes


@pytest.mark.parametrize(
    "name, code",
    [
        ("flights", ErrorCode.TOPIC_ALREADY_EXISTS),
        ("a/b", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("my_topic", ErrorCode.INVALID_TOPIC_EXCEPTION),
    ],
)
def test_a_name_that_is_taken_wrong_or_the_same_in_metrics_is_refused(image, name, code):
    image.apply([Change({"my.topic": topic("my.topic", 3)})])
    with pytest.raises(ApiError) as refused:
        image.check_new(name)
    assert refused.value.code == code
