"""Validation of a producer's batch by its header and CRC.

The rules are Kafka's for Produce v3 and later (https://kafka.apache.org/documentation/#recordbatch): one batch, magic
2, a valid CRC, offsets 0 .. n-1, no control batch. `broker.log.validation.opening` checks the records.
"""

from crc32c import crc32c

from broker.record.batch import (
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    CorruptBatch,
    seal,
    verify,
)
from broker.settings.config import LOG_APPEND_TIME, BrokerConfig, TopicConfig
from broker.wire.errors import ApiError, ErrorCode

OLD_MAGICS = (0, 1)  # the formats of Kafka before 0.11
_ZSTD = 4
_CODECS = 5
_RECORD_BYTES_MIN = 7  # length, attributes, time, offset, key, value and headers, a byte each
_unpack_header = HEADER.unpack_from
_header_of = tuple.__new__  # as BatchHeader._make, at half its price


def validate(batch: memoryview | None, topic: TopicConfig, broker: BrokerConfig, zstd: bool = True) -> BatchHeader:
    """Return the header of a valid batch; raise ApiError with Kafka's code for any other.

    `zstd`: this version of Produce knows the codec. A bit that only the broker may set is cleared in `batch`.
    `TransactionVerification.verify` checks the transaction of the batch.
    """
    if batch is not None and len(batch) >= HEADER_BYTES:
        size = len(batch)
        fields = _unpack_header(batch)
        base_offset, length, _, magic, crc, attributes, delta, _, _, producer_id, _, sequence, number = fields
        plain = attributes & ~TRANSACTIONAL_BIT  # only the codec, unless it has a bit that only the broker may set
        # All rules at once, because nearly every batch is valid; `validate_by_rule` finds the broken rule.
        if (
            magic == MAGIC
            and not base_offset
            and length + LENGTH_END == size <= topic.max_message_bytes
            and 0 <= plain < _ZSTD
            and 0 < number == delta + 1 <= broker.max_batch_records
            and (plain or number * _RECORD_BYTES_MIN <= size - HEADER_BYTES)
            and (sequence >= 0 or producer_id <= NO_PRODUCER_ID)
            and crc32c(batch[CRC_START:]) == crc
        ):
            return _header_of(BatchHeader, fields)
    return validate_by_rule(batch, topic, broker, zstd)


def validate_by_rule(batch: memoryview | None, topic: TopicConfig, broker: BrokerConfig, zstd: bool) -> BatchHeader:
    """Validate rule by rule; the ApiError names the first rule that the batch breaks."""
    if batch is None or len(batch) == 0:
        raise ApiError(ErrorCode.INVALID_RECORD, "a partition of a Produce request needs one record batch, not none")
    if len(batch) < HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{len(batch)} bytes are fewer than a batch header has")
    header = BatchHeader._make(HEADER.unpack_from(batch))
    if header.magic != MAGIC:
        code = ErrorCode.INVALID_RECORD if header.magic in OLD_MAGICS else ErrorCode.CORRUPT_MESSAGE
        raise ApiError(code, f"magic {header.magic}; Produce takes record batches of magic 2 only")
    if header.base_offset:
        raise ApiError(ErrorCode.INVALID_RECORD, f"base offset {header.base_offset}; a producer's batch begins at 0")
    size = header.batch_length + LENGTH_END
    if size > len(batch):
        raise ApiError(ErrorCode.INVALID_RECORD, f"the batch has {size} bytes, of which {len(batch)} came")
    if size > topic.max_message_bytes:
        raise too_large(size, topic)
    try:
        verify(batch, header)
    except CorruptBatch as error:
        raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from None
    if size != len(batch):
        raise ApiError(ErrorCode.INVALID_RECORD, "a partition of a Produce request takes exactly one record batch")
    _validate_fields(header, broker, zstd)
    return _of_create_time(batch, header, topic) if header.attributes & TIMESTAMP_TYPE_BIT else header


def too_large(size: int, topic: TopicConfig) -> ApiError:
    """Return the error for a batch of `size` bytes."""
    reason = f"the batch has {size} bytes, max.message.bytes of the topic is {topic.max_message_bytes}"
    return ApiError(ErrorCode.MESSAGE_TOO_LARGE, reason)


def _validate_fields(header: BatchHeader, broker: BrokerConfig, zstd: bool) -> None:
    number = header.record_count
    if number < 1 or number != header.last_offset_delta + 1:
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"{number} records with a last offset delta of {header.last_offset_delta}; they must be one apart",
        )
    codec = header.attributes & 0x07
    if codec:
        if codec >= _CODECS or (codec == _ZSTD and not zstd):
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {codec} is not known to this version")
    elif number * _RECORD_BYTES_MIN > header.batch_length + LENGTH_END - HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, f"{header.batch_length} bytes cannot hold {number} records")
    if number > broker.max_batch_records:
        raise ApiError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"the batch has {number} records, flakelog.max.batch.records is {broker.max_batch_records}",
        )
    if header.is_control:
        raise ApiError(ErrorCode.INVALID_RECORD, "control batches are written by the broker, not by clients")
    if header.producer_id > NO_PRODUCER_ID and header.base_sequence < 0:
        raise ApiError(
            ErrorCode.INVALID_RECORD, f"producer {header.producer_id} sent a batch with sequence {header.base_sequence}"
        )


def _of_create_time(batch: memoryview, header: BatchHeader, topic: TopicConfig) -> BatchHeader:
    """Clear the bit of LogAppendTime in a producer's batch, as Kafka does, because its times are the producer's.

    As in Kafka, raise ApiError if the topic uses LogAppendTime, or if the batch has no time.
    """
    if topic.message_timestamp_type == LOG_APPEND_TIME or header.max_timestamp == NO_TIMESTAMP:
        raise ApiError(ErrorCode.INVALID_TIMESTAMP, "the topic says whether LogAppendTime is used, not its producers")
    return seal(batch, header._replace(attributes=header.attributes & ~TIMESTAMP_TYPE_BIT))
