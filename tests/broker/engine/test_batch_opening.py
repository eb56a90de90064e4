"""Large and compressed batches are opened by threads: meanwhile their connection waits, and all others go on."""

import cramjam
import pytest

from broker.log import log_reader
from broker.log.validation import opening
from broker.record.compression import Codec, compress
from broker.record.records import decode_records
from broker.record.varint import varint
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from tests.broker.engine.opening_world import OpeningWorld, bomb, large, small_budget
from tests.broker.engine_client import FETCH, METADATA, PRODUCE, batch_of, fetch_request, produce_request
from tests.broker.handlers.produce_requests import LONG_ID, flattened
from tests.broker.transactional import TransactionalProducer

RECORDS = 300
GIGABYTE = 1 << 30
ID_HEADER = {"flakelog_id_header": "true"}


@pytest.fixture
def broker(monkeypatch):
    small_budget(monkeypatch)
    broker = OpeningWorld()
    broker.create("flights", partitions=2, compression_type="lz4")
    broker.create("stamped", partitions=2, **ID_HEADER)
    broker.create("plain")
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def send(client, topic="flights", batch=None, **more):
    return client.send(PRODUCE, 9, produce_request(topic, batch=large() if batch is None else batch, **more))


def to_several(*parts, acks=1):
    """Return a request with (topic, partition, batch) each."""
    records = [(topic, partition, memoryview(batch)) for topic, partition, batch in parts]
    return ProduceRequest(None, acks, 30_000, records, False)


def outcomes(client):
    """Return (error code, base offset) of each partition in the answers since the last call."""
    return [(result.error_code, result.base_offset) for _, results in client.replies() for result in results]


def ids_of(broker, topic="stamped", partition=0):
    log = broker.log(topic, partition)
    return flattened(log_reader.ids_of(log, 0, log.log_end_offset))


def stamped_ids(client, topic="stamped", partition=0):
    """Return the ids in the headers of the records; a marker has none."""
    records = client.ask(FETCH, 12, fetch_request(topic, partition=partition)).partitions[0].records
    ids, position = [], 0
    while position < len(records):
        ids += [int(record.headers[0][1]) for record in decode_records(records, position) if record.headers]
        position += 12 + int.from_bytes(records[position + 8 : position + 12], "big")
    return ids


ZEROS = bomb(bytes(GIGABYTE))


# --- bombs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["plain", "flights", "stamped"])
def test_a_gigabyte_of_zeros_is_refused_when_its_first_buffer_is_full(broker, client, topic, monkeypatch):
    """Length 0 is the shortest record, so a buffer of zeros has more records than the header counts."""
    monkeypatch.setattr(opening, "INLINE_UNITS", 20_000)
    tried = []
    spend = opening._Bounds.next_try
    monkeypatch.setattr(opening._Bounds, "next_try", lambda bounds, size: (tried.append(size), spend(bounds, size)))
    result = client.ask(PRODUCE, 9, produce_request(topic, batch=ZEROS))[0]
    assert result.error_code == ErrorCode.INVALID_RECORD
    assert result.message == "zstd records unpack to more bytes than the 1 records have"
    assert len(ZEROS) < 34_000 and sum(tried) < 10 * len(ZEROS) and not broker.jobs


def test_a_record_of_a_gigabyte_is_refused_by_the_limit_on_unpacked_bytes(broker, client):
    """It is found in its first bytes, whatever the frame says of its size."""
    send(client, "plain", bomb(varint(GIGABYTE) + bytes(20_000_000)))
    broker.finish_all()
    ((_, (result,)),) = client.replies()
    assert result.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "unpack to more than 134217728 bytes (flakelog.max.unpacked.batch.bytes)" in result.message


