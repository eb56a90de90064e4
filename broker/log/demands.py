"""What a topic asks of the records in a batch, beyond what `judge` reads off its header.

    message.timestamp.type=LogAppendTime     the header is written anew, the records stay closed
    message.timestamp.before/after.max.ms    each record's time; opened where the header does not prove them good
    cleanup.policy with compact              each record has a key
    compression.type, other than producer    unpacked, and packed anew where the batch comes in another codec
    flakelog.id.header                       each record gets a header with its id (`with_id_headers`)

A topic that asks for none of these never comes here, nor does a batch that the broker writes itself. All or nothing:
one record that is refused takes its batch with it, as in Kafka, and the answer names the ones at fault (KIP-467).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from broker.config import CREATE_TIME, LOG_APPEND_TIME, LONG_MAX, PRODUCER, UNCOMPRESSED, TopicConfig
from broker.log.judge import too_large
from broker.record.batch import NO_TIMESTAMP, TIMESTAMP_TYPE_BIT, BatchHeader, CorruptBatch, seal
from broker.record.compression import Codec, TooLarge
from broker.record.records import Record, build_batch, check_deltas, encode_record, read_records, records_data
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.primitives import Buffer
from broker.wire.produce import RecordError

ID_HEADER = "flakelog-id"
RECORD_ERRORS_MAX = 100  # in one answer: all of a million may be wrong. No setting: the message says how many are


class Openable(NamedTuple):
    """How large a batch may be that is opened: to open it takes memory, and the time of all others."""

    bytes_max: int
    """Unpacked: `flakelog.max.unpacked.batch.bytes`."""
    records_max: int
    """`flakelog.max.opened.batch.records`."""


class RecordsRefused(ApiError):
    """A batch refused for some of its records; `record_errors` has the first of them."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[RecordError, ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


def meet(
    batch: memoryview, header: BatchHeader, topic: TopicConfig, name: str, wall_ms: int, openable: Openable
) -> tuple[memoryview, BatchHeader]:
    """A batch that `judge` has passed, as the topic wants it: itself, or one made from it.

    `name` is the partition's. RecordsRefused, and ApiError: INVALID_RECORD where the bytes are no records,
    MESSAGE_TOO_LARGE where they are too many, unpack to too much or are too large as they would be kept.
    """
    # With ids to come the records are packed once only, after those.
    codec = Codec(header.compression) if topic.id_header else _kept_codec(topic, header)
    wanted = header
    data: Buffer = b""
    if codec != header.compression or topic.compacts or not _times_proved(header, topic, wall_ms):
        data, records = _opened(batch, header, openable)
        _check_records(records, header, topic, name, wall_ms)
        max_timestamp = header.base_timestamp + max(record.timestamp_delta for record in records)
        wanted = header._replace(max_timestamp=max_timestamp)
    if topic.message_timestamp_type == LOG_APPEND_TIME:
        wanted = wanted._replace(attributes=wanted.attributes | TIMESTAMP_TYPE_BIT, max_timestamp=wall_ms)
    if codec != header.compression:
        rebuilt, wanted = build_batch(wanted, data, codec, _level(topic))
        _check_size(len(rebuilt), topic)
        return memoryview(rebuilt), wanted
    if wanted == header:
        return batch, header
    changed = bytearray(batch)  # the request may be tried again, where there are no ids yet: its bytes stay
    return memoryview(changed), seal(changed, wanted)


def with_id_headers(
    batch: memoryview,
    header: BatchHeader,
    runs: Sequence[tuple[int, int]],
    topic: TopicConfig,
    openable: Openable,
) -> tuple[memoryview, BatchHeader]:
    """The batch with a header `flakelog-id` in each record: its id, as decimal text. `runs` are (first id, how many).

    A header of that name from the producer is replaced, so whoever reads one can trust it. `max.message.bytes` is for
    what a producer sends: the ids are not counted. Errors as of `meet`.
    """
    data, records = _opened(batch, header, openable)
    stamped = b"".join(
        encode_record(_with_id(record, id)) for record, id in zip(records, _ids(runs), strict=True)
    )
    rebuilt, wanted = build_batch(header, stamped, _kept_codec(topic, header), _level(topic))
    _check_size(len(rebuilt) - (len(stamped) - len(data)), topic)
    return memoryview(rebuilt), wanted


