"""The assignment of partitions to streams: the slices of Kafka 0.8, in an order that all consumers see."""

from random import Random

import pytest

from broker.client.connector.assignment import TopicView, assign
from broker.client.connector.topic_filter import TopicFilter, TopicStreams
from broker.client.errors import InvalidTopics
from broker.client.registry.nodes import BLACK_LIST, WHITE_LIST, ConsumerRegistration
from broker.cluster.documents import TopicPartition


def reads(**counts):
    return TopicStreams(counts)


def topic(name, *first_replicas):
    return TopicView(name, dict(enumerate(first_replicas)))


def owners(topics, consumers):
    """Return the partitions of each stream, as text."""
    result = {}
    for partition, stream in assign(topics, consumers).items():
        result.setdefault(str(stream), []).append(str(partition))
    return result


def test_one_consumer_gets_all_partitions():
    assert owners([topic("t", 1, 1)], {"a": reads(t=1)}) == {"a-0": ["t-0", "t-1"]}


def test_the_first_streams_get_one_partition_more():
    """Kafka 0.8, ZookeeperConsumerConnector: five partitions and two streams make slices of three and two."""
    consumers = {"b": reads(t=1), "a": reads(t=1)}
    assert owners([topic("t", 1, 1, 1, 1, 1)], consumers) == {"a-0": ["t-0", "t-1", "t-2"], "b-0": ["t-3", "t-4"]}


def test_streams_of_all_consumers_are_sorted_by_name():
    consumers = {"b": reads(t=1), "a": reads(t=2)}
    assert owners([topic("t", 1, 1, 1)], consumers) == {"a-0": ["t-0"], "a-1": ["t-1"], "b-0": ["t-2"]}


def test_partitions_are_sorted_by_first_replica_and_then_by_number():
    consumers = {"a": reads(t=1), "b": reads(t=1)}
    assert owners([topic("t", 2, 1, 2, 1)], consumers) == {"a-0": ["t-1", "t-3"], "b-0": ["t-0", "t-2"]}


def test_more_streams_than_partitions_leave_the_last_without_one():
    consumers = {"a": reads(t=1), "b": reads(t=1), "c": reads(t=1)}
    assert owners([topic("t", 1, 1)], consumers) == {"a-0": ["t-0"], "b-0": ["t-1"]}


def test_each_topic_is_shared_among_its_own_readers():
    consumers = {"a": reads(t=1), "b": reads(t=1, u=1)}
    assert owners([topic("t", 1, 1), topic("u", 1, 1)], consumers) == {"a-0": ["t-0"], "b-0": ["t-1", "u-0", "u-1"]}


def test_a_topic_without_readers_has_no_owners():
    assert assign([topic("t", 1)], {"a": reads(u=1)}) == {}


def test_a_filter_and_a_name_share_a_topic():
    consumers = {"a": TopicStreams({}, TopicFilter("web-.*"), 1), "b": TopicStreams({"web-1": 1})}
    topics = [topic("web-1", 1, 1), topic("web-2", 1), topic("orders", 1)]
    assert owners(topics, consumers) == {"a-0": ["web-1-0", "web-2-0"], "b-0": ["web-1-1"]}


def test_all_consumers_compute_the_same_assignment_and_each_partition_has_one_owner():
    """The order in which a consumer happens to read topics, partitions and consumers changes nothing."""
    random = Random(1)
    for _ in range(200):
        consumers = {f"c{n}": reads(t=random.randrange(1, 4)) for n in range(random.randrange(1, 6))}
        first_replicas = {number: random.randrange(3) for number in range(random.randrange(12))}
        assignment = assign([TopicView("t", first_replicas)], consumers)
        assert assignment.keys() == {TopicPartition("t", number) for number in first_replicas}
        mixed_consumers = dict(random.sample(sorted(consumers.items()), len(consumers)))
        mixed_replicas = dict(random.sample(sorted(first_replicas.items()), len(first_replicas)))
        assert assign([TopicView("t", mixed_replicas)], mixed_consumers) == assignment
        sizes = [list(assignment.values()).count(stream) for stream in set(assignment.values())]
        assert not sizes or max(sizes) - min(sizes) <= 1


def test_a_white_list_matches_whole_names():
    web = TopicFilter("web-.*")
    assert web.allows("web-1") and not web.allows("my-web-1") and not web.allows("web")


def test_a_black_list_takes_all_other_topics():
    others = TopicFilter("web-.*", is_black_list=True)
    assert others.allows("orders") and not others.allows("web-1")


def test_no_filter_takes_internal_topics():
    for internal in ("__consumer_offsets", "__transaction_state"):
        assert not TopicFilter(".*").allows(internal)
        assert not TopicFilter("web", is_black_list=True).allows(internal)


def test_a_filter_is_read_as_kafka_0_8_reads_it():
    """TopicFilter.scala: a comma is an alternative; spaces and outer quotes do not count."""
    assert TopicFilter('"web, orders"').expression == "web|orders"
    assert TopicFilter("web,orders").allows("orders")


def test_a_filter_that_is_no_regular_expression_is_refused():
    with pytest.raises(InvalidTopics, match=r"TopicFilter\('web-\('\): it is no regular expression"):
        TopicFilter("web-(")
    with pytest.raises(InvalidTopics, match=r"TopicFilter\(None\): give a regular expression as text"):
        TopicFilter(None)


@pytest.mark.parametrize("count", [0, -1, 1001, "2", None])
def test_a_number_of_streams_has_limits(count):
    with pytest.raises(InvalidTopics, match="streams for 'orders': give a number from 1 to 1000"):
        TopicStreams({"orders": count})


def test_a_consumer_without_topics_is_refused():
    with pytest.raises(InvalidTopics, match="a consumer without topics"):
        TopicStreams({})


@pytest.mark.parametrize(
    "streams",
    [
        TopicStreams({"orders": 2, "web": 1}),
        TopicStreams({}, TopicFilter("web-.*"), 3),
        TopicStreams({}, TopicFilter("web-.*", is_black_list=True), 3),
    ],
)
def test_the_registry_keeps_what_a_consumer_reads(streams):
    registration = ConsumerRegistration.decode("/x", streams.registration(5).encode())
    assert registration.timestamp_ms == 5
    assert TopicStreams.registered(registration) == streams


def test_the_registry_names_the_kind_of_filter():
    assert TopicStreams({}, TopicFilter("a,b"), 1).registration(0) == ConsumerRegistration({"a|b": 1}, WHITE_LIST)
    black = TopicStreams({}, TopicFilter("a", is_black_list=True), 1)
    assert black.registration(0) == ConsumerRegistration({"a": 1}, BLACK_LIST)
