"""idgen.worker: strictly rising ids, the run-ahead bound, the fence."""

import copy
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from idgen.errors import Fenced, IdError, LayoutExhausted, LeadExhausted, SequenceExhausted
from idgen.layout import Layout
from idgen.service import flat
from idgen.worker import IdRun, IdWorker

LAYOUT = Layout()
NOW = 1_700_000_000_000


def worker(number=7, start_ms=NOW, limit_ms=NOW + 30_000, **more):
    return IdWorker(LAYOUT, number, start_ms=start_ms, limit_ms=limit_ms, **more)


def parts(id):
    return LAYOUT.unpack(id)


def test_the_first_id_of_a_millisecond_has_sequence_0_and_the_next_1():
    """IdWorkerSpec.scala: the sequence increments, and a new millisecond begins at 0."""
    w = worker()
    assert parts(w.next_id(now_ms=NOW)) == (NOW, 0, 7, 0, 7)
    assert parts(w.next_id(now_ms=NOW)).sequence == 1
    assert parts(w.next_id(now_ms=NOW + 1)) == (NOW + 1, 0, 7, 0, 7)


def test_after_4096_ids_the_next_is_borrowed_from_the_next_millisecond():
    w = worker()
    assert flat(w.next_ids(4096, now_ms=NOW))[-1] & 4095 == 4095
    assert parts(w.next_id(now_ms=NOW)) == (NOW + 1, 0, 7, 0, 7)


def test_ids_run_ahead_500_ms_and_then_say_when_to_ask_again():
    """k stays below one second, and retry_at_ms replaces tilNextMillis' spinning."""
    w = worker()
    ids = flat(w.next_ids(501 * 4096, now_ms=NOW))
    assert parts(ids[-1]).time_ms == NOW + 500
    with pytest.raises(SequenceExhausted) as refused:
        w.next_id(now_ms=NOW)
    assert refused.value.retry_at_ms == NOW + 1
    with pytest.raises(SequenceExhausted):
        w.next_id(now_ms=NOW)
    assert w.next_id(now_ms=NOW + 1) == ids[-1] + 1 + (1023 << 12)


def test_a_clock_that_goes_back_or_stands_still_repeats_nothing():
    w = worker()
    last = w.next_id(now_ms=NOW)
    assert w.next_id(now_ms=NOW - 100) == last + 1
    assert w.next_id(now_ms=NOW - 500) == last + 2


def test_no_id_is_issued_below_the_start_nor_at_the_limit():
    """A number's successor starts at t >= the old H, and a worker's ids are of t < the acknowledged H."""
    w = worker(start_ms=NOW + 10, limit_ms=NOW + 12)
    assert parts(w.next_id(now_ms=NOW)).time_ms == NOW + 10
    assert parts(w.next_id(now_ms=NOW + 11)).time_ms == NOW + 11
    with pytest.raises(LeadExhausted):
        w.next_id(now_ms=NOW + 12)
    w.raise_limit(NOW + 13)
    assert parts(w.next_id(now_ms=NOW + 12)).time_ms == NOW + 12


def test_ids_do_not_run_ahead_past_the_limit():
    w = worker(limit_ms=NOW + 1)
    w.next_ids(4096, now_ms=NOW)
    with pytest.raises(LeadExhausted):
        w.next_id(now_ms=NOW)


def test_the_limit_never_goes_down():
    w = worker()
    with pytest.raises(ValueError, match="only rises"):
        w.raise_limit(NOW)


def test_a_fenced_worker_issues_nothing_and_names_the_remedy():
    w = worker()
    last = w.next_id(now_ms=NOW)
    w.fence("it was lost; claim anew")
    w.fence("a later reason")
    for ask in (lambda: w.next_id(NOW), lambda: w.next_ids(1, NOW), lambda: w.ready_at_ms(1, NOW)):
        with pytest.raises(Fenced, match="number 7 .*: it was lost; claim anew"):
            ask()
    assert w.last_id == last


def test_past_the_layouts_end_there_are_no_ids():
    w = IdWorker(LAYOUT, 1, start_ms=LAYOUT.last_ms, limit_ms=LAYOUT.last_ms + 10**6)
    w.next_ids(4096, now_ms=LAYOUT.last_ms)
    with pytest.raises(LayoutExhausted):
        w.next_id(now_ms=LAYOUT.last_ms)


def test_a_batch_is_runs_that_end_with_their_millisecond():
    w = worker(number=0)
    w.next_ids(4000, now_ms=NOW)
    first = LAYOUT.pack(NOW, 0, 4000)
    assert w.next_ids(5000, now_ms=NOW) == [
        IdRun(first, 96),
        IdRun(LAYOUT.pack(NOW + 1, 0, 0), 4096),
        IdRun(LAYOUT.pack(NOW + 2, 0, 0), 808),
    ]


@pytest.mark.parametrize("n", [0, -1, 501 * 4096 + 1])
def test_a_batch_that_can_never_be_is_refused_by_number(n):
    with pytest.raises(ValueError, match="between 1 and 2052096"):
        worker().next_ids(n, now_ms=NOW)


