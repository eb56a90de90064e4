"""Fetches that repeat an earlier one of the same partition: each answer shows the broker's state at that time."""

import pytest

from broker.fault_injection.faulty_engine import FaultyEngine
from broker.record.batch import walk
from broker.wire import fetch
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_COMMITTED, FetchPartition, FetchRequest
from tests.broker.engine_client import DELETE_TOPICS, FETCH, EngineBroker, fetch_request, values_of

VERSIONS = range(11, 19)


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    for value in (b"a", b"b", b"c"):
        client.produce("flights", value)
    return broker


def request_of(broker, version, offset, topic="flights", max_bytes=1 << 20, **more):
    name = broker.services.metadata.topic(topic).id if version >= fetch.TOPIC_IDS else topic
    wanted = FetchPartition(name, 0, offset, max_bytes)
    return FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, partitions=[wanted])._replace(**more)


def answered(client, frame):
    """Feed a whole frame and return the whole answer."""
    client.feed(frame)
    answer = bytes(client.received)
    client.received.clear()
    return answer


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("isolation_level", [0, READ_COMMITTED])
@pytest.mark.parametrize("offset, max_bytes", [(0, 1 << 20), (1, 1 << 20), (2, 1 << 20), (1, 100), (0, 0), (3, 100)])
def test_a_repeated_request_has_the_answer_of_the_first(broker, version, isolation_level, offset, max_bytes):
    """The first is decoded and its answer encoded in full; the others have a template (broker.wire.fetch_template)."""
    client = broker.connect()
    more = {"max_bytes": max_bytes, "isolation_level": isolation_level, "max_wait_ms": 0}
    _, frame = client.frame(FETCH, version, request_of(broker, version, offset, **more))
    first = answered(client, frame)
    assert first != b"" and [answered(client, frame) for _ in range(2)] == [first] * 2


@pytest.mark.parametrize("min_bytes", [1, 150_000])
def test_what_ends_at_a_limit_ends_between_batches_and_as_much_as_the_limit_lets_counts_as_enough(broker, min_bytes):
    client = broker.connect()
    for _ in range(4):
        client.produce("flights", b"x" * 70_000)
    for _ in range(2):
        request = request_of(broker, 12, 3, max_bytes=150_000, min_bytes=min_bytes)
        (read,) = client.ask(FETCH, 12, request).partitions
        assert [header.base_offset for _, header in walk(read.records)] == [3, 4]
        assert len(read.records) == sum(header.size for _, header in walk(read.records)) < 150_000


def test_it_counts_what_went_out_as_the_long_way_does(broker):
    client, log = broker.connect(), broker.services.log_of("flights", 0)
    client.fetch("flights")
    once = log.bytes_out
    client.fetch("flights")
    assert log.bytes_out == 2 * once and client.broker.engine.metrics.of_api(FETCH).number == 2


def test_what_is_not_there_yet_is_waited_for(broker):
    client = broker.connect()
    client.fetch("flights", 0, max_wait_ms=500)
    client.send(FETCH, 12, fetch_request("flights", 3, max_wait_ms=500))
    assert client.replies() == []
    broker.connect().produce("flights", b"d")
    ((_, answer),) = client.replies()
    assert values_of(answer) == [b"d"]


def test_too_little_is_waited_for(broker):
    client = broker.connect()
    client.fetch("flights", 0, max_wait_ms=500, min_bytes=100)
    client.send(FETCH, 12, fetch_request("flights", 2, max_wait_ms=500, min_bytes=100))
    assert client.replies() == []
    broker.at(broker.now_ms + 500)
    ((_, answer),) = client.replies()
    assert values_of(answer) == [b"c"]


def test_what_is_out_of_range_is_told(broker):
    client = broker.connect()
    client.fetch("flights")
    answer = client.ask(FETCH, 12, fetch_request("flights", 99))
    assert [partition.error_code for partition in answer.partitions] == [ErrorCode.OFFSET_OUT_OF_RANGE]
    assert client.fetch("flights", 1) == [b"b", b"c"]


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_that_was_deleted_or_made_anew_is_noticed(broker, version):
    client = broker.connect()
    request = request_of(broker, version, 0)
    client.ask(FETCH, version, request)
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1_000})
    broker.create("flights")
    broker.connect().produce("flights", b"new")
    answer = client.ask(FETCH, version, request)
    if version == 12:
        assert values_of(answer) == [b"new"]
    else:
        assert [partition.error_code for partition in answer.partitions] == [ErrorCode.UNKNOWN_TOPIC_ID]


