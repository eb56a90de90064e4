"""A claim gets a free or a configured worker number, raises its high-water mark, and says why it has no ids."""

import pytest

from coordination.memory import MemoryCoordinator
from coordination.port import Children, Delete, Get, Set
from idgen.claim_state import ClaimState
from idgen.errors import LeadExhausted, NoWorkerNumber
from idgen.layout import utc_text
from tests.idgen.claims import held, mark
from tests.idgen.driving import NOW, claim, settle, step


def test_the_lowest_free_number_is_claimed_and_shown_as_twitters_servers_do(session, other):
    """Each worker has a node as in snowflake-2010: EPHEMERAL /snowflake-servers/<id> = host:port."""
    assert held(session, "a").number == 0
    assert held(other, "b").number == 1
    assert session.execute(Children("/snowflake-servers")) == ("0", "1")
    shown = session.execute(Get("/snowflake-servers/1"))
    assert (shown.data, shown.owner) == (b"host-b:1", other.session_id)


def test_a_new_claim_has_a_whole_lead(session):
    c = held(session)
    assert mark(session, 0)["high_water_ms"] == c.worker.limit_ms == NOW + 30_000
    c.worker.next_id(NOW + 29_999)
    with pytest.raises(LeadExhausted):
        c.worker.next_id(NOW + 30_000)


def test_the_mark_is_raised_every_10_s_and_the_limit_follows_the_answer(session):
    c = held(session)
    assert c.next_deadline_ms == NOW + 10_000
    c.tick(NOW + 10_000)
    operation = c.take_operation()
    assert isinstance(operation, Set) and c.worker.limit_ms == NOW + 30_000
    c.answered(session.execute(operation), NOW + 10_050)
    assert c.worker.limit_ms == mark(session, 0)["high_water_ms"] == NOW + 40_000
    assert c.next_deadline_ms == NOW + 20_050


def test_a_successor_starts_above_ids_that_ran_ahead_of_the_clock(session, other):
    c = held(session)
    ids = c.worker.next_ids(100 * 4096, NOW)
    c.close(NOW)
    settle(c, session, NOW)
    successor = held(other, "b", NOW)
    assert successor.number == 0
    assert successor.worker.next_id(NOW) > ids[-1].first + ids[-1].count - 1


def test_after_a_crash_another_number_is_taken_immediately_and_the_first_one_rests(session, other, ensemble):
    """A freed number is not reused while its mark is ahead (shardingsphere #190: do not reuse a just-freed id)."""
    held(session, "a")
    session.expire()
    assert held(other, "b").number == 1
    third = MemoryCoordinator(ensemble)
    assert held(third, "c", NOW + 30_000).number == 0


def test_a_configured_number_is_waited_for_and_says_so(session, other):
    c = held(session, "a", number=5)
    assert c.number == 5
    waiting = settle(claim("b", number=5), other, NOW)
    assert waiting.state is ClaimState.CLAIMING
    assert waiting.problem == "worker number 5 is held by host-a:1"
    session.expire()
    settle(waiting, other, NOW + 1_000)
    assert f"worker number 5 rests until {utc_text(NOW + 29_500)}: host-a:1 held it" in waiting.problem
    with pytest.raises(NoWorkerNumber, match="rests until 2"):
        waiting.usable_worker()
    now = NOW + 1_000
    while waiting.state is ClaimState.CLAIMING:
        assert now < NOW + 29_500
        now = waiting.next_deadline_ms
        settle(waiting, other, now)
    assert (waiting.number, now) == (5, NOW + 29_500)
    assert waiting.worker.layout.unpack(waiting.worker.next_id(now)).time_ms >= NOW + 30_000


def test_a_datacenter_limits_claims_to_its_32_numbers(session):
    assert held(session, "a", datacenter=3).number == 96


def test_two_that_claim_together_get_two_numbers(session, other):
    a, b = claim("a"), claim("b")
    while step(a, session, NOW) | step(b, other, NOW):
        pass
    assert {a.number, b.number} == {0, 1}


def test_a_claim_says_why_it_has_no_ids_and_that_it_has_while_the_lead_lasts(session, other):
    c = claim("a")
    assert c.why_no_ids(NOW) == "it is still being claimed"
    settle(c, session, NOW)
    assert c.why_no_ids(NOW) is None
    session.cut()
    settle(c, session, NOW + 1)
    assert c.problem == "the registry does not answer"
    assert c.why_no_ids(NOW + 29_999) is None
    assert c.why_no_ids(NOW + 30_000) == c.problem
    settle(c, session, NOW + 30_000)
    assert c.why_no_ids(NOW + 30_000) == "the connection is cut"
    other.execute(Delete("/snowflake-servers-marks/0"))
    session.heal()
    while c.state is not ClaimState.FENCED:
        step(c, session, NOW + 40_000)
    assert "was deleted; another number is being claimed" in c.why_no_ids(NOW + 40_000)
    settle(c, session, NOW + 40_000)
    assert c.why_no_ids(NOW + 40_000) is None
    c.close(NOW + 40_000)
    assert "closed" in c.why_no_ids(NOW + 40_000)


def test_a_process_that_slept_past_its_mark_says_so(session):
    assert "high-water mark has passed" in held(session).why_no_ids(NOW + 30_000)
