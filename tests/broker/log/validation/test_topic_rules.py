"""A topic's rules for produced records (https://kafka.apache.org/documentation/#topicconfigs)."""

import pytest
from aiokafka.record.memory_records import MemoryRecords as AiokafkaRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.validation.batch import validate
from broker.log.validation.opening import IdHeaders, Limits, prepare
from broker.log.validation.record_check import Budget
from broker.log.validation.topic_rules import RECORD_ERRORS_MAX, Openable
from broker.record.batch import HEADER_BYTES, read_header, seal, verify
from broker.record.compression import Codec
from broker.record.records import BatchRecord, build_batch, decode_records, encode_batch
from broker.settings.config import LONG_MAX, BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.conftest import START_MS, batch_of

OPENABLE = Openable(1 << 20, 10_000)
HEADERS_MAX = 100
HOUR_MS = 3_600_000
CODECS = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def met(batch, openable=OPENABLE, **topic):
    """Return the batch as the topic stores it: (its bytes, its header)."""
    sent, config = memoryview(bytearray(batch)), TopicConfig(**topic)
    stored = prepared(sent, config, openable)
    return stored.batch, stored.header


def prepared(sent, config, openable=OPENABLE):
    header = validate(sent, config, BrokerConfig())
    return prepare(sent, header, config, "flights-0", START_MS, Limits(openable, HEADERS_MAX), Budget(None))


def refusal(batch, code, **topic):
    with pytest.raises(ApiError) as caught:
        met(batch, **topic)
    assert caught.value.code is code
    return caught.value


def keyed(*keys, codec=Codec.NONE):
    records = [BatchRecord(n, 0, key, b"v") for n, key in enumerate(keys)]
    return encode_batch(records, base_timestamp_ms=START_MS, codec=codec)


def timed(*times_ms, codec=Codec.NONE):
    records = [BatchRecord(n, time - times_ms[0], None, b"v") for n, time in enumerate(times_ms)]
    return encode_batch(records, base_timestamp_ms=times_ms[0], codec=codec)


def damaged(count=3, codec=Codec.NONE):
    """Return a batch with a good header and CRC whose other bytes are no records."""
    good = read_header(batch_of(*[b"x" * 20] * count))
    return build_batch(good, b"\x7f" * 100, codec)[0]


# --- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", Codec)
def test_log_append_time_is_in_the_header_and_the_records_stay_as_they_were(codec):
    sent = batch_of(b"a" * 50, b"b" * 50, timestamp_ms=5, codec=codec)
    batch, header = met(sent, message_timestamp_type="LogAppendTime")
    verify(batch, header)
    assert header == read_header(batch) and header.is_log_append_time
    assert batch[HEADER_BYTES:] == sent[HEADER_BYTES:]
    assert {record.timestamp_ms for record in decode_records(batch)} == {START_MS}


def test_the_bytes_of_the_request_are_left_alone_as_it_may_be_tried_again():
    sent = memoryview(batch_of(b"a"))
    before = bytes(sent)
    config = TopicConfig(message_timestamp_type="LogAppendTime")
    prepared(sent, config)
    assert bytes(sent) == before


def test_under_log_append_time_no_time_of_a_producer_is_too_old_or_too_new():
    topic = {"message_timestamp_type": "LogAppendTime", "message_timestamp_before_max_ms": 0}
    for time in (0, START_MS + 100 * HOUR_MS):
        assert met(timed(time), **topic)[1].max_timestamp == START_MS


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_time_past_the_bound_ahead_is_refused_with_the_records_that_have_it(codec):
    refused = refusal(
        timed(START_MS, START_MS + HOUR_MS, START_MS + HOUR_MS + 1, codec=codec), ErrorCode.INVALID_TIMESTAMP
    )
    ((index, message),) = refused.record_errors
    assert index == 2 and "is 3600001 ms ahead of the broker's clock" in message
    assert "1 of 3 records" in refused.message and "record 2" in refused.message


