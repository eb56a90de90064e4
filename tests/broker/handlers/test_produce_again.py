"""Fast path for a Produce that repeats the previous one. Its answers and the log are those of the slow path."""

import pytest

from broker.handlers import produce_again
from broker.handlers.produce_alike import Alike
from broker.log.judge import is_plain
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    FETCH,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)

VERSIONS = range(5, 13)  # the versions that name topics by name and answer with the log start offset


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    return broker


def repeats(client):
    return client.conn.again is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_the_answer_is_that_of_the_long_way(broker, version):
    short, long = broker.connect(), broker.connect()
    short.produce("flights", b"first", version=version)
    assert repeats(short)
    by_short = short.produce("flights", b"one", b"two", version=version)
    assert repeats(short)
    long.conn.again = None
    by_long = long.produce("flights", b"one", b"two", version=version)
    by_short.base_offset += 2
    assert by_short == by_long
    assert long.fetch("flights") == [b"first", b"one", b"two", b"one", b"two"]


@pytest.mark.parametrize("version", VERSIONS)
def test_so_is_that_of_one_as_long_as_those_before_it(broker, version):
    short, long = broker.connect(), broker.connect()
    for value in (b"one", b"two", b"six"):
        short.produce("flights", value, version=version)
    by_short = short.produce("flights", b"ten", version=version)
    assert repeats(short)
    by_long = long.produce("flights", b"ten", version=version)
    by_short.base_offset += 1
    assert by_short == by_long
    assert long.fetch("flights") == [b"one", b"two", b"six", b"ten", b"ten"]


@pytest.mark.parametrize("changes", [0, 8, 9, 100])
def test_batches_of_one_size_are_soon_known_however_often_the_size_changed_before(broker, monkeypatch, changes):
    judged = []
    monkeypatch.setattr(produce_again, "is_plain", lambda *rules: judged.append(rules) or is_plain(*rules))
    client = broker.connect()
    for size in range(changes):
        client.produce("flights", bytes(size))
        client.produce("flights", bytes(size))
    for _ in range(produce_again.ALIKE_PAUSE_MAX + 2):
        client.produce("flights", bytes(200))
    judged.clear()
    client.produce("flights", bytes(200))
    assert judged == []


def test_batches_that_are_as_long_and_never_alike_are_seldom_made_ready_for(broker, monkeypatch):
    made = []
    monkeypatch.setattr(produce_again, "Alike", lambda *frame: made.append(frame) or Alike(*frame))
    client = broker.connect()
    for n in range(1000):
        client.produce("flights", *([b"a" * 9], [b"a"] * 2)[n % 2])
    assert len({len(frame) for frame, *_ in made}) == 1 and len(made) < 12


def test_what_was_let_pass_before_is_refused_once_a_setting_says_so(broker):
    client = broker.connect()
    for _ in range(4):
        client.produce("flights", b"one")
    broker.services.alter_broker("", {"message.max.bytes": "50"})
    assert client.produce("flights", b"one").error_code == ErrorCode.MESSAGE_TOO_LARGE
    broker.services.alter_broker("", {})
    assert client.produce("flights", b"one").base_offset == 4


def test_a_producers_batches_of_one_size_are_each_known_again(broker):
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
    assert repeats(client)
    assert [len(value) for value in client.fetch("flights", max_bytes=10**7)] == [5, size]


@pytest.mark.parametrize("around", [128, 16_384])
def test_sizes_that_go_to_and_fro_where_their_length_takes_a_byte_more_stay_on_the_short_way(broker, around):
    client = broker.connect()
    client.produce("flights", b"first")
    again = client.conn.again
    overhead = len(batch_of(b""))
    sizes = [around - overhead + more for n in range(30) for more in (-n, n)]
    for size in sizes:
        client.produce("flights", bytes(size))
        assert client.conn.again is again is not None
    assert [len(value) for value in client.fetch("flights")] == [5, *sizes]


def test_a_length_that_is_spelled_with_a_byte_too_many_is_for_the_long_way(broker):
    client = broker.connect()
    client.produce("flights", b"first")
    _, frame = client.frame(PRODUCE, 9, produce_request("flights", b"second"))
    at = len(frame) - len(batch_of(b"second")) - 4  # three empty tag sections follow the records
    spelled = frame[4:at] + bytes([frame[at] | 0x80, 0]) + frame[at + 1 :]
    client.feed(len(spelled).to_bytes(4, "big") + spelled)
    assert len(client.replies()) == 1 and not repeats(client)
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
    assert repeats(client)
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
    """The fast path has already tried to append; the slow path must get the batch as it was sent."""
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
    """The fast path must not read past a frame or accept half of one."""
    client = broker.connect()
    client.produce("flights", b"one", version=version)
    _, whole = client.frame(PRODUCE, version, produce_request("flights", b"two"))
    for end in range(len(whole) - 1, 8, -1):
        each = broker.connect()
        each.produce("flights", b"x", version=version)
        before = broker.services.logs.get("flights", 0).log_end_offset
        cut = whole[4:end]
        each.feed(len(cut).to_bytes(4, "big") + cut)
        assert broker.services.logs.get("flights", 0).log_end_offset == before


