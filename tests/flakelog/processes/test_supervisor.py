"""flakelog.processes.supervisor: when children are started, killed and stopped; times are literals in ms."""

import pytest

from flakelog.processes.messages import Ready
from flakelog.processes.supervisor import ChildState, Send, Signal, Start, Supervisor, joined

ADDRESS = Ready({"broker": "h:1"}, "here")
KILLED = -9


class World:
    """A supervisor whose processes begin as they are ordered. It keeps the last orders."""

    def __init__(self, children=2):
        self.core = Supervisor([f"broker {i + 1}" for i in range(children)], beat_timeout_ms=9_000, stop_timeout_ms=700)
        self.lines = []
        self.core.begin(0)
        assert self.orders(0) == [Start(index) for index in range(children)]

    def orders(self, now_ms):
        """Return the orders without lines, which are kept; ordered children begin."""
        self.core.tick(now_ms)
        orders = self.core.take_orders()
        for order in orders:
            if isinstance(order, Start):
                self.core.began(order.child, now_ms)
        self.lines += [order.line for order in orders if not isinstance(order, (Start, Send))]
        return [order for order in orders if isinstance(order, (Start, Send))]

    def all_ready(self, now_ms):
        for index, state in enumerate(self.core.states):
            if state is ChildState.STARTING:
                self.core.ready(index, ADDRESS, now_ms)
        return self

    def run(self, since_ms, until_ms, silent=()):
        """Let a second after the other pass, with a beat of each child that is not silent; return the orders."""
        orders = []
        for now_ms in range(since_ms, until_ms + 1, 1_000):
            for index in set(range(len(self.core.states))) - set(silent):
                self.core.beat(index, now_ms)
            orders += [(now_ms, order) for order in self.orders(now_ms)]
        return orders


@pytest.fixture
def world():
    return World().all_ready(0)


def test_a_child_that_dies_is_started_at_once_and_then_with_pauses():
    world, now_ms = World(1).all_ready(0), 100
    for pause_ms in (0, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000):
        world.core.exited(0, KILLED, now_ms)
        assert world.core.next_deadline_ms() == now_ms + pause_ms
        assert world.orders(now_ms + pause_ms - 1) == []
        assert world.orders(now_ms + pause_ms) == [Start(0)]
        world.core.ready(0, ADDRESS, now_ms + pause_ms)
        now_ms += pause_ms + 100
    assert world.lines[:3] == [
        "broker 1 ended by signal 9; it is started again at once",
        "broker 1 ended by signal 9; it is started again in 1 s",
        "broker 1 ended by signal 9; it is started again in 2 s",
    ]


def test_each_child_has_pauses_of_its_own(world):
    world.core.exited(0, KILLED, 100)
    assert world.orders(100) == [Start(0)]
    world.core.exited(0, KILLED, 100)
    world.core.exited(1, KILLED, 100)
    assert world.orders(100) == [Start(1)]


@pytest.mark.parametrize("lived_ms, start_ms", [(59_999, 1_000), (60_000, 0)])
def test_after_a_quiet_minute_the_pauses_begin_anew(world, lived_ms, start_ms):
    world.core.exited(0, KILLED, 0)
    assert world.orders(0) == [Start(0)]
    world.core.ready(0, ADDRESS, 5_000)
    assert world.run(5_000, 60_000) == []
    world.core.exited(0, KILLED, 5_000 + lived_ms)
    assert world.orders(5_000 + lived_ms + start_ms - 1) == []
    assert world.orders(5_000 + lived_ms + start_ms) == [Start(0)]


def test_a_long_start_is_no_quiet_minute(world):
    world.core.exited(0, KILLED, 0)
    world.orders(0)
    world.run(0, 90_000)
    world.core.exited(0, KILLED, 90_000)
    assert world.orders(90_000) == []
    assert world.orders(91_000) == [Start(0)]


def test_a_child_that_does_not_beat_is_killed_once_and_then_counts_as_dead(world):
    assert world.run(1_000, 20_000, silent={1}) == [(9_000, Send(1, Signal.KILL))]
    assert world.lines == ["broker 2 has not answered for 9000 ms; it is killed"]
    assert world.core.states == (ChildState.READY, ChildState.STOPPING), "it may take a while until it has ended"
    world.core.exited(1, KILLED, 20_500)
    assert world.orders(20_500) == [Start(1)]


def test_a_child_that_starts_may_read_its_logs_for_as_long_as_it_takes():
    world = World(1)
    assert world.run(0, 600_000, silent={0}) == []
    world.all_ready(600_000)
    assert world.run(601_000, 610_000, silent={0}) == [(609_000, Send(0, Signal.KILL))]


