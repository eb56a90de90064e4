"""Validation of a batch's records against the topic's settings, beyond the header checks of `validate`.

    message.timestamp.type=LogAppendTime     the header is rewritten, the records stay closed
    message.timestamp.before/after.max.ms    each record's time; opened unless the header proves all times good
    cleanup.policy with compact              each record has a key
    compression.type, other than producer    decompressed and recompressed if the batch has another codec
    flakelog.id.header                       each record gets a header with its id (`with_id_headers`)

A topic without any of these settings skips this module, and so does a batch that the broker writes. If a record is
refused, its whole batch is, as in Kafka. The response then names the records at fault (KIP-467).
`broker.log.validation.opening` decodes the records, once for all rules.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.log.validation.batch import too_large
from broker.record.batch import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, BatchHeader, seal
from broker.record.compression import Codec
from broker.record.id_header import ID_HEADER, id_header
from broker.record.records import BatchRecord, build_batch, encode_record
from broker.settings.config import CREATE_TIME, LOG_APPEND_TIME, LONG_MAX, PRODUCER, UNCOMPRESSED, TopicConfig
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.primitives import Buffer
from broker.wire.produce import RecordError

RECORD_ERRORS_MAX = 100  # per response, because a million may be wrong; not a setting: the message has their number


class Openable(NamedTuple):
    """Limits on a batch whose records are opened, because opening costs memory and delays all other connections."""

    bytes_max: int
    """Decompressed size: `flakelog.max.unpacked.batch.bytes`."""
    records_max: int
    """`flakelog.max.opened.batch.records`."""


class RecordsRefused(ApiError):
    """A batch refused because of some of its records; `record_errors` has the first of these."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class Opened(NamedTuple):
    """The decompressed bytes of a batch's records, and the records."""

    data: Buffer
    records: list[BatchRecord]


def check_openable(header: BatchHeader, openable: Openable) -> None:
    """Raise ApiError MESSAGE_TOO_LARGE if the batch has more records than may be opened."""
    number, most = header.record_count, openable.records_max
    if number > most:
        reason = f"the batch has {number} records, and this topic has batches opened: to {most} records"
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{reason} (flakelog.max.opened.batch.records)")


def needs_opening(header: BatchHeader, topic: TopicConfig, wall_ms: int) -> bool:
    """Return True if a rule of the topic needs the records of a batch."""
    return (
        topic.id_header
        or topic.compacts
        or _kept_codec(topic, header) != header.compression
        or not _times_proved(header, topic, wall_ms)
    )


def apply_topic_rules(
    batch: memoryview,
    header: BatchHeader,
    topic: TopicConfig,
    name: str,
    wall_ms: int,
    opened: Opened | None,
) -> tuple[memoryview, BatchHeader]:
    """Return a validated batch in the form that the topic requires: the batch itself, or a changed copy.

    `name` is the partition's. `opened` are the records, if `needs_opening`. Raise RecordsRefused for invalid records,
    and ApiError MESSAGE_TOO_LARGE if the batch would be stored too large.
    """
    # If ids will be added, the records are compressed only once, after that.
    codec = Codec(header.compression) if topic.id_header else _kept_codec(topic, header)
    wanted = header
    needs_records = codec != header.compression or topic.compacts or not _times_proved(header, topic, wall_ms)
    if opened is not None and needs_records:
        records = opened.records
        _check_records(records, header, topic, name, wall_ms)
        max_timestamp = header.base_timestamp + max(record.timestamp_delta for record in records)
        wanted = header._replace(max_timestamp=max_timestamp)
    if topic.message_timestamp_type == LOG_APPEND_TIME:
        wanted = wanted._replace(attributes=wanted.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=wall_ms)
    if opened is not None and codec != header.compression:
        rebuilt, wanted = build_batch(wanted, opened.data, codec, _level(topic))
        _check_size(len(rebuilt), topic)
        return memoryview(rebuilt), wanted
    if wanted == header:
        return batch, header
    # A copy, because the request may be retried if no ids are available yet; its own bytes must stay unchanged.
    changed = bytearray(batch)
    return memoryview(changed), seal(changed, wanted)


def with_id_headers(
    header: BatchHeader, runs: Sequence[tuple[int, int]], topic: TopicConfig, opened: Opened
) -> tuple[memoryview, BatchHeader]:
    """Return a batch with a header `flakelog-id` in each record: its id, as decimal text.

    `runs` are (first id, count). A producer's own header of that name is replaced, so that consumers can trust it.
    `max.message.bytes` limits the producer's bytes, so the ids do not count. Raise ApiError MESSAGE_TOO_LARGE as
    `apply_topic_rules` does.
    """
    stamped = b"".join(
        encode_record(_with_id(record, id)) for record, id in zip(opened.records, _ids(runs), strict=True)
    )
    rebuilt, wanted = build_batch(header, stamped, _kept_codec(topic, header), _level(topic))
    _check_size(len(rebuilt) - (len(stamped) - len(opened.data)), topic)
    return memoryview(rebuilt), wanted


