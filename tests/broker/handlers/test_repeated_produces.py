"""Produce requests that repeat earlier ones: the answers are those of requests that are decoded completely.

A request for one partition has a template, so that only its records are decoded anew. A client id of more than
KEY_BYTES_MAX bytes keeps its requests from having one.
"""

import pytest

from broker.metadata.change import Change
from broker.metadata.staged import Staged
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FETCH, PRODUCE, EngineBroker, batch_of, fetch_request, produce_request
from tests.broker.handlers.produce_requests import LONG_ID, of_producer, producing_to
from tests.broker.watched_storage import WatchedStorage

VERSIONS = range(5, 13)  # the versions that name topics by name and answer with the log start offset


@pytest.fixture
def broker():
    broker = EngineBroker(WatchedStorage())
    broker.create("flights")
    return broker


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_that_of_a_request_without_a_template(broker, version):
    short, long = broker.connect(), broker.connect(LONG_ID)
    short.produce("flights", b"first", version=version)
    by_template = short.produce("flights", b"one", b"two", version=version)
    decoded = long.produce("flights", b"one", b"two", version=version)
    assert by_template._replace(base_offset=3) == decoded
    assert long.fetch("flights") == [b"first", b"one", b"two", b"one", b"two"]


@pytest.mark.parametrize("version", VERSIONS)
def test_so_is_that_of_one_as_long_as_those_before_it(broker, version):
    short, long = broker.connect(), broker.connect(LONG_ID)
    for value in (b"one", b"two", b"six"):
        short.produce("flights", value, version=version)
    by_template = short.produce("flights", b"ten", version=version)
    decoded = long.produce("flights", b"ten", version=version)
    assert by_template._replace(base_offset=4) == decoded
    assert long.fetch("flights") == [b"one", b"two", b"six", b"ten", b"ten"]


def test_what_was_let_pass_before_is_refused_once_a_setting_says_so(broker):
    client = broker.connect()
    for _ in range(4):
        client.produce("flights", b"one")
    broker.change(Staged(Change(broker_properties={"": {"message.max.bytes": "50"}})))
    assert client.produce("flights", b"one").error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.change(Staged(Change(broker_properties={"": {}})))
    assert client.produce("flights", b"one").base_offset == 4


def test_a_producers_batches_of_one_size_are_each_recognised_as_duplicates(broker):
    """A duplicate gets the first one's answer, and a gap is refused (KIP-98)."""
    client = broker.connect()

    def produce(sequence):
        return client.ask(PRODUCE, 9, produce_request("flights", batch=of_producer(b"x", sequence)))[0]

    assert [produce(sequence).base_offset for sequence in (0, 1, 2, 3, 4, 3, 5)] == [0, 1, 2, 3, 4, 3, 5]
    assert produce(7).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert produce(6).base_offset == 6


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("size", [1, 20, 100, 16_000, 500_000])
def test_records_may_have_any_size(broker, version, size):
    client = broker.connect()
    client.produce("flights", b"first", version=version)
    client.produce("flights", bytes(size), version=version)
    assert [len(value) for value in client.fetch("flights", max_bytes=10**7)] == [5, size]


@pytest.mark.parametrize("around", [128, 16_384])
def test_sizes_that_go_to_and_fro_where_their_length_takes_a_byte_more_are_all_read(broker, around):
    client = broker.connect()
    client.produce("flights", b"first")
    overhead = len(batch_of(b""))
    sizes = [around - overhead + more for n in range(30) for more in (-n, n)]
    for offset, size in enumerate(sizes, 1):
        assert client.produce("flights", bytes(size)).base_offset == offset
    assert [len(value) for value in client.fetch("flights")] == [5, *sizes]


def test_a_length_that_is_spelled_with_a_byte_too_many_is_read_all_the_same(broker):
    client = broker.connect()
    client.produce("flights", b"first")
    _, frame = client.frame(PRODUCE, 9, produce_request("flights", b"second"))
    at = len(frame) - len(batch_of(b"second")) - 4  # three empty tag sections follow the records
    spelled = frame[4:at] + bytes([frame[at] | 0x80, 0]) + frame[at + 1 :]
    client.feed(len(spelled).to_bytes(4, "big") + spelled)
    ((_, (result,)),) = client.replies()
    assert (result.error_code, result.base_offset) == (0, 1)
    assert client.fetch("flights") == [b"first", b"second"]


@pytest.mark.parametrize("version", [8, 9])
def test_a_length_that_says_more_than_there_is_closes_the_connection_here_too(broker, version):
    client = broker.connect()
    client.produce("flights", b"first", version=version)
    _, frame = client.frame(PRODUCE, version, produce_request("flights", b"second"))
    size = len(batch_of(b"second"))
    at = len(frame) - size - (4 if version >= 9 else 1)  # the last byte of the length
    client.feed(frame[:at] + bytes([frame[at] + 9]) + frame[at + 1 :])
    assert "records say" in client.closed
    assert broker.connect().fetch("flights") == [b"first"]


def test_a_topic_named_by_its_id_too(broker):
    client = broker.connect()
    topic = broker.services.metadata.topic("flights").id
    for value in (b"one", b"two", b"three"):
        assert client.produce(topic, value, version=13).error_code == 0
    assert client.fetch("flights") == [b"one", b"two", b"three"]


def test_another_partition_client_or_version_in_between_is_not_mistaken_for_it(broker):
    broker.create("trains", partitions=2)
    client = broker.connect()
    for version in (9, 10):
        client.produce("flights", b"f", version=version)
        client.produce("flights", b"f", version=version)
        client.produce("trains", b"0", version=version)
        client.produce("trains", b"1", partition=1, version=version)
        client.produce("trains", b"1", partition=1, version=version)
    assert client.fetch("flights") == [b"f"] * 4
    assert client.fetch("trains") == [b"0"] * 2
    assert client.fetch("trains", partition=1) == [b"1"] * 4


