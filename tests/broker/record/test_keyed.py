"""broker.record.keyed reads what decoding reads, and broker.record.retained writes what encoding writes."""

import random
from itertools import compress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.record import keyed
from broker.record.batch import DELETE_HORIZON_BIT, HEADER_BYTES, CorruptBatch, read_header, verify
from broker.record.compression import Codec
from broker.record.keyed import body_of, keys_of
from broker.record.records import BatchRecord, decode_records, encode_batch, read_records
from broker.record.retained import reduced, starts_of
from tests.broker.work import steps_of

START_MS = 1_700_000_000_000


def made(*records, **fields):
    return bytes(encode_batch(records, base_timestamp_ms=START_MS, **fields))


def records_of(batch):
    header = read_header(batch)
    data, begin, end = body_of(batch, 0, header)
    return read_records(data[begin:end], header.record_count)


HORIZON_MS = START_MS + 86_400_000


def hold_to_decoding(batch, wanted=None, at=0, horizons=(None, HORIZON_MS)):
    """Hold keys and what is retained to decoded records; `at` bytes lie before the batch, and a few after it."""
    header, decoded = read_header(batch), records_of(batch)
    body = body_of(b"\x02" * at + batch + b"\x02" * 9, at, header)
    keys = keys_of(body, header)
    assert keys.keys == [record.key or b"" for record in decoded]
    assert list(keys.deltas) == [record.offset_delta for record in decoded]
    assert keys.tombstones == [number for number, record in enumerate(decoded) if record.value is None]
    assert keys.nulls == [number for number, record in enumerate(decoded) if record.key is None]
    starts = starts_of(body, header.record_count)
    assert [keyed.span_at(body.data, start).offset_delta for start in starts] == list(keys.deltas)
    wanted = bytes(wanted or [1] * len(decoded))
    retained = list(compress(decoded, wanted))
    if not retained:
        return keys
    for horizon in horizons:
        written = reduced(header, body, wanted, horizon)
        if written is None:
            assert horizon is None and len(retained) == len(decoded), "nothing to change"
            continue
        verify(written.data, written.header)
        assert read_header(written.data) == written.header
        assert written.header.last_offset_delta == header.last_offset_delta
        assert bool(written.header.attributes & DELETE_HORIZON_BIT) == (horizon is not None)
        keys_and_headers = [r[0::2] for r in records_of(bytes(written.data))]
        assert keys_and_headers == [r[0::2] for r in retained], "deltas, keys and headers"
        times = [(record.offset, record.timestamp_ms, record.value) for record in decode_records(bytes(written.data))]
        expected = [(r.offset, r.timestamp_ms, r.value) for r in compress(decode_records(batch, check=False), wanted)]
        assert times == expected
        assert written.header.max_timestamp == max(time for _, time, _ in expected)
    return keys


KEYS = st.one_of(st.none(), st.binary(max_size=70), st.just(b"k" * 100), st.just(b"j" * 20_000))
VALUES = st.one_of(st.none(), st.binary(max_size=200), st.just(b"v" * 100), st.just(b"w" * 9000))
TIMES = st.one_of(st.integers(0, 100), st.integers(-20_000, 3_000_000), st.just(1 << 40))
LONG_VALUE = (("trace", b"t" * 55), ("nothing", None), ("page", b"p" * 300))
HEADERS = st.sampled_from([(), (), (("name", b"v"),), LONG_VALUE, (("n" * 90, b"v"),)])


@st.composite
def batches(draw):
    """Draw a batch whose records resemble each other, with gaps between some of the offsets."""
    keys, values, times, headers = (
        draw(st.lists(strategy, min_size=1, max_size=3)) for strategy in (KEYS, VALUES, TIMES, HEADERS)
    )
    chance = draw(st.randoms(use_true_random=False))
    stays = draw(st.integers(1, 80))
    gaps = draw(st.sampled_from([(1,), (1, 1, 1, 5), (1, 700)]))
    delta, records = draw(st.sampled_from([0, 0, 50, 8000, 1 << 20])), []
    for number in range(draw(st.integers(1, 120))):
        if number % stays == 0:
            fields = [chance.choice(choices) for choices in (times, keys, values, headers)]
        records.append(BatchRecord(delta, *fields))
        delta += chance.choice(gaps)
    codec = draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]))
    return made(*records, codec=codec), bytes(chance.randrange(2) for _ in records), chance


