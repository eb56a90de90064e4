"""Client quotas as a client sees them: it is answered immediately, with a throttle time, and not read from until that
has passed (KIP-219).

The quota is 1,000 a second unless a test says otherwise, so that 10,000 bytes may come in one burst: ten windows of a
second.
"""

import pytest

from broker.engine.api_table import APIS
from broker.engine.engine import Engine
from broker.fault_injection.faulty_engine import FaultyEngine
from broker.metadata.change import Change
from broker.metadata.staged import Staged
from broker.wire import fetch
from broker.wire.errors import ErrorCode
from broker.wire.schema import names_of
from tests.broker.any_api import KEYS, EngineLine, World
from tests.broker.engine_client import (
    ALTER_QUOTAS,
    CREATE_PARTITIONS,
    CREATE_TOPICS,
    DELETE_TOPICS,
    FETCH,
    HEARTBEAT,
    METADATA,
    PRODUCE,
    EngineBroker,
    fetch_request,
    produce_request,
    values_of,
)
from tests.broker.test_every_api import ASKS

APP, ANY_CLIENT, ANONYMOUS = (("client-id", "app"),), (("client-id", None),), (("user", "ANONYMOUS"),)
TEN_SECONDS = bytes(10_000)
BATCH_BYTES = 4_070  # bytes of a batch of one record of 4,000


class Clock:
    """The clock with which the engine measures durations; each reading takes `step_ns`."""

    def __init__(self):
        self.now_ns = 0
        self.step_ns = 0

    def __call__(self):
        self.now_ns += self.step_ns
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def broker(clock):
    broker = EngineBroker(engine=lambda services: Engine(services, clock))
    broker.create("flights")
    return broker


def altering(entity, **quotas):
    """Return an AlterClientQuotas request; a quota of None is removed."""
    entry = {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in quotas.items()],
    }
    return {"entries": [entry], "validate_only": False}


def alter(broker, entity, **quotas):
    answer = broker.connect("admin").ask(ALTER_QUOTAS, 1, altering(entity, **quotas))
    assert [result.error_code for result in answer.entries] == [0]


def throttle_ms(data):
    """Return the throttle time in a Produce answer, which precedes the empty tags at its end."""
    return int.from_bytes(data[-5:-1], "big")


def produce(client, value, **more):
    """Produce a value; return the throttle time in ms that the client receives."""
    client.send(PRODUCE, 9, produce_request("flights", value, **more))
    wait_ms = throttle_ms(client.received)
    assert [result.error_code for _, (result,) in client.replies()] == [0]
    return wait_ms