def test_a_time_of_more_than_64_bits_is_refused_though_the_topic_has_no_bound():
    """The batch is compressed again, and its new header could not hold that time."""
    sent = timed(LONG_MAX - 1, LONG_MAX)
    crafted, _ = build_batch(read_header(sent)._replace(base_timestamp=LONG_MAX), sent[HEADER_BYTES:], Codec.NONE)
    topic = {"compression_type": "gzip", "message_timestamp_after_max_ms": LONG_MAX}
    met(sent, **topic)
    refused = refusal(crafted, ErrorCode.INVALID_TIMESTAMP, **topic)
    assert [index for index, _ in refused.record_errors] == [1]


def test_a_header_that_claims_a_time_none_of_its_records_has_is_put_right():
    """If the header proves the times good, the records are not decoded; otherwise they are."""
    sent = timed(START_MS, START_MS + 5)
    lying, _ = build_batch(
        read_header(sent)._replace(max_timestamp=START_MS + 2 * HOUR_MS), sent[HEADER_BYTES:], Codec.NONE
    )
    batch, header = met(lying)
    assert header.max_timestamp == read_header(batch).max_timestamp == START_MS + 5
    verify(batch, header)


def test_where_only_headers_are_validated_a_batch_with_good_times_is_not_opened():
    batch, _ = met(damaged(), validate_records="header")
    assert bytes(batch) == bytes(damaged())


def test_a_time_past_the_bound_behind_is_refused_though_the_first_and_the_newest_are_good():
    sent = timed(START_MS, START_MS - 1_001, START_MS - 1_000)
    refused = refusal(sent, ErrorCode.INVALID_TIMESTAMP, message_timestamp_before_max_ms=1_000)
    assert [index for index, _ in refused.record_errors] == [1]
    met(sent, message_timestamp_before_max_ms=1_001)


def test_a_record_without_a_time_is_in_no_ones_past():
    """Kafka, too, ignores records with NO_TIMESTAMP, -1."""
    met(timed(-1, START_MS), message_timestamp_before_max_ms=1_000)


# --- keys --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY])
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_names_the_records_without_a_key(policy, codec):
    refused = refusal(keyed(b"a", None, b"", None, codec=codec), ErrorCode.INVALID_RECORD, cleanup_policy=policy)
    assert [index for index, _ in refused.record_errors] == [1, 3]
    reason = "Compacted topic cannot accept message without key in topic partition flights-0"
    assert {message for _, message in refused.record_errors} == {reason}


def test_a_compacted_topic_takes_keys_and_keeps_the_batch_as_it_came():
    sent = keyed(b"a", b"", codec=Codec.GZIP)
    assert bytes(met(sent, cleanup_policy="compact")[0]) == bytes(sent)


def test_where_times_and_keys_are_wrong_the_code_is_that_of_times():
    """Kafka does the same (LogValidator.processRecordErrors)."""
    records = [BatchRecord(0, 0, None, b"v"), BatchRecord(1, 2 * HOUR_MS, b"k", b"v")]
    sent = encode_batch(records, base_timestamp_ms=START_MS)
    refused = refusal(sent, ErrorCode.INVALID_TIMESTAMP, cleanup_policy="compact")
    assert [index for index, _ in refused.record_errors] == [0, 1]


def test_an_answer_names_a_bounded_number_of_records_and_says_how_many_there_are():
    refused = refusal(keyed(*[None] * 5_000), ErrorCode.INVALID_RECORD, cleanup_policy="compact")
    assert len(refused.record_errors) == RECORD_ERRORS_MAX and "5000 of 5000" in refused.message


