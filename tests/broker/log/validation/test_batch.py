"""Validation of a Produce request's batch, by its header alone.

https://kafka.apache.org/documentation/#recordbatch
"""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from broker.log.validation.batch import validate, validate_by_rule
from broker.record.batch import CRC_START, HEADER, read_header, verify
from broker.record.compression import Codec
from broker.record.records import decode_records
from broker.settings.config import BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from tests.broker.log.conftest import batch_of

TOPIC, BROKER = TopicConfig(), BrokerConfig()


def changed(batch, **fields):
    """Return the batch with changed header fields and a valid CRC."""
    batch = bytearray(batch)
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(**fields))
    crc = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *read_header(batch)._replace(crc=crc))
    return batch


def refused(batch, code, why=None, topic=TOPIC, broker=BROKER, **options):
    with pytest.raises(ApiError, match=why) as caught:
        validate(None if batch is None else memoryview(batch), topic, broker, **options)
    assert caught.value.code is code


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "base_offset": st.sampled_from([0, 1, -1]),
            "magic": st.sampled_from([0, 1, 2, 3]),
            "attributes": st.integers(0, 127),
            "last_offset_delta": st.integers(-2, 12),
            "record_count": st.integers(-2, 12),
            "max_timestamp": st.sampled_from([-1, 0, 2**62]),
            "producer_id": st.sampled_from([-2, -1, 0, 7]),
            "base_sequence": st.sampled_from([-2, -1, 0, 7]),
            "batch_length": st.integers(40, 90),
        },
    ),
    st.booleans(),
    st.integers(0, 10),
)
def test_all_rules_together_say_what_each_rule_alone_says(fields, zstd, flipped):
    """All rules are checked together for speed only; rule by rule the header or the error is the same."""
    batch = changed(batch_of(b"a", b"b"), **fields)
    if flipped < len(batch) // 10:
        batch[-1 - flipped] ^= flipped  # no change if it is 0
    topic, broker = TopicConfig(max_message_bytes=90), BrokerConfig(max_batch_records=10)

    def result_of(rules):
        try:
            return rules(memoryview(bytearray(batch)), topic, broker, zstd)
        except ApiError as error:
            return error.code, error.message

    assert result_of(validate) == result_of(validate_by_rule)


def test_a_good_batch_gives_its_header():
    batch = batch_of(b"a", b"b", producer_id=7, producer_epoch=1, base_sequence=3)
    header = validate(memoryview(batch), TOPIC, BROKER)
    assert (header.record_count, header.producer_id, header.base_sequence) == (2, 7, 3)


@pytest.mark.parametrize("codec", list(Codec))
def test_each_codec_passes_unopened(codec):
    batch = batch_of(b"a" * 100, codec=codec)
    assert validate(memoryview(batch), TOPIC, BROKER).compression == codec


@pytest.mark.parametrize("records", [None, b""])
def test_no_batch_is_refused(records):
    refused(records, ErrorCode.INVALID_RECORD, "one record batch, not none")


def test_a_batch_cut_at_any_byte_is_none():
    """Kafka does the same, because a client would send a corrupt batch again and again."""
    batch = batch_of(b"a")
    for size in range(1, len(batch)):
        refused(batch[:size], ErrorCode.INVALID_RECORD)


def test_a_flipped_byte_under_the_crc_is_corrupt():
    batch = batch_of(b"a")
    for at in range(17, len(batch)):
        refused(batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :], ErrorCode.CORRUPT_MESSAGE, "CRC")


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_magic_is_refused(magic):
    """Produce v3 and later carry magic 2 only (KIP-896)."""
    refused(changed(batch_of(b"a"), magic=magic), ErrorCode.INVALID_RECORD, f"magic {magic}")


@pytest.mark.parametrize("magic", [3, -1])
def test_a_magic_that_never_was_is_damage(magic):
    refused(changed(batch_of(b"a"), magic=magic), ErrorCode.CORRUPT_MESSAGE, f"magic {magic}")


