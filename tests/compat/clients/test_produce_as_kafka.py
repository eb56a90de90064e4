"""Flakelog accepts or refuses batches with the same error as an Apache Kafka node that receives the same bytes.

Each case has a separate topic on both brokers, and its batches are sent as Produce v9 with acks=all. The test compares
the error code, the records at fault, the offset, and whether the answer has the broker's time. For stored batches it
also compares the header as it is read back. DIFFERENT lists the deliberate differences and their reasons.
"""

import time
from itertools import count
from typing import NamedTuple

import cramjam
from confluent_kafka.admin import AdminClient, NewTopic

from broker.record.batch import HEADER_BYTES, read_header, seal
from broker.record.compression import Codec
from broker.record.records import BatchRecord, build_batch, encode_batch, encode_record
from broker.record.varint import varint
from broker.wire import fetch, produce
from broker.wire.errors import ErrorCode
from tests.compat.raw_connection import RawConnection, frame
from tests.patience import SECONDS, until

PRODUCE, FETCH = 0, 1
VERSION, FETCH_VERSION = 9, 12
HOUR_MS = 3_600_000
NOW_MS = int(time.time() * 1000)
LOG_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}
COMPACT = {"cleanup.policy": "compact"}


class Case(NamedTuple):
    """Batches to send one after the other to a topic with these settings."""

    name: str
    settings: dict
    batches: list


def batch(*times_ms, keys=None, codec=Codec.NONE, **fields):
    times_ms = times_ms or (NOW_MS,)
    keys = keys or [b"k"] * len(times_ms)
    rows = enumerate(zip(times_ms, keys, strict=True))
    records = [BatchRecord(n, time_ms - times_ms[0], key, b"value" * 10) for n, (time_ms, key) in rows]
    return encode_batch(records, base_timestamp_ms=times_ms[0], codec=codec, **fields)


def changed(sent, **fields):
    """Change header fields of a batch, and seal it with a correct CRC."""
    seal(sent, read_header(sent)._replace(**fields))
    return sent


def no_records(codec=Codec.NONE):
    return build_batch(read_header(batch(1, 2, 3)), b"\x7f" * 100, codec)[0]


def of_producer(sequence, epoch=0, *times_ms):
    return batch(*times_ms, producer_id=7, producer_epoch=epoch, base_sequence=sequence)


def gap():
    """Return a batch with offset deltas 0 and 2 under a header that says 0 to 1."""
    sent = encode_batch([BatchRecord(n, 0, b"k", b"v") for n in (0, 2)], base_timestamp_ms=NOW_MS)
    return build_batch(read_header(sent)._replace(last_offset_delta=1), sent[HEADER_BYTES:], Codec.NONE)[0]


def of_records(data, number=1, codec=Codec.NONE):
    """Return a batch whose header counts `number` records; `data` are their bytes."""
    header = read_header(batch())._replace(record_count=number, last_offset_delta=number - 1)
    return build_batch(header, data, codec)[0]


def of_packed(packed, codec, number=20):
    """Return a batch whose records are compressed already."""
    header = read_header(of_records(packed, number))
    sent = of_records(packed, number)
    seal(sent, header._replace(attributes=int(codec)))
    return sent


def record(number, value, *fields):
    """Return a good record with one field replaced (LENGTH to HEADERS), and further `fields` at its end."""
    own_fields = [b"\0", b"\0", b"\0", b"\x01", varint(3) + b"abc", b"\0"]
    if number != LENGTH:
        own_fields[number - 1] = value
    body = b"".join((*own_fields, *fields))
    return (value if number == LENGTH else varint(len(body))) + body