def test_a_partition_that_went_offline_is_a_storage_error(broker):
    client = broker.connect()
    client.fetch("flights")
    broker.services.log_of("flights", 0).offline = "its disk is gone"
    answer = client.ask(FETCH, 12, fetch_request("flights"))
    assert [partition.error_code for partition in answer.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_leader_epoch_that_is_over_is_told(broker):
    """The error is FENCED_LEADER_EPOCH (KIP-320)."""
    client = broker.connect()
    request = request_of(broker, 12, 0)
    request = request._replace(partitions=[request.partitions[0]._replace(current_leader_epoch=0)])
    client.ask(FETCH, 12, request)
    broker.services.log_of("flights", 0).start_leader_epoch(1)
    (partition,) = client.ask(FETCH, 12, request).partitions
    assert partition.error_code == ErrorCode.FENCED_LEADER_EPOCH


def test_who_asks_for_ids_gets_them(broker):
    client = broker.connect()
    client.fetch("flights")
    (partition,) = client.ask(FETCH, 12, fetch_request("flights", wants_ids=True)).partitions
    assert partition.ids is not None


def test_a_repeated_request_is_answered_after_the_ones_before_it(broker):
    client = broker.connect()
    client.fetch("flights")
    waits = client.send(FETCH, 12, fetch_request("flights", 3, max_wait_ms=500))
    asks = client.send(FETCH, 12, fetch_request("flights"))
    assert client.replies() == []
    broker.connect().produce("flights", b"d")
    assert [number for number, _ in client.replies()] == [waits, asks]


def test_a_failure_that_a_test_asked_for_applies_to_a_repeated_request():
    broker = EngineBroker(engine=FaultyEngine)
    broker.create("flights")
    client = broker.connect()
    client.fetch("flights")
    broker.engine.fail(FETCH, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    answers = [client.ask(FETCH, 12, fetch_request("flights")) for _ in range(2)]
    assert [answer.partitions[0].error_code for answer in answers] == [ErrorCode.NOT_LEADER_OR_FOLLOWER, 0]


# --- sessions --------------------------------------------------------------------------------------------------------


def begun(broker, version=17):
    """Return a client and the id of its session of one partition; the client has received the records from 0 on."""
    client = broker.connect()
    answer = client.ask(FETCH, version, request_of(broker, version, 0, session_epoch=0))
    return client, answer.session_id


def going_on(broker, id, epoch, offset, version=17):
    return request_of(broker, version, offset, session_id=id, session_epoch=epoch)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_session_goes_on(broker, version):
    """Requests of a session have templates too (KIP-227)."""
    client, id = begun(broker, version)
    client.ask(FETCH, version, going_on(broker, id, 1, 1, version))
    for epoch, offset in ((2, 2), (3, 1), (4, 0)):
        answer = client.ask(FETCH, version, going_on(broker, id, epoch, offset, version))
        assert (answer.session_id, answer.error_code) == (id, 0)
        assert values_of(answer) == [b"a", b"b", b"c"][offset:]
    session = broker.services.fetch_sessions
    assert (len(session), session.partitions) == (1, 1)


def test_an_epoch_that_came_twice_or_was_lost_is_noticed(broker):
    client, id = begun(broker)
    for epoch in (1, 2):
        client.ask(FETCH, 17, going_on(broker, id, epoch, 0))
    for epoch in (2, 4):
        answer = client.ask(FETCH, 17, going_on(broker, id, epoch, 0))
        assert answer.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert values_of(client.ask(FETCH, 17, going_on(broker, id, 3, 0))) == [b"a", b"b", b"c"]


def test_a_session_that_is_gone_is_noticed(broker):
    client, id = begun(broker)
    client.ask(FETCH, 17, going_on(broker, id, 1, 0))
    client.ask(FETCH, 17, request_of(broker, 17, 0, session_id=id, session_epoch=-1))
    assert client.ask(FETCH, 17, going_on(broker, id, 2, 0)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_who_has_no_session_can_begin_one(broker):
    client = broker.connect()
    client.ask(FETCH, 17, request_of(broker, 17, 0))
    answer = client.ask(FETCH, 17, request_of(broker, 17, 1, session_epoch=0))
    assert answer.session_id and values_of(answer) == [b"b", b"c"]


def test_what_it_has_been_told_is_not_told_again(broker):
    client, id = begun(broker)
    client.ask(FETCH, 17, going_on(broker, id, 1, 1))
    client.ask(FETCH, 17, going_on(broker, id, 2, 2))
    empty = request_of(broker, 17, 3, session_id=id, session_epoch=3, max_wait_ms=0)
    assert client.ask(FETCH, 17, empty).partitions == []


def test_a_session_of_more_partitions_is_answered_as_a_whole(broker):
    broker.create("trains")
    client, id = begun(broker)
    client.ask(FETCH, 17, going_on(broker, id, 1, 1))
    trains = request_of(broker, 17, 0, "trains").partitions
    request = going_on(broker, id, 2, 1)
    client.ask(FETCH, 17, request._replace(partitions=request.partitions + trains))
    broker.connect().produce("trains", b"t")
    answer = client.ask(FETCH, 17, going_on(broker, id, 3, 2))
    assert sorted(partition.topic.int for partition in answer.partitions) == sorted(
        broker.services.metadata.topic(name).id.int for name in ("flights", "trains")
    )
