"""idgen.layout, compared with Twitter's snowflake-2010 (IdWorker.scala)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idgen.errors import LayoutExhausted
from idgen.layout import IdParts, Layout

TWITTER = Layout()


def test_the_fields_are_where_twitter_put_them():
    """IdWorker.scala: (timestamp - twepoch) << 22 | datacenterId << 17 | workerId << 12 | sequence."""
    id = TWITTER.pack(1288834974657 + 5, worker=3 << 5 | 7, sequence=9)
    assert id == 5 << 22 | 3 << 17 | 7 << 12 | 9
    assert TWITTER.unpack(id) == IdParts(1288834974662, datacenter=3, worker=7, sequence=9, worker_number=103)


def test_a_real_tweets_id_decodes_to_its_time():
    """Twitter's API documentation gives 1212092628029698048 with "created_at": "2019-12-31T19:26:16.000Z"."""
    assert TWITTER.unpack(1212092628029698048).time_ms // 1000 == 1577820376


@st.composite
def layouts(draw):
    datacenter, worker, sequence = draw(st.integers(0, 8)), draw(st.integers(0, 8)), draw(st.integers(1, 16))
    return Layout(63 - datacenter - worker - sequence, datacenter, worker, sequence, draw(st.integers(0, 2 * 10**12)))


@given(layouts(), st.data())
def test_unpack_takes_apart_what_pack_put_together(layout, data):
    time_ms = data.draw(st.integers(layout.epoch_ms, layout.last_ms))
    worker = data.draw(st.integers(0, layout.workers - 1))
    sequence = data.draw(st.integers(0, layout.max_sequence))
    id = layout.pack(time_ms, worker, sequence)
    parts = layout.unpack(id)
    assert 0 <= id < 1 << 63
    assert (parts.time_ms, parts.worker_number, parts.sequence) == (time_ms, worker, sequence)
    assert layout.worker_number(parts.datacenter, parts.worker) == worker


@given(st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 63) - 1))
def test_ids_are_in_the_order_of_their_times(first, second):
    if TWITTER.unpack(first).time_ms < TWITTER.unpack(second).time_ms:
        assert first < second


@given(st.integers(0, (1 << 63) - 1), st.integers(-(10**13), 10**14), st.integers(0, 10**13))
def test_an_id_is_in_the_id_range_of_a_time_range_if_its_time_is(id, start_ms, length_ms):
    first, end = TWITTER.id_range(start_ms, start_ms + length_ms)
    assert (first <= id < end) == (start_ms <= TWITTER.unpack(id).time_ms < start_ms + length_ms)


def test_a_range_that_ends_before_its_start_is_refused():
    with pytest.raises(ValueError, match="before its start"):
        TWITTER.id_range(2000, 1999)


def test_the_last_millisecond_is_named_and_the_one_after_it_is_an_error():
    assert TWITTER.last_ms == 1288834974657 + 2**41 - 1
    assert TWITTER.pack(TWITTER.last_ms, 1023, 4095) == 2**63 - 1
    with pytest.raises(LayoutExhausted, match="more time bits"):
        TWITTER.pack(TWITTER.last_ms + 1, 0, 0)


@pytest.mark.parametrize(
    "call, reason",
    [
        (lambda: TWITTER.pack(1, 0, 0), "before the epoch"),
        (lambda: TWITTER.pack(1288834974657, 1024, 0), "worker number 1024 is not in 0..1023"),
        (lambda: TWITTER.pack(1288834974657, 0, 4096), "sequence 4096 is not in 0..4095"),
        (lambda: TWITTER.unpack(-1), "-1 is no id"),
        (lambda: TWITTER.unpack(1 << 63), "is no id"),
        (lambda: TWITTER.worker_number(32, 0), "datacenter 32 is not in 0..31"),
        (lambda: TWITTER.worker_number(0, 32), "worker 32 is not in 0..31"),
        (lambda: Layout(time_bits=42), "add up to 64 bits"),
        (lambda: Layout(40, 10, 10, 3), "at most 16 bits"),
        (lambda: Layout(63, 0, 0, 0), "at least one bit"),
        (lambda: Layout(epoch_ms=-1), "negative"),
        (lambda: Layout.from_dict({"time_bits": 41}), "has the keys"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, reason):
    with pytest.raises(ValueError, match=reason):
        call()


def test_a_recorded_layout_is_the_same_when_read_back():
    layout = Layout(42, 4, 5, 12, epoch_ms=0)
    assert Layout.from_dict(layout.to_dict()) == layout


def test_a_datacenter_has_32_numbers_of_its_own():
    assert list(TWITTER.numbers_of(3)) == list(range(96, 128))
    assert len(TWITTER.numbers_of(None)) == 1024


def test_the_end_of_the_layout_is_told_of_from_a_year_before():
    """Baidu's default bits ended on 2024-11-20, and negative ids followed (uid-generator #100)."""
    day_ms = 86_400_000
    assert TWITTER.ending(TWITTER.last_ms - 366 * day_ms) is None
    assert "in 364 days: move to a registry of its own" in TWITTER.ending(TWITTER.last_ms - 365 * day_ms + 1)
    assert "since then none are made" in TWITTER.ending(TWITTER.last_ms + 1)