LENGTH, ATTRIBUTES, TIME, OFFSET, KEY, VALUE, HEADERS = range(7)
NULL, LONG_ZERO = b"\x01", b"\x80" * 5 + b"\0"
TWENTY = b"".join([encode_record(BatchRecord(n, 0, None, b"v" * (n % 7))) for n in range(20)])
INSIDE = {
    "rubbish": (b"\x07rubbish" * 9, 1),
    "rubbish of twenty": (b"\x07rubbish" * 40, 20),
    "five that claim a thousand": (
        b"".join(encode_record(BatchRecord(n, 0, None, bytes(2_000))) for n in range(5)),
        1_000,
    ),
    "one too few": (TWENTY, 21),
    "one too many": (TWENTY, 19),
    "a byte after the last": (TWENTY + b"\0", 20),
    "a byte after the only one": (record(ATTRIBUTES, b"\0") + b"\0", 1),
    "cut in the last": (TWENTY[:-1], 20),
    "a length past the end": (record(LENGTH, varint(50)), 1),
    "a length too short": (record(LENGTH, varint(5)), 1),
    "a length of zero": (b"\0" * 7, 1),
    "a negative length": (record(LENGTH, varint(-5)), 1),
    "a byte after the headers": (record(ATTRIBUTES, b"\0", b"\0"), 1),
    "attributes": (record(ATTRIBUTES, b"\x7f"), 1),
    "a time of eleven bytes": (record(TIME, b"\x80" * 10 + b"\0"), 1),
    "an offset of six bytes": (record(OFFSET, LONG_ZERO), 1),
    "an offset with a byte too many": (record(OFFSET, b"\x80\0"), 1),
    "a key past the end": (record(KEY, varint(100) + b"k"), 1),
    "a key over the value": (record(KEY, varint(5) + b"k"), 1),
    "a key of six length bytes": (record(KEY, LONG_ZERO), 1),
    "a value past the end": (record(VALUE, varint(4) + b"abc"), 1),
    "a value without bytes": (record(VALUE, varint(1 << 30)), 1),
    "headers below zero": (record(HEADERS, varint(-1)), 1),
    "headers that are not there": (record(HEADERS, varint(2)), 1),
    "a thousand million headers": (record(HEADERS, varint(1 << 30)), 1),
    "a header without a name": (record(HEADERS, varint(1) + NULL + NULL), 1),
    "a header's name past the end": (record(HEADERS, varint(1) + varint(9) + b"h" + NULL), 1),
    "a header's value past the end": (record(HEADERS, varint(1) + b"\0" + varint(9) + b"v"), 1),
    "a header's name that is no text": (record(HEADERS, varint(1) + varint(2) + b"\xff\xfe" + NULL), 1),
    "a header without a value": (record(HEADERS, varint(1) + b"\0" + NULL), 1),
}  # fmt: skip
"""By name, the bytes of records and how many the header counts."""

WRONG_INSIDE = TWENTY.replace(varint(16) + NULL + varint(2), varint(16) + NULL + varint(60))  # record 16
ZIPPED = [bytes(cramjam.gzip.compress(part)) for part in (TWENTY[:50], TWENTY[50:])]
ZSTD = [bytes(cramjam.zstd.compress(part)) for part in (TWENTY[:50], TWENTY[50:])]

_numbers = count()
LARGE = encode_batch([BatchRecord(0, 0, b"k", bytes(200_000))], base_timestamp_ms=NOW_MS, codec=Codec.GZIP)