def test_who_asks_for_ids_gets_them_after_requests_that_did_not(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    assert client.produce("flights", b"three", wants_ids=True).runs
    assert not client.produce("flights", b"four").runs


def test_a_request_without_acks_has_no_answer_after_ones_with(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    client.send(PRODUCE, 9, produce_request("flights", b"three", acks=0))
    assert client.replies() == []
    assert client.fetch("flights") == [b"one", b"two", b"three"]


def test_a_topic_deleted_and_made_again_is_another_log(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    broker.delete("flights")
    assert client.produce("flights", b"three").error_code == 3
    broker.create("flights")
    assert client.produce("flights", b"four").base_offset == 0
    assert client.fetch("flights") == [b"four"]


def test_a_corrupt_batch_is_refused_and_the_next_one_is_not(broker):
    client = broker.connect()
    for offset in range(6):
        bad = bytearray(batch_of(b"bad"))
        bad[-1] ^= 1
        assert client.produce("flights", b"one").base_offset == offset
        result = client.ask(PRODUCE, 9, produce_request("flights", batch=bad))[0]
        assert result.error_code == ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_batch_of_a_transaction_that_the_request_does_not_name_is_refused_each_time(broker, before):
    client = broker.connect()
    for _ in range(before):
        client.produce("flights", b"one")
    batch = batch_of(b"two", transactional=True, producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(4):
        result = client.ask(PRODUCE, 9, produce_request("flights", batch=batch))[0]
        assert result.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert client.fetch("flights") == [b"one"] * before


def test_a_disk_that_becomes_full_is_answered_as_such(broker):
    """The batch is left as it was sent, so a later one is appended in its place."""
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    broker.storage.free_bytes = 0
    assert client.produce("flights", b"three").error_code == ErrorCode.KAFKA_STORAGE_ERROR
    broker.storage.free_bytes = None
    assert client.produce("flights", b"four").base_offset == 2


def test_an_answer_waits_its_turn_behind_a_request_that_waits(broker):
    client = broker.connect()
    client.produce("flights", b"one")
    client.produce("flights", b"two")
    waiting = client.send(FETCH, 12, fetch_request("flights", 2, max_wait_ms=500))
    produced = client.send(PRODUCE, 9, produce_request("flights", b"three"))
    assert [correlation_id for correlation_id, _ in client.replies()] == [waiting, produced]


@pytest.mark.parametrize("version", [9, 5])
def test_every_cut_of_a_repeated_frame_is_refused_like_the_first_one(broker, version):
    """A template must not read past a frame or accept half of one."""
    client = broker.connect()
    client.produce("flights", b"one", version=version)
    _, whole = client.frame(PRODUCE, version, produce_request("flights", b"two"))
    for end in range(len(whole) - 1, 8, -1):
        sender = broker.connect()
        sender.produce("flights", b"x", version=version)
        before = broker.services.logs.get("flights", 0).log_end_offset
        cut = whole[4:end]
        sender.feed(len(cut).to_bytes(4, "big") + cut)
        assert broker.services.logs.get("flights", 0).log_end_offset == before


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_that_there_are_not_are_refused_each_time(broker, acks):
    client = broker.connect()
    for _ in range(3):
        assert client.produce("flights", b"one", acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.fetch("flights") == []


# --- requests for several partitions ---------------------------------------------------------------------------------


def request_to(topic, *partitions, acks=1):
    _, _, request = producing_to(*[(topic, partition) for partition in partitions], acks=acks)
    return request


def errors_of(results):
    return [(result.partition, ErrorCode(result.error_code).name) for result in results]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("settings", [{}, {"flakelog_durable_acks": True}], ids=["in memory", "on the disk"])
def test_the_answer_for_several_partitions_is_that_of_a_request_without_a_template(broker, version, settings):
    broker.create("several", 5, **settings)
    short, long = broker.connect(), broker.connect(LONG_ID)
    short.ask(PRODUCE, version, request_to("several", 0, 3, 1))
    by_template = short.ask(PRODUCE, version, request_to("several", 0, 1, 4))
    decoded = long.ask(PRODUCE, version, request_to("several", 0, 1, 4))
    assert [result.base_offset for result in by_template] == [1, 1, 0]
    assert [result._replace(base_offset=result.base_offset + 1) for result in by_template] == decoded
    assert [len(long.fetch("several", partition=partition)) for partition in range(5)] == [3, 3, 0, 1, 2]


def test_one_refused_partition_among_several_is_named_and_the_others_are_appended(broker):
    broker.create("several", 3)
    client = broker.connect()
    for expected in range(3):
        results = client.ask(PRODUCE, 9, request_to("several", 0, 99, 2))
        assert errors_of(results) == [(0, "NONE"), (99, "UNKNOWN_TOPIC_OR_PARTITION"), (2, "NONE")]
        assert (results[0].base_offset, results[2].base_offset) == (expected, expected)
    broker.delete("several")
    assert {error for _, error in errors_of(client.ask(PRODUCE, 9, request_to("several", 0, 99, 2)))} == {
        "UNKNOWN_TOPIC_OR_PARTITION"
    }


def test_a_quota_throttles_a_repeated_request_for_several_partitions(broker):
    broker.create("several", 3)
    client = broker.connect()
    for _ in range(2):
        client.ask(PRODUCE, 9, request_to("several", 0, 1, 2))
    broker.change(Staged(Change(quotas={(("client-id", None),): {"producer_byte_rate": 1.0}})))
    client.send(PRODUCE, 9, request_to("several", 0, 1, 2))
    assert not client.conn.readable, "its client is over the quota, so it is muted"
