"""Selections by offset, time and id, resolved once to ranges."""

import json

import pytest

from broker.client.offset_spec import AtId
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.selector import (
    EARLIEST,
    LATEST,
    OffsetBound,
    SelectionError,
    Selector,
    TimeBound,
    by_id,
    by_offset,
    by_time,
    resolve,
    to_dict,
)


class Log:
    """LogOffsets over lists: {partition: (log start, [(time, id) of each record])}.

    The last `hidden` records of each partition are above the high watermark, and the `uncommitted` ones before these
    above the last stable offset.
    """

    def __init__(self, partitions, hidden=0, uncommitted=0):
        self.partitions = partitions
        self.hidden = hidden
        self.uncommitted = uncommitted

    def earliest(self, topic):
        return {p: start for p, (start, _) in self.partitions.items()}

    def latest(self, topic, *, committed=False):
        above = self.hidden + (self.uncommitted if committed else 0)
        return {p: start + len(records) - above for p, (start, records) in self.partitions.items()}

    def first_at_time(self, topic, time_ms):
        return self._first(lambda time, id: time >= time_ms)

    def first_at_id(self, topic, id):
        return self._first(lambda time, own: own >= id)

    def _first(self, good):
        return {
            p: next((start + n for n, record in enumerate(records) if good(*record)), None)
            for p, (start, records) in self.partitions.items()
        }


LOG = Log(
    {
        0: (10, [(100, 1000), (300, 1010), (200, 1020), (400, 1030)]),
        1: (0, [(150, 1005), (250, 1025)]),
        2: (7, []),
    }
)


def ranges(selector):
    resolved = resolve(selector, ["t"], LOG)
    return [(offset_range.partition, offset_range.start, offset_range.end) for offset_range in resolved]


def test_everything_is_from_earliest_to_latest():
    assert ranges(by_offset(EARLIEST, LATEST)) == [(0, 10, 14), (1, 0, 2), (2, 7, 7)]


def test_offsets_are_given_for_each_partition_with_the_connectors_marks():
    """The connector's mark -2 means earliest, -1 latest (Structured Streaming + Kafka Integration Guide)."""
    selector = by_offset({"t": {0: 11, 1: -2, 2: -2}}, {"t": {0: 13, 1: 1, 2: -1}})
    assert ranges(selector) == [(0, 11, 13), (1, 0, 1), (2, 7, 7)]


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        (by_offset({"t": {0: 11}}), r"t has partitions \[0, 1, 2\], offsets are given for \[0\]"),
        (by_offset({"t": {0: 9, 1: 0, 2: 7}}), "t-0 has offsets 10 to 14; asked for 9 to 14"),
        (by_offset(EARLIEST, {"t": {0: 15, 1: 0, 2: 7}}), "t-0 has offsets 10 to 14; asked for 10 to 15"),
        (by_offset({"t": {0: 12, 1: 0, 2: 7}}, {"t": {0: 11, 1: 0, 2: 7}}), "the end 11 lies before the start 12"),
    ],
)
def test_offsets_that_the_log_does_not_have_are_refused(selector, says):
    """Offsets outside the log raise SelectionError: a read fails rather than returns less."""
    with pytest.raises(SelectionError, match=says):
        ranges(selector)


def test_a_time_begins_at_the_first_record_not_before_it():
    """A record in between may have another time, because producers set timestamps, as in the connector."""
    assert ranges(by_time(200, 400, strict=False)) == [(0, 11, 13), (1, 1, 2), (2, 7, 7)]


def test_a_time_after_all_records_of_a_partition_is_an_error_or_nothing():
    """startingOffsetsByTimestampStrategy decides between error and latest."""
    with pytest.raises(SelectionError, match="t-1 has no record with a timestamp of 260 ms or later; name an earlier"):
        ranges(by_time(260))
    assert ranges(by_time(260, strict=False)) == [(0, 11, 14), (1, 2, 2), (2, 7, 7)]


def test_ids_are_exact():
    """A range of ids is exactly a range of offsets in each partition."""
    assert ranges(by_id(1005, 1025)) == [(0, 11, 13), (1, 0, 1), (2, 7, 7)]


