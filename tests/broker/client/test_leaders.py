"""What a client knows of leaders: older answers change nothing (KIP-320), another topic begins anew (KIP-516)."""

from uuid import UUID

from broker.client.address import Address
from broker.client.leaders import NO_EPOCH, Leader, Leaders

ONE, TWO = Address("one", 1), Address("two", 2)
TOPIC, TOPIC_MADE_AGAIN = UUID(int=1), UUID(int=2)
T = "t", 0


def knowing(address=ONE, epoch=5, topic_id=TOPIC):
    leaders = Leaders()
    assert leaders.learn(T, address, epoch, topic_id)
    return leaders


def test_a_newer_epoch_replaces_an_older_one():
    leaders = knowing()
    assert leaders.learn(T, TWO, 6, TOPIC)
    assert leaders.get(T) == Leader(TWO, 6)


def test_an_older_epoch_replaces_nothing():
    leaders = knowing()
    assert not leaders.learn(T, TWO, 4, TOPIC)
    assert leaders.get(T) == Leader(ONE, 5)


def test_an_older_answer_without_a_leader_takes_no_leader_away():
    leaders = knowing()
    assert not leaders.learn(T, None, 4, TOPIC)
    assert leaders.get(T) == Leader(ONE, 5)


def test_a_partition_without_a_leader_stays_so_until_a_newer_epoch():
    leaders = knowing()
    assert leaders.learn(T, None, 6, TOPIC) and leaders.get(T) is None
    assert not leaders.learn(T, ONE, 5, TOPIC) and leaders.get(T) is None
    assert leaders.learn(T, ONE, 7, TOPIC) and leaders.get(T) == Leader(ONE, 7)


def test_another_topic_id_begins_anew_whatever_its_epoch():
    leaders = knowing()
    assert leaders.learn(T, TWO, 0, TOPIC_MADE_AGAIN)
    assert leaders.get(T) == Leader(TWO, 0)


def test_an_answer_without_an_epoch_or_an_id_is_believed():
    for epoch, topic_id in ((NO_EPOCH, TOPIC), (3, None), (NO_EPOCH, None)):
        leaders = knowing()
        assert leaders.learn(T, TWO, epoch, topic_id)
        assert leaders.get(T) == Leader(TWO, NO_EPOCH)


def test_a_leader_in_doubt_is_looked_up_and_an_answer_that_repeats_it_is_no_news():
    leaders = knowing()
    leaders.doubt(T)
    assert leaders.get(T) is None
    assert not leaders.learn(T, ONE, 5, TOPIC)
    assert leaders.get(T) == Leader(ONE, 5), "it may only be late, so it is asked again"
    assert leaders.learn(T, ONE, 5, TOPIC), "it is not in doubt now"


def test_an_older_answer_brings_back_the_leader_that_was_in_doubt():
    leaders = knowing()
    leaders.doubt(T)
    assert not leaders.learn(T, TWO, 4, TOPIC)
    assert leaders.get(T) == Leader(ONE, 5)


def test_all_partitions_of_a_broker_that_does_not_answer_are_in_doubt():
    leaders = knowing()
    leaders.learn(("t", 1), TWO, 5, TOPIC)
    leaders.doubt_broker(ONE)
    assert (leaders.get(T), leaders.get(("t", 1))) == (None, Leader(TWO, 5))


def test_a_topic_that_is_forgotten_begins_anew():
    leaders = knowing()
    leaders.forget_topic("t")
    assert leaders.get(T) is None
    assert leaders.learn(T, TWO, 0, TOPIC) and leaders.get(T) == Leader(TWO, 0)