def _ids(runs: Sequence[tuple[int, int]]) -> Iterator[int]:
    return (first + n for first, length in runs for n in range(length))


def _with_id(record: Record, id: int) -> Record:
    others = tuple(each for each in record.headers if each[0] != ID_HEADER)
    return record._replace(headers=(*others, (ID_HEADER, b"%d" % id)))


# --- records -----------------------------------------------------------------------------------------------------


def _opened(batch: memoryview, header: BatchHeader, openable: Openable) -> tuple[Buffer, list[Record]]:
    """The bytes of the records, unpacked, and the records. The CRC holds, so what is wrong the producer made so."""
    number, most = header.record_count, openable.records_max
    if number > most:
        said = f"the batch has {number} records, and this topic has batches opened: to {most} records"
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{said} (flakelog.max.opened.batch.records)")
    try:
        data = records_data(batch, header, 0, openable.bytes_max)
        records = read_records(data, header.record_count)
        check_deltas([record.offset_delta for record in records], header.last_offset_delta)
    except TooLarge as error:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{error} (flakelog.max.unpacked.batch.bytes)") from None
    except CorruptBatch as error:
        raise ApiError(ErrorCode.INVALID_RECORD, str(error)) from None
    return data, records


def _times_proved(header: BatchHeader, topic: TopicConfig, wall_ms: int) -> bool:
    """Whether the header alone shows that no record is too old or too new. It has the newest time, and of the older
    ones only the first record's."""
    if topic.message_timestamp_type != CREATE_TIME:
        return True
    if topic.message_timestamp_before_max_ms < LONG_MAX:
        return False
    return header.max_timestamp <= wall_ms + topic.message_timestamp_after_max_ms


def _check_records(records: list[Record], header: BatchHeader, topic: TopicConfig, name: str, wall_ms: int) -> None:
    oldest, newest = _times_taken(topic, wall_ms)
    code = ErrorCode.INVALID_RECORD
    errors: list[RecordError] = []
    for index, record in enumerate(records):
        time = header.base_timestamp + record.timestamp_delta
        if topic.compacts and record.key is None:
            wrong = f"Compacted topic cannot accept message without key in topic partition {name}"
        elif not oldest <= time <= newest and time != NO_TIMESTAMP:  # one without a time is in nobody's past
            code = ErrorCode.INVALID_TIMESTAMP  # it goes before: Kafka's clients tell the two apart
            wrong = _wrong_time(time, topic, wall_ms)
        else:
            continue
        errors.append(RecordError(index, wrong))
    if errors:
        first = errors[0]
        said = f"{len(errors)} of {len(records)} records are refused, and so all are; record {first.batch_index}: "
        said += first.message or ""
        raise RecordsRefused(code, said, tuple(errors[:RECORD_ERRORS_MAX]))


def _times_taken(topic: TopicConfig, wall_ms: int) -> tuple[int, int]:
    """The oldest and the newest time of a producer that the topic takes now, ms since 1970."""
    if topic.message_timestamp_type != CREATE_TIME:
        return -LONG_MAX, LONG_MAX
    return wall_ms - topic.message_timestamp_before_max_ms, wall_ms + topic.message_timestamp_after_max_ms


def _wrong_time(time_ms: int, topic: TopicConfig, wall_ms: int) -> str:
    ahead_ms = time_ms - wall_ms
    if ahead_ms > 0:
        most = f"message.timestamp.after.max.ms is {topic.message_timestamp_after_max_ms}"
        return f"timestamp {time_ms} is {ahead_ms} ms ahead of the broker's clock; {most}"
    most = f"message.timestamp.before.max.ms is {topic.message_timestamp_before_max_ms}"
    return f"timestamp {time_ms} is {-ahead_ms} ms behind the broker's clock; {most}"


# --- writing anew ------------------------------------------------------------------------------------------------


def _kept_codec(topic: TopicConfig, header: BatchHeader) -> Codec:
    """The codec in which the topic keeps this batch."""
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
    """A batch may be larger in the topic's codec than in its producer's."""
    if size > topic.max_message_bytes:
        raise too_large(size, topic)
