"""A claim whose ids may lie ahead of the clock (flakelog.ids.log.max.ahead.ms): its mark fences them as any other's."""

import pytest

from coordination.memory import MemoryCoordinator
from idgen.claim_state import ClaimState
from idgen.registry import AHEAD, LOG, Registry
from tests.idgen.claims import held, mark
from tests.idgen.driving import NOW, claim, settle

HOUR_MS = 3_600_000
AHEAD_MS = 24 * HOUR_MS


def claim_ahead(session, token, now_ms=NOW):
    return held(session, token, now_ms, registry=Registry(role=AHEAD, ahead_ms=AHEAD_MS))


def floor_at(claim, ms):
    return claim.registry.layout.first_id(ms)


def test_its_mark_is_raised_above_the_time_that_is_needed(session):
    made = claim_ahead(session, "a")
    made.need(NOW + HOUR_MS)
    settle(made, session, NOW)
    assert mark(session, 0)["high_water_ms"] == made.worker.limit_ms == NOW + HOUR_MS + made.registry.lead_ms
    (run,) = made.worker.next_ids(3, NOW, floor_at(made, NOW + HOUR_MS))
    assert made.registry.layout.unpack(run.first).time_ms == NOW + HOUR_MS


def test_a_time_that_is_needed_from_the_beginning_is_below_its_first_marks(session):
    made = claim("a", registry=Registry(role=AHEAD, ahead_ms=AHEAD_MS))
    made.need(NOW + HOUR_MS)
    settle(made, session, NOW)
    assert made.worker.limit_ms == NOW + HOUR_MS + made.registry.lead_ms


def test_its_mark_follows_its_ids(session):
    made = claim_ahead(session, "a")
    made.need(NOW + HOUR_MS)
    settle(made, session, NOW)
    made.worker.next_ids(4_096 * 20_000, NOW, floor_at(made, NOW + HOUR_MS))
    settle(made, session, NOW + 10_000)
    assert made.worker.limit_ms == made.worker.last_ms + made.registry.lead_ms > NOW + HOUR_MS + 20_000


@pytest.mark.parametrize("clean", [True, False])
def test_the_next_start_takes_its_number_up_above_its_mark(ensemble, session, clean):
    before = claim_ahead(session, "a")
    before.need(NOW + HOUR_MS)
    settle(before, session, NOW)
    last = before.worker.next_ids(3, NOW, floor_at(before, NOW + HOUR_MS))[-1]
    if clean:
        before.close(NOW)
        settle(before, session, NOW)
    else:
        session.close()
        session = MemoryCoordinator(ensemble)
    now_ms = NOW + 31_000
    after = claim_ahead(session, "b", now_ms)
    assert after.number == before.number == 0
    (run,) = after.worker.next_ids(1, now_ms, floor_at(after, NOW))
    assert run.first > last.first + 2 and mark(session, 0)["high_water_ms"] > after.worker.last_ms


def test_a_usual_claim_leaves_its_number_alone_until_the_mark_has_passed(session):
    before = claim_ahead(session, "a")
    before.need(NOW + HOUR_MS)
    settle(before, session, NOW)
    before.worker.next_ids(3, NOW, floor_at(before, NOW + HOUR_MS))
    before.close(NOW)
    assert settle(before, session, NOW).state is ClaimState.CLOSED
    usual = held(session, "b", NOW + 1_000, registry=Registry(role=LOG))
    assert usual.number == 1
