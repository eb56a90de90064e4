"""Limits on the number of connections and on the rate of new ones."""

import pytest

from broker.channel.connection_limits import ConnectionLimits
from broker.settings.config import INT_MAX, BrokerConfig, ListenerLimits
from idgen.settings import InvalidSetting
from tests.broker.engine_client import FETCH, METADATA, PRODUCE, EngineBroker, fetch_request, produce_request


def refusals(config, *addresses):
    limits = ConnectionLimits()
    return [limits.opened(address, config, 0) is not None for address in addresses]


def test_an_address_has_so_many_connections_and_no_more():
    config = BrokerConfig(max_connections_per_ip=2)
    assert refusals(config, "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1") == [False, False, False, True]


def test_some_addresses_have_a_limit_of_their_own():
    config = BrokerConfig(max_connections_per_ip=1, max_connections_per_ip_overrides="10.0.0.1:2, [::1]:0")
    assert refusals(config, "10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.2", "::1") == [False, False, False, True, True]


def test_a_connection_that_is_closed_makes_room_even_if_it_was_one_too_many():
    limits, config = ConnectionLimits(), BrokerConfig(max_connections_per_ip=1)
    assert limits.opened("a", config, 0) is None
    assert limits.opened("a", config, 0) == "it has 1 connections already (max.connections.per.ip)"
    limits.closed("a")
    limits.closed("a")
    assert limits.opened("a", config, 0) is None


@pytest.mark.parametrize("overrides", ["localhost:5", "10.0.0.1", "10.0.0.1:-1", "10.0.0.1:x"])
def test_overrides_are_addresses_and_numbers(overrides):
    with pytest.raises(InvalidSetting, match=r"^max\.connections\.per\.ip\.overrides="):
        BrokerConfig(max_connections_per_ip_overrides=overrides)


def test_connections_that_come_too_fast_pause_the_accepting():
    """At 10 a second each connection has 100 ms; the connections of one second may come together (KIP-612)."""
    limits, config = ConnectionLimits(), BrokerConfig(max_connection_creation_rate=10)
    for _ in range(10):
        limits.opened("a", config, 5_000)
        assert limits.pause_ms(config, 5_000) == 0
    for _ in range(2):
        limits.opened("a", config, 5_000)
    assert limits.pause_ms(config, 5_000) == 201
    assert limits.pause_ms(config, 5_150) == 51
    assert limits.pause_ms(config, 5_201) == 0


def test_a_listener_has_a_limit_of_its_own_under_that_of_all():
    """The setting is listener.name.NAME.max.connections (KIP-402)."""
    limits, config = ConnectionLimits({"INSIDE": ListenerLimits(max_connections=1)}), BrokerConfig(max_connections=3)
    reasons = [limits.opened("a", config, 0, listener) for listener in ("INSIDE", "INSIDE", "OUTSIDE", "OUTSIDE")]
    assert reasons == [None, "listener.name.inside.max.connections is 1", None, "max.connections is 3"]
    limits.closed("a", "INSIDE")
    limits.closed("a", "INSIDE")
    assert limits.opened("a", config, 0, "INSIDE") is None


def test_a_listener_whose_connections_come_too_fast_pauses_by_itself():
    """The setting is listener.name.NAME.max.connection.creation.rate (KIP-612)."""
    limits, config = ConnectionLimits({"INSIDE": ListenerLimits(max_connection_creation_rate=10)}), BrokerConfig()
    for _ in range(12):
        limits.opened("a", config, 5_000, "OUTSIDE")
        limits.opened("a", config, 5_000, "INSIDE")
    assert (limits.pause_ms(config, 5_000, "INSIDE"), limits.pause_ms(config, 5_000, "OUTSIDE")) == (201, 0)


def test_without_a_rate_nothing_pauses():
    limits, config = ConnectionLimits(), BrokerConfig()
    assert config.max_connection_creation_rate == INT_MAX
    for _ in range(1_000):
        limits.opened("a", config, 0)
    assert limits.pause_ms(config, 0) == 0


def test_the_engine_closes_the_connection_that_is_one_too_many_of_its_address():
    broker = EngineBroker(max_connections_per_ip=2)
    first, second, third = broker.connect(), broker.connect(), broker.connect()
    assert (first.closed, second.closed) == (None, None)
    assert third.closed == "it has 2 connections already (max.connections.per.ip)"
    broker.engine.closed(first.conn)
    assert broker.connect().closed is None