MEMBER = bytes(compress(Codec.GZIP, b""))
BLOCK = bytes(cramjam.snappy.compress_raw(b"\0"))
XERIAL = b"\x82SNAPPY\0" + bytes([0, 0, 0, 1] * 2)
COSTLY = {
    "lengths of three bytes": ((b"\x8c\x80\0" + bytes(6)) * 50_000, 50_000, Codec.NONE),
    "gzip members without bytes": (MEMBER * (60_000 // len(MEMBER)), 100, Codec.GZIP),
    "snappy blocks of a byte": (XERIAL + (len(BLOCK).to_bytes(4, "big") + BLOCK) * 8_000, 1_000, Codec.SNAPPY),
}


@pytest.mark.parametrize("packed, count, codec", COSTLY.values(), ids=COSTLY.keys())
def test_bytes_that_cost_more_than_their_number_go_to_a_thread(broker, client, packed, count, codec, monkeypatch):
    monkeypatch.setattr(opening, "INLINE_UNITS", 20_000)
    send(client, "plain", bomb(b"", count, codec, packed))
    assert len(broker.jobs) == 1


def test_records_are_opened_once_for_all_that_needs_them(monkeypatch):
    broker = OpeningWorld()
    broker.create("all", cleanup_policy="compact", compression_type="lz4", **ID_HEADER)
    opened = []
    decompress = opening.decompress
    monkeypatch.setattr(opening, "decompress", lambda *args: opened.append(args) or decompress(*args))
    client = broker.connect()
    send(client, "all", large(codec=Codec.ZSTD))
    broker.finish_all()
    assert outcomes(client) == [(0, 0)] and len(opened) == 1


# --- order -------------------------------------------------------------------------------------------------------


def test_other_connections_are_served_and_the_next_requests_of_this_one_wait(broker, client):
    other = broker.connect()
    sent = [send(client), send(client, batch=batch_of(b"small")), client.send(METADATA, 1, {"topics": []})]
    assert other.produce("flights", b"other").base_offset == 0
    assert client.answered() == [] and len(broker.jobs) == 1
    broker.finish()
    assert client.answered() == sent
    assert broker.log().log_end_offset == 1 + RECORDS + 1
    assert other.fetch("flights", offset=1)[-1] == b"small"


@pytest.mark.parametrize("client_id", ["test", LONG_ID])
def test_requests_in_one_piece_of_bytes_keep_their_order(broker, client_id):
    client = broker.connect(client_id)
    request = PRODUCE, 9, produce_request("flights", batch=large())
    small = PRODUCE, 9, produce_request("flights", batch=batch_of(b"small"))
    sent = client.send_together(small, request, small, request, (METADATA, 1, {"topics": []}), small)
    while broker.jobs:
        broker.finish()
    replies = client.replies()
    assert [number for number, _ in replies] == sent
    offsets = [results[0].base_offset for _, results in replies if isinstance(results, list)]
    assert offsets == [0, 1, 301, 302, 602]


def test_a_request_in_two_pieces_behind_one_that_waits_is_executed_after_it(broker, client):
    first = send(client)
    number, data = client.frame(PRODUCE, 9, produce_request("flights", b"small"))
    client.feed(data[:30])
    broker.finish()
    assert client.answered() == [first]
    client.feed(data[30:])
    assert client.answered() == [number]


def test_batches_of_several_connections_are_opened_side_by_side(broker):
    clients = [broker.connect() for _ in range(3)]
    for client in clients:
        send(client)
    assert len(broker.jobs) == 3
    broker.finish(2)
    broker.finish(0)
    broker.finish(0)
    assert [outcomes(client) for client in clients] == [[(0, RECORDS)], [(0, 2 * RECORDS)], [(0, 0)]]


def test_a_request_for_several_partitions_is_appended_as_a_whole(broker, client):
    corrupt = bytearray(batch_of(b"corrupt"))
    corrupt[-1] ^= 1
    client.send(PRODUCE, 9, to_several(("flights", 1, corrupt), ("plain", 0, batch_of(b"a")), ("flights", 0, large())))
    assert [broker.log("plain").log_end_offset, broker.log().log_end_offset] == [0, 0]
    broker.finish_all()
    assert outcomes(client) == [(ErrorCode.CORRUPT_MESSAGE, -1), (0, 0), (0, 0)]
    assert broker.services.metrics.by_topic([])["flights"].failed_produce == 1, "counted once"


def test_many_small_batches_of_one_request_are_opened_by_a_thread_together(broker, client):
    """Otherwise one request could take the reactor thread for as long as it likes."""
    few = batch_of(*[b"x"] * 150)
    client.send(PRODUCE, 9, to_several(("flights", 0, few), ("flights", 1, few)))
    assert len(broker.jobs) == 1
    broker.finish()
    assert outcomes(client) == [(0, 0), (0, 0)] and not broker.jobs


# --- meanwhile ---------------------------------------------------------------------------------------------------


def test_a_closed_connection_leaves_nothing(broker, client):
    send(client)
    broker.engine.closed(client.conn)
    assert broker.jobs[0].cancelled
    broker.finish()
    assert broker.log().log_end_offset == 0 and not client.replies()


def test_a_topic_deleted_meanwhile_is_not_known_any_more(broker, client):
    send(client)
    broker.delete("flights")
    broker.finish()
    assert outcomes(client) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]


def test_a_topic_made_again_meanwhile_has_its_own_rules(broker, client):
    send(client)
    broker.delete("flights")
    broker.create("flights", message_timestamp_type="LogAppendTime", compression_type="gzip")
    broker.finish()
    assert outcomes(client) == [], "opened once more, by the rules of the new topic"
    broker.finish()
    assert outcomes(client) == [(0, 0)]
    assert decode_records(client.ask(FETCH, 12, fetch_request("flights")).partitions[0].records)


def test_a_setting_altered_meanwhile_holds_for_the_batch(broker, client):
    send(client)
    broker.alter("flights", {"max.message.bytes": "100"})
    broker.finish()
    assert outcomes(client) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]