CASES = [
    Case("plain", {}, [batch(), batch(codec=Codec.ZSTD)]),
    Case("more replicas wanted than there are", {"min.insync.replicas": "2"}, [batch()]),
    Case("ahead", {}, [batch(NOW_MS, NOW_MS + 2 * HOUR_MS)]),
    Case("behind", {"message.timestamp.before.max.ms": str(HOUR_MS)}, [batch(NOW_MS, NOW_MS - 2 * HOUR_MS, NOW_MS)]),
    Case("without a time", {"message.timestamp.before.max.ms": str(HOUR_MS)}, [batch(-1, NOW_MS)]),
    Case("log append time", LOG_APPEND_TIME, [batch(5, 6)]),
    Case("log append time, ahead", LOG_APPEND_TIME, [batch(NOW_MS + 2 * HOUR_MS)]),
    Case("log append time, twice", LOG_APPEND_TIME, [of_producer(0, 0, 5, 6)] * 2),
    Case("log append time, packed anew", LOG_APPEND_TIME | {"compression.type": "zstd"}, [batch(5, 6)]),
    *(
        Case(f"packed anew: {codec}", {"compression.type": codec}, [of_producer(0, 0, NOW_MS, NOW_MS - 5)])
        for codec in ("gzip", "snappy", "lz4", "zstd", "uncompressed")
    ),
    Case("unpacked", {"compression.type": "uncompressed"}, [batch(codec=Codec.LZ4)]),
    Case("compact", COMPACT, [batch(keys=[b"a"])]),
    Case("compact, without keys", COMPACT, [batch(1, 2, 3, 4, keys=[b"a", None, b"", None])]),
    Case("compact, without keys, ahead", COMPACT, [batch(NOW_MS, NOW_MS + 2 * HOUR_MS, keys=[None, b"a"])]),
    Case("no records", {}, [no_records()]),
    Case("compact, no records", COMPACT, [no_records()]),
    Case("packed anew, no records", {"compression.type": "lz4"}, [no_records(Codec.GZIP)]),
    Case("too large", {"max.message.bytes": "50"}, [batch()]),
    Case("too large unpacked", {"compression.type": "uncompressed", "max.message.bytes": "99999"}, [LARGE]),
    Case("control", {}, [batch(control=True)]),
    Case("two batches", {}, [batch() * 2]),
    Case("none", {}, [b""]),
    Case("wrong CRC", {}, [batch()[:-1] + b"x"]),
    *(Case(f"magic {magic}", {}, [changed(batch(), magic=magic)]) for magic in (0, 1, 3, -1)),
    *(Case(f"cut to {size} bytes", {}, [batch()[:size]]) for size in (1, 20, 61, 100)),
    Case("an epoch that cannot be", {}, [of_producer(0, -2)]),
    Case("wrong count", {}, [changed(batch(), record_count=2)]),
    Case("an offset of its own", {}, [changed(batch(), base_offset=7)]),
    Case("bit of log append time", {}, [changed(batch(NOW_MS, NOW_MS - 5), attributes=8)]),
    Case("bit of log append time, ahead", {}, [changed(batch(NOW_MS + 2 * HOUR_MS), attributes=8)]),
    Case("a transaction without a transactional id", {}, [batch(transactional=True)]),
    Case("a transaction of a producer's, without one", {}, [changed(of_producer(0), attributes=0x10)]),
    Case("without a sequence", {}, [of_producer(-1)]),
    Case("gap in the sequence", {}, [of_producer(0), of_producer(5)]),
    Case("repeated", {}, [of_producer(n, 0, 5) for n in (0, 1, 2, 0, 2)]),
    Case("old epoch", {}, [of_producer(0, 3), of_producer(1, 1)]),
    *(Case(f"inside: {name}", {}, [of_records(*inside)]) for name, inside in INSIDE.items()),
    *(
        Case(f"inside, in {codec.name}: {name}", {}, [of_records(*INSIDE[name], codec)])
        for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD)
        for name in ("rubbish of twenty", "five that claim a thousand", "one too many", "a value past the end")
    ),
    Case("cut zstd", {}, [of_packed(b"".join(ZSTD)[:-9], Codec.ZSTD)]),
    Case("two gzip members", {}, [of_packed(b"".join(ZIPPED), Codec.GZIP)]),
    Case("two zstd frames", {}, [of_packed(b"".join(ZSTD), Codec.ZSTD)]),
    Case("new epoch, not from its beginning", {}, [of_producer(0), of_producer(4, 1)]),
]

