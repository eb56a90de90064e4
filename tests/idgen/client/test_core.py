"""idgen.client.core: the choice of servers, the requests, and prefetched ids; without sockets, with literal times."""

import pytest

from idgen.client.core import (
    IN_FLIGHT_MAX,
    PORTION,
    PORTIONS_AT_ONCE,
    Address,
    IdRequests,
    IdServiceError,
    Outcome,
    Pipeline,
    Servers,
    TooManyCalls,
    parse_address,
)
from idgen.wire import Call, CallDecoder, Reply, ThriftError, encode_i64, encode_id

FIRST, SECOND = Address("one", 1), Address("two", 2)


class World:
    """Servers as plain functions: a call returns a value or the text of an error; None is an unreachable server."""

    def __init__(self, **servers):
        self.servers = servers
        self.asked_hosts = []
        self.now_ms = 0
        self.next = 0

    def ids(self, call):
        self.next += call.count or 1
        last = self.next
        return last if call.method == "get_id" else list(range(last - call.count + 1, last + 1))

    def run(self, operation):
        try:
            exchange = next(operation)
            while True:
                exchange = operation.send(self.carry(exchange))
        except StopIteration as done:
            return done.value

    def carry(self, exchange):
        self.asked_hosts.append(exchange.address.host)
        serve = self.servers[exchange.address.host]
        if serve is None:
            return Outcome(self.now_ms, None, "refused")
        values = [serve(call) for call in exchange.calls]
        replies = [Reply(0, None, v) if isinstance(v, str) else Reply(0, v) for v in values]
        return Outcome(self.now_ms, replies)


def requests(*servers, prefetch=0, max_age_ms=1_000):
    return IdRequests(
        servers or ("one:1", "two:2"), user_agent="agent", prefetch=prefetch, prefetch_max_age_ms=max_age_ms
    )


@pytest.mark.parametrize(
    "text, address", [("a:1", Address("a", 1)), ("[::1]:7609", Address("::1", 7609)), ("10.0.0.1:65535", None)]
)
def test_an_address_is_host_and_port(text, address):
    assert parse_address(text) == (address or Address("10.0.0.1", 65535))
    assert str(parse_address(text)) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:0", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="like 127.0.0.1:7609"):
        parse_address(text)


def test_the_server_that_answered_is_asked_again_and_the_next_one_when_it_fails():
    world = World(one=None, two=None)
    client = requests()
    world.servers["one"] = world.servers["two"] = world.ids
    assert [world.run(client.get_id(0)) for _ in range(3)] == [1, 2, 3]
    assert world.asked_hosts == ["one"] * 3
    world.servers["one"] = None
    assert world.run(client.get_id(10)) == 4
    assert world.run(client.get_id(20)) == 5
    assert world.asked_hosts[3:] == ["one", "two", "two"]


def test_a_server_that_failed_lately_is_asked_last():
    servers = Servers([FIRST, SECOND], rest_ms=100)
    servers.failed(FIRST, 1_000)
    assert servers.to_try(1_099) == [SECOND, FIRST]
    assert servers.to_try(1_100) == [FIRST, SECOND]
    servers.answered(SECOND)
    assert servers.to_try(1_100) == [SECOND, FIRST]


def test_a_service_that_is_fenced_or_without_a_number_leaves_it_to_another():
    for error in ("NoWorkerNumber: waits", "Fenced: gone", "LeadExhausted: H", "ClockMovedBackwards: by 1 h"):
        world = World()
        world.servers = {"one": lambda call, error=error: error, "two": world.ids}
        assert world.run(requests().get_id(0)) == 1
        assert world.asked_hosts == ["one", "two"]


def test_what_the_caller_has_wrong_is_not_asked_twice():
    world = World(one=lambda call: "InvalidCount: 0 ids")
    with pytest.raises(IdServiceError, match="InvalidCount: 0 ids"):
        world.run(requests().get_ids(0, 0))
    assert world.asked_hosts == ["one"]


def test_when_none_answers_each_is_named_with_its_reason():
    world = World(one=None, two=None)
    with pytest.raises(ConnectionError, match="one:1: refused; two:2: refused; `flakelog idgen` starts one"):
        world.run(requests().get_id(0))


def test_when_one_refuses_and_the_other_is_away_the_refusal_is_told():
    world = World(one=lambda call: "Fenced: gone", two=None)
    with pytest.raises(IdServiceError, match="Fenced: gone"):
        world.run(requests().get_id(0))


def test_an_old_connection_that_has_ended_is_made_anew_before_the_server_is_given_up():
    operation = requests().get_id(0)
    assert next(operation).address == FIRST
    assert operation.send(Outcome(0, None, "it closed the connection", stale=True)).address == FIRST
    with pytest.raises(StopIteration) as done:
        operation.send(Outcome(0, [Reply(1, 7)]))
    assert done.value.value == 7


def test_many_ids_are_asked_for_in_portions_several_in_flight():
    world = World()
    rounds = []
    world.servers = {"one": world.ids}
    operation = requests("one:1").get_ids(PORTION * (PORTIONS_AT_ONCE + 1) + 5, 0)
    try:
        exchange = next(operation)
        while True:
            rounds.append([call.count for call in exchange.calls])
            exchange = operation.send(world.carry(exchange))
    except StopIteration as done:
        ids = done.value
    assert rounds == [[PORTION] * PORTIONS_AT_ONCE, [PORTION, 5]]
    assert ids == list(range(1, len(ids) + 1)) and len(ids) == PORTION * (PORTIONS_AT_ONCE + 1) + 5