def test_an_open_side_of_ids_is_the_logs_own():
    assert ranges(by_id(1011, None)) == [(0, 12, 14), (1, 1, 2), (2, 7, 7)]
    assert ranges(by_id(None, 1011)) == [(0, 10, 12), (1, 0, 1), (2, 7, 7)]


def test_adjacent_id_ranges_share_no_record_and_leave_none_out():
    for cut in range(990, 1040):
        before, after = ranges(by_id(None, cut)), ranges(by_id(cut, None))
        together = [(p, start, end) for (p, start, _), (_, _, end) in zip(before, after, strict=True)]
        assert together == ranges(by_id())
        assert [end for _, _, end in before] == [start for _, start, _ in after]


def test_the_end_does_not_run_past_what_is_visible():
    """The end stays at the high watermark taken earlier, although Kafka may find a time beyond it."""
    log = Log({0: (0, [(1, 1), (2, 2), (3, 3)])}, hidden=2)
    assert resolve(by_time(2, 3), ["t"], log) == (OffsetRange("t", 0, 1, 1),)


def test_a_start_and_an_end_of_different_kinds_mix():
    """Each side is given on its own, as in the connector: from a time to an offset, from an offset to an id."""
    assert ranges(Selector(TimeBound(200, strict=False), OffsetBound({"t": {0: 13, 1: -1, 2: -1}}))) == [
        (0, 11, 13), (1, 1, 2), (2, 7, 7),
    ]  # fmt: skip
    assert ranges(Selector(OffsetBound({"t": {0: 11, 1: 0, 2: -2}}), AtId(1025))) == [
        (0, 11, 13), (1, 0, 1), (2, 7, 7),
    ]  # fmt: skip
    with pytest.raises(SelectionError, match="t-0 has offsets 10 to 14; the end 10 lies before the start 11"):
        ranges(Selector(TimeBound(200, strict=False), OffsetBound({"t": {0: 10, 1: -1, 2: -1}})))


def test_each_partition_may_have_a_time_of_its_own():
    """startingOffsetsByTimestamp and endingOffsetsByTimestamp name all partitions of a topic."""
    start, end = TimeBound({"t": {0: 300, 1: 150, 2: 1}}, strict=False), TimeBound({"t": {0: 400, 1: 250, 2: 1}})
    assert ranges(Selector(start, end)) == [(0, 11, 13), (1, 0, 1), (2, 7, 7)]
    assert ranges(Selector(start)) == [(0, 11, 14), (1, 0, 2), (2, 7, 7)]
    with pytest.raises(SelectionError, match=r"partitions \[0, 1, 2\], times are given for \[0\]; give all of them"):
        ranges(Selector(TimeBound({"t": {0: 300}})))
    with pytest.raises(SelectionError, match="times 5 to 4 of t-1: the end lies before the start"):
        Selector(TimeBound({"t": {0: 3, 1: 5}}), TimeBound({"t": {1: 4}}))
    with pytest.raises(SelectionError, match="times 5 to 4 of t-1: the end lies before the start"):
        Selector(TimeBound({"t": {0: 3, 1: 5}}), TimeBound(4))


@pytest.mark.parametrize(
    ("selector", "says"),
    [
        (by_offset(EARLIEST, {"t": {0: 3}}), "the range ends at offset 3, past the last stable offset 2"),
        (by_offset({"t": {0: 3}}), "the range begins at offset 3, past the last stable offset 2"),
        (by_time(None, 4), "the range ends at offset 3, past the last stable offset 2"),
        (by_time(None, 9), "the range ends at offset 4, past the last stable offset 2"),
        (by_id(None, 4), "the range ends at offset 3, past the last stable offset 2"),
    ],
)
def test_a_whole_committed_range_is_refused_past_the_last_stable_offset(selector, says):
    """Rows of an open transaction cannot be in a result that promises all of its range."""
    log = Log({0: (0, [(1, 1), (2, 2), (3, 3), (4, 4)])}, uncommitted=2)
    with pytest.raises(SelectionError, match=f"t-0: {says}, where a transaction is open.*read_uncommitted"):
        resolve(selector, ["t"], log, committed=True, whole=True)