UNKNOWN, INVALID, TIME = ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP
MARKED = "bit of log append time, "
DIFFERENT = [  # (case, Kafka's error, Flakelog's error)
    (Case("linked LZ4 blocks", {}, [of_packed(bytes(cramjam.lz4.compress(TWENTY)), Codec.LZ4)]), UNKNOWN, INVALID),
    # Clients read these in different ways, and no client sends them.
    (Case("a key of length -2", {}, [of_records(record(KEY, varint(-2)))]), ErrorCode.NONE, INVALID),
    (Case("offset 7 of one", {}, [of_records(record(OFFSET, varint(7)))]), ErrorCode.NONE, INVALID),
    (Case("an offset of 33 bits", {}, [of_records(record(OFFSET, b"\x80\x80\x80\x80\x10"))]), ErrorCode.NONE, INVALID),
    # The default of flakelog.validate.records checks only the lengths of more than 16 records.
    (Case("a value past the end, of twenty", {}, [of_records(WRONG_INSIDE, 20)]), INVALID, ErrorCode.NONE),
    # Kafka has no code for these, and an internal exception makes its answer UNKNOWN_SERVER_ERROR.
    (Case("codec 5", {}, [changed(batch(), attributes=5)]), UNKNOWN, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
    (Case("no gzip", {"compression.type": "lz4"}, [changed(no_records(), attributes=1)]), UNKNOWN, INVALID),
    # Kafka names each record, although the header is at fault.
    (Case(MARKED + "asked for", LOG_APPEND_TIME, [changed(batch(), attributes=8)]), TIME, TIME),
    (Case(MARKED + "without a time", {}, [changed(batch(-1), attributes=8)]), TIME, TIME),
    # Kafka assigns new offsets to the records; no client sends such batches.
    (Case("gap in the offsets", COMPACT, [gap()]), ErrorCode.NONE, INVALID),
]  # fmt: skip


def outcomes(address, cases):
    """Return, for each case by name, the answers to its batches and the header fields of the first stored batch."""
    admin = AdminClient({"bootstrap.servers": address})
    topics = {case.name: f"as-kafka-{next(_numbers)}" for case in cases}
    made = admin.create_topics([NewTopic(topics[case.name], 1, config=case.settings) for case in cases])
    for future in made.values():
        future.result(SECONDS)
    with RawConnection(address) as connection:
        return {case.name: outcome(connection, topics[case.name], case) for case in cases}


def outcome(connection, topic, case):
    until(lambda: first_header(connection, topic) is not None, what=f"a leader of {topic}")  # Kafka needs a moment
    answers = [answer_to(connection, topic, sent) for sent in case.batches]
    return answers, first_header(connection, topic)


def exchange(connection, api_key, version, body):
    connection.socket.sendall(frame(api_key, version, 1, body))
    return connection.read_frame()[1]


def answer_to(connection, topic, sent):
    records = (topic, 0, memoryview(sent))
    body = produce.encode_request(VERSION, produce.ProduceRequest(None, -1, 5_000, [records], False))
    (result,) = produce.decode_response(VERSION, exchange(connection, PRODUCE, VERSION, body), 1)
    code = ErrorCode(result.error_code)
    return code, result.base_offset, [index for index, _ in result.record_errors], result.log_append_time_ms >= NOW_MS


def first_header(connection, topic):
    """Return header fields of the topic's first batch, () for an empty log, or None without a leader."""
    partitions = [fetch.FetchPartition(topic, 0, 0, 1 << 20)]
    request = fetch.FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, partitions=partitions)
    body = fetch.encode_request(FETCH_VERSION, request)
    (partition,) = fetch.decode_response(FETCH_VERSION, exchange(connection, FETCH, FETCH_VERSION, body), 1).partitions
    if partition.error_code:
        return None
    if not partition.records:
        return ()
    header = read_header(partition.records)
    newest = "now" if header.is_log_append_time else header.max_timestamp
    return header.attributes, newest, header.last_offset_delta, header.producer_id, header.base_sequence


def test_a_batch_is_taken_or_refused_as_by_apache_kafka(kafka, broker):
    ours, theirs = outcomes(broker.address, CASES), outcomes(kafka, CASES)
    assert ours == theirs


def test_where_it_differs_it_is_meant_to(kafka, broker):
    cases = [case for case, _, _ in DIFFERENT]
    theirs, ours = [code for _, code, _ in DIFFERENT], [code for _, _, code in DIFFERENT]
    assert [answers[0][0] for answers, _ in outcomes(kafka, cases).values()] == theirs
    assert [answers[0][0] for answers, _ in outcomes(broker.address, cases).values()] == ours
