"""Settled offsets above the watermark: ranges that merge as offsets settle."""

from hypothesis import given
from hypothesis import strategies as st

from partition_manager.progress import Progress, SettledRanges


def test_offsets_become_ranges_and_ranges_that_touch_become_one():
    ranges = SettledRanges(Progress(0))
    for offset in (2, 5, 3, 9):
        ranges.add(offset, offset + 1)
    assert ranges.progress == Progress(0, ((2, 4), (5, 6), (9, 10)))
    ranges.add(4, 5)
    assert ranges.progress == Progress(0, ((2, 6), (9, 10)))


def test_the_watermark_rises_over_what_is_settled_behind_it():
    ranges = SettledRanges(Progress(3, ((5, 8), (10, 12))))
    ranges.add(3, 5)
    assert ranges.progress == Progress(8, ((10, 12),))


def test_ranges_answer_for_an_offset():
    ranges = SettledRanges(Progress(2, ((5, 8), (10, 12))))
    assert [ranges.end_of(offset) for offset in (1, 2, 4, 5, 7, 8, 10, 12)] == [2, None, None, 8, 8, None, 12, None]
    assert ranges.count_in(0, 11) == 2 + 3 + 1
    assert (len(ranges), ranges.end) == (2, 12)


def test_what_is_cut_is_forgotten():
    ranges = SettledRanges(Progress(2, ((5, 8), (10, 12))))
    ranges.cut(11)
    assert ranges.progress == Progress(2, ((5, 8), (10, 11)))
    ranges.cut(5)
    assert ranges.progress == Progress(2)
    ranges.cut(1)
    assert ranges.progress == Progress(1)


def test_the_lowest_ranges_are_read_without_the_others():
    ranges = SettledRanges(Progress(0, tuple((start, start + 1) for start in range(2, 2_000, 2))))
    assert ranges.lowest(2) == Progress(0, ((2, 3), (4, 5)))


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9))), st.integers(0, 70), st.integers(1, 5))
def test_ranges_are_what_a_set_of_offsets_would_be(added, cut, reads_every):
    ranges, settled = SettledRanges(Progress(5)), set(range(5))
    for number, (start, size) in enumerate(added):
        ranges.add(start, start + size)
        settled |= set(range(start, start + size))
        if number % reads_every == 0:
            assert ranges.watermark == min(set(range(100)) - settled)
    ranges.cut(cut)
    settled = {offset for offset in settled if offset < cut}
    offset, done = ranges.progress.check()
    assert offset == min(set(range(100)) - settled)
    assert set(range(offset)).union(*(range(*span) for span in done)) == settled