@pytest.mark.parametrize("length", [-(2**31), -1, 0, 48])
def test_a_length_shorter_than_a_header_is_corrupt(length):
    refused(changed(batch_of(b"a"), batch_length=length), ErrorCode.CORRUPT_MESSAGE)


def test_two_batches_are_one_too_many():
    """A request has exactly one batch for each partition (KIP-98)."""
    refused(batch_of(b"a") + batch_of(b"b"), ErrorCode.INVALID_RECORD, "exactly one record batch")


def test_a_batch_larger_than_the_topic_takes_is_refused_by_its_size():
    batch = batch_of(b"x" * 100)
    validate(memoryview(batch), TopicConfig(max_message_bytes=len(batch)), BROKER)
    small = TopicConfig(max_message_bytes=len(batch) - 1)
    refused(batch, ErrorCode.MESSAGE_TOO_LARGE, f"max.message.bytes of the topic is {len(batch) - 1}", topic=small)


def test_whose_time_is_kept_is_not_for_a_producer_to_say():
    """The broker clears attributes bit 3 if it keeps the producer's time; otherwise that time would pass as its own."""
    batch = changed(batch_of(b"a"), attributes=0x08)
    header = validate(memoryview(batch), TOPIC, BROKER)
    assert header == read_header(batch) and not header.is_log_append_time
    verify(batch, header)
    assert [record.value for record in decode_records(batch)] == [b"a"]


def test_a_time_that_is_said_to_be_the_brokers_is_refused_where_it_is_to_be_so():
    """Kafka's LogValidator refuses it, also if the batch has no time at all."""
    marked = changed(batch_of(b"a"), attributes=0x08)
    timeless = changed(marked, max_timestamp=-1)
    topic = TopicConfig(message_timestamp_type="LogAppendTime")
    refused(marked, ErrorCode.INVALID_TIMESTAMP, "LogAppendTime", topic=topic)
    refused(timeless, ErrorCode.INVALID_TIMESTAMP, "LogAppendTime")


@pytest.mark.parametrize("offset", [1, -1, 2**63 - 1])
def test_offsets_are_the_brokers_to_give(offset):
    """A producer's batch begins at offset 0 (Kafka's UnifiedLog)."""
    refused(changed(batch_of(b"a"), base_offset=offset), ErrorCode.INVALID_RECORD, f"base offset {offset};")


@pytest.mark.parametrize("count, delta", [(0, -1), (-1, -2), (1, 1), (3, 1), (2, 2**31 - 1), (2**31 - 1, 2**31 - 2)])
def test_a_count_that_is_not_one_above_the_last_delta_or_does_not_fit_is_refused(count, delta):
    """Each offset takes an id, so a false count could take two thousand million of them."""
    batch = changed(batch_of(b"a", b"b"), record_count=count, last_offset_delta=delta)
    refused(batch, ErrorCode.INVALID_RECORD)


def test_more_records_than_the_limit_are_refused():
    refused(
        batch_of(*[b""] * 11), ErrorCode.MESSAGE_TOO_LARGE, "flakelog.max.batch.records is 10",
        broker=BrokerConfig(max_batch_records=10),
    )  # fmt: skip


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec):
    batch = changed(batch_of(b"a"), attributes=codec)
    refused(batch, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {codec}")


def test_zstd_is_refused_to_versions_that_do_not_have_it():
    """zstd needs Produce v7 (KIP-110)."""
    batch = batch_of(b"a", codec=Codec.ZSTD)
    refused(batch, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "compression 4", zstd=False)


def test_control_batches_are_the_brokers_own():
    refused(batch_of(b"a", control=True), ErrorCode.INVALID_RECORD, "control batches")


@pytest.mark.parametrize("sequence", [-1, -2, -(2**31)])
def test_a_producer_without_a_sequence_is_refused(sequence):
    """The batches of a producer are numbered (KIP-98)."""
    batch = changed(batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0), base_sequence=sequence)
    refused(batch, ErrorCode.INVALID_RECORD, f"producer 7 sent a batch with sequence {sequence}")
