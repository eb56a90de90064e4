"""idgen.server.ClaimDriver: the claims of one session, under a reactor whose time the test sets."""

import pytest
from twisted.internet.task import Clock

from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import ANY_VERSION, Children, CoordinationError, Delete, Set
from idgen.claim_state import ClaimState
from idgen.clock import IdClock
from idgen.errors import LayoutMismatch, LeadExhausted, NoWorkerNumber
from idgen.layout import Layout
from idgen.registry import Registry
from idgen.server import ClaimDriver
from tests.idgen.driving import NOW, claim, settle


class Reactor(Clock):
    def callFromThread(self, call, *arguments):
        self.callLater(0, call, *arguments)


class ByCallback(MemoryCoordinator):
    """A coordinator in memory that answers by callback, as ZooKeeper's client does."""

    request_timeout_ms = 10_000

    def begin(self, operation, done):
        try:
            outcome = self.execute(operation)
        except CoordinationError as error:
            outcome = error
        done(outcome)


class House:
    def __init__(self):
        self.ensemble = Ensemble()
        self.reactor = Reactor()
        self.coordinator = ByCallback(self.ensemble)
        self.wall_ahead_s = 0
        self.clock = IdClock(self.wall_ns, self.steady_ns)
        self.reported = []
        self.driver = ClaimDriver(self.reactor, self.coordinator, self.clock, self.reported.append)

    def wall_ns(self):
        return NOW * 10**6 + self.steady_ns() + self.wall_ahead_s * 10**9

    def steady_ns(self):
        return int(self.reactor.seconds() * 1e9)

    def advance(self, seconds):
        """Advance in steps, because timers set other timers; steps of no time let answers arrive."""
        for _ in range(40):
            self.reactor.advance(0)
        for _ in range(int(seconds * 10)):
            self.reactor.advance(0.1)
            for _ in range(10):
                self.reactor.advance(0)

    def hold(self, claim):
        outcomes = []
        self.driver.hold(claim).addBoth(outcomes.append)
        self.advance(0)
        return outcomes


@pytest.fixture
def house():
    return House()


def test_two_claims_of_one_session_get_two_numbers(house):
    """A broker stamps with one number and serves ids with the other."""
    stamping, serving = claim("a"), claim("b")
    assert house.hold(stamping) == [stamping]
    assert house.hold(serving) == [serving]
    assert (stamping.number, serving.number) == (0, 1)
    assert house.coordinator.execute(Children("/snowflake-servers")) == ("0", "1")


def test_marks_are_raised_as_time_goes_by(house):
    c = claim("a")
    house.hold(c)
    for _ in range(12):
        house.advance(10)
        c.worker.next_id(house.clock.now_ms())


def test_all_claims_hear_of_a_lost_connection_and_of_its_return(house):
    claims = [claim("a"), claim("b")]
    for c in claims:
        house.hold(c)
    house.coordinator.cut()
    house.coordinator.expire()
    house.advance(2)
    assert [c.state for c in claims] == [ClaimState.SUSPENDED] * 2
    house.coordinator.heal()
    house.advance(2)
    assert [c.state for c in claims] == [ClaimState.HELD] * 2


def test_an_operator_is_told_once_that_the_registry_is_away_and_once_that_it_is_back(house):
    house.hold(claim("a"))
    assert house.reported == [], "the start is told by the ready: line"
    house.coordinator.cut()
    house.advance(20)
    house.coordinator.heal()
    house.advance(3)
    away, back = house.reported
    assert away.startswith("ids: the registry does not answer; worker number 0 goes on without it for ")
    assert back == "worker number 0 is held again"


def test_an_operator_is_told_once_that_ids_have_ended_while_the_registry_is_away(house):
    house.hold(claim("a"))
    house.coordinator.cut()
    house.advance(45)
    house.coordinator.heal()
    house.advance(3)
    away, ended, back = house.reported
    assert "worker number 0 goes on without it for " in away and back == "worker number 0 is held again"
    assert ended.endswith("; no ids until it answers, because the lead of worker number 0 has passed")