@settings(max_examples=100)
@given(batches(), st.sampled_from([0, 1, 300]))
def test_keys_and_what_is_retained_are_what_decoding_reads(drawn, at):
    batch, wanted, _ = drawn
    hold_to_decoding(batch, wanted, at)


@settings(max_examples=300)
@given(batches())
def test_a_damaged_batch_has_keys_if_and_only_if_a_reader_reads_it(drawn):
    """The cleaner keeps what readers cannot read, so it must neither read more than they do nor less."""
    batch, wanted, chance = drawn
    damaged = bytearray(batch)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(HEADER_BYTES, len(damaged))
        damaged[at] = chance.choice((0, 1, 2, 3, 0x7F, 0x80, 0x81, 0xFF, damaged[at] ^ 1, chance.randrange(256)))
    damaged = bytes(damaged)
    try:
        decode_records(damaged, check=False)
    except CorruptBatch:
        header = read_header(damaged)
        with pytest.raises(CorruptBatch):
            keys_of(body_of(damaged, 0, header), header)
    else:
        hold_to_decoding(damaged, wanted, horizons=[None])


def usual(number, key=b"key", value=b"value", time=0, headers=()):
    return BatchRecord(number, time, key, value, headers)


SHAPES = {
    "of one size": lambda chance, n: usual(n, b"%08d" % chance.randrange(10**8), bytes(100), n // 20),
    "of one size, with long keys": lambda chance, n: usual(n, b"%080d" % chance.randrange(10**8), bytes(100)),
    "of mixed sizes": lambda chance, n: usual(n, value=bytes(chance.randint(0, 400)), time=n // 20),
    "with keys of mixed sizes": lambda chance, n: usual(n, bytes(chance.randint(0, 100))),
    "with tombstones": lambda chance, n: usual(n, value=chance.choice((b"", b"v", None))),
    "of tombstones": lambda chance, n: usual(n, value=None),
    "with headers": lambda chance, n: usual(n, headers=chance.choice(((), LONG_VALUE[:2]))),
    "with times that go back": lambda chance, n: usual(n, time=chance.randint(-8000, 1_000_000)),
    "with gaps": lambda chance, n: usual(3 * n + chance.randrange(3), value=bytes(chance.randint(0, 90))),
    "of one size, with gaps": lambda chance, n: usual(3 * n + chance.randrange(3)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 31, 100, 9000])
def test_what_users_send_is_read_without_decoding_it(monkeypatch, shape, count):
    """Whatever its sizes are: decoding each record took five times as long as Kafka's cleaner."""
    chance = random.Random(count)
    batch = made(*(SHAPES[shape](chance, number) for number in range(count)))
    monkeypatch.setattr(keyed, "spans_in", None)
    monkeypatch.setattr(keyed, "_unusual", None)
    hold_to_decoding(batch, [chance.randrange(2) for _ in range(count)])


def test_records_of_one_size_are_read_all_at_once():
    """Only those near the offset deltas that get another byte are read one by one."""
    one_size = made(*(usual(number) for number in range(5000)))
    two_sizes = made(*(usual(number, value=bytes(1 + number % 2)) for number in range(5000)))
    assert steps_to_read(one_size) < steps_to_read(two_sizes) / 10
    assert len(hold_to_decoding(one_size).keys) == 5000


def steps_to_read(batch):
    header = read_header(batch)
    body = body_of(batch, 0, header)
    keys_of(body, header)  # the first call of a size makes a table that later calls use
    return steps_of(lambda: keys_of(body, header))


def test_records_that_do_not_fill_the_bytes_are_refused():
    batch = made(*[usual(number) for number in range(50)])
    header = read_header(batch)
    body = body_of(batch, 0, header)
    assert keys_of(body, header).deltas == range(50)
    for wrong in [{"record_count": count} for count in (-1, 0, 1, 49, 51, 1 << 20)] + [{"last_offset_delta": 48}]:
        with pytest.raises(CorruptBatch):
            keys_of(body, header._replace(**wrong))
    for cut in (body._replace(end=body.end - 1), body._replace(end=body.begin)):
        with pytest.raises(CorruptBatch):
            keys_of(cut, header)
        with pytest.raises(CorruptBatch):
            starts_of(cut, 50)


def test_a_batch_that_counts_more_records_than_readers_take_is_refused():
    batch = made(usual(0))
    with pytest.raises(CorruptBatch):
        body_of(batch, 0, read_header(batch)._replace(record_count=1 << 30))
