"""A batch with a good header and CRC whose other bytes are no records is refused: no consumer would get past it."""

import cramjam
import pytest

from broker.record.batch import HEADER_BYTES, LENGTH_END, read_header, seal
from broker.record.compression import Codec
from broker.record.records import BatchRecord, build_batch, encode_batch, encode_record
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import PRODUCE, WALL_MS, EngineBroker, batch_of, produce_request

MODES = ("full", "lengths", "header")
PACKED = [codec for codec in Codec if codec is not Codec.NONE]


@pytest.fixture
def broker():
    broker = EngineBroker()
    broker.create("flights")
    for mode in MODES:
        broker.create(mode, flakelog_validate_records=mode)
    return broker


@pytest.fixture
def client(broker):
    return broker.connect()


def refusal(client, batch, topic="flights"):
    """Return the error of a batch: its code and message."""
    result = client.ask(PRODUCE, 9, produce_request(topic, batch=batch))[0]
    return result.error_code, result.message


def with_records(data, count, codec=Codec.NONE):
    """Return a batch whose header counts `count` records, and is right in all else."""
    header = read_header(batch_of(b"x"))._replace(record_count=count, last_offset_delta=count - 1)
    return build_batch(header, data, codec)[0]


def with_packed(packed, count, codec):
    """Return a batch of bytes that are compressed already."""
    batch = bytearray(HEADER_BYTES) + packed
    header = read_header(batch_of(b"x"))._replace(record_count=count, last_offset_delta=count - 1)
    seal(batch, header._replace(batch_length=len(batch) - LENGTH_END, attributes=int(codec)))
    return batch


def records(*sizes):
    return b"".join([encode_record(BatchRecord(n, 0, None, bytes(size))) for n, size in enumerate(sizes)])


@pytest.mark.parametrize("codec", Codec)
def test_rubbish_under_a_good_header_is_refused_and_takes_no_id(broker, client, codec):
    before = broker.worker.next_ids(1, WALL_MS + broker.now_ms)[0][0]
    code, message = refusal(client, with_records(b"\x07rubbish" * 9, 3, codec))
    assert code == ErrorCode.INVALID_RECORD and message
    assert broker.services.log_of("flights", 0).log_end_offset == 0
    assert broker.worker.next_ids(1, WALL_MS + broker.now_ms)[0][0] == before + 1
    assert client.fetch("flights") == []


@pytest.mark.parametrize("codec", Codec)
def test_five_records_that_claim_a_thousand_are_refused(client, codec):
    code, message = refusal(client, with_records(records(*[2_000] * 5), 1_000, codec))
    assert code == ErrorCode.INVALID_RECORD
    assert "the header counts 1000 records, and the bytes have 5" in message


@pytest.mark.parametrize("codec", PACKED)
def test_compressed_records_are_opened_and_stored_as_they_came(broker, client, codec):
    batch = batch_of(*[b"value %d" % n for n in range(200)], codec=codec)
    assert refusal(client, batch) == (0, None)
    assert len(client.fetch("flights")) == 200


def test_how_far_records_are_checked_is_a_setting_of_the_topic(client):
    """A wrong field inside the seventeenth record is found with `full` only, another length not with `header`."""
    good = [encode_record(BatchRecord(n, 0, None, b"value")) for n in range(20)]
    inside = [*good[:16], bytearray(good[16]), *good[17:]]
    inside[16][4] = 0x7F  # the length of the value
    taken = {mode: refusal(client, with_records(b"".join(inside), 20), mode)[0] for mode in MODES}
    assert taken == {"full": ErrorCode.INVALID_RECORD, "lengths": 0, "header": 0}
    taken = {mode: refusal(client, with_records(b"".join(good[:19]), 20), mode)[0] for mode in MODES}
    assert taken == {"full": ErrorCode.INVALID_RECORD, "lengths": ErrorCode.INVALID_RECORD, "header": 0}


def test_the_setting_has_a_default_at_the_broker():
    broker = EngineBroker(validate_records="header")
    broker.create("flights")
    assert refusal(broker.connect(), with_records(b"\x07rubbish" * 9, 3))[0] == 0


def test_a_record_of_sixteen_is_checked_in_every_field(client):
    good = [encode_record(BatchRecord(n, 0, None, b"value")) for n in range(16)]
    for number in range(16):
        wrong = [*good]
        wrong[number] = encode_record(BatchRecord(number + 1, 0, None, b"value"))
        code, message = refusal(client, with_records(b"".join(wrong), 16))
        assert code == ErrorCode.INVALID_RECORD and f"record {number} has the offset delta {number + 1}" in message


def test_a_header_name_that_is_no_text_is_taken_and_read_with_replacement_characters(client):
    """Kafka's brokers take any bytes, and its clients decode them with replacement characters."""
    sent = encode_record(BatchRecord(0, 0, None, b"v", (("ab", b"x"),))).replace(b"ab", b"\xff\xfe")
    assert refusal(client, with_records(sent, 1))[0] == 0
    assert client.fetch("flights") == [b"v"]


def test_linked_lz4_blocks_are_refused_since_java_does_not_read_them(client):
    data = records(*[100] * 20)
    linked = bytes(cramjam.lz4.compress(data))
    assert refusal(client, with_packed(linked, 20, Codec.LZ4))[0] == ErrorCode.INVALID_RECORD


def test_a_second_lz4_frame_is_refused_since_java_does_not_read_it(client):
    """Java's reader ends after the first frame, and finds the records cut off."""
    first, second = (build_batch(read_header(batch_of(b"x")), data, Codec.LZ4)[0][HEADER_BYTES:] for data in (
        records(*[100] * 20)[:1_000], records(*[100] * 20)[1_000:],
    ))  # fmt: skip
    code, message = refusal(client, with_packed(first + second, 20, Codec.LZ4))
    assert code == ErrorCode.INVALID_RECORD and "their one frame ends at byte" in message


@pytest.mark.parametrize("codec, module", [(Codec.GZIP, cramjam.gzip), (Codec.ZSTD, cramjam.zstd)])
def test_several_frames_of_gzip_and_zstd_are_one_stream(client, codec, module):
    data = records(*[100] * 20)
    packed = bytes(module.compress(data[:999])) + bytes(module.compress(data[999:]))
    assert refusal(client, with_packed(packed, 20, codec)) == (0, None)


def test_a_record_more_than_the_header_counts_is_refused(client):
    batch = encode_batch([BatchRecord(n, 0, None, b"v") for n in range(30)], base_timestamp_ms=WALL_MS)
    fewer = read_header(batch)._replace(record_count=29, last_offset_delta=28)
    assert refusal(client, build_batch(fewer, batch[HEADER_BYTES:], Codec.NONE)[0])[0] == ErrorCode.INVALID_RECORD
