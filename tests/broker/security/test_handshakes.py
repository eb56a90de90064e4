"""Which TLS handshakes are under way, and which wait."""

from random import Random

from broker.security.handshakes import Handshakes
from tests.partition_manager.managers import calls_of


def test_handshakes_begin_at_once_while_there_is_room():
    handshakes = Handshakes(2, 2, 1_000)
    assert handshakes.opened("a", "10.0.0.1", 0)
    assert handshakes.opened("b", "10.0.0.1", 0)
    assert not handshakes.opened("c", "10.0.0.2", 0)
    assert handshakes.ended("a") == ["c"]
    assert handshakes.is_under_way("c") and len(handshakes) == 2


def test_a_storm_of_one_address_delays_no_other():
    handshakes = Handshakes(4, 2, 1_000)
    begun = [number for number in range(100) if handshakes.opened(number, "10.0.0.1", 0)]
    assert begun == [0, 1]
    assert handshakes.opened("polite", "10.0.0.2", 0)


def test_an_end_costs_as_much_however_many_addresses_wait():
    """A storm of 10,000 addresses held the reactor up for seconds, because each end looked at all that waited."""
    handshakes = Handshakes(10, 5, 1_000)
    for number in range(5_000):
        handshakes.opened(number, f"address {number}", 0)
    assert calls_of(lambda: handshakes.ended(0)) < 20
    assert handshakes.is_under_way(10)


def test_addresses_take_turns():
    handshakes = Handshakes(1, 1, 1_000)
    handshakes.opened("a1", "a", 0)
    for key in ("a2", "a3", "b1", "c1"):
        assert not handshakes.opened(key, key[0], 0)
    assert [handshakes.ended(key) for key in ("a1", "a2", "b1", "c1")] == [["a2"], ["b1"], ["c1"], ["a3"]]


def test_a_waiting_connection_that_closes_is_forgotten():
    handshakes = Handshakes(1, 1, 1_000)
    handshakes.opened("a", "x", 0)
    handshakes.opened("b", "x", 0)
    assert handshakes.ended("b") == []
    assert handshakes.ended("a") == [] and len(handshakes) == 0
    assert handshakes.ended("a") == []  # the end of a connection may be told twice


def test_late_handshakes_are_named_in_the_order_of_their_begin_also_those_that_wait():
    handshakes = Handshakes(1, 1, 1_000)
    handshakes.opened("a", "x", 0)
    handshakes.opened("b", "x", 500)
    assert handshakes.next_deadline_ms() == 1_000
    assert handshakes.late(999) == []
    assert handshakes.late(1_000) == ["a"]
    assert handshakes.late(1_500) == ["a", "b"]
    handshakes.ended("a")
    assert handshakes.next_deadline_ms() == 1_500


def test_limits_hold_and_nothing_waits_beside_room_in_random_histories():
    for seed in range(100):
        random = Random(seed)
        most, of_address = random.randint(1, 4), random.randint(1, 3)
        handshakes = Handshakes(most, of_address, 1_000)
        opened, under_way = {}, set()
        for number in range(200):
            if opened and random.random() < 0.5:
                key = random.choice(sorted(opened))
                del opened[key]
                under_way.discard(key)
                under_way.update(handshakes.ended(key))
            else:
                opened[number] = random.choice("abc")
                if handshakes.opened(number, opened[number], number):
                    under_way.add(number)
            assert under_way == {key for key in opened if handshakes.is_under_way(key)}
            assert len(under_way) <= most
            counts = {address: sum(opened[key] == address for key in under_way) for address in "abc"}
            assert max(counts.values()) <= of_address
            for key in opened.keys() - under_way:
                assert len(under_way) == most or counts[opened[key]] == of_address, seed
