"""The coordinator's operations and events on their way to a Member or an engine, on a clock that the test moves."""

import pytest
from twisted.internet.task import Clock

from broker.net.coordination import POLL_SECONDS, CoordinatorShell
from broker.now import Now
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import (
    Changed,
    ConnectionLost,
    CoordinatorUnavailable,
    Create,
    Get,
    Node,
    SessionEnded,
    SessionEstablished,
    SessionLost,
    Set,
)


class Reactor(Clock):
    def callFromThread(self, call, *arguments):
        self.callLater(0, call, *arguments)


class Answering(MemoryCoordinator):
    """A coordinator in memory that answers by callback, as ZooKeeper's does. `error` is raised by `begin`."""

    request_timeout_ms = 10_000
    error = None
    begun = 0

    def begin(self, operation, done):
        self.begun += 1
        if self.error is not None:
            raise self.error
        done(self.execute(operation))


class Core:
    """A core that asks for the operations in `asks`, and keeps what it is passed."""

    def __init__(self):
        self.asks, self.outcomes, self.events, self.ticks = [], [], [], []
        self.deadline_ms = None

    def take_operations(self):
        asks, self.asks = self.asks, []
        return asks

    def completed(self, operation, outcome, now):
        self.outcomes.append((operation, outcome))

    def notified(self, event, now):
        self.events.append(event)

    def tick(self, now):
        self.ticks.append(now.ms)
        self.deadline_ms = None

    def next_deadline_ms(self):
        return self.deadline_ms


class World:
    def __init__(self):
        self.clock, self.reported = Reactor(), []
        self.ensemble = Ensemble()
        self.coordinator = Answering(self.ensemble)
        self.core = Core()
        self.shell = CoordinatorShell(self.clock, self.coordinator, self.core, self.now, self.reported.append)

    def now(self):
        return Now(int(self.clock.seconds() * 1000), 0)

    def later(self, seconds=0.0):
        self.clock.pump([seconds] + [0] * 10)


@pytest.fixture
def world():
    world = World()
    world.shell.begin()
    return world


def test_the_first_event_is_the_session(world):
    assert world.core.events == [SessionEstablished(world.coordinator.session_id)]


def test_a_member_is_asked_after_each_event_and_each_outcome(world):
    first, second = Create("/a", b"x"), Get("/a")
    world.core.asks = [first]
    world.shell.turn()
    world.core.asks = [second]
    world.later()
    assert world.core.outcomes == [(first, "/a"), (second, world.coordinator.execute(Get("/a")))]


def test_operations_are_begun_in_their_order_and_go_on_at_the_same_time(world):
    """Kafka's controller pipelines its writes as well; the session keeps their order."""
    world.core.asks = [Create("/a"), Set("/a", b"1", 0), Set("/a", b"2", 1)]
    world.shell.turn()
    assert world.coordinator.begun == 3 and world.core.outcomes == []
    world.later()
    assert [outcome for _, outcome in world.core.outcomes] == ["/a", 1, 2]


def test_an_error_is_an_outcome(world):
    world.coordinator.error = SessionLost("over")
    world.core.asks = [Get("/a")]
    world.shell.turn()
    assert world.core.outcomes == [], "the core is in its turn"
    world.later()
    ((_, outcome),) = world.core.outcomes
    assert isinstance(outcome, SessionLost) and world.reported == []


def test_a_fault_is_reported_and_becomes_an_outcome_so_that_nothing_waits_for_ever(world):
    world.coordinator.error = ValueError("too many bytes")
    world.core.asks = [Get("/a")]
    world.shell.turn()
    world.later()
    ((_, outcome),) = world.core.outcomes
    assert isinstance(outcome, CoordinatorUnavailable) and "too many bytes" in str(outcome)
    assert "a fault of the broker's own" in world.reported[0]


def test_a_watch_wakes_the_core(world):
    world.coordinator.execute(Create("/a"))
    world.coordinator.execute(Get("/a", watch=True))
    MemoryCoordinator(world.ensemble).execute(Set("/a", b"y", 0))
    world.later()
    assert world.core.events[1:] == [Changed("/a")]


def test_events_are_looked_for_each_second_because_a_wake_up_may_get_lost(world):
    world.coordinator.on_wake(lambda: None)
    world.coordinator.expire()
    world.later(POLL_SECONDS)
    assert len(world.core.events) == 3


def test_events_that_cannot_be_read_are_reported_once_and_read_again(world, monkeypatch):
    def lost():
        raise ConnectionLost("another process holds the lock")

    with monkeypatch.context() as patch:
        patch.setattr(world.coordinator, "take_events", lost)
        world.later(POLL_SECONDS)
        world.later(POLL_SECONDS)
    assert len(world.reported) == 1
    world.coordinator.expire()
    world.later(POLL_SECONDS)
    assert len(world.core.events) == 3


def test_a_member_is_ticked_at_its_deadline(world):
    world.core.deadline_ms = 700
    world.shell.turn()
    world.later(0.7)
    assert world.core.ticks == [700]
    world.later(5)
    assert world.core.ticks == [700]


def test_a_fault_of_the_core_keeps_no_event_from_coming(world):
    def fault(operation, outcome, now):
        raise RuntimeError("a bug")

    world.core.completed = fault
    world.core.asks = [Create("/a")]
    world.shell.turn()
    world.later()
    assert "RuntimeError: a bug" in world.reported[0]
    world.coordinator.expire()
    world.later()
    assert len(world.core.events) == 3


def test_once_the_broker_serves_its_engine_is_asked_by_its_server(world):
    engine, turns = Core(), []
    world.core.deadline_ms = 5_000
    world.shell.turn()
    world.shell.serve(engine, lambda: turns.append(len(engine.outcomes)))
    operation = Create("/a")
    world.shell.carry_out([operation])
    world.later()
    assert engine.outcomes == [(operation, "/a")] and turns == [1]
    world.later(10)
    assert world.core.ticks == [] and world.core.outcomes == []


def test_a_fault_of_the_server_keeps_no_event_from_coming(world):
    def fault():
        raise RuntimeError("a bug")

    engine = Core()
    world.shell.serve(engine, fault)
    world.coordinator.expire()
    world.later()
    assert [type(event) for event in engine.events] == [SessionEnded, SessionEstablished]
    world.coordinator.on_wake(lambda: None)
    world.coordinator.expire()
    world.later(POLL_SECONDS)
    assert len(engine.events) == 4


def test_nothing_is_passed_on_after_a_stop(world):
    world.core.deadline_ms = 5_000
    world.core.asks = [Create("/a")]
    world.shell.turn()
    world.shell.stop()
    world.coordinator.expire()
    world.later(10)
    assert (world.core.outcomes, world.core.ticks, len(world.core.events)) == ([], [], 1)
    assert isinstance(world.coordinator.execute(Get("/a")), Node)