# --- compression -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", Codec)
@pytest.mark.parametrize("compression_type", CODECS)
def test_a_batch_is_kept_in_the_topics_codec(sent, compression_type):
    values = [b"value %d" % n for n in range(50)]
    batch = batch_of(*values, codec=sent, producer_id=7, producer_epoch=2, base_sequence=30)
    new, header = met(batch, compression_type=compression_type)
    verify(new, header)
    before = read_header(batch)
    assert header.compression == CODECS[compression_type]
    changed = ("batch_length", "crc", "attributes")
    assert all(getattr(header, name) == getattr(before, name) for name in header._fields if name not in changed)
    assert decode_records(new) == decode_records(batch)
    if sent == CODECS[compression_type]:
        assert bytes(new) == bytes(batch), "nothing was to be done"


@pytest.mark.parametrize("codec", [Codec.SNAPPY, Codec.LZ4, Codec.ZSTD, Codec.GZIP])
def test_a_client_reads_what_was_packed_anew(codec):
    values = [b"value %d" % n for n in range(50)]
    batch = AiokafkaRecords(bytes(met(batch_of(*values), compression_type=codec.name.lower())[0])).next_batch()
    assert batch.validate_crc() and [record.value for record in batch] == values


@pytest.mark.parametrize(
    "codec, setting, low, high",
    [("gzip", "compression_gzip_level", 1, 9), ("lz4", "compression_lz4_level", 9, 17),
     ("zstd", "compression_zstd_level", -100, 22)],
)  # fmt: skip
def test_a_higher_level_makes_it_smaller(codec, setting, low, high):
    batch = batch_of(*[b"flight %d from %d to %d" % (n, n * 7 % 31, n * n % 97) for n in range(500)])
    sizes = [len(met(batch, compression_type=codec, **{setting: level})[0]) for level in (low, high)]
    assert sizes[0] > sizes[1]


@pytest.mark.parametrize("level", [0, 10, -2])
def test_a_level_kafka_does_not_know_is_refused(level):
    with pytest.raises(ValueError, match="between 1 and 9, or -1"):
        TopicConfig(compression_gzip_level=level)


def test_what_is_too_large_once_it_is_unpacked_is_refused():
    """max.message.bytes is checked again after compression, as in Kafka."""
    batch = batch_of(bytes(10_000), codec=Codec.GZIP)
    refused = refusal(batch, ErrorCode.MESSAGE_TOO_LARGE, compression_type="uncompressed", max_message_bytes=5_000)
    assert "max.message.bytes of the topic is 5000" in refused.message
    met(batch, compression_type="snappy", max_message_bytes=5_000)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_batch_that_unpacks_to_more_than_the_bound_is_refused(codec):
    batch = batch_of(bytes(100_000), codec=codec)
    most = Openable(99_999, 100)
    refused = refusal(batch, ErrorCode.MESSAGE_TOO_LARGE, compression_type="uncompressed", openable=most)
    assert "flakelog.max.unpacked.batch.bytes" in refused.message


# --- bytes that are no records -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic", [{"cleanup_policy": "compact"}, {"compression_type": "lz4"}, {"message_timestamp_before_max_ms": 5}]
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_bytes_that_are_no_records_are_refused_where_they_are_looked_at(topic, codec):
    refusal(damaged(codec=codec), ErrorCode.INVALID_RECORD, **topic)


def test_bytes_that_do_not_unpack_are_refused():
    sent, header = build_batch(read_header(batch_of(b"x" * 100)), b"no gzip at all" * 10, Codec.NONE)
    seal(sent, header._replace(attributes=int(Codec.GZIP)))
    refused = refusal(sent, ErrorCode.INVALID_RECORD, compression_type="zstd")
    assert "gzip records do not unpack" in refused.message


def test_offsets_with_a_gap_are_refused():
    records = [BatchRecord(0, 0, b"k", b"v"), BatchRecord(2, 0, b"k", b"v")]
    sent = encode_batch(records, base_timestamp_ms=START_MS)
    header = read_header(sent)._replace(last_offset_delta=1)
    refusal(build_batch(header, sent[HEADER_BYTES:], Codec.NONE)[0], ErrorCode.INVALID_RECORD, cleanup_policy="compact")


