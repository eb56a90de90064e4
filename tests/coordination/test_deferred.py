"""coordination.deferred: answers that come by callback, in time, too late, or never."""

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from coordination import deferred
from coordination.deferred import executor, wake_in_reactor
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Changed, ConnectionLost, Create, Get, Node, NoNode, SessionLost, Set


class Reactor(Clock):
    def callFromThread(self, call, *arguments):
        self.callLater(0, call, *arguments)


class PendingCoordinator:
    """A coordinator that answers when the test calls `waiting[0]`."""

    request_timeout_ms = 10_000
    session_id, scope = 1, "a test"

    def __init__(self):
        self.waiting = []
        self.over = False

    def execute(self, operation):
        raise AssertionError("it would block")

    def begin(self, operation, done):
        if self.over:
            raise SessionLost("over")
        self.waiting.append(done)


def ask():
    """Return (coordinator, reactor, outcomes of one Get)."""
    coordinator, reactor, outcomes = PendingCoordinator(), Reactor(), []
    executor(coordinator, reactor)(Get("/a")).addBoth(outcomes.append)
    return coordinator, reactor, outcomes


def test_an_answer_fires_in_the_reactors_turn_not_in_the_callers():
    coordinator, reactor, outcomes = ask()
    coordinator.waiting[0](Node(b"x", 0, 0))
    assert outcomes == []
    reactor.advance(0)
    assert outcomes == [Node(b"x", 0, 0)]
    assert reactor.getDelayedCalls() == []


def test_operations_asked_for_in_one_turn_or_while_a_group_is_at_work_make_the_next_group(monkeypatch):
    """1,000 partitions that store their progress take a few threads, and not one each."""
    groups, working = [], []

    class Files:
        def execute_all(self, operations):
            groups.append([operation.path for operation in operations])
            return [NoNode(operation.path) if operation.path == "/c" else Node(b"x", 0, 0) for operation in operations]

    def to_thread(work, operations):
        working.append((Deferred(), work, operations))
        return working[-1][0]

    def end():
        done, work, operations = working.pop()
        done.callback(work(operations))

    monkeypatch.setattr(deferred, "deferToThread", to_thread)
    reactor, outcomes = Reactor(), {}
    execute = executor(Files(), reactor)

    def ask(*paths):
        for path in paths:
            execute(Get(path)).addBoth(lambda outcome, path=path: outcomes.update({path: outcome}))
        reactor.advance(0)

    ask("/a", "/b")
    ask("/c")
    ask("/d")
    end()
    assert groups == [["/a", "/b"]] and set(outcomes) == {"/a", "/b"}
    reactor.advance(0)
    end()
    assert groups == [["/a", "/b"], ["/c", "/d"]] and outcomes["/d"] == Node(b"x", 0, 0)
    assert outcomes["/c"].check(NoNode) and not working


def test_an_error_fails():
    coordinator, reactor, outcomes = ask()
    coordinator.waiting[0](NoNode("/a"))
    reactor.advance(0)
    assert outcomes[0].check(NoNode)


def test_no_answer_in_time_leaves_the_outcome_unknown_and_a_late_one_is_dropped():
    coordinator, reactor, outcomes = ask()
    reactor.advance(10)
    assert outcomes[0].check(ConnectionLost) and outcomes[0].getErrorMessage() == "no answer from a test in 10 s"
    coordinator.waiting[0](Node(b"x", 0, 0))
    reactor.advance(1)
    assert len(outcomes) == 1


def test_a_request_that_cannot_be_sent_fails_immediately():
    coordinator, reactor, outcomes = PendingCoordinator(), Reactor(), []
    coordinator.over = True
    executor(coordinator, reactor)(Get("/a")).addBoth(outcomes.append)
    assert outcomes[0].check(SessionLost)


def test_wake_ups_become_one_call_in_the_reactors_turn():
    ensemble, reactor, taken = Ensemble(), Reactor(), []
    session, other = MemoryCoordinator(ensemble), MemoryCoordinator(ensemble)
    other.execute(Create("/a"))
    other.execute(Create("/b"))
    session.take_events()
    wake_in_reactor(session, reactor, lambda: taken.append(session.take_events()))
    for path in ("/a", "/b"):
        session.execute(Get(path, watch=True))
        other.execute(Set(path, b"x", 0))
    assert taken == []
    reactor.advance(0)
    assert taken == [[Changed("/a"), Changed("/b")]]
    session.execute(Get("/a", watch=True))
    other.execute(Set("/a", b"y", 1))
    reactor.advance(0)
    assert taken[1:] == [[Changed("/a")]]