def _ids(runs: Sequence[tuple[int, int]]) -> Iterator[int]:
    return (first + n for first, length in runs for n in range(length))


def _with_id(record: BatchRecord, id: int) -> BatchRecord:
    others = tuple(header for header in record.headers if header[0] != ID_HEADER)
    return record._replace(headers=(*others, id_header(id)))


# --- records -----------------------------------------------------------------------------------------------------


def _times_proved(header: BatchHeader, topic: TopicConfig, wall_ms: int) -> bool:
    """Return True if the header alone shows that no record is too old or too new.

    The header has only the newest time and the first record's, so it proves nothing about the oldest.
    """
    if topic.message_timestamp_type != CREATE_TIME:
        return True
    if topic.message_timestamp_before_max_ms < LONG_MAX:
        return False
    return header.max_timestamp <= wall_ms + topic.message_timestamp_after_max_ms


def _check_records(
    records: list[BatchRecord], header: BatchHeader, topic: TopicConfig, name: str, wall_ms: int
) -> None:
    oldest, newest = _times_taken(topic, wall_ms)
    code = ErrorCode.INVALID_RECORD
    errors: list[RecordError] = []
    for index, record in enumerate(records):
        time = header.base_timestamp + record.timestamp_delta
        if topic.compacts and record.key is None:
            wrong = f"Compacted topic cannot accept message without key in topic partition {name}"
        elif not oldest <= time <= newest and time != NO_TIMESTAMP:  # no timestamp: neither too old nor too new
            code = ErrorCode.INVALID_TIMESTAMP  # wins over INVALID_RECORD: Kafka's clients tell them apart
            wrong = _wrong_time(time, topic, wall_ms)
        else:
            continue
        errors.append(RecordError(index, wrong))
    if errors:
        first = errors[0]
        many = "invalid timestamp" if code == ErrorCode.INVALID_TIMESTAMP else f"{len(errors)} record errors in total"
        reason = f"One or more records have been rejected due to {many}; {len(errors)} of {len(records)} records are "
        reason += f"refused, and so all are; record {first.batch_index}: {first.message}"
        raise RecordsRefused(code, reason, tuple(errors[:RECORD_ERRORS_MAX]))


def _times_taken(topic: TopicConfig, wall_ms: int) -> tuple[int, int]:
    """Return the oldest and the newest producer timestamp that the topic accepts now, in ms since 1970."""
    if topic.message_timestamp_type != CREATE_TIME:
        return -LONG_MAX, LONG_MAX
    newest = wall_ms + topic.message_timestamp_after_max_ms
    return wall_ms - topic.message_timestamp_before_max_ms, min(newest, LONG_MAX)  # a header's times have 64 bits


def _wrong_time(time_ms: int, topic: TopicConfig, wall_ms: int) -> str:
    ahead_ms = time_ms - wall_ms
    if ahead_ms > 0:
        most = f"message.timestamp.after.max.ms is {topic.message_timestamp_after_max_ms}"
        return f"timestamp {time_ms} is {ahead_ms} ms ahead of the broker's clock; {most}"
    most = f"message.timestamp.before.max.ms is {topic.message_timestamp_before_max_ms}"
    return f"timestamp {time_ms} is {-ahead_ms} ms behind the broker's clock; {most}"


# --- rewriting ---------------------------------------------------------------------------------------------------


def _kept_codec(topic: TopicConfig, header: BatchHeader) -> Codec:
    """Return the codec in which the topic stores this batch."""
    if topic.compression_type == PRODUCER:
        return Codec(header.compression)
    return Codec.NONE if topic.compression_type == UNCOMPRESSED else Codec[topic.compression_type.upper()]


def _level(topic: TopicConfig) -> int | None:
    levels = {
        "gzip": topic.compression_gzip_level,
        "lz4": topic.compression_lz4_level,
        "zstd": topic.compression_zstd_level,
    }
    return levels.get(topic.compression_type)


def _check_size(size: int, topic: TopicConfig) -> None:
    """Raise ApiError if a rebuilt batch is too large: the topic's codec may compress less than the producer's."""
    if size > topic.max_message_bytes:
        raise too_large(size, topic)