def test_a_whole_committed_range_without_an_end_ends_at_the_last_stable_offset():
    log = Log({0: (0, [(1, 1), (2, 2), (3, 3), (4, 4)])}, uncommitted=2)
    for selector in (by_offset(), by_offset(EARLIEST, {"t": {0: -1}}), by_time(1, 3), by_id(None, 3)):
        assert resolve(selector, ["t"], log, committed=True, whole=True) == (OffsetRange("t", 0, 0, 2),)
    assert resolve(by_time(3, strict=False), ["t"], log, committed=True, whole=True) == (OffsetRange("t", 0, 2, 2),)


def test_a_log_that_grows_while_it_is_asked_has_no_open_transaction():
    """Messages arrive between two questions; only a last stable offset below the older high watermark counts."""

    class Growing(Log):
        def latest(self, topic, *, committed=False):
            self.hidden -= 1
            return super().latest(topic, committed=committed)

    log = Growing({0: (0, [(n, n) for n in range(9)])}, hidden=5)
    assert resolve(by_time(None, 99), ["t"], log, committed=True, whole=True) == (OffsetRange("t", 0, 0, 6),)


def test_what_is_committed_ends_at_the_last_stable_offset():
    """A time or an id past the last stable offset is not found, as in Kafka's ListOffsets with read_committed."""
    log = Log({0: (0, [(1, 1), (2, 2), (3, 3)])}, uncommitted=1)
    assert resolve(by_offset(), ["t"], log, committed=True) == (OffsetRange("t", 0, 0, 2),)
    assert resolve(by_offset(), ["t"], log) == (OffsetRange("t", 0, 0, 3),)
    assert resolve(by_time(None, 3), ["t"], log, committed=True) == (OffsetRange("t", 0, 0, 2),)
    with pytest.raises(SelectionError, match="no record with a timestamp of 3 ms"):
        resolve(by_time(3), ["t"], log, committed=True)


@pytest.mark.parametrize(
    ("start", "end", "read", "lost"),
    [
        (8, 12, (10, 12), [(8, 10)]),
        (12, 16, (12, 14), [(14, 16)]),
        (8, 16, (10, 14), [(8, 10), (14, 16)]),
        (3, 5, (10, 10), [(3, 5)]),
        (15, 18, (14, 14), [(15, 18)]),
        (10, 14, (10, 14), []),
    ],
)
def test_lost_offsets_are_named_and_the_rest_is_read(start, end, read, lost):
    """With failOnDataLoss=false a range is cut to what the log has, as in the connector."""
    log, losses = Log({0: LOG.partitions[0]}), []
    (offset_range,) = resolve(by_offset({"t": {0: start}}, {"t": {0: end}}), ["t"], log, on_lost=losses.append)
    assert (offset_range.start, offset_range.end) == read
    assert [(loss.within.start, loss.within.end) for loss in losses] == lost
    assert all(loss.reason == f"t-0 has offsets 10 to 14; asked for {start} to {end}" for loss in losses)


@pytest.mark.parametrize(
    "make",
    [
        lambda: by_id(5, 4),
        lambda: by_time(5, 4),
        lambda: by_id(-1),
        lambda: by_offset(LATEST),
        lambda: by_offset(EARLIEST, EARLIEST),
        lambda: by_offset("newest"),
        lambda: by_offset({"t": {0: -3}}),
    ],
)
def test_a_selection_that_can_never_hold_anything_is_refused_immediately(make):
    with pytest.raises(SelectionError):
        make()


@pytest.mark.parametrize(
    ("selector", "fields"),
    [
        (by_id(1, None), {"start": {"id": 1}, "end": {"offsets": "latest"}}),
        (by_time(1, 2, strict=False), {"start": {"time_ms": 1, "strict": False}, "end": {"time_ms": 2}}),
        (by_offset({"t": {0: 3}}), {"start": {"offsets": {"t": {"0": 3}}}, "end": {"offsets": "latest"}}),
        (
            Selector(TimeBound({"t": {0: 3}}), AtId(7)),
            {"start": {"time_ms": {"t": {"0": 3}}}, "end": {"id": 7}},
        ),
    ],
)
def test_what_was_asked_is_kept_as_json(selector, fields):
    assert json.loads(json.dumps(to_dict(selector))) == fields
