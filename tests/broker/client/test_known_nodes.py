"""The order in which a client tries brokers with a request that any of them can answer."""

from broker.client.address import Address
from broker.client.known_nodes import KnownNodes

BOOT, ONE, TWO, THREE = (Address(name, 9092) for name in ("boot", "one", "two", "three"))


def three():
    nodes = KnownNodes([BOOT])
    nodes.learn({1: ONE, 2: TWO, 3: THREE})
    return nodes


def test_at_first_there_are_the_bootstrap_addresses_only():
    assert KnownNodes([BOOT, ONE]).in_order() == [BOOT, ONE]


def test_the_bootstrap_addresses_come_after_the_live_brokers():
    assert three().in_order() == [ONE, TWO, THREE, BOOT]


def test_the_broker_that_answered_last_is_the_first():
    nodes = three()
    nodes.answered(TWO)
    assert nodes.in_order() == [TWO, ONE, THREE, BOOT]
    nodes.answered(BOOT)
    assert nodes.in_order() == [ONE, TWO, THREE, BOOT]


def test_avoided_brokers_are_the_last_the_longest_avoided_before_the_others():
    nodes = three()
    nodes.answered(ONE)
    nodes.avoid(ONE)
    nodes.avoid(THREE)
    assert nodes.in_order() == [TWO, BOOT, ONE, THREE]
    nodes.avoid(ONE)
    assert nodes.in_order() == [TWO, BOOT, THREE, ONE]


def test_a_broker_that_answers_is_tried_as_usual_again():
    nodes = three()
    nodes.avoid(ONE)
    nodes.trust(ONE)
    assert nodes.in_order() == [ONE, TWO, THREE, BOOT]
    nodes.avoid(THREE)
    nodes.answered(THREE)
    assert nodes.in_order() == [THREE, ONE, TWO, BOOT]


def test_a_broker_that_does_not_answer_comes_after_those_that_knew_nothing_newer():
    """Otherwise each look-up of a partition without a leader would wait for the dead broker."""
    nodes = KnownNodes([BOOT, ONE])
    nodes.avoid(ONE)
    for _ in range(3):
        nodes.answered(BOOT)
        nodes.doubt_answer()
        assert nodes.in_order() == [BOOT, ONE]


def test_all_avoided_brokers_are_still_tried():
    nodes = three()
    for address in (TWO, ONE, BOOT, THREE):
        nodes.avoid(address)
    assert nodes.in_order() == [TWO, ONE, BOOT, THREE]


def test_brokers_that_are_gone_are_no_longer_tried():
    nodes = three()
    nodes.avoid(ONE)
    nodes.learn({2: TWO})
    assert nodes.in_order() == [TWO, BOOT]