def test_the_time_of_the_append_is_when_it_is_appended():
    broker = OpeningWorld()
    broker.create("flights", message_timestamp_type="LogAppendTime", compression_type="zstd", **ID_HEADER)
    client = broker.connect()
    send(client, batch=large(count=2_000))
    assert broker.jobs
    broker.at(broker.now_ms + 500)
    broker.finish()
    assert outcomes(client) == [(0, 0)]
    records = client.ask(FETCH, 12, fetch_request("flights")).partitions[0].records
    assert {record.timestamp_ms for record in decode_records(records)} == {broker.now.wall_ms}


def test_a_duplicate_has_its_first_offsets(broker, client):
    batch = large(producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        send(client, batch=batch)
        send(client, batch=large(producer_id=7, producer_epoch=0, base_sequence=900))
        broker.finish_all()
    wrong = (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert outcomes(client) == [(0, 0), wrong, (0, 0), wrong]


def test_with_acks_0_a_refusal_closes_the_connection(broker, client):
    send(client, acks=0)
    send(client, "stamped", batch=bomb(b"\x07rubbish" * 5_000, 9_000), acks=0)
    broker.finish_all()
    assert broker.log().log_end_offset == RECORDS
    assert "a Produce with acks=0 failed: a record" in client.closed


def test_with_durable_acks_the_answer_waits_for_the_disk(broker, client):
    broker.create("durable", flakelog_durable_acks="true", compression_type="lz4")
    send(client, "durable")
    broker.held = []
    broker.finish()
    assert outcomes(client) == []
    broker.release()
    assert outcomes(client) == [(0, 0)]


def test_a_fault_in_the_thread_closes_its_connection_only(broker, client):
    other = broker.connect()
    send(client)
    broker.engine.sync_failed(broker.jobs.pop(), RuntimeError("broken on purpose"), broker.now)
    broker.pump()
    assert client.closed and "broken on purpose" in broker.reported[-1]
    assert other.produce("flights", b"a").base_offset == 0


def test_past_the_records_a_topic_opens_no_thread_is_needed():
    broker = OpeningWorld(max_opened_batch_records=100)
    broker.create("flights", cleanup_policy="compact")
    client = broker.connect()
    send(client)
    assert outcomes(client) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)] and not broker.jobs


# --- ids as headers ----------------------------------------------------------------------------------------------


def test_records_are_stamped_by_the_thread_with_the_ids_they_have(broker, client):
    send(client, "stamped")
    broker.finish()
    assert outcomes(client) == [(0, 0)]
    assert stamped_ids(client) == ids_of(broker) and len(ids_of(broker)) == RECORDS


def test_batches_for_a_log_wait_while_a_thread_stamps_records_for_it(broker, client):
    """Its ids are taken already, and ids rise with the offset."""
    second, third = broker.connect(), broker.connect()
    send(client, "stamped")
    send(second, "stamped", batch_of(b"small"))
    send(third, "stamped")
    assert len(broker.jobs) == 1
    assert broker.connect().produce("stamped", b"another partition", partition=1).base_offset == 0
    broker.finish_all()
    (first,), (small,), (large_one,) = outcomes(client), outcomes(second), outcomes(third)
    assert first == (0, 0) and small[0] == large_one[0] == 0
    assert ids_of(broker) == sorted(set(ids_of(broker))) and len(ids_of(broker)) == 2 * RECORDS + 1
    assert stamped_ids(client) == ids_of(broker)


