"""The life of a broker in its cluster: what it waits for, and what ends it."""

import pytest

from broker.cluster.documents import Endpoint, Registration, broker_path
from broker.membership.cluster_identity import Membership
from broker.membership.member import Member
from broker.membership.stale_image import STALE_MS
from broker.now import Now
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import CoordinationError, CoordinatorUnavailable, Create, Multi, NoNode, SessionEnded

RETRY_MS = 1_000


class Life:
    """A member with a coordinator in memory. `refusal` returns the error of an operation, or None."""

    def __init__(self, refusal):
        self.coordinator, self.refusal, self.now_ms = MemoryCoordinator(Ensemble()), refusal, 1_000
        registration = Registration((Endpoint("BROKERS", "PLAINTEXT", "localhost", 9_101),), 0)
        membership = Membership(
            1, registration, "BROKERS", "cluster", True, 6_000, coordinator_name="ZooKeeper at a:2181"
        )
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
    assert refused.member.is_registered
    assert refused.member.next_deadline_ms() == refused.now_ms + STALE_MS  # the controller has sent no order yet


def test_a_broker_without_a_session_has_no_registration_to_wait_for(refused):
    """Else it would have a turn after the other until ZooKeeper is back."""
    refused.coordinator.cut()
    refused.coordinator.expire()
    refused.coordinator.heal()
    (session_ended,) = [event for event in refused.coordinator.take_events() if isinstance(event, SessionEnded)]
    refused.member.notified(session_ended, refused.now)
    assert refused.member.next_deadline_ms() is None


# --- a coordinator that does not answer ------------------------------------------------------------------------------


@pytest.fixture
def life():
    life = Life(lambda operation: None)
    life.settle()
    life.member.serve(life.now)
    life.settle()
    assert life.member.is_registered and not life.member.problems and not life.reported
    return life


def test_a_coordinator_that_does_not_answer_is_a_problem_with_its_name_its_beginning_and_what_stands_still(life):
    life.member.image.controller_id = life.member.controller.controller_id  # which has sent an order
    life.now_ms = 1_764_489_600_000
    life.coordinator.cut()
    life.settle()
    (problem,) = life.member.problems
    assert problem == (
        "ZooKeeper at a:2181 does not answer since 2025-11-30 08:00:00 UTC, or refuses this broker's session: reads "
        "and writes go on, but topics and settings cannot be changed, and partitions get no other leaders"
    )
    life.now_ms += 60_000
    life.settle()
    assert life.member.problems == life.reported == [problem], "it is reported once"


def test_an_outage_says_until_when_the_ids_last_and_then_that_writes_are_refused(life):
    """A broker issues no id that the registry has not confirmed to it, because ids must never repeat."""
    life.now_ms = 1_764_489_600_000
    life.member.image.controller_id = 1  # its own controller has told it of the cluster
    life.member.coordinator_outage.ids_end_ms = lambda: 1_764_489_625_000
    life.coordinator.cut()
    life.settle()
    outage = "ZooKeeper at a:2181 does not answer since 2025-11-30 08:00:00 UTC, or refuses this broker's session"
    frozen = "topics and settings cannot be changed, and partitions get no other leaders"
    going_on = (
        f"{outage}: reads go on, and writes and commits until "
        f"2025-11-30 08:00:25 UTC, when the ids of this broker end (flakelog.ids.lead.ms), but {frozen}"
    )
    assert life.member.problems == life.reported == [going_on]
    assert life.member.next_deadline_ms() == 1_764_489_625_000
    life.now_ms = 1_764_489_625_000
    life.member.tick(life.now)
    refused = (
        f"{outage}: writes and commits are refused since "
        "2025-11-30 08:00:25 UTC, because the ids of this broker have ended (flakelog.ids.lead.ms); "
        f"{frozen}. Reads go on"
    )
    assert life.member.problems == [refused] and life.reported == [going_on, refused]
    life.coordinator.heal()
    life.settle()
    assert life.member.problems == [] and life.reported[2:] == ["ZooKeeper at a:2181 answers again"]
    assert life.member.next_deadline_ms() is None


def test_an_outage_whose_ids_come_from_another_registry_again_says_that_writes_go_on(life):
    ends_ms = [2_000]
    life.member.image.controller_id = 1
    life.member.coordinator_outage.ids_end_ms = lambda: ends_ms[0]
    life.coordinator.cut()
    life.now_ms = 3_000
    life.settle()
    assert "writes and commits are refused since" in life.member.problems[0]
    ends_ms[0] = None
    life.now_ms = life.member.next_deadline_ms()
    life.member.tick(life.now)
    assert ": reads and writes go on, but " in life.member.problems[0]


@pytest.mark.parametrize("is_over", [False, True], ids=["the session lives", "the session is over"])
def test_a_coordinator_that_answers_again_is_reported_and_no_problem_any_more(life, is_over):
    life.coordinator.cut()
    life.settle()
    if is_over:
        life.coordinator.expire()
    life.coordinator.heal()
    life.settle()
    assert life.member.problems == [] and life.reported[1:] == ["ZooKeeper at a:2181 answers again"]
