"""idgen.clock: max(wall, last + elapsed on a clock that counts suspend)."""

from hypothesis import given
from hypothesis import strategies as st

from idgen.clock import IdClock

MS = 1_000_000


class Clocks:
    def __init__(self, wall_ms, steady_ms):
        self.wall_ns, self.steady_ns = wall_ms * MS, steady_ms * MS

    def pass_ms(self, ms, wall_step_ms=0):
        self.wall_ns += (ms + wall_step_ms) * MS
        self.steady_ns += ms * MS

    def id_clock(self):
        return IdClock(lambda: self.wall_ns, lambda: self.steady_ns)


def test_it_is_the_wall_clock_while_that_goes_forward():
    clocks = Clocks(wall_ms=1_000_000, steady_ms=77)
    clock = clocks.id_clock()
    assert clock.now_ms() == 1_000_000
    clocks.pass_ms(5)
    assert (clock.now_ms(), clock.skew_ms) == (1_000_005, 0)


def test_a_step_forward_is_followed_immediately():
    clocks = Clocks(1_000_000, 77)
    clock = clocks.id_clock()
    clocks.pass_ms(5, wall_step_ms=3_600_000)
    assert (clock.now_ms(), clock.skew_ms) == (4_600_005, 0)


def test_a_step_back_is_ridden_over_and_shown_as_skew():
    clocks = Clocks(1_000_000, 77)
    clock = clocks.id_clock()
    clocks.pass_ms(5, wall_step_ms=-60_000)
    assert (clock.now_ms(), clock.skew_ms) == (1_000_005, 60_000)
    clocks.pass_ms(1_000)
    assert (clock.now_ms(), clock.skew_ms) == (1_001_005, 60_000)
    clocks.pass_ms(10, wall_step_ms=60_000)
    assert (clock.now_ms(), clock.skew_ms) == (1_001_015, 0)


def test_the_wall_clock_is_read_one_time_in_a_millisecond():
    """Each id reads the id clock, so the clock reads the wall clock once and sees a step in the next millisecond."""
    clocks = Clocks(1_000_000, 77)
    wall_reads = []
    clock = IdClock(lambda: wall_reads.append(1) or clocks.wall_ns, lambda: clocks.steady_ns)
    wall_reads.clear()
    for _ in range(10):
        assert clock.now_ms() == 1_000_000
        clocks.steady_ns += MS // 10
    assert len(wall_reads) == 1
    clocks.wall_ns += 3_600_000 * MS
    assert clock.now_ms() == 4_600_000 and len(wall_reads) == 2


@given(st.lists(st.tuples(st.integers(1, 10_000), st.integers(-(10**7), 10**7))))
def test_it_never_steps_back_and_never_stands_still(steps):
    clocks = Clocks(10**9, 0)
    clock = clocks.id_clock()
    last = clock.now_ms()
    for ms, wall_step_ms in steps:
        clocks.pass_ms(ms, wall_step_ms)
        now = clock.now_ms()
        assert now >= last + ms
        assert now >= clocks.wall_ns // MS
        assert now - clocks.wall_ns // MS == clock.skew_ms
        last = now


def test_the_machines_clocks_will_do():
    clock = IdClock()
    assert clock.now_ms() <= clock.now_ms()
    assert clock.skew_ms >= 0