def test_a_batch_staged_before_in_the_same_turn_has_lower_ids(broker, client):
    other = broker.connect()
    with broker.turn():
        send(other, "stamped", batch_of(b"small"))
        send(client, "stamped")
    broker.finish_all()
    assert outcomes(other) == [(0, 0)] and outcomes(client) == [(0, 1)]
    assert stamped_ids(client) == ids_of(broker) == sorted(ids_of(broker))


def test_a_partition_named_twice_is_stamped_twice(broker, client):
    client.send(PRODUCE, 9, to_several(*[("stamped", 0, large())] * 2, ("stamped", 1, large())))
    broker.finish_all()
    assert outcomes(client) == [(0, 0), (0, RECORDS), (0, 0)]
    assert stamped_ids(client) == ids_of(broker) == sorted(set(ids_of(broker)))


def test_a_closed_connection_reserves_nothing(broker, client):
    other = broker.connect()
    send(client, "stamped")
    send(other, "stamped", batch_of(b"small"))
    assert outcomes(other) == []
    broker.engine.closed(client.conn)
    broker.pump()
    assert outcomes(other) == [(0, 0)]
    broker.finish()
    assert len(ids_of(broker)) == 1


def test_a_connection_closed_while_it_waits_for_a_log_is_forgotten(broker, client):
    other = broker.connect()
    send(client, "stamped")
    send(other, "stamped")
    broker.engine.closed(other.conn)
    broker.finish_all()
    assert outcomes(client) == [(0, 0)] and len(ids_of(broker)) == RECORDS


def test_a_marker_that_comes_between_has_the_records_stamped_again(broker, client):
    producer = TransactionalProducer(broker)
    producer.init()
    producer.add(("stamped", 0))
    producer.send("stamped", b"in a transaction")
    send(client, "stamped")
    producer.end(True)
    broker.finish()
    assert outcomes(client) == [] and len(broker.jobs) == 1, "its ids are below the marker's"
    broker.finish()
    assert outcomes(client) == [(0, 2)]
    assert ids_of(broker) == sorted(set(ids_of(broker)))
    assert stamped_ids(client)[-RECORDS:] == ids_of(broker)[-RECORDS:]


def test_a_batch_that_waits_for_ids_goes_before_one_that_a_thread_stamps(monkeypatch):
    """Two batches of one connection in one turn: the log is reserved for the second one, and the first one is next."""
    small_budget(monkeypatch)
    broker = OpeningWorld(max_ahead_ms=0)
    broker.create("stamped", **ID_HEADER)
    client = broker.connect()
    broker.worker.next_ids(broker.worker.max_batch, broker.now.wall_ms)
    small, late = ((PRODUCE, 9, produce_request("stamped", batch=batch)) for batch in (batch_of(b"small"), large()))
    client.send_together(small, late)
    broker.at(broker.now_ms + 100)
    broker.finish_all()
    assert outcomes(client) == [(0, 0), (ErrorCode.REQUEST_TIMED_OUT, -1)]
    assert not broker.services.turn.reserved


def test_without_ids_a_large_batch_is_refused_and_reserves_nothing(broker, client):
    broker.worker.next_ids(broker.worker.max_batch, broker.now.wall_ms)
    send(client, "stamped")
    broker.finish_all()
    assert outcomes(client) == [(ErrorCode.REQUEST_TIMED_OUT, -1)]
    broker.at(broker.now_ms + 1_000)
    assert client.produce("stamped", b"later").base_offset == 0


def test_two_requests_for_the_same_logs_in_another_order_do_not_wait_for_each_other(broker, client):
    other = broker.connect()
    client.send(PRODUCE, 9, to_several(("stamped", 0, large()), ("stamped", 1, large())))
    other.send(PRODUCE, 9, to_several(("stamped", 1, large()), ("stamped", 0, large())))
    broker.finish_all()
    assert outcomes(client) == [(0, 0), (0, 0)] and outcomes(other) == [(0, RECORDS), (0, RECORDS)]
