"""The connections to other brokers, on a clock that the test moves, to real engines without a network."""

import pytest
from kio.static.primitive import i32

from broker.net.peer_connection import ANSWER_SECONDS
from broker.net.peers import RECONNECT_SECONDS
from tests.broker.engine_client import EngineBroker
from tests.broker.net.peer_world import World, ask, fetch, order


@pytest.fixture
def world():
    world = World()
    world.brokers[9002] = EngineBroker()
    return world


def test_calls_share_a_kept_connection_and_are_answered_in_order(world):
    calls = [world.send(ask()) for _ in range(3)]
    assert world.answers == [], "nothing is answered from `send`"
    world.later()
    calls.append(world.send(ask()))
    world.later()
    assert [call for call, _ in world.answers] == calls and world.responses == [1] * 4
    assert len(world.transports) == 1


def test_orders_have_a_connection_of_their_own(world):
    """A marker that waits for a disk does not keep the next order waiting."""
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.brokers[9002] = EngineBroker()
    call = world.send(order())
    world.later()
    assert [answered for answered, _ in world.answers] == [call]


def test_a_fetch_that_its_leader_holds_keeps_no_request_waiting(world):
    world.brokers[9002] = None
    world.send(fetch())
    world.later()
    world.brokers[9002] = EngineBroker()
    call = world.send(ask())
    world.later()
    assert [answered for answered, _ in world.answers] == [call]


def test_a_fetch_is_answered_with_what_its_leader_has(world):
    call = world.send(fetch())
    world.later()
    ((answered, response),) = world.answers
    assert answered is call and response.error_code == 0 and response.partitions == []


def test_a_fetch_may_begin_a_new_connection(world):
    first = world.send(fetch())
    world.later()
    second = world.send(fetch(is_anew=True))
    world.later(1)
    assert [call for call, _ in world.answers] == [first, second]
    assert len(world.transports) == 2 and world.transports[0].is_lost


def test_the_client_id_is_the_brokers_own_id_and_no_api_versions_comes_before(world):
    world.send(ask())
    world.later()
    (transport,) = world.transports
    assert transport.sent[4:8] == b"\x00\x03\x00\x0c" and transport.sent[12:15] == b"\x00\x011"


def test_a_refused_connection_answers_the_calls_that_wait_for_it(world):
    world.send(ask(), port=9009), world.send(ask(), port=9009)
    world.later()
    assert world.responses == [None, None] and len(world.attempts) == 1


def test_a_broker_is_connected_at_most_once_in_100_ms(world):
    for _ in range(5):
        world.send(ask(), port=9009)
        world.later(0.03)
    world.later(1)
    times = [at for at, _ in world.attempts]
    assert len(world.responses) == 5 and all(b - a >= RECONNECT_SECONDS for a, b in zip(times, times[1:]))


def test_one_attempt_is_under_way_at_a_time(world):
    world.hangs = True
    for _ in range(3):
        world.send(ask())
        world.later(1)
    assert len(world.attempts) == 1


def test_a_broker_that_cannot_be_reached_is_reported_once_and_so_is_its_return(world):
    for _ in range(3):
        world.send(ask(), port=9003)
        world.later(1)
    world.brokers[9003] = EngineBroker()
    world.send(ask(), port=9003)
    world.later(1)
    assert len(world.reported) == 2
    assert world.reported[0].startswith("broker 2 at localhost:9003 cannot be reached: Connection was refused")
    assert world.reported[1] == "broker 2 at localhost:9003 can be reached again"


def test_a_lost_connection_answers_its_calls_and_the_next_call_makes_another(world):
    world.brokers[9002] = None
    world.send(ask()), world.send(ask())
    world.later()
    world.transports[0].lose()
    assert world.responses == [None, None]
    world.brokers[9002] = EngineBroker()
    world.send(ask())
    world.later(1)
    assert world.responses == [None, None, 1]


def test_without_an_answer_in_30_s_the_connection_is_closed(world):
    """So no marker that it still holds is written late."""
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.later(20)
    world.send(ask())
    world.later(ANSWER_SECONDS - 21)
    assert world.answers == []
    world.later(1)
    assert world.responses == [None, None] and world.transports[0].is_lost
    assert "no answer within 30 s" in world.reported[0]


def test_the_time_of_an_answer_counts_from_its_own_call(world):
    world.send(ask())
    world.later()
    world.later(29)
    world.transports[0].client = None
    world.send(ask())
    world.later(29)
    assert world.responses == [1]
    world.later(1)
    assert world.responses == [1, None]


def test_an_answer_that_cannot_be_read_closes_the_connection(world):
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.transports[0].deliver(b"\x00\x00\x00\x04" + i32(99).to_bytes(4, "big"))
    world.later()
    assert world.responses == [None] and "correlation id 99" in world.reported[0]


def test_a_broker_with_another_address_is_asked_there(world):
    world.brokers[9002], world.brokers[9005] = None, EngineBroker()
    world.send(ask(), port=9002)
    world.later()
    world.send(ask(), port=9005)
    world.later()
    assert sorted(world.responses, key=str) == [1, None] and world.transports[0].is_lost


def test_a_stop_closes_all_connections_and_answers_nothing(world):
    world.brokers[9002] = None
    world.send(ask())
    world.later()
    world.send(ask(3), port=9009)
    world.peers.stop()
    world.send(ask())
    world.later(1)
    assert world.answers == [] and world.transports[0].is_lost and world.clock.getDelayedCalls() == []