@pytest.mark.parametrize("acks", [2, -2])
def test_acks_that_there_are_not_are_refused_each_time(broker, acks):
    client = broker.connect()
    for _ in range(3):
        assert client.produce("flights", b"one", acks=acks).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert client.fetch("flights") == []


# --- several requests in one turn ------------------------------------------------------------------------------------


def connected(broker, number, topic="flights"):
    """Return clients whose next requests take the fast path."""
    clients = [broker.connect() for _ in range(number)]
    for client in clients:
        client.produce(topic, b"first")
        assert repeats(client)
    return clients


def produced_in_one_turn(broker, clients, batches, topic="flights"):
    """Send one batch from each client in one turn; return the results, by client."""
    with broker.turn():
        for client, batch in zip(clients, batches, strict=True):
            client.send(PRODUCE, 9, produce_request(topic, batch=batch))
    return [client.replies()[0][1][0] for client in clients]


def test_requests_of_one_turn_are_appended_in_their_order(broker):
    clients = connected(broker, 4)
    results = produced_in_one_turn(broker, clients, [batch_of(b"%d" % n, b"+") for n in range(4)])
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 4), (0, 6), (0, 8), (0, 10)]
    assert clients[0].fetch("flights", 4) == [b"0", b"+", b"1", b"+", b"2", b"+", b"3", b"+"]
    ids = flattened(broker.services.log_of("flights", 0).ids_of(0, 12))
    assert len(ids) == 12 and ids == sorted(set(ids))
    again = broker.restarted(clean=False)
    assert flattened(again.services.log_of("flights", 0).ids_of(0, 12)) == ids


def flattened(runs):
    return [first + n for first, length in runs for n in range(length)]


def test_one_that_is_refused_takes_nothing_from_the_others(broker):
    clients = connected(broker, 3)
    bad = bytearray(batch_of(b"bad"))
    bad[-1] ^= 1
    results = produced_in_one_turn(broker, clients, [batch_of(b"a"), bad, batch_of(b"b")])
    assert [result.error_code for result in results] == [0, ErrorCode.CORRUPT_MESSAGE, 0]
    assert clients[0].fetch("flights", 3) == [b"a", b"b"]