def test_a_producer_over_its_quota_is_answered_immediately_and_not_read_from_for_a_while(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    client = broker.connect("app")
    wait_ms = produce(client, bytes(15_000))
    assert 5_000 < wait_ms < 5_500, "15,000 and what is around them are those of 15 seconds, of which ten are there"
    assert broker.services.logs.get("flights", 0).log_end_offset == 1
    began_ms = broker.now_ms
    client.send(METADATA, 12, {"topics": []})
    broker.at(began_ms + wait_ms - 1)
    assert not client.replies() and not client.conn.readable
    broker.at(began_ms + wait_ms + 1)
    assert len(client.replies()) == 1 and client.conn.readable


def test_all_that_was_sent_meanwhile_is_answered_in_its_order(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    client = broker.connect("app")
    frames = [client.frame(PRODUCE, 9, produce_request("flights", bytes(6_000))) for _ in range(4)]
    client.feed(b"".join(data for _, data in frames))
    assert [answered for answered, _ in client.replies()] == [frames[0][0], frames[1][0]]
    broker.at(broker.now_ms + 60_000)
    assert [answered for answered, _ in client.replies()] == [frames[2][0], frames[3][0]]


def test_others_are_not_held_back(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    other = broker.connect("another")
    assert [produce(other, TEN_SECONDS) for _ in range(5)] == [0] * 5
    assert broker.services.metrics.throttled == {}


def test_connections_of_one_client_share_its_quota(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    assert produce(broker.connect("app"), bytes(9_000)) == 0
    other = broker.connect("app")
    assert produce(other, bytes(9_000)) > 8_000
    assert not other.conn.readable


def test_everybody_is_the_user_anonymous(broker):
    alter(broker, ANONYMOUS, producer_byte_rate=1_000)
    assert produce(broker.connect("app"), bytes(9_000)) == 0
    assert produce(broker.connect("another"), bytes(9_000)) > 8_000


def test_a_producer_that_wants_no_answer_is_held_back_too(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    client = broker.connect("app")
    client.send(PRODUCE, 9, produce_request("flights", bytes(15_000), acks=0))
    assert not client.conn.readable and client.closed is None
    broker.at(broker.now_ms + 6_000)
    assert client.conn.readable


def test_a_producer_whose_requests_repeat_is_held_back_from_the_moment_there_is_a_quota(broker):
    client = broker.connect("app")
    assert [produce(client, bytes(9_000)) for _ in range(3)] == [0] * 3
    alter(broker, APP, producer_byte_rate=1_000)
    assert produce(client, bytes(9_000)) == 0
    assert produce(client, bytes(9_000)) > 8_000


def test_a_reader_whose_requests_repeat_is_held_back_from_the_moment_there_is_a_quota(broker):
    """A client without quotas has a fast path for a Fetch that it repeats."""
    producer, reader = broker.connect(), broker.connect("app")
    for _ in range(6):
        producer.produce("flights", bytes(4_000))
    assert [ask(reader, offset, max_bytes=2 * BATCH_BYTES) for offset in (0, 2, 0)] == [(2, 0)] * 3
    alter(broker, APP, consumer_byte_rate=1_000)
    assert ask(reader, 0, max_bytes=2 * BATCH_BYTES) == (2, 0)
    assert ask(reader, 2, max_bytes=2 * BATCH_BYTES)[0] == 0 and not reader.conn.readable


def test_a_quota_that_is_removed_holds_no_more(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    client = broker.connect("app")
    assert produce(client, bytes(9_000)) == 0
    alter(broker, APP, producer_byte_rate=None)
    assert broker.services.quotas is None
    assert [produce(client, TEN_SECONDS) for _ in range(3)] == [0] * 3


def test_quotas_hold_after_a_restart(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    assert produce(broker.restarted().connect("app"), bytes(15_000)) > 5_000


def test_what_waits_for_the_disk_is_counted_when_it_is_answered(broker):
    broker.create("durable", flakelog_durable_acks="true")
    alter(broker, APP, producer_byte_rate=1_000)
    client = broker.connect("app")
    broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("durable", bytes(15_000), acks=-1))
    assert client.conn.readable
    broker.release()
    assert throttle_ms(client.received) > 5_000
    assert not client.conn.readable


def test_of_two_times_that_overlap_the_one_that_ends_last_counts(broker):
    """Both requests waited for the disk and are answered together."""
    broker.create("durable", flakelog_durable_acks="true")
    alter(broker, APP, producer_byte_rate=1_000)
    client = broker.connect("app")
    broker.hold_syncs()
    sent = [client.send(PRODUCE, 9, produce_request("durable", bytes(size), acks=-1)) for size in (15_000, 9_000)]
    broker.release()
    assert [answered for answered, _ in client.replies()] == sent
    began_ms = broker.now_ms
    broker.at(began_ms + 13_000)
    assert not client.conn.readable
    broker.at(began_ms + 15_000)
    assert client.conn.readable and len(broker.services.purgatory) == 0


def test_a_produce_of_the_turn_in_which_a_quota_came_is_not_counted_and_the_next_is(broker):
    """The quota holds from its answer on, and that waits for the disk."""
    client, admin = broker.connect("app"), broker.connect("admin")
    produce(client, bytes(3_000))
    with broker.turn():
        sent = [client.send(PRODUCE, 9, produce_request("flights", bytes(3_000)))]
        admin.send(ALTER_QUOTAS, 1, altering(APP, producer_byte_rate=100))
        sent.append(client.send(PRODUCE, 9, produce_request("flights", bytes(3_000))))
    assert client.conn.readable
    sent.append(client.send(PRODUCE, 9, produce_request("flights", bytes(3_000))))
    assert [answered for answered, _ in client.replies()] == sent
    assert not client.conn.readable, "the third counts"
    assert 20_000 < broker.services.metrics.throttled_ms["producer_byte_rate"] < 25_000, "and no other does"


def test_a_broker_that_fails_on_demand_holds_back_too(clock):
    broker = EngineBroker(engine=lambda services: FaultyEngine(services, clock))
    broker.create("flights")
    alter(broker, APP, producer_byte_rate=1_000)
    broker.engine.fail(PRODUCE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    broker.engine.delay(PRODUCE, 100)
    client = broker.connect("app")
    client.send(PRODUCE, 9, produce_request("flights", bytes(15_000)))
    broker.at(broker.now_ms + 101)
    assert throttle_ms(client.received) > 5_000
    ((_, (result,)),) = client.replies()
    assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER and not client.conn.readable


def test_a_connection_that_goes_while_it_is_held_back_leaves_nothing_behind(broker):
    alter(broker, APP, producer_byte_rate=1)
    client = broker.connect("app")
    produce(client, bytes(100_000))
    assert len(broker.services.purgatory) == 1
    broker.engine.closed(client.conn)
    assert len(broker.services.purgatory) == 0


# --- fetching ----------------------------------------------------------------------------------------------------


@pytest.fixture
def reader(broker):
    """Return a client with a quota, whose topic has records of 4,000 bytes, each in a separate batch."""
    producer = broker.connect()
    for _ in range(6):
        producer.produce("flights", bytes(4_000))
    alter(broker, APP, consumer_byte_rate=1_000)
    return broker.connect("app")


def ask(reader, offset, **more):
    """Fetch; return (number of whole batches of BATCH_BYTES, throttle time in ms)."""
    answer = reader.ask(FETCH, 12, fetch_request("flights", offset, **more))
    return sum(len(partition.records) for partition in answer.partitions) // BATCH_BYTES, answer.throttle_ms


def test_a_reader_over_its_quota_gets_nothing_and_is_told_to_wait(broker, reader):
    assert ask(reader, 0, max_bytes=2 * BATCH_BYTES) == (2, 0)
    records, wait_ms = ask(reader, 2, max_bytes=2 * BATCH_BYTES)
    assert records == 0 and 6_000 < wait_ms < 7_000
    assert not reader.conn.readable
    broker.at(broker.now_ms + wait_ms)
    assert reader.conn.readable


def test_a_reader_that_waits_as_told_gets_all(broker, reader):
    offset, waited_ms = 0, 0
    while offset < 6:
        records, wait_ms = ask(reader, offset)
        offset += records
        waited_ms += wait_ms
        broker.at(broker.now_ms + wait_ms)
    assert waited_ms >= 24_000 - 11_000, "24,000 bytes, of which those of all windows may come in one burst"


def test_an_answer_is_never_larger_than_the_quota_can_let_through(reader):
    (partition,) = reader.ask(FETCH, 12, fetch_request("flights", 0)).partitions
    assert len(partition.records) == 10_000


def test_a_batch_larger_than_that_is_sent_and_waited_for(broker, reader):
    broker.connect().produce("flights", bytes(50_000))
    answer = reader.ask(FETCH, 12, fetch_request("flights", 6))
    assert len(values_of(answer)) == 1 and 40_000 < answer.throttle_ms < 41_000


def test_a_session_goes_on_behind_an_answer_with_nothing(broker, reader):
    """The client receives the withheld changes as soon as it is no longer held back (KIP-227)."""
    request = fetch_request("flights", 0, max_bytes=2 * BATCH_BYTES)
    first = reader.ask(FETCH, 12, request._replace(session_epoch=0))
    assert first.session_id and len(values_of(first)) == 2
    more = request._replace(session_id=first.session_id, session_epoch=1, partitions=[])
    held = reader.ask(FETCH, 12, more)
    assert (held.session_id, held.error_code, held.partitions) == (first.session_id, 0, [])
    assert held.throttle_ms > 0
    broker.at(broker.now_ms + 20_000)
    again = reader.ask(FETCH, 12, more._replace(session_epoch=2))
    assert again.throttle_ms == 0 and len(values_of(again)) == 2


def test_a_session_that_another_request_has_taken_on_is_refused_though_its_reader_is_held_back(broker, reader):
    request = fetch_request("flights", 6)._replace(session_epoch=0)
    first = reader.ask(FETCH, 12, request)
    more = request._replace(session_id=first.session_id, partitions=[])
    reader.send(FETCH, 12, more._replace(session_epoch=1, max_wait_ms=10_000))
    reader.send(FETCH, 12, more._replace(session_epoch=2, max_wait_ms=10_000))
    broker.connect().produce("flights", bytes(15_000))
    assert [answer.error_code for _, answer in reader.replies()] == [ErrorCode.INVALID_FETCH_SESSION_EPOCH, 0]


def test_no_session_is_begun_by_an_answer_with_nothing(reader):
    assert ask(reader, 0, max_bytes=2 * BATCH_BYTES) == (2, 0)
    held = reader.ask(FETCH, 12, fetch_request("flights", 2)._replace(session_epoch=fetch.INITIAL_EPOCH))
    assert (held.session_id, held.error_code, held.partitions) == (0, 0, [])


def test_bytes_that_did_not_leave_are_not_counted_as_sent(broker, reader):
    log = broker.services.logs.get("flights", 0)
    ask(reader, 0, max_bytes=2 * BATCH_BYTES)
    sent = log.bytes_out
    ask(reader, 2, max_bytes=2 * BATCH_BYTES)
    assert log.bytes_out == sent


def test_a_fetch_that_waited_is_held_back_when_it_is_answered(broker, reader):
    assert ask(reader, 0, max_bytes=2 * BATCH_BYTES) == (2, 0)
    reader.send(FETCH, 12, fetch_request("flights", 6, max_wait_ms=10_000))
    broker.connect().produce("flights", bytes(4_000))
    ((_, answer),) = reader.replies()
    assert answer.partitions == [] and answer.throttle_ms > 0
    assert not reader.conn.readable


# --- time --------------------------------------------------------------------------------------------------------


def test_a_client_that_takes_more_than_its_share_of_time_is_held_back(broker, clock):
    alter(broker, APP, request_percentage=1)
    client = broker.connect("app")
    clock.step_ns = 150_000_000
    answer = client.ask(METADATA, 12, {"topics": []})
    assert answer.throttle_time.total_seconds() == 1, "0.15 s are those of 15 s; at most a window"
    assert not client.conn.readable
    began_ms = broker.now_ms
    client.send(METADATA, 12, {"topics": []})
    broker.at(began_ms + 999)
    assert not client.replies()
    broker.at(began_ms + 1_001)
    assert len(client.replies()) == 1


@pytest.mark.parametrize("version", [0, 4])
def test_an_answer_without_room_for_the_time_holds_back_all_the_same(broker, clock, version):
    alter(broker, APP, request_percentage=1)
    client = broker.connect("app")
    clock.step_ns = 150_000_000
    heartbeat = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    answer = client.ask(HEARTBEAT, version, heartbeat)
    assert version == 0 or answer.throttle_time.total_seconds() == 1
    assert not client.conn.readable


class ListeningWorld(World):
    """A World that keeps the answers."""

    def __init__(self, *args):
        super().__init__(*args)
        self.answers = []

    def receive(self, name, version=None, line=None):
        answer = super().receive(name, version, line)
        self.answers.append((name, answer))
        return answer


# Fetch and CreateTopics are left out, because their tests check records of a Fetch, and a throttled answer has none.
# Other tests of this file cover both.
@pytest.mark.parametrize("name", sorted(ASKS.keys() - {"Fetch", "CreateTopics"}))
def test_every_answer_with_room_for_the_time_says_it(clock, name):
    settings = {"group_initial_rebalance_delay_ms": 0, "offsets_topic_num_partitions": 1}
    broker = EngineBroker(engine=lambda services: Engine(services, clock), **settings)
    clock.step_ns = 1
    broker.change(Staged(Change(quotas={(("client-id", "test"),): {"request_percentage": 1e-9}})))
    world = ListeningWorld(EngineLine(broker), name, APIS[KEYS[name]].newest)
    ASKS[name](world)
    answers = [answer for api, answer in world.answers if api == name]
    if "throttle_time" in names_of(KEYS[name], "response"):
        assert {answer.throttle_time.total_seconds() for answer in answers} == {1}


# --- topics ------------------------------------------------------------------------------------------------------


def create(client, name, partitions, version=7):
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    answer = client.ask(CREATE_TOPICS, version, {"topics": [topic], "timeout": 30_000, "validate_only": False})
    return answer.topics[0].error_code, round(answer.throttle_time.total_seconds() * 1_000)


def test_who_makes_topics_too_fast_is_refused(broker):
    """Eleven windows of 2 partitions may come in one burst, and one request may ask for more (KIP-599)."""
    alter(broker, APP, controller_mutation_rate=2)
    client = broker.connect("app")
    assert create(client, "a", 32) == (ErrorCode.NONE, 0)
    assert create(client, "b", 1) == (ErrorCode.THROTTLING_QUOTA_EXCEEDED, 5_000)
    assert not client.conn.readable and broker.services.metadata.topic("b") is None
    broker.at(broker.now_ms + 5_000)
    assert create(client, "b", 1) == (ErrorCode.NONE, 0)


def test_an_older_client_is_held_back_instead(broker):
    alter(broker, APP, controller_mutation_rate=2)
    assert create(broker.connect("app"), "a", 32, version=5) == (ErrorCode.NONE, 5_000)
    assert create(broker.connect("app"), "b", 2, version=5) == (ErrorCode.NONE, 6_000)


def test_of_several_topics_those_past_the_quota_are_refused(broker):
    alter(broker, APP, controller_mutation_rate=1)
    topics = [{"name": name, "num_partitions": 6, "replication_factor": 1} for name in "abc"]
    fields = {"topics": topics, "timeout": 30_000, "validate_only": False}
    answer = broker.connect("app").ask(CREATE_TOPICS, 7, fields)
    assert [topic.error_code for topic in answer.topics] == [0, 0, ErrorCode.THROTTLING_QUOTA_EXCEEDED]
    assert "controller_mutation_rate" in answer.topics[2].error_message


@pytest.mark.parametrize("version, code", [(5, ErrorCode.THROTTLING_QUOTA_EXCEEDED), (4, ErrorCode.NONE)])
def test_deleting_topics_counts_their_partitions(broker, version, code):
    broker.create("large", 40)
    alter(broker, APP, controller_mutation_rate=2)
    client = broker.connect("app")
    assert create(client, "a", 32) == (ErrorCode.NONE, 0)
    answer = client.ask(DELETE_TOPICS, version, {"topic_names": ["large"], "timeout": 30_000})
    assert [result.error_code for result in answer.responses] == [code]
    assert answer.throttle_time.total_seconds() == (5 if code else 25)
    assert (broker.services.metadata.topic("large") is None) == (not code)


@pytest.mark.parametrize("version, code", [(3, ErrorCode.THROTTLING_QUOTA_EXCEEDED), (2, ErrorCode.NONE)])
def test_more_partitions_count_as_many_as_come(broker, version, code):
    alter(broker, APP, controller_mutation_rate=2)
    client = broker.connect("app")
    assert create(client, "a", 32) == (ErrorCode.NONE, 0)
    topics = [{"name": "flights", "count": 5, "assignments": None}]
    fields = {"topics": topics, "timeout": 30_000, "validate_only": False}
    answer = client.ask(CREATE_PARTITIONS, version, fields)
    assert [result.error_code for result in answer.results] == [code]
    assert answer.throttle_time.total_seconds() == (5 if code else 7)


def test_topics_made_by_asking_wait_for_the_quota(broker):
    alter(broker, APP, controller_mutation_rate=2)
    client = broker.connect("app")
    assert create(client, "a", 32) == (ErrorCode.NONE, 0)
    fields = {"topics": [{"name": "b"}], "allow_auto_topic_creation": True}
    answer = client.ask(METADATA, 9, fields)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert client.conn.readable, "it is not what was asked for first of all"
    broker.at(broker.now_ms + 5_000)
    assert [topic.error_code for topic in client.ask(METADATA, 9, fields).topics] == [0]


# --- connections -------------------------------------------------------------------------------------------------


def test_an_address_that_connects_too_often_has_its_connections_held_and_closed(broker):
    """All clients of the test have one address (KIP-612)."""
    alter(broker, (("ip", "10.0.0.7"),), connection_creation_rate=1)
    clients = [broker.connect("app") for _ in range(12)]
    assert [client.conn.readable for client in clients] == [True] * 10 + [False] * 2
    clients[-1].send(METADATA, 12, {"topics": []})
    broker.at(broker.now_ms + 1_000)
    assert [client.closed is None for client in clients] == [True] * 10 + [False] * 2
    assert "connection_creation_rate" in clients[-1].closed and not clients[-1].replies()
    broker.at(broker.now_ms + 11_000)
    assert broker.connect("app").conn.readable


def test_held_connections_and_requests_are_counted(broker):
    alter(broker, APP, producer_byte_rate=1_000)
    wait_ms = produce(broker.connect("app"), bytes(15_000))
    assert broker.services.metrics.throttled == {"producer_byte_rate": 1}
    assert broker.services.metrics.throttled_ms == {"producer_byte_rate": wait_ms}