@pytest.mark.parametrize("other", [3, 7, 900])
@pytest.mark.parametrize("ahead_ms", [-5, 0, 3])
@pytest.mark.parametrize("sequence", [0, 4095])
def test_ids_are_above_the_floor_whichever_worker_it_is_of(other, ahead_ms, sequence):
    """A partition's last id is the floor for stamps, also after its leader has moved."""
    floor = LAYOUT.pack(NOW + ahead_ms, other, sequence)
    ids = flat(worker().next_ids(10, now_ms=NOW, floor=floor))
    assert floor < ids[0] and ids == sorted(set(ids))
    assert parts(ids[0]).time_ms <= NOW + max(ahead_ms, 0) + 1


def test_a_floor_far_ahead_is_waited_for():
    w = worker()
    floor = LAYOUT.pack(NOW + 2_000, 900, 0)
    with pytest.raises(SequenceExhausted) as refused:
        w.next_ids(1, now_ms=NOW, floor=floor)
    at = refused.value.retry_at_ms
    assert at == w.ready_at_ms(1, NOW, floor) == NOW + 1_501
    assert w.next_ids(1, now_ms=at, floor=floor)[0].first > floor


@pytest.mark.parametrize("spoil", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_worker_is_not_copied(spoil):
    with pytest.raises(TypeError, match="claim another number"):
        spoil(worker())


def test_last_id_and_last_ms_follow_what_was_issued():
    w = worker()
    assert (w.last_id, w.last_ms) == (-1, NOW - 1)
    assert w.next_id(now_ms=NOW) == w.last_id
    run = w.next_ids(5000, now_ms=NOW)[-1]
    assert w.last_id == run.first + run.count - 1
    assert w.last_ms == NOW + 1


def test_only_ids_of_the_last_run_are_given_back():
    w = worker()
    first, count = w.take_run(256, now_ms=NOW)
    w.give_back(first + 10)
    assert w.next_ids(2, now_ms=NOW) == [IdRun(first + 10, 2)]
    for other in (first + 13, first - 1):
        with pytest.raises(ValueError, match="not of the run taken last"):
            w.give_back(other)
    assert w.take_run(8192, now_ms=NOW) == IdRun(first + 12, 4096 - 12), "a run ends with its millisecond"


def test_ids_given_back_to_a_fenced_worker_are_dropped():
    w = worker()
    first, _ = w.take_run(256, now_ms=NOW)
    w.fence("another process took it")
    w.give_back(first)
    with pytest.raises(Fenced):
        w.next_id(now_ms=NOW)


SMALL = Layout(time_bits=59, datacenter_bits=0, worker_bits=2, sequence_bits=2, epoch_ms=0)


class Model:
    """A slow issuer of one id at a time, by the rules in words; its only state is the last id."""

    def __init__(self, number, start_ms, limit_ms, ahead_ms):
        self.number, self.limit_ms, self.ahead_ms = number, limit_ms, ahead_ms
        self.last_ms, self.sequence = start_ms - 1, 3

    def next_ids(self, n, now_ms, floor):
        saved = self.last_ms, self.sequence
        ids = []
        while len(ids) < n:
            if now_ms > self.last_ms or self.sequence == 3:
                self.last_ms, self.sequence = max(now_ms, self.last_ms + 1), -1
            self.sequence += 1
            id = SMALL.pack(self.last_ms, self.number, self.sequence)
            if id > floor:
                ids.append(id)
            if self.last_ms > now_ms + self.ahead_ms or self.last_ms >= self.limit_ms:
                self.last_ms, self.sequence = saved
                return None
        return ids


STEPS = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 12), st.integers(-8, 40)), max_size=30)


@settings(max_examples=200)
@given(STEPS, st.integers(0, 3), st.integers(0, 4))
def test_it_issues_what_the_plain_rules_say(steps, number, ahead_ms):
    """next_id, next_ids (all ids or none), ready_at_ms, and runs of which a part is given back agree with the model."""
    w = IdWorker(SMALL, number, start_ms=100, limit_ms=140, max_ahead_ms=ahead_ms)
    model = Model(number, 100, 140, ahead_ms)
    now = 100
    for step_ms, n, floor_ahead in steps:
        now += step_ms
        n = min(n, w.max_batch)
        floor = w.last_id + floor_ahead
        expected = model.next_ids(n, now, floor)
        before = w.last_id
        try:
            ready = w.ready_at_ms(n, now, floor) <= now
        except LeadExhausted:
            ready = False
        try:
            issued = flat(w.next_ids(n, now, floor))
        except IdError:
            issued = None
            assert w.last_id == before
        assert issued == expected
        assert ready == (issued is not None)
        if n == 1 and (expected := model.next_ids(1, now, -1)) is not None:
            assert w.next_id(now) == expected[0]
        if n <= 4 and (expected := model.next_ids(1, now, -1)) is not None:
            first, count = w.take_run(n, now)
            used = max(count - step_ms, 1)
            ids = expected + [id for _ in range(used - 1) for id in model.next_ids(1, now, -1)]
            assert list(range(first, first + used)) == ids and count <= n
            w.give_back(first + used)