def of_producer(value, sequence, producer_id=7):
    return batch_of(value, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


def test_a_producers_batch_that_comes_by_two_connections_is_written_once(broker):
    """The producer gave up on a connection and sends again on another, while the first's bytes still come (KIP-98)."""
    clients = connected(broker, 3)
    results = produced_in_one_turn(broker, clients, [of_producer(b"a", 0), batch_of(b"other"), of_producer(b"a", 0)])
    assert [(result.error_code, result.base_offset) for result in results] == [(0, 3), (0, 4), (0, 3)]
    assert clients[0].fetch("flights", 3) == [b"a", b"other"]


def test_producers_that_go_on_and_one_that_leaves_a_gap(broker):
    clients = connected(broker, 3)
    begun = [of_producer(b"a", 0, producer_id=n) for n in range(3)]
    assert [result.error_code for result in produced_in_one_turn(broker, clients, begun)] == [0, 0, 0]
    on = [of_producer(b"b", 1, 0), of_producer(b"c", 5, 1), of_producer(b"d", 1, 2)]
    results = produced_in_one_turn(broker, clients, on)
    assert [result.error_code for result in results] == [0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0]
    assert clients[0].fetch("flights", 6) == [b"b", b"d"]


def test_what_one_connection_sends_in_one_turn_is_answered_in_order(broker):
    first, second = connected(broker, 2)
    with broker.turn():
        frames = [first.frame(PRODUCE, 9, produce_request("flights", b"%d" % n)) for n in range(5)]
        first.feed(b"".join(data for _, data in frames[:3]))
        second.send(PRODUCE, 9, produce_request("flights", b"other"))
        first.feed(b"".join(data for _, data in frames[3:]))
    assert [answered for answered, _ in first.replies()] == [sent for sent, _ in frames]
    assert len(second.replies()) == 1
    assert second.fetch("flights", 2) == [b"0", b"1", b"2", b"other", b"3", b"4"]


def test_a_fetch_sees_what_was_produced_before_it_in_the_turn(broker):
    producer, consumer = connected(broker, 2)
    with broker.turn():
        producer.send(PRODUCE, 9, produce_request("flights", b"new"))
        consumer.send(FETCH, 12, fetch_request("flights", 2))
    assert values_of(consumer.replies()[0][1]) == [b"new"]


def test_a_segment_that_is_full_in_the_middle_of_a_turn_is_followed_by_the_next():
    broker = EngineBroker()
    broker.create("flights", segment_bytes=1024)
    clients = connected(broker, 9)
    values = [b"%d" % n + bytes(200) for n in range(9)]
    results = produced_in_one_turn(broker, clients, [batch_of(value) for value in values])
    assert [result.base_offset for result in results] == list(range(9, 18))
    log = broker.services.log_of("flights", 0)
    assert len(log.segments) > 3 and all(segment.size <= 1024 for segment in log.segments)
    again = broker.restarted(clean=False).connect()
    found = [value for offset in range(9, 18) for value in again.fetch("flights", offset)[:1]]
    assert found == values


def test_a_disk_that_becomes_full_in_a_turn_refuses_all_of_it_and_loses_nothing(broker):
    clients = connected(broker, 3)
    broker.storage.free_bytes = 100
    results = produced_in_one_turn(broker, clients, [batch_of(b"%d" % n) for n in range(3)])
    assert [result.error_code for result in results] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
    broker.storage.free_bytes = None
    assert clients[0].produce("flights", b"after").base_offset == 3
    again = broker.restarted(clean=False).connect()
    assert again.fetch("flights") == [b"first", b"first", b"first", b"after"]


def test_a_turn_on_many_partitions_goes_to_each():
    broker = EngineBroker()
    broker.create("flights", partitions=3)
    clients = [broker.connect() for _ in range(6)]
    for round_ in range(2):
        with broker.turn():
            for number, client in enumerate(clients):
                client.send(PRODUCE, 9, produce_request("flights", b"%d" % number, partition=number % 3))
        offsets = [client.replies()[0][1][0].base_offset for client in clients]
        assert offsets == [2 * round_] * 3 + [2 * round_ + 1] * 3
    assert clients[0].fetch("flights", partition=1) == [b"1", b"4"] * 2


# --- with durable acks -----------------------------------------------------------------------------------------------


@pytest.fixture
def durable():
    broker = EngineBroker()
    broker.create("flights", flakelog_durable_acks="true")
    return broker


def test_those_of_a_turn_are_answered_by_one_sync(durable):
    clients = connected(durable, 3)
    held = durable.hold_syncs()
    with durable.turn():
        sent = [client.send(PRODUCE, 9, produce_request("flights", b"x")) for client in clients]
    assert [type(sync).__name__ for sync in held] == ["SyncJournal"]
    assert [client.replies() for client in clients] == [[], [], []]
    clients[1].send(PRODUCE, 9, produce_request("flights", b"next"))
    durable.release()
    answered = [[(id, result[0].base_offset) for id, result in client.replies()] for client in clients]
    assert answered == [[(sent[0], 3)], [(sent[1], 4), (sent[1] + 1, 6)], [(sent[2], 5)]]


def test_a_connection_that_goes_does_not_take_the_others_answers_with_it(durable):
    gone, stays = connected(durable, 2)
    durable.hold_syncs()
    with durable.turn():
        for client in (gone, stays):
            client.send(PRODUCE, 9, produce_request("flights", b"x"))
    durable.engine.closed(gone.conn)
    durable.release()
    assert stays.replies()[0][1][0].base_offset == 3
    assert stays.fetch("flights") == [b"first", b"first", b"x", b"x"]


def test_a_disk_that_is_too_slow_is_a_timeout_for_each_and_a_failed_one_an_error(durable):
    clients = connected(durable, 2)
    held = durable.hold_syncs()
    with durable.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", b"x"))
    durable.at(durable.now_ms + 30_001)
    late = [client.replies()[0][1][0] for client in clients]
    assert [result.error_code for result in late] == [ErrorCode.REQUEST_TIMED_OUT] * 2
    assert "the disk takes longer" in late[0].message and late[0].base_offset == -1
    with durable.turn():
        for client in clients:
            client.send(PRODUCE, 9, produce_request("flights", b"y"))
    durable.storage.failing_syncs.add(held[0].file.path)
    durable.release()
    assert [client.replies()[0][1][0].error_code for client in clients] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
