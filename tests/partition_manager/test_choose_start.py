"""The start position of reading (T3, T5 and T7 are traps that test_manager.py lists)."""

import pytest

from broker.client.offset_spec import AtId, AtOffset, AtTime, Earliest, Last, Latest
from partition_manager.assignment import partitions_of
from partition_manager.config import SpoutConfig
from partition_manager.opening import choose_start, match_request
from partition_manager.ports import Bounds, FindId, FindTime
from partition_manager.progress import Progress

LOG = Bounds(100, 200)


def start(stored=None, at=Earliest(), bounds=LOG, answer=None, **settings):
    chosen = choose_start(stored, at, bounds, answer, SpoutConfig(**settings))
    return chosen.progress, chosen.lost


@pytest.mark.parametrize(
    "at, answer, offset",
    [
        (Earliest(), None, 100),
        (Latest(), None, 200),
        (AtTime(5), 150, 150),
        (AtTime(5), None, 200),
        (AtId(5), 150, 150),
        (AtId(5), None, 200),
        (AtOffset(120), None, 120),
        (AtOffset(5), None, 100),
        (AtOffset(500), None, 200),
        (Last(10), None, 190),
        (Last(500), None, 100),
    ],
)
def test_with_nothing_stored_the_position_asked_for_is_taken_within_the_log(at, answer, offset):
    assert start(None, at, answer=answer) == (Progress(offset), 0)


def test_only_a_time_or_an_id_has_to_be_asked_for():
    assert match_request(AtTime(5), "t", 1) == FindTime("t", 1, 5)
    assert match_request(AtId(5), "t", 1) == FindId("t", 1, 5)
    assert match_request(Latest(), "t", 1) is None


def test_stored_progress_goes_before_the_position_asked_for():
    assert start(Progress(150, ((160, 170),)), Latest()) == (Progress(150, ((160, 170),)), 0)


def test_t5_progress_stored_at_offset_zero_is_progress():
    assert start(Progress(0), Latest(), Bounds(0, 50)) == (Progress(0), 0)


def test_t3_below_the_log_it_begins_where_the_log_does_and_counts_what_is_lost():
    assert start(Progress(50, ((60, 70), (90, 110)))) == (Progress(110), 50 - 10 - 10)


def test_t3_or_at_the_end_if_so_configured():
    assert start(Progress(50), spout_out_of_range="latest") == (Progress(200), 150)


def test_above_the_log_it_begins_at_the_end_for_the_log_was_truncated():
    assert start(Progress(250, ((260, 270),))) == (Progress(200), 0)


def test_ranges_past_the_end_of_the_log_are_cut_for_other_messages_come_there():
    assert start(Progress(150, ((160, 170), (190, 220), (230, 240)))) == (Progress(150, ((160, 170), (190, 200))), 0)


def test_t7_only_a_limit_that_was_set_skips_and_what_it_skips_is_counted():
    assert start(Progress(110), Latest()) == (Progress(110), 0)
    assert start(Progress(110, ((120, 130),)), Latest(), spout_max_start_lag=50) == (Progress(200), 80)
    assert start(Progress(160), Latest(), spout_max_start_lag=50) == (Progress(160), 0)


def test_t7_a_start_lag_never_goes_back():
    assert start(Progress(110), Earliest(), spout_max_start_lag=50) == (Progress(110), 0)


@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
def test_every_partition_has_exactly_one_task(tasks):
    """Sorted partitions are dealt out in turn: task i reads number i, i + T, ... (storm-kafka)."""
    parts = [partitions_of(task, tasks, [4, 0, 3, 1, 2]) for task in range(tasks)]
    assert sorted(p for part in parts for p in part) == [0, 1, 2, 3, 4]
    assert partitions_of(1, 2, range(5)) == (1, 3)


def test_a_task_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="task 2 of 2"):
        partitions_of(2, 2, [0])
