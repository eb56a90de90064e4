"""Where the partitions of a cluster are, as `place` says."""

from flakelog.operations.cluster import Broker, Cluster
from flakelog.operations.partitions import Replicas
from flakelog.operations.placement import PlacedBroker, placement_of

BROKER_1, BROKER_2 = Broker(1, "one:9092", "east"), Broker(2, "two:9092", None)


def led_by(*leaders, topic="orders", holders=None):
    """Return partitions with these leaders, each with its one replica on its leader, or on the holder."""
    holders = holders or leaders
    return {
        (topic, number): Replicas(leader, 0, (holder,), (holder,))
        for number, (leader, holder) in enumerate(zip(leaders, holders, strict=True))
    }


def placement(brokers, nodes):
    return placement_of(Cluster("c", 1, brokers), nodes)


def test_each_broker_has_the_number_of_partitions_that_it_leads():
    placed = placement((BROKER_1, BROKER_2), led_by(1, 2, 1) | led_by(2, topic="flights"))
    assert placed.brokers == (
        PlacedBroker(1, "one:9092", "east", live=True, leads=2, replicas=2),
        PlacedBroker(2, "two:9092", None, live=True, leads=2, replicas=2),
    )
    assert (placed.topics, placed.partitions, placed.offline, placed.all_on_broker) == (2, 4, (), None)


def test_a_broker_that_only_partitions_name_is_not_live_and_its_partitions_are_offline():
    placed = placement((BROKER_1,), led_by(1, -1, holders=(1, 2)))
    assert placed.brokers[1] == PlacedBroker(2, None, None, live=False, leads=0, replicas=1)
    assert placed.offline == (("orders", 1),)


def test_one_broker_has_all_partitions_though_another_is_live():
    assert placement((BROKER_1, BROKER_2), led_by(1, 1)).all_on_broker == 1
    assert placement((BROKER_1, BROKER_2), led_by(1, 2)).all_on_broker is None
    assert placement((BROKER_1,), led_by(1, 1)).all_on_broker is None, "no other broker could have some"
    assert placement((BROKER_1, BROKER_2), led_by(1)).all_on_broker is None, "one partition cannot be spread"
    assert placement((BROKER_1, BROKER_2), {}).all_on_broker is None
