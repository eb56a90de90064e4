"""Claims of many processes: each waits while all numbers are held, and a thousand ask the registry few questions."""

from collections import Counter
from random import Random

import pytest

from coordination.memory import MemoryCoordinator
from coordination.port import SessionEstablished, SessionSuspended
from idgen.claim_state import ClaimState
from idgen.errors import NoWorkerNumber, WorkerIdsExhausted
from idgen.layout import Layout
from idgen.registry import Registry
from tests.idgen.claims import held
from tests.idgen.driving import NOW, claim, settle, step

TWO_NUMBERS = Layout(time_bits=50, datacenter_bits=0, worker_bits=1, sequence_bits=12)


def test_when_every_number_is_held_there_is_one_clear_error_and_a_slow_retry(session, other, ensemble):
    registry = Registry(layout=TWO_NUMBERS)
    held(session, "a", registry=registry)
    c = held(other, "b", registry=registry)
    third = MemoryCoordinator(ensemble)
    waiting = settle(claim("c", registry=registry), third, NOW)
    assert waiting.state is ClaimState.CLAIMING
    assert waiting.problem == "all 2 worker numbers of /snowflake-servers are held or rest after a crash"
    assert waiting.next_deadline_ms == NOW + 10_000
    with pytest.raises(NoWorkerNumber):
        waiting.usable_worker()
    c.close(NOW)
    settle(c, other, NOW)
    assert settle(waiting, third, NOW + 10_000).number == 1


def test_those_who_wait_for_a_number_come_at_paces_of_their_own(session, other, ensemble):
    """A claim that finds all numbers taken (the 1,025th of 1,024) retries after 10 to 20 s, by its random number."""
    registry = Registry(layout=TWO_NUMBERS)
    held(session, "a", registry=registry)
    held(other, "b", registry=registry)
    chances = iter([0.25, 0.75])
    waiting = claim("c", registry=registry, chance=lambda: next(chances))
    third = MemoryCoordinator(ensemble)
    settle(waiting, third, NOW)
    assert waiting.next_deadline_ms == NOW + 12_500
    settle(waiting, third, NOW + 12_500)
    assert waiting.next_deadline_ms == NOW + 12_500 + 17_500


def test_of_1025_the_last_is_told_and_waits(ensemble):
    registry = Registry()
    session = MemoryCoordinator(ensemble)
    assert [held(session, f"t{n}", registry=registry).number for n in range(1_024)] == list(range(1_024))
    waiting = settle(claim("late", registry=registry), MemoryCoordinator(ensemble), NOW)
    assert waiting.problem == "all 1024 worker numbers of /snowflake-servers are held or rest after a crash"


def test_the_exhausted_error_is_typed():
    assert issubclass(WorkerIdsExhausted, NoWorkerNumber)


def stampede(ensemble, chances):
    """Start 1,024 processes that do one operation each in turn; return how many operations they needed."""
    sessions = [MemoryCoordinator(ensemble) for _ in chances]
    claims = [claim(f"t{n}", chance=chance) for n, chance in enumerate(chances)]
    operations, waiting = 0, list(zip(claims, sessions))
    while waiting:
        waiting = [(claim, session) for claim, session in waiting if step(claim, session, NOW)]
        operations += len(waiting)
    assert sorted(claim.number for claim in claims) == list(range(len(claims)))
    return operations


def test_a_thousand_that_start_together_do_not_meet_at_each_number(ensemble):
    """If all processes tried the lowest number, each would lose half of the numbers to others: a million operations."""
    assert stampede(ensemble, [Random(n).random for n in range(1_024)]) < 1_024 * 40


def test_marks_that_rest_are_read_once(ensemble):
    """A claim reads a resting mark once: after a crash of all, a thousand claims that wait for a thousand marks would
    otherwise read a million marks with each attempt."""
    dead = MemoryCoordinator(ensemble)
    for n in range(1_024):
        held(dead, f"t{n}", NOW + n)
    dead.expire()
    session, waiting = MemoryCoordinator(ensemble), claim("late")
    reads = 0
    while step(waiting, session, NOW + 2_000):
        reads += 1
    assert waiting.state is ClaimState.CLAIMING and reads > 1_024
    again = 0
    while step(waiting, session, NOW + 12_000):
        again += 1
    assert again < 5
    assert settle(waiting, session, NOW + 29_600).number == 0, "its mark has passed"


def test_after_an_outage_a_thousand_come_back_over_the_time_of_a_retry(ensemble):
    """All claims learn of the return in one moment; they can spread their retries, because ids continue meanwhile."""
    c = held(MemoryCoordinator(ensemble), chance=Random(7).random)
    due = []
    for _ in range(1_024):
        c.happened(SessionSuspended(), NOW)
        c.happened(SessionEstablished(1), NOW)
        due.append(c.next_deadline_ms - NOW)
    assert min(due) >= 0 and max(due) <= 1_000
    per_tenth = Counter(delay_ms // 100 for delay_ms in due)
    assert max(per_tenth.values()) < 2 * 1_024 / 10, "a tenth of the time, a tenth of them"


def test_marks_that_were_raised_together_are_raised_at_paces_of_their_own(session):
    chances = iter([0.0, 0.5, 0.0, 1.0])
    c = held(session, chance=lambda: next(chances))
    assert c.next_deadline_ms == NOW + 9_000
    settle(c, session, NOW + 9_000)
    assert c.next_deadline_ms == NOW + 9_000 + 10_000


def test_a_registry_that_does_not_answer_is_asked_again_at_a_pace_of_ones_own(session):
    c = held(session, chance=lambda: 0.5)
    session.cut()
    settle(c, session, NOW)
    assert c.next_deadline_ms == NOW + 1_500
    settle(c, session, NOW + 1_500)
    assert (c.state, c.next_deadline_ms) == (ClaimState.SUSPENDED, NOW + 3_000)
