from twisted.internet.task import Clock

from broker.net.deadline_timer import SOON_MS, DeadlineTimer
from broker.now import Now


class World:
    """A timer on a clock that the test moves, and an engine that has one deadline, and one of a request that waits."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.deadline_ms = 1_000
        self.answer_ms: int | None = None
        self.asked = 0
        self.due_ms: list[int] = []
        self.timer = DeadlineTimer(
            self.clock, lambda: self.answer_ms, self._next_deadline, self._due, lambda: self.now
        )

    @property
    def now(self) -> Now:
        return Now(round(self.clock.seconds() * 1000), 0)

    def _next_deadline(self, now: Now) -> int:
        self.asked += 1
        return self.deadline_ms if self.answer_ms is None else min(self.deadline_ms, self.answer_ms)

    def _due(self) -> None:
        self.due_ms.append(self.now.ms)

    def pass_ms(self, ms: int, *, turns_each_ms: int = 0) -> None:
        for _ in range(ms):
            for _ in range(turns_each_ms):
                self.timer.arm(self.now)
            self.clock.advance(0.001)


def test_it_is_due_at_the_deadline_of_a_server_that_has_no_other_turn() -> None:
    world = World()
    world.timer.arm(world.now)

    world.pass_ms(2_000)

    assert world.due_ms == [1_000]


def test_work_that_is_due_in_slices_is_due_again_at_once() -> None:
    world = World()
    world.deadline_ms = 10
    world.timer.arm(world.now)
    world.pass_ms(10)

    for _ in range(3):
        world.timer.arm(world.now)
        world.clock.advance(0)

    assert world.due_ms == [10, 10, 10, 10]


def test_a_request_is_answered_at_its_deadline_however_many_turns_there_are() -> None:
    world = World()
    world.timer.arm(world.now)
    world.pass_ms(1)
    world.answer_ms = 3
    world.timer.arm(world.now)

    world.pass_ms(2)

    assert world.due_ms == [3]


def test_an_earlier_deadline_of_a_later_turn_is_kept() -> None:
    world = World()
    world.timer.arm(world.now)
    world.pass_ms(SOON_MS)
    world.deadline_ms = 100
    world.timer.arm(world.now)

    world.pass_ms(500)

    assert world.due_ms == [100]


def test_a_deadline_of_the_last_of_many_turns_is_noticed_a_few_ms_late_at_most() -> None:
    world = World()
    world.timer.arm(world.now)
    world.pass_ms(1)
    world.deadline_ms = 2
    world.timer.arm(world.now)  # the engine was asked a ms ago

    world.pass_ms(SOON_MS)

    assert world.due_ms[0] <= 2 + SOON_MS


def test_turns_that_follow_each_other_ask_the_engine_once_in_a_few_ms() -> None:
    world = World()
    world.deadline_ms = 1_000_000

    world.pass_ms(100 * SOON_MS, turns_each_ms=10)

    assert 100 <= world.asked <= 101
    assert world.due_ms == []


def test_a_timer_at_rest_is_due_at_its_end_whatever_the_turns_ask_for() -> None:
    world = World()
    world.deadline_ms, world.answer_ms = 10, 0
    world.timer.rest(1)

    world.pass_ms(999, turns_each_ms=1)
    assert world.due_ms == []

    world.pass_ms(1)
    assert world.due_ms == [1_000]


def test_a_stopped_timer_is_never_due() -> None:
    world = World()
    world.timer.arm(world.now)
    world.timer.stop()

    world.pass_ms(2_000)

    assert world.due_ms == []
    assert world.clock.getDelayedCalls() == []