# --- memory of requests ----------------------------------------------------------------------------------------------

HALF = (1_000).to_bytes(4, "big") + bytes(100)


def test_requests_that_are_not_whole_claim_memory_and_past_the_limit_are_not_read():
    broker = EngineBroker(queued_max_request_bytes=1_500)
    clients = [broker.connect() for _ in range(4)]
    for client in clients:
        client.feed(HALF)
    assert [client.conn.readable for client in clients] == [True, True, False, False], "the second goes past the limit"


def test_a_request_that_is_whole_lets_in_who_waits_longest():
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second, third = (broker.connect() for _ in range(3))
    _, whole = first.frame(3, 0, {"topics": [{"name": "x" * 100}]})
    first.feed(whole[:50])
    second.feed(HALF)
    third.feed(HALF)
    assert [client.conn.readable for client in (first, second, third)] == [True, False, False]
    first.feed(whole[50:])
    assert len(first.replies()) == 1
    assert [client.conn.readable for client in (first, second, third)] == [True, True, False]


def test_a_peer_that_sends_without_a_pause_does_not_keep_its_claim():
    """Each of its reads ends inside the next request, which must wait for its turn."""
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second = broker.connect(), broker.connect()
    _, whole = first.frame(3, 0, {"topics": [{"name": "x" * 100}]})
    first.feed(whole[:50])
    second.feed(HALF)
    _, following = first.frame(3, 0, {"topics": [{"name": "x" * 100}]})
    first.feed(whole[50:] + following[:50])
    assert [client.conn.readable for client in (first, second)] == [False, True]
    broker.engine.closed(second.conn)
    assert first.conn.readable
    first.feed(following[50:])
    assert len(first.replies()) == 2


def test_a_peer_that_goes_gives_its_claim_back():
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second, third = (broker.connect() for _ in range(3))
    for client in (first, second, third):
        client.feed(HALF)
    broker.engine.closed(second.conn)
    assert not third.conn.readable
    broker.engine.closed(first.conn)
    assert third.conn.readable


def test_a_peer_that_goes_before_its_request_is_executed_gives_its_claim_back():
    """Its last bytes and its end are found in one turn of the reactor."""
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second = broker.connect(), broker.connect()
    _, whole = first.frame(3, 0, {"topics": [{"name": "x" * 100}]})
    first.feed(whole[:50])
    with broker.turn():
        first.feed(whole[50:])
        broker.engine.closed(first.conn)
    second.feed(HALF)
    assert second.conn.readable


def test_a_request_that_comes_whole_claims_nothing():
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second = broker.connect(), broker.connect()
    first.feed(HALF)
    assert second.ask(3, 0, {"topics": []}).topics == ()


def test_a_request_that_is_whole_claims_nothing_also_where_its_connection_is_not_read_on():
    broker = EngineBroker(queued_max_request_bytes=3_000, max_inflight_requests=1)
    broker.create("flights", flakelog_durable_acks="true")
    client, other = broker.connect(), broker.connect()
    _, frame = client.frame(PRODUCE, 9, produce_request("flights", b"x" * 5_000))
    held = broker.hold_syncs()
    client.feed(frame[:100])
    client.feed(frame[100:])
    assert held and not client.conn.readable, "it waits for the disk"
    other.feed(frame[:100])
    assert other.conn.readable


def test_a_request_that_is_whole_claims_nothing_while_others_behind_it_wait():
    broker = EngineBroker(queued_max_request_bytes=1, max_inflight_requests=1)
    broker.create("flights")
    client, other = broker.connect(), broker.connect()
    _, waiting = client.frame(FETCH, 12, fetch_request("flights", max_wait_ms=1_000))
    _, behind = client.frame(METADATA, 1, {"topics": []})
    client.feed(waiting[:20])
    client.feed(waiting[20:] + behind)
    assert not client.conn.readable, "one request may wait, and one does"
    other.feed(HALF)
    assert other.conn.readable


def test_the_shell_hears_that_it_shall_not_read_on_when_an_incomplete_request_has_no_room():
    """The shell went on to read, so a waiting request could take any memory."""
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second = broker.connect(), broker.connect()
    first.feed(HALF)
    with broker.turn():
        second.feed(HALF)
        broker.execute()
        assert broker.engine.take_stalled() == [second.conn]