def test_an_operator_is_not_told_of_a_lead_that_has_passed_while_the_machine_slept(house):
    house.hold(claim("a"))
    house.coordinator.cut()
    house.reactor.advance(120)
    house.advance(3)
    assert not [line for line in house.reported if "goes on without it" in line]
    assert len([line for line in house.reported if "no ids until it answers" in line]) == 1


def test_an_operator_is_told_who_has_taken_the_number_and_what_is_waited_for(house):
    """The driver reports each fact in one line, however often the claim retries."""
    registry = Registry(layout=Layout(time_bits=50, datacenter_bits=0, worker_bits=1, sequence_bits=12))
    house.hold(claim("a", registry=registry, number=0))
    other = MemoryCoordinator(house.ensemble)
    other.execute(Delete("/snowflake-servers/0"))
    rival = settle(claim("b", registry=registry, number=0), other, NOW + 30_000)
    house.advance(30)
    taken, waiting = house.reported
    assert taken == "ids: worker number 0 was claimed by in-process; no ids until a worker number is held"
    assert waiting == "ids: worker number 0 is held by in-process; no ids until a worker number is held"
    rival.close(NOW + 30_000)
    settle(rival, other, NOW + 30_000)
    house.advance(30)
    assert house.reported[2:] == ["worker number 0 is held now"]


def test_an_operator_is_told_of_a_claim_that_ends_for_good(house):
    """The claim loses its number, and meanwhile the registry has been given another layout."""
    house.hold(claim("a"))
    other = MemoryCoordinator(house.ensemble)
    other.execute(Delete("/snowflake-servers-marks/0"))
    other.execute(Set("/snowflake-servers-marks", b'{"layout": {}}', ANY_VERSION))
    house.advance(15)
    lost, ended = house.reported
    assert lost.startswith("ids: /snowflake-servers-marks/0 was deleted")
    assert "holds no layout" in ended and ended.endswith("; no more ids until this process is started again")


def test_a_clock_stepped_past_the_lead_stops_ids_for_a_second_at_most(house):
    c = claim("a")
    house.hold(c)
    house.wall_ahead_s = 3_600
    house.reactor.advance(0.001)
    with pytest.raises(LeadExhausted):
        c.worker.next_id(house.clock.now_ms())
    house.advance(1.1)
    c.worker.next_id(house.clock.now_ms())


def test_stopping_gives_all_numbers_back(house):
    claims = [claim("a"), claim("b")]
    for c in claims:
        house.hold(c)
    stopped = []
    house.driver.stop().addBoth(stopped.append)
    house.advance(0)
    assert stopped == [None]
    assert [c.state for c in claims] == [ClaimState.CLOSED] * 2
    assert house.coordinator.execute(Children("/snowflake-servers")) == ()
    assert house.reactor.getDelayedCalls() == []
    other = MemoryCoordinator(house.ensemble)
    assert settle(claim("c"), other, house.clock.now_ms()).number == 0


def test_stopping_with_no_claim_is_done_immediately(house):
    stopped = []
    house.driver.stop().addBoth(stopped.append)
    assert stopped == [None]


def test_another_layout_fails_the_claim_that_has_it(house):
    house.hold(claim("a"))
    (outcome,) = house.hold(claim("b", registry=Registry(layout=Layout(42, 5, 4, 12))))
    assert outcome.check(LayoutMismatch)


def test_a_claim_stopped_before_it_held_a_number_says_what_it_waited_for(house):
    house.coordinator.lose_requests = 1_000
    outcomes = house.hold(claim("a"))
    assert outcomes == []
    house.driver.stop()
    house.advance(0)
    assert outcomes[0].check(NoWorkerNumber)
    assert "the request got lost" in outcomes[0].getErrorMessage()


def test_a_fault_of_our_own_ends_the_claim_and_is_told(house):
    class Broken(Registry):
        def open(self):
            raise ZeroDivisionError("planted")

    c, other = claim("a", registry=Broken()), claim("b")
    house.hold(other)
    (outcome,) = house.hold(c)
    assert outcome.check(ZeroDivisionError)
    house.advance(60)
    other.worker.next_id(house.clock.now_ms())
    with pytest.raises(NoWorkerNumber, match="planted"):
        c.usable_worker()
