"""Turns of the engine: each connection has its share, and what one has left over is executed later, in its order.

`execute` is one turn. A test's clock says how long requests take, because a turn is bounded by time too.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.channel.turn_queue import BACKLOG_BYTES, BACKLOG_WAITS, CONTENDED_NS, ROUNDS_MAX
from broker.engine.engine import TURN_NS, Engine
from tests.broker.engine_client import DESCRIBE_LOG_DIRS, METADATA, PRODUCE, EngineBroker, produce_request
from tests.broker.watched_storage import WatchedStorage

FEW = 2  # requests of a connection that pipelines, in a turn that it shares


class Clock:
    """The clock with which the engine measures durations; each reading takes `step_ns`."""

    def __init__(self, step_ns=1_000):
        self.now_ns = 1 << 40
        self.step_ns = step_ns

    def __call__(self):
        self.take(self.step_ns)
        return self.now_ns

    def take(self, duration_ns):
        self.now_ns += duration_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def broker(clock):
    broker = EngineBroker(WatchedStorage(), engine=lambda services: Engine(services, clock))
    broker.create("flights")
    return broker


def producing(value=b"x"):
    return PRODUCE, 9, produce_request("flights", value)


def asking():
    return METADATA, 1, {"topics": []}


def looking_at_the_disk():
    return DESCRIBE_LOG_DIRS, 4, {"topics": None}


REQUESTS = pytest.mark.parametrize("request_", [producing(), asking()], ids=["Produce", "Metadata"])


def execute(broker):
    """Execute one turn and hand out its answers."""
    broker.execute()
    for conn, parts in broker.engine.take_replies():
        broker.clients[conn].take(parts)


def polite_turn(broker, clients, request):
    """Execute a turn to which each client sends one request; return the number of answers of each."""
    for client in clients:
        client.send(*request)
    execute(broker)
    return [len(client.answered()) for client in clients]


# --- beside others ---------------------------------------------------------------------------------------------------


@REQUESTS
@pytest.mark.parametrize("flooders", [1, 3])
def test_beside_connections_that_pipeline_every_other_is_answered_in_its_turn(broker, request_, flooders):
    """A connection that pipelines gets a few requests a turn, and all of them in the end."""
    polite, flooding = [broker.connect() for _ in range(10)], [broker.connect() for _ in range(flooders)]
    with broker.turn():
        sent = [client.send_together(*[request_] * 600) for client in flooding]
        assert polite_turn(broker, polite, request_) == [1] * 10
        answered = [client.answered() for client in flooding]
        for _ in range(100):
            assert polite_turn(broker, polite, request_) == [1] * 10
            for client, before in zip(flooding, answered, strict=True):
                more = client.answered()
                assert len(more) <= FEW
                before += more
        assert all(5 < len(correlation_ids) < 300 for correlation_ids in answered)
    assert [before + client.answered() for client, before in zip(flooding, answered, strict=True)] == sent


@REQUESTS
def test_a_single_polite_connection_is_answered_in_its_turn_too(broker, request_):
    polite, flooder = broker.connect(), broker.connect()
    with broker.turn():
        flooder.send_together(*[request_] * 600)
        execute(broker)
        flooder.answered()
        for _ in range(50):
            assert polite_turn(broker, [polite], request_) == [1]
            assert len(flooder.answered()) <= FEW


@REQUESTS
def test_one_with_requests_as_slow_as_others_waits_for_many_of_theirs(broker, clock, request_):
    """It waits BACKLOG_WAITS times as long as its requests took, because others cannot be answered meanwhile."""
    polite, flooder = broker.connect(), broker.connect()
    with broker.turn():
        polite.send(*request_)
        flooder.send_together(*[request_] * 300)
        execute(broker)
        assert (len(polite.answered()), len(flooder.answered())) == (1, 1)
        executed = 0
        for _ in range(400):
            assert polite_turn(broker, [polite], request_) == [1]
            executed += len(flooder.answered())
        assert 400 / BACKLOG_WAITS / 4 < executed < 400 / 4


def test_one_with_slower_requests_than_others_leaves_most_of_the_time_to_them(broker, clock):
    """To look at the disk takes long in this test, and the requests of the others take little time."""
    polite, flooder = [broker.connect() for _ in range(10)], broker.connect()
    clock.step_ns = 10_000
    slow_ns, broker.storage.on_space = TURN_NS, lambda: clock.take(TURN_NS)
    with broker.turn():
        flooder.send_together(*[looking_at_the_disk()] * 100)
        executed, began_ns = 0, clock.now_ns
        for _ in range(2_000):
            assert polite_turn(broker, polite, asking()) == [1] * 10
            executed += len(flooder.answered())
        assert 2 < executed and executed * slow_ns < 2 * (clock.now_ns - began_ns + slow_ns) / BACKLOG_WAITS


def test_one_that_pipelines_has_many_requests_executed_again_when_nobody_else_comes(broker, clock):
    polite, flooder = broker.connect(), broker.connect()
    with broker.turn():
        flooder.send_together(*[producing()] * 600)
        for _ in range(3):
            assert polite_turn(broker, [polite], producing()) == [1]
        flooder.answered()
        execute(broker)
        assert len(flooder.answered()) <= FEW, "somebody else came just now"
        clock.now_ns += CONTENDED_NS
        execute(broker)
        assert len(flooder.answered()) == ROUNDS_MAX


# --- among those that pipeline ---------------------------------------------------------------------------------------


@REQUESTS
def test_one_that_pipelines_alone_has_many_requests_executed_in_a_turn(broker, request_):
    client = broker.connect()
    with broker.turn():
        sent, answered, turns = client.send_together(*[request_] * 200), [], 0
        while broker.engine.has_work:
            execute(broker)
            answered, turns = answered + client.answered(), turns + 1
        assert answered == sent and turns <= 1 + len(sent) // ROUNDS_MAX


def test_what_one_pipelines_alone_is_one_write_a_turn(broker):
    client = broker.connect()
    with broker.turn():
        client.send_together(*[producing()] * 3 * ROUNDS_MAX)
        before = broker.storage.writes_of(broker, "flights")
        for turn in range(1, 4):
            execute(broker)
            assert broker.storage.writes_of(broker, "flights") == before + turn
        assert len(client.answered()) == 3 * ROUNDS_MAX


def test_those_that_all_pipeline_have_equal_shares_and_one_write_a_turn(broker):
    clients = [broker.connect() for _ in range(4)]
    with broker.turn():
        for client in clients:
            client.send_together(*[producing()] * 2 * ROUNDS_MAX)
        before = broker.storage.writes_of(broker, "flights")
        execute(broker)
        assert [len(client.answered()) for client in clients] == [ROUNDS_MAX] * 4
        assert broker.storage.writes_of(broker, "flights") == before + 1


@REQUESTS
def test_a_turn_ends_when_it_has_lasted_long(broker, clock, request_):
    client = broker.connect()
    with broker.turn():
        sent = client.send_together(*[request_] * ROUNDS_MAX)
        clock.step_ns = TURN_NS
        execute(broker)
        first = client.answered()
        assert 0 < len(first) < 5 and broker.engine.has_work
    assert first + client.answered() == sent


# --- the backlog -----------------------------------------------------------------------------------------------


def test_one_with_a_large_backlog_is_not_read_from_until_it_is_executed(broker):
    client = broker.connect()
    with broker.turn():
        sent = client.send_together(*[producing(bytes(1_000))] * 200)
        assert client.conn.wants_data
        execute(broker)
        answered = client.answered()
        assert not client.conn.wants_data and client.conn.readable
        assert client.conn in broker.engine.take_stalled()
        while broker.engine.has_work:
            left_bytes = (len(sent) - len(answered)) * 1_000
            assert left_bytes < BACKLOG_BYTES or not client.conn.wants_data
            execute(broker)
            answered += client.answered()
        assert client.conn.wants_data and answered == sent
        sent += client.send_together(producing(), producing())
    assert answered + client.answered() == sent


def test_one_whose_large_backlog_is_executed_in_one_turn_is_read_on(broker):
    client = broker.connect()
    with broker.turn():
        sent = client.send_together(*[producing(bytes(10_000))] * (ROUNDS_MAX + 10))
        execute(broker)
        assert not client.conn.wants_data
        execute(broker)
        assert client.conn.wants_data and not broker.engine.has_work
    assert client.answered() == sent


def test_one_with_a_small_backlog_is_read_on(broker):
    client = broker.connect()
    with broker.turn():
        sent = client.send_together(*[asking()] * 100)
        execute(broker)
        assert broker.engine.has_work and client.conn.wants_data
        assert client.conn not in broker.engine.take_stalled()
        sent += client.send_together(*[asking()] * 100)
    assert client.answered() == sent


def test_bytes_that_come_for_a_backlog_are_kept_behind_it(broker):
    """The memory they came in is used again after each turn, also of one that does not execute them."""
    polite, flooder = broker.connect(), broker.connect()
    with broker.turn():
        sent, number = [], 0
        for _ in range(30):
            values = [b"%d" % n for n in range(number, number + 10)]
            number += 10
            sent += flooder.send_together(*map(producing, values))
            assert polite_turn(broker, [polite], asking()) == [1]
    assert flooder.answered() == sent
    reader, fetched = broker.connect(), []
    while len(fetched) < number:
        fetched += reader.fetch("flights", len(fetched))
    assert fetched == [b"%d" % n for n in range(number)]


@REQUESTS
def test_the_backlog_of_a_connection_that_closes_is_dropped(broker, request_):
    stays, leaves = broker.connect(), broker.connect()
    with broker.turn():
        leaves.send_together(*[request_] * 200)
        execute(broker)
        executed = len(leaves.answered())
        broker.engine.closed(leaves.conn)
        before = broker.services.log_of("flights", 0).log_end_offset
        assert polite_turn(broker, [stays], asking()) == [1]
    assert not broker.engine.has_work and not leaves.answered() and 0 < executed < 200
    assert broker.services.log_of("flights", 0).log_end_offset == before


# --- whatever comes when ---------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("receive"), st.integers(0, 2), st.integers(1, 2_000)),
        st.tuples(st.just("execute"), st.sampled_from([0, 1_000, TURN_NS, 2 * CONTENDED_NS])),
        st.tuples(st.just("wait"), st.integers(1, 3)),
    ),
    max_size=30,
)


@given(STEPS, st.integers(0, 300), st.booleans())
def test_whatever_comes_when_each_connection_is_answered_in_order_and_its_records_are_there_once(steps, records, ids):
    """Bytes are cut anywhere, turns end anywhere, and ids are short or not."""
    clock = Clock()
    broker = EngineBroker(max_ahead_ms=500 if ids else 0, engine=lambda services: Engine(services, clock))
    broker.create("flights")
    broker.create("durable", flakelog_durable_acks="true")
    clients = [broker.connect() for _ in range(3)]
    streams = [stream_of(client, number, records) for number, client in enumerate(clients)]
    sent, unsent = [answers for answers, _ in streams], [data for _, data in streams]
    with broker.turn():
        for step, *arguments in steps:
            if step == "receive":
                number, size = arguments
                if clients[number].conn.wants_data and unsent[number]:
                    clients[number].feed(unsent[number][:size])
                    unsent[number] = unsent[number][size:]
            elif step == "execute":
                (clock.step_ns,) = arguments
                execute(broker)
            else:
                broker.at(broker.now_ms + arguments[0])
    for client, data in zip(clients, unsent, strict=True):
        client.feed(data)
    broker.at(broker.now_ms + 100)
    assert [client.answered() for client in clients] == sent
    for topic in ("flights", "durable"):
        values = broker.connect().fetch(topic, max_bytes=1 << 24)
        for number in range(3):
            of_client = [int(value[1:]) for value in values if value.startswith(b"%d" % number)]
            batches = 4 if topic == "flights" else 2
            assert of_client == [n for n in range(batches) for _ in range(records + 1)]


def stream_of(client, number, records):
    """Return the requests of one client as (correlation ids to be answered, bytes)."""

    def batch(topic, n, **more):
        return PRODUCE, 9, produce_request(topic, *[b"%d%d" % (number, n)] * (records + 1), **more)

    requests = [
        (batch("flights", 0), asking(), batch("durable", 0), batch("flights", 1, acks=0), asking()),
        (batch("flights", 2), batch("durable", 1), batch("flights", 3), asking()),
    ]
    frames = [client.frame(*request) for group in requests for request in group]
    return [sent for sent, _ in frames if sent != 4], b"".join(data for _, data in frames)
