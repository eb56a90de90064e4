"""The life of a broker in its cluster: what it waits for, and what ends it."""

import pytest

from broker.cluster.documents import Endpoint, Registration, broker_path
from broker.membership.member import Member, Membership
from broker.now import Now
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinationError, CoordinatorUnavailable, Create, Multi, NoNode, SessionEnded

RETRY_MS = 1_000


class Life:
    """A member with a coordinator in memory. `refusal` returns the error of an operation, or None."""

    def __init__(self, refusal):
        self.coordinator, self.refusal, self.now_ms = MemoryCoordinator(Ensemble()), refusal, 1_000
        registration = Registration((Endpoint("BROKERS", "PLAINTEXT", "localhost", 9_101),), 0)
        membership = Membership(1, registration, "BROKERS", "cluster", True, 6_000)
        self.reported = []
        self.member = Member(membership, self.reported.append, lambda: None)

    @property
    def now(self):
        return Now(self.now_ms, self.now_ms)

    def settle(self):
        for event in self.coordinator.take_events():
            self.member.notified(event, self.now)
        while operations := self.member.take_operations():
            for operation in operations:
                self.member.completed(operation, self._outcome(operation), self.now)

    def _outcome(self, operation):
        try:
            return self.refusal(operation) or self.coordinator.execute(operation)
        except CoordinationError as error:
            return error


def registers(operation):
    return isinstance(operation, Multi) and operation.operations[0].path == broker_path(1)


def test_a_broker_that_may_make_no_nodes_says_so_and_gives_up():
    life = Life(lambda operation: CoordinatorUnavailable("no rights") if isinstance(operation, Create) else None)
    life.settle()
    assert str(life.member.problem) == "no rights"


@pytest.fixture
def refused():
    """Return the life of a broker whose first registration was refused."""
    refusals = [NoNode("/brokers/ids")]
    life = Life(lambda operation: refusals.pop() if refusals and registers(operation) else None)
    life.settle()
    life.member.serve(life.now)
    life.settle()
    assert "could not register" in life.reported[0] and not life.member.is_registered
    return life


def test_a_refused_registration_is_tried_again_after_a_pause(refused):
    assert refused.member.next_deadline_ms() == refused.now_ms + RETRY_MS
    refused.now_ms += RETRY_MS
    refused.member.tick(refused.now)
    refused.settle()
    assert refused.member.is_registered and refused.member.next_deadline_ms() is None


def test_a_broker_without_a_session_has_no_registration_to_wait_for(refused):
    """Else it would have a turn after the other until ZooKeeper is back."""
    refused.coordinator.cut()
    refused.coordinator.expire()
    refused.coordinator.heal()
    (session_ended,) = [event for event in refused.coordinator.take_events() if isinstance(event, SessionEnded)]
    refused.member.notified(session_ended, refused.now)
    assert refused.member.next_deadline_ms() is None