@pytest.mark.parametrize("ends", ["the peer goes", "its request is whole"])
def test_a_request_that_became_whole_while_it_had_no_room_is_executed_when_it_has(ends):
    """It was executed only when its peer sent more, and its connection was closed if the peer did not."""
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second = broker.connect(), broker.connect()
    _, whole = first.frame(METADATA, 1, {"topics": []})
    first.feed(whole[:5])
    _, waits = second.frame(METADATA, 1, {"topics": [{"name": "x" * 200}]})
    second.feed(waits[:50])
    second.feed(waits[50:])
    assert not second.replies()
    if ends == "the peer goes":
        broker.engine.closed(first.conn)
        assert broker.engine.has_work
        broker.pump()
    else:
        first.feed(whole[5:])
    assert len(second.replies()) == 1


PERIOD_MS = 30_000


def test_a_peer_that_we_did_not_read_for_most_of_the_time_has_no_fault():
    broker = EngineBroker(max_inflight_requests=100, max_queued_bytes=65_536)
    broker.create("flights")
    client = broker.connect(drains=False)
    wait = fetch_request("flights", max_wait_ms=PERIOD_MS + 1_000, min_bytes=1_000)
    client.send(FETCH, 12, wait)
    client.feed(HALF)
    broker.engine.next_deadline(broker.now)  # the shell asks after each turn
    broker.at(PERIOD_MS + 1_500)
    broker.connect().produce("flights", bytes(70_000))
    assert not client.conn.readable, "it does not take its answer"
    broker.at(2 * PERIOD_MS)
    client.drain()
    assert client.conn.readable
    broker.at(2 * PERIOD_MS + 2_000)
    assert client.closed is None
    broker.at(3 * PERIOD_MS + 3_000)
    assert "flakelog.queued.request.ms" in client.closed


def test_a_peer_that_stops_in_the_middle_of_a_request_is_closed_and_gives_its_claim_to_who_waits():
    """300 such peers with part of a 100 MB frame each held 640 MB for ten minutes (flakelog.queued.request.ms)."""
    broker = EngineBroker(queued_max_request_bytes=1)
    stopped, waiting = broker.connect(), broker.connect()
    stopped.feed(HALF)
    waiting.feed(HALF)
    broker.engine.next_deadline(broker.now)  # the shell asks after each turn
    broker.at(PERIOD_MS + 1_000)
    assert stopped.closed is None
    broker.at(2 * PERIOD_MS + 2_000)
    assert stopped.closed == "the rest of its request did not come within 30000 ms (flakelog.queued.request.ms)"
    broker.engine.closed(stopped.conn)
    assert waiting.conn.readable and waiting.closed is None, "it was we who did not read"


def test_a_request_may_be_slow_but_not_slower_than_a_32nd_in_its_time():
    broker = EngineBroker()
    slow, slower = broker.connect(), broker.connect()
    slow.feed(HALF)
    slower.feed(HALF)
    for turn in range(1, 5):
        broker.at(turn * PERIOD_MS)
        slow.feed(bytes(32))  # of 1,000
        if slower.closed is None:
            slower.feed(bytes(31))
    assert slow.closed is None and "flakelog.queued.request.ms" in slower.closed


def test_each_request_of_a_connection_has_a_time_of_its_own():
    broker = EngineBroker()
    client = broker.connect()
    for turn in range(1, 5):
        _, whole = client.frame(METADATA, 1, {"topics": [{"name": "x" * 1_000}]})
        client.feed(whole[:100])
        broker.at(turn * PERIOD_MS)
        client.feed(whole[100:])
        assert len(client.replies()) == 1
        broker.engine.next_deadline(broker.now)
    assert client.closed is None


def test_a_request_without_room_keeps_no_buffer_but_its_bytes_and_is_received_whole_later():
    broker = EngineBroker(queued_max_request_bytes=1)
    first, second = broker.connect(), broker.connect()
    first.feed(HALF)
    _, whole = second.frame(METADATA, 1, {"topics": [{"name": "x" * 30_000}]})
    second.feed(whole[:20_000])
    assert len(second.conn.decoder.partial) == 20_000 - 4
    broker.engine.closed(first.conn)
    second.feed(whole[20_000:25_000])
    second.feed(whole[25_000:])
    assert len(second.replies()) == 1