def test_a_parent_that_stood_still_does_not_blame_its_children(world):
    """A suspended container, or a stopped process group: the children did not run either."""
    assert world.orders(60_000) == []
    assert world.run(61_000, 70_000, silent={0, 1}) == [
        (69_000, Send(0, Signal.KILL)),
        (69_000, Send(1, Signal.KILL)),
    ]


def test_the_parent_looks_each_second_while_a_child_is_ready(world):
    world.orders(4_000)
    assert world.core.next_deadline_ms() == 5_000
    assert World().core.next_deadline_ms() is None


@pytest.mark.parametrize("status", [1, 2])
def test_a_refused_first_start_ends_everything(status):
    world = World(3)
    world.core.ready(0, ADDRESS, 10)
    world.core.exited(1, status, 20)
    assert world.orders(20) == [Send(0, Signal.TERM), Send(2, Signal.TERM)]
    world.core.exited(0, 0, 30)
    assert world.core.outcome is None
    world.core.exited(2, -15, 40)
    assert world.core.outcome == (status, 1, ())


def test_a_start_that_was_killed_is_not_refused():
    world = World()
    world.core.exited(0, KILLED, 10)
    assert world.orders(10) == [Start(0)]


def test_a_later_start_that_is_refused_is_repeated(world):
    """The port or the disk that it lacks may come back, and the other brokers serve meanwhile."""
    world.core.exited(0, KILLED, 10)
    assert world.orders(10) == [Start(0)]
    world.core.exited(0, 1, 20)
    assert world.orders(1_020) == [Start(0)] and not world.core.stopping


def test_a_stop_is_clean_if_all_children_end_with_0(world):
    world.core.stop(100)
    assert world.orders(100) == [Send(0, Signal.TERM), Send(1, Signal.TERM)]
    assert world.core.states == (ChildState.STOPPING, ChildState.STOPPING)
    world.core.exited(0, 0, 110)
    world.core.exited(1, 0, 120)
    assert world.core.outcome == (0, None, ()) and world.orders(9_000) == []


def test_a_child_that_stops_too_slowly_is_killed_and_the_exit_code_says_so(world):
    world.core.stop(100)
    world.core.exited(0, 0, 110)
    world.orders(110)
    assert world.core.next_deadline_ms() == 800
    assert world.orders(799) == []
    assert world.orders(800) == [Send(1, Signal.KILL)]
    assert world.core.next_deadline_ms() is None and world.orders(900) == []
    world.core.exited(1, KILLED, 910)
    assert world.core.outcome == (1, None, ("broker 2",))


def test_a_stopping_child_is_not_held_to_beats():
    core = Supervisor(["broker 1"], beat_timeout_ms=1_000, stop_timeout_ms=60_000)
    core.begin(0)
    core.began(0, 0)
    core.ready(0, ADDRESS, 0)
    core.take_orders()
    core.stop(10)
    core.tick(3_000)
    assert core.take_orders() == [Send(0, Signal.TERM)]


def test_a_second_request_to_stop_reaches_those_that_still_run(world):
    world.core.stop(100)
    world.core.exited(0, 0, 110)
    world.orders(120)
    world.core.stop(130)
    assert world.orders(130) == [Send(1, Signal.TERM)]
    assert world.core.next_deadline_ms() == 800, "the time limit stays"


def test_a_stop_starts_nothing_any_more(world):
    world.core.exited(0, KILLED, 10)
    world.core.exited(1, KILLED, 10)
    world.core.tick(10)  # ordered, and not begun
    world.core.exited(0, KILLED, 10)
    world.core.stop(10)
    assert world.orders(60_000) == []
    assert world.core.outcome.status == 1, "a child that waits for its restart did not stop cleanly"


def test_a_stop_while_children_start_is_clean():
    """A process that ends by SIGTERM before it could handle signals has touched nothing."""
    world = World()
    world.core.stop(5)
    assert world.orders(5) == [Send(0, Signal.TERM), Send(1, Signal.TERM)]
    world.core.ready(0, ADDRESS, 6)
    assert world.core.states[0] is ChildState.STOPPING
    world.core.exited(0, 0, 7)
    world.core.exited(1, -15, 8)
    assert world.core.outcome == (0, None, ())


def test_all_addresses_are_there_when_all_are_ready():
    world = World()
    world.core.ready(1, Ready({"broker": "h:2", "http": "h:9"}, "a directory"), 5)
    assert world.core.ready_children is None
    world.core.ready(0, Ready({"broker": "h:1", "http": "h:9"}, "a directory"), 6)
    assert joined(world.core.ready_children) == ({"broker": "h:1,h:2", "http": "h:9"}, "a directory")