@settings(max_examples=100)
@given(st.data())
def test_whatever_the_bytes_a_batch_is_taken_or_refused_as_records_can_be(data):
    """Bytes of a producer with a good CRC raise no error other than ApiError."""
    plain = bytearray(keyed(b"a", b"b", None)[HEADER_BYTES:])
    for _ in range(data.draw(st.integers(1, 4))):
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
    sent, _ = build_batch(read_header(keyed(b"a", b"b", None)), plain, Codec.NONE)
    try:
        batch, header = met(sent, compression_type="gzip", cleanup_policy="compact")
    except ApiError as error:
        assert error.code in (ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP)
    else:
        assert len(decode_records(batch)) == header.record_count == 3


def test_a_batch_of_more_records_than_are_opened_is_refused():
    """Decoding a million records takes seconds, in which no other client is served; Java's producers split the batch
    and send it again."""
    few, many = keyed(*[b"k"] * 10_000), keyed(*[b"k"] * 10_001)
    assert met(few, cleanup_policy="compact")[0] == few
    message = str(refusal(many, ErrorCode.MESSAGE_TOO_LARGE, cleanup_policy="compact"))
    assert "10001 records" in message and "flakelog.max.opened.batch.records" in message
    assert met(many)[0] == many, "where it stays closed it is taken"


# --- ids as headers ----------------------------------------------------------------------------------------------

RUNS = [(1 << 60, 2), ((1 << 60) + 4096, 1)]
IDS = [b"%d" % id for id in (1 << 60, (1 << 60) + 1, (1 << 60) + 4096)]


def with_ids(batch, openable=OPENABLE, **topic):
    sent, config = memoryview(bytearray(batch)), TopicConfig(id_header=True, **topic)
    stored = prepared(sent, config, openable)
    return IdHeaders(config, stored.opened)(stored.header, RUNS)


@pytest.mark.parametrize("codec", Codec)
def test_each_record_has_its_id_after_its_own_headers(codec):
    records = [BatchRecord(n, n, b"k", None, (("h", b"%d" % n),)) for n in range(3)]
    sent = encode_batch(records, base_timestamp_ms=START_MS, codec=codec)
    batch, header = with_ids(sent)
    verify(batch, header)
    assert header.compression == codec and header == read_header(batch)
    before = decode_records(sent)
    wanted = [r._replace(headers=(*r.headers, ("flakelog-id", id))) for r, id in zip(before, IDS, strict=True)]
    assert decode_records(batch) == wanted


def test_an_id_a_producer_made_up_is_replaced():
    forged = (("flakelog-id", b"1"), ("h", b"x"), ("flakelog-id", None))
    sent = encode_batch([BatchRecord(n, 0, None, b"v", forged) for n in range(3)], base_timestamp_ms=START_MS)
    assert [r.headers for r in decode_records(with_ids(sent)[0])] == [(("h", b"x"), ("flakelog-id", id)) for id in IDS]


def test_with_ids_and_a_codec_a_batch_is_packed_once():
    """`meet` leaves the compression to the function that writes the ids."""
    sent = batch_of(b"a", b"b", b"c")
    assert bytes(met(sent, id_header=True, compression_type="zstd")[0]) == bytes(sent)
    assert with_ids(sent, compression_type="zstd")[1].compression == Codec.ZSTD


def test_the_bytes_of_the_ids_do_not_count_against_the_producer():
    """A producer's batches may be as large as max.message.bytes."""
    sent = batch_of(*[b"x" * 20] * 3)
    assert len(with_ids(sent, max_message_bytes=len(sent))[0]) > len(sent)
    with pytest.raises(ApiError) as caught:
        with_ids(batch_of(*[bytes(999)] * 3, codec=Codec.ZSTD), max_message_bytes=500, compression_type="uncompressed")
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_ids_do_not_go_into_what_are_no_records():
    with pytest.raises(ApiError) as caught:
        with_ids(damaged())
    assert caught.value.code is ErrorCode.INVALID_RECORD