def test_ids_in_advance_are_handed_out_in_order_and_asked_for_once():
    """A fetch of `prefetch` ids serves as many calls (Hazelcast's FlakeIdGenerator: prefetch count and validity)."""
    world = World()
    world.servers = {"one": world.ids}
    client = requests("one:1", prefetch=10)
    assert [world.run(client.get_id(n)) for n in range(25)] == list(range(1, 26))
    assert len(world.asked_hosts) == 3


def test_ids_in_advance_are_dropped_when_they_are_too_old():
    world = World()
    world.servers = {"one": world.ids}
    client = requests("one:1", prefetch=10, max_age_ms=1_000)
    assert world.run(client.get_id(5_000)) == 1
    assert world.run(client.get_id(5_999)) == 2
    assert world.run(client.get_id(6_000)) == 11


@pytest.mark.parametrize("wrong", [{"prefetch": -1}, {"prefetch": PORTION + 1}, {"max_age_ms": 0}])
def test_what_cannot_be_kept_in_advance_is_refused(wrong):
    with pytest.raises(ValueError, match="prefetch"):
        requests(**wrong)


@pytest.mark.parametrize("servers", [("a:1", "a:1"), ("a",)])
def test_servers_are_different_addresses(servers):
    with pytest.raises(ValueError):
        requests(*servers)


def test_an_answer_of_another_shape_is_an_error_not_a_crash():
    world = World(one=lambda call: [1])
    with pytest.raises(IdServiceError, match="where 5 numbers are due"):
        world.run(requests("one:1").decode(7, 0))
    with pytest.raises(IdServiceError, match="get_timestamp was answered by"):
        world.run(requests("one:1").number("get_timestamp", 0))


def test_a_number_that_no_call_can_hold_is_refused_before_it_is_sent():
    with pytest.raises(ValueError, match="does not fit 64 bits"):
        next(requests().decode(1 << 63, 0))


@pytest.mark.parametrize("wrong", ["x", None, 1.5, True])
def test_what_is_no_whole_number_is_refused_by_name(wrong):
    with pytest.raises(TypeError, match=f"count is a whole number, not {wrong!r}"):
        next(requests().get_ids(wrong, 0))
    with pytest.raises(TypeError, match=f"a time or an id is a whole number, not {wrong!r}"):
        next(requests().decode(wrong, 0))


def test_more_ids_than_one_list_should_hold_are_refused():
    with pytest.raises(ValueError, match="count=10000000000: give at most 10,000,000; ask again for more"):
        next(requests().get_ids(10**10, 0))


@pytest.mark.parametrize("server", [None, 7610, b"one:1"])
def test_a_server_that_is_no_text_is_refused_by_name(server):
    with pytest.raises(ValueError, match="is no address of an id service; give host:port as text"):
        requests(server)


# --- Pipeline ----------------------------------------------------------------------------------------------------


def test_answers_find_those_who_wait_for_them_however_they_are_cut():
    pipeline = Pipeline()
    sent = pipeline.send([Call("get_id", 0, "a")] * 2, "first") + pipeline.send([Call("get_id", 0, "a")], "second")
    seqids = [call.seqid for call in CallDecoder().calls(sent)]
    assert seqids == [1, 2, 3]
    answers = b"".join(encode_id(seqid, 10 + seqid) for seqid in seqids)
    results = [done for byte in answers for done in pipeline.receive(bytes([byte]))]
    assert results == [("first", [Reply(1, 11), Reply(2, 12)]), ("second", [Reply(3, 13)])]


@pytest.mark.parametrize("answer", [encode_i64("get_id", 2, 5), encode_i64("get_id", 1, 5) * 2])
def test_an_answer_out_of_order_ends_the_connection(answer):
    pipeline = Pipeline()
    pipeline.send([Call("get_id", 0, "a")], "only")
    with pytest.raises(ThriftError, match="answer"):
        list(pipeline.receive(answer))


def test_calls_under_way_are_bounded_and_answers_make_room():
    pipeline = Pipeline()
    pipeline.send([Call("get_id", 0)] * IN_FLIGHT_MAX, "all")
    with pytest.raises(TooManyCalls, match="1024 calls are under way"):
        pipeline.send([Call("get_id", 0)], "one more")
    list(pipeline.receive(encode_id(1, 5)))
    pipeline.send([Call("get_id", 0)], "one more")
    assert pipeline.take_waiting() == ["all", "one more"]


def test_seqids_start_again_when_they_run_out():
    pipeline = Pipeline()
    pipeline._seqid = 0x7FFFFFFF - 1
    first = pipeline.send([Call("get_id", 0)], "a")
    second = pipeline.send([Call("get_id", 0)], "b")
    assert [c.seqid for c in CallDecoder().calls(first + second)] == [0x7FFFFFFF, 1]
    answers = encode_id(0x7FFFFFFF, 1) + encode_id(1, 2)
    assert [waiter for waiter, _ in pipeline.receive(answers)] == ["a", "b"]
