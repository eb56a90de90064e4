"""idgen.sequence_start: ids of a slow worker, taken modulo a number of shards (shardingsphere #7750, Mycat #2616)."""

from collections import Counter

import pytest

from idgen.config import IdgenConfig
from idgen.errors import SequenceExhausted
from idgen.layout import Layout
from idgen.sequence_start import sequence_start
from idgen.service import flat
from idgen.settings import InvalidSetting
from idgen.worker import IdWorker

NOW = 1_700_000_000_000
LAYOUT = Layout()


def worker(kind, starts=256, chance=0.37, **more):
    start = sequence_start(kind, starts, chance)
    return IdWorker(LAYOUT, 7, start_ms=NOW, limit_ms=NOW + 10**7, sequence_start=start, **more)


def slow_ids(kind, count=8_192, pace_ms=1, **more):
    """Return `count` ids, one every `pace_ms` milliseconds."""
    w = worker(kind, **more)
    return [w.next_id(NOW + pace_ms * n) for n in range(count)]


@pytest.mark.parametrize("shards", [2, 3, 8, 10, 64, 256])
@pytest.mark.parametrize("kind", ["spread", "random"])
def test_ids_of_a_slow_worker_fall_evenly_on_the_shards(kind, shards):
    even = 8_192 / shards
    held = Counter(id % shards for id in slow_ids(kind))
    assert len(held) == shards
    assert max(held.values()) < even * 1.25 + 4 * even**0.5
    assert min(held.values()) > even * 0.75 - 4 * even**0.5


def test_from_zero_they_all_fall_on_one():
    assert {id % 64 for id in slow_ids("zero")} == {0}


def test_a_caller_in_step_with_the_starts_needs_chance():
    """At one id per 256 ms, `spread` gives the same start each time; `random`, a hash of the millisecond, does not."""
    assert len({id % 256 for id in slow_ids("spread", pace_ms=256)}) == 1
    assert len({id % 256 for id in slow_ids("random", pace_ms=256)}) == 256


def test_two_processes_do_not_begin_with_the_same_sequence_by_chance():
    assert slow_ids("random", chance=0.1) != slow_ids("random", chance=0.2)


@pytest.mark.parametrize("kind", ["spread", "random"])
def test_ids_still_rise_strictly_and_stay_in_their_millisecond(kind):
    w = worker(kind)
    ids = []
    for n in range(400):
        ids += flat(w.next_ids(1 + n * 37 % 5_000, NOW + n * 3, floor=ids[-1] + n % 3 if ids else -1))
        ids.append(w.next_id(NOW + n * 3))
    assert all(a < b for a, b in zip(ids, ids[1:], strict=False))
    assert {id >> LAYOUT.worker_shift & LAYOUT.workers - 1 for id in ids} == {7}


@pytest.mark.parametrize("kind", ["zero", "spread", "random"])
def test_the_largest_batch_is_one_that_can_be_had(kind):
    w = worker(kind, max_ahead_ms=3)
    w.next_ids(w.max_batch, NOW)
    with pytest.raises(SequenceExhausted) as refused:
        w.next_ids(w.max_batch, NOW)
    w.next_ids(w.max_batch, NOW + 2 * (refused.value.retry_at_ms - NOW))


@pytest.mark.parametrize("kind", ["spread", "random"])
def test_what_is_said_to_be_ready_is(kind):
    w = worker(kind)
    w.next_ids(w.max_batch, NOW)
    for n in (1, 4_000, 20_000):
        ready_ms = w.ready_at_ms(n, NOW)
        w.next_ids(n, ready_ms)


def test_starts_leave_half_of_a_millisecond_at_least():
    IdgenConfig(ids_sequence_start="spread", ids_sequence_starts=2_048)
    with pytest.raises(InvalidSetting, match="flakelog.ids.sequence.starts=2049: must be at most 2048"):
        IdgenConfig(ids_sequence_start="spread", ids_sequence_starts=2_049)
    with pytest.raises(InvalidSetting, match="must be one of zero, spread, random"):
        IdgenConfig(ids_sequence_start="one")
