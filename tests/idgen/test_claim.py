"""idgen.claim and idgen.registry: worker numbers over time (DESIGN section 4, idgen.md sections 1 and 6)."""

import json
from collections import Counter
from contextlib import suppress
from random import Random

import pytest

from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import (
    Children,
    ConnectionLost,
    Create,
    Delete,
    Get,
    NoNode,
    SessionEstablished,
    SessionSuspended,
    Set,
    run,
)
from idgen.claim_state import TRANSITIONS, State, Turn
from idgen.errors import Fenced, LayoutExhausted, LayoutMismatch, LeadExhausted, NoWorkerNumber, WorkerIdsExhausted
from idgen.layout import Layout
from idgen.registry import CorruptMark, Mark, Registry
from tests.idgen.driving import NOW, claim, settle, step

TWO_NUMBERS = Layout(time_bits=50, datacenter_bits=0, worker_bits=1, sequence_bits=12)


@pytest.fixture
def ensemble():
    return Ensemble()


@pytest.fixture
def one(ensemble):
    return MemoryCoordinator(ensemble)


@pytest.fixture
def other(ensemble):
    return MemoryCoordinator(ensemble)


def mark(coordinator, number):
    return json.loads(coordinator.execute(Get(f"/snowflake-servers-marks/{number}")).data)


def held(coordinator, token="t", now_ms=NOW, **more):
    made = settle(claim(token, **more), coordinator, now_ms)
    assert made.state is State.HELD, made.problem
    return made


def test_the_lowest_free_number_is_claimed_and_shown_as_twitters_servers_do(one, other):
    """Each worker has a node as in snowflake-2010: EPHEMERAL /snowflake-servers/<id> = host:port."""
    assert held(one, "a").number == 0
    assert held(other, "b").number == 1
    assert one.execute(Children("/snowflake-servers")) == ("0", "1")
    shown = one.execute(Get("/snowflake-servers/1"))
    assert (shown.data, shown.owner) == (b"host-b:1", other.session_id)


def test_a_new_claim_has_a_whole_lead(one):
    c = held(one)
    assert mark(one, 0)["high_water_ms"] == c.worker.limit_ms == NOW + 30_000
    c.worker.next_id(NOW + 29_999)
    with pytest.raises(LeadExhausted):
        c.worker.next_id(NOW + 30_000)


def test_the_mark_is_raised_every_10_s_and_the_limit_follows_the_answer(one):
    c = held(one)
    assert c.next_deadline_ms == NOW + 10_000
    c.tick(NOW + 10_000)
    operation = c.take_operation()
    assert isinstance(operation, Set) and c.worker.limit_ms == NOW + 30_000
    c.answered(one.execute(operation), NOW + 10_050)
    assert c.worker.limit_ms == mark(one, 0)["high_water_ms"] == NOW + 40_000
    assert c.next_deadline_ms == NOW + 20_050


def test_a_clean_close_lowers_the_mark_and_the_number_is_taken_again_at_once(one, other):
    c = held(one)
    last = c.worker.next_id(NOW + 100)
    c.close(NOW + 200)
    settle(c, one, NOW + 200)
    assert c.state is State.CLOSED
    assert mark(one, 0)["high_water_ms"] == NOW + 101
    with pytest.raises(NoNode):
        one.execute(Get("/snowflake-servers/0"))
    with pytest.raises(Fenced, match="closed"):
        c.worker.next_id(NOW + 300)
    successor = held(other, "b", NOW + 200)
    assert successor.number == 0
    assert successor.worker.next_id(NOW + 200) > last


def test_a_close_leaves_the_node_of_whoever_has_taken_the_number_over(one, other):
    """The claim does not know yet that it lost its number, but the node is its live successor's."""
    c = held(one, "a")
    one.execute(Delete("/snowflake-servers/0"))
    held(other, "b", NOW + 30_000, number=0)
    c.close(NOW + 30_000)
    settle(c, one, NOW + 30_000)
    assert c.state is State.CLOSED
    assert one.execute(Get("/snowflake-servers/0")).owner == other.session_id


def test_a_successor_starts_above_ids_that_ran_ahead_of_the_clock(one, other):
    c = held(one)
    ids = c.worker.next_ids(100 * 4096, NOW)
    c.close(NOW)
    settle(c, one, NOW)
    successor = held(other, "b", NOW)
    assert successor.number == 0
    assert successor.worker.next_id(NOW) > ids[-1].first + ids[-1].count - 1


def test_after_a_crash_another_number_is_taken_at_once_and_the_first_one_rests(one, other, ensemble):
    """A freed number is not reused while its mark is ahead (shardingsphere #190: do not reuse a just-freed id)."""
    held(one, "a")
    one.expire()
    assert held(other, "b").number == 1
    third = MemoryCoordinator(ensemble)
    assert held(third, "c", NOW + 30_000).number == 0


def test_a_configured_number_is_waited_for_and_says_so(one, other):
    c = held(one, "a", number=5)
    assert c.number == 5
    waiting = settle(claim("b", number=5), other, NOW)
    assert waiting.state is State.CLAIMING
    assert waiting.problem == "worker number 5 is held by host-a:1"
    one.expire()
    settle(waiting, other, NOW + 1_000)
    assert "worker number 5 rests for 28500 ms more: host-a:1 held it" in waiting.problem
    with pytest.raises(NoWorkerNumber, match="rests for 28500 ms"):
        waiting.usable_worker()
    now = NOW + 1_000
    while waiting.state is State.CLAIMING:
        assert now < NOW + 29_500
        now = waiting.next_deadline_ms
        settle(waiting, other, now)
    assert (waiting.number, now) == (5, NOW + 29_500)
    assert waiting.worker.layout.unpack(waiting.worker.next_id(now)).time_ms >= NOW + 30_000


def test_a_datacenter_limits_claims_to_its_32_numbers(one):
    assert held(one, "a", datacenter=3).number == 96


def test_when_every_number_is_held_there_is_one_clear_error_and_a_slow_retry(one, other, ensemble):
    registry = Registry(layout=TWO_NUMBERS)
    held(one, "a", registry=registry)
    c = held(other, "b", registry=registry)
    third = MemoryCoordinator(ensemble)
    waiting = settle(claim("c", registry=registry), third, NOW)
    assert waiting.state is State.CLAIMING
    assert waiting.problem == "all 2 worker numbers of /snowflake-servers are held or rest after a crash"
    assert waiting.next_deadline_ms == NOW + 10_000
    with pytest.raises(NoWorkerNumber):
        waiting.usable_worker()
    c.close(NOW)
    settle(c, other, NOW)
    assert settle(waiting, third, NOW + 10_000).number == 1


def test_those_who_wait_for_a_number_come_at_paces_of_their_own(one, other, ensemble):
    """A claim that finds all numbers taken (the 1,025th of 1,024) retries after 10 to 20 s, by its random number."""
    registry = Registry(layout=TWO_NUMBERS)
    held(one, "a", registry=registry)
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


def test_ids_go_on_without_the_registry_for_the_lead_and_go_on_again_after(one):
    """Ids continue for flakelog.ids.lead.ms without ZooKeeper."""
    c = held(one)
    one.cut()
    settle(c, one, NOW + 1)
    assert c.state is State.SUSPENDED
    for after_ms in range(0, 30_000, 500):
        settle(c, one, NOW + after_ms)
        c.worker.next_id(NOW + after_ms)
    settle(c, one, NOW + 60_000)
    with pytest.raises(LeadExhausted):
        c.worker.next_id(NOW + 60_000)
    one.heal()
    settle(c, one, NOW + 60_001)
    assert (c.state, c.number, c.worker.limit_ms) == (State.HELD, 0, NOW + 90_001)
    c.worker.next_id(NOW + 60_001)


def test_a_session_that_expired_is_replaced_and_the_number_kept(one):
    """Twitter's service reconnected and continued without its node (idgen.md section 1); ours creates it again."""
    c = held(one)
    one.cut()
    one.expire()
    settle(c, one, NOW + 1)
    one.heal()
    settle(c, one, NOW + 2)
    assert (c.state, c.number) == (State.HELD, 0)
    assert one.execute(Get("/snowflake-servers/0")).owner == one.session_id


def test_a_zombie_is_fenced_by_its_next_set_and_claims_anew(one, other):
    """A process stopped by SIGSTOP for longer than the lead loses its number (idgen.md, theorem 2)."""
    zombie = held(one, "a")
    last = zombie.worker.next_id(NOW + 29_999)
    one.expire()
    one.take_events()  # the paused process does not see them
    successor = held(other, "b", NOW + 30_000, number=0)
    with pytest.raises(LeadExhausted):
        zombie.worker.next_id(NOW + 40_000)
    old_worker = zombie.worker
    settle(zombie, one, NOW + 40_000)
    with pytest.raises(Fenced, match="number 0 was claimed by host-b:1; another number is being claimed"):
        old_worker.next_id(NOW + 40_000)
    assert (zombie.state, zombie.number) == (State.HELD, 1)
    assert successor.worker.next_id(NOW + 40_000) > last


def taken_over_in_a_session_that_lives(one, other, **more):
    """Return a claim that paused before it created its node, while another claim took its number and ended."""
    slow = claim("a", **more)
    while slow.number is None:
        assert step(slow, one, NOW)
    held(other, "b", NOW + 30_000, number=0)
    other.execute(Delete("/snowflake-servers/0"))  # the other claim has ended
    settle(slow, one, NOW + 30_000)
    return slow


def test_a_number_lost_is_not_shown_as_held_any_more(one, other):
    """A node left behind would keep the number from every other claim as long as the loser's session lives."""
    slow = taken_over_in_a_session_that_lives(one, other)
    assert (slow.state, slow.number) == (State.HELD, 1)
    assert one.execute(Children("/snowflake-servers")) == ("1",)


def test_a_configured_number_lost_is_claimed_again_past_ones_own_node(one, other):
    """A node of the claim's session does not block the claim, because it would wait for itself for ever."""
    slow = taken_over_in_a_session_that_lives(one, other, number=0)
    settle(slow, one, NOW + 60_000)
    assert (slow.state, slow.number) == (State.HELD, 0)
    assert one.execute(Get("/snowflake-servers/0")).owner == one.session_id


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
@pytest.mark.parametrize("at", range(8))
def test_whichever_answer_of_a_claim_gets_lost_one_number_is_held_in_the_end(one, other, fault, at):
    """After ConnectionLost the outcome is unknown (ZooKeeper FAQ, "How should I handle the CONNECTION_LOSS error?")."""
    c = claim("a")
    steps = 0
    now = NOW
    while c.state is not State.HELD or c.next_deadline_ms is None or steps <= at:
        setattr(one, fault, int(steps == at))
        if not step(c, one, now):
            now = c.next_deadline_ms
        steps += 1
        assert steps < 100
    setattr(one, fault, 0)
    assert c.number == 0
    assert mark(one, 0)["high_water_ms"] == c.worker.limit_ms
    assert held(other, "b", now).number == 1


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
def test_a_raise_whose_answer_got_lost_counts_only_when_it_is_known(one, fault):
    c = held(one)
    setattr(one, fault, 1)
    settle(c, one, NOW + 10_000)
    assert (c.state, c.worker.limit_ms) == (State.SUSPENDED, NOW + 30_000)
    settle(c, one, NOW + 11_000)
    assert (c.state, c.worker.limit_ms) == (State.HELD, NOW + 41_000)
    assert mark(one, 0)["high_water_ms"] == NOW + 41_000


def test_a_late_set_of_our_own_is_recognised_by_its_token(one, other):
    """A set may be applied after the claim gave it up: its version is not the known one, but the mark is still ours."""
    c = held(one)
    node = other.execute(Get("/snowflake-servers-marks/0"))
    other.execute(Set("/snowflake-servers-marks/0", node.data, node.version))
    settle(c, one, NOW + 10_000)
    assert (c.state, c.worker.limit_ms) == (State.HELD, NOW + 40_000)


def test_two_that_claim_at_once_get_two_numbers(one, other):
    a, b = claim("a"), claim("b")
    while step(a, one, NOW) | step(b, other, NOW):
        pass
    assert {a.number, b.number} == {0, 1}


def test_another_layout_than_the_recorded_one_does_not_start(one, other):
    held(one)
    wrong = settle(claim("b", registry=Registry(layout=Layout(42, 5, 4, 12))), other, NOW)
    assert wrong.state is State.CLOSED
    assert isinstance(wrong.failure, LayoutMismatch)
    assert "Set the recorded layout" in str(wrong.failure)
    assert wrong.next_deadline_ms is None


def test_a_mark_that_cannot_be_read_is_never_given_out(one):
    one.execute(Create("/snowflake-servers-marks/0", b"{}"))
    one.execute(Create("/snowflake-servers-marks/1", b"12"))
    one.execute(Set("/snowflake-servers-marks", json.dumps({"layout": Layout().to_dict()}).encode(), 0))
    assert held(one).number == 2
    refused = settle(claim("b", number=1), one, NOW)
    assert isinstance(refused.failure, CorruptMark)


def test_a_deleted_mark_fences_its_holder(one, other):
    c = held(one)
    other.execute(Delete("/snowflake-servers-marks/0"))
    old_worker = c.worker
    settle(c, one, NOW + 10_000)
    with pytest.raises(Fenced, match="marks/0 was deleted"):
        old_worker.next_id(NOW + 10_000)


def test_a_claim_closed_before_it_held_anything_is_closed_at_once(one):
    c = claim()
    c.close(NOW)
    assert c.state is State.CLOSED and c.take_operation() is None


@pytest.mark.parametrize("after", range(5))
def test_a_claim_closed_in_the_middle_gives_back_what_it_got_and_issues_nothing(one, other, after):
    c = claim("a")
    for _ in range(after):
        step(c, one, NOW)
    c.tick(NOW)
    operation = c.take_operation()
    c.close(NOW)
    if operation is not None:
        try:
            c.answered(one.execute(operation), NOW)
        except NoNode as error:
            c.failed(error, NOW)
    if c.worker is not None:
        with pytest.raises(Fenced):
            c.worker.next_id(NOW)
    settle(c, one, NOW)
    assert c.state is State.CLOSED
    assert held(other, "b", NOW).number == 0


def test_a_close_that_cannot_reach_the_registry_ends_and_the_number_rests(one, other):
    c = held(one)
    one.cut()
    c.close(NOW + 1)
    settle(c, one, NOW + 1)
    assert c.state is State.CLOSED
    assert mark(other, 0)["high_water_ms"] == NOW + 30_000


def test_an_abandoned_claim_touches_nothing_of_its_holders(one):
    """A forked child abandons its parent's claim (idgen.fork)."""
    c = held(one)
    c.tick(NOW + 10_000)
    c.abandon("forked; make one of its own")
    assert (c.state, c.take_operation(), c.next_deadline_ms) == (State.CLOSED, None, None)
    with pytest.raises(Fenced, match="make one of its own"):
        c.worker.next_id(NOW)
    c.answered(1, NOW)
    c.close(NOW)
    assert c.take_operation() is None


def test_past_the_layouts_last_millisecond_no_number_is_claimed(one):
    late = settle(claim(), one, Layout().last_ms + 1)
    assert late.state is State.CLOSED and isinstance(late.failure, LayoutExhausted)


# --- each row of the table of states ---


def at_state(state, one, other):
    """Return a claim in this state; for FENCED, `other` takes its number away."""
    c = claim("a")
    if state is State.CLAIMING:
        return c
    settle(c, one, NOW)
    if state is State.SUSPENDED:
        c.happened(SessionSuspended(), NOW)
    if state is State.FENCED:
        other.execute(Delete("/snowflake-servers-marks/0"))
        c.tick(NOW + 10_000)
        one.cut()
        while c.state is not State.FENCED:
            with suppress(NoNode):
                other.execute(c.take_operation())
            c.failed(NoNode("/snowflake-servers-marks/0"), NOW + 10_000)
    return c


def turn_claimed(c, one, other):
    settle(c, one, NOW + 10_000)


def turn_cut_off(c, one, other):
    c.tick(NOW + 10_000)
    c.take_operation()
    c.failed(ConnectionLost("cut"), NOW + 10_000)


def turn_taken(c, one, other):
    other.execute(Delete("/snowflake-servers-marks/0"))
    seen = set()
    while State.FENCED not in seen and step(c, one, NOW + 10_000):
        seen.add(c.state)
    assert State.FENCED in seen


def turn_closed(c, one, other):
    c.close(NOW)
    settle(c, one, NOW)


TURNS = {
    Turn.CLAIMED: turn_claimed,
    Turn.CONFIRMED: turn_claimed,
    Turn.CUT_OFF: turn_cut_off,
    Turn.TAKEN: turn_taken,
    Turn.CLOSED: turn_closed,
}


@pytest.mark.parametrize("row", TRANSITIONS, ids=lambda row: f"{row[0].name} {row[1].name}")
def test_each_row_of_the_table_is_gone_through(row, one, other):
    state, turn = row
    c = at_state(state, one, other)
    assert c.state is state
    one.heal()
    TURNS[turn](c, one, other)
    assert c.state is TRANSITIONS[row]


# --- a thousand at once ---


def stampede(ensemble, chances):
    """Start 1,024 processes that do one operation each in turn; return how many operations they needed."""
    sessions = [MemoryCoordinator(ensemble) for _ in chances]
    claims = [claim(f"t{n}", chance=chance) for n, chance in enumerate(chances)]
    operations, waiting = 0, list(zip(claims, sessions))
    while waiting:
        waiting = [(each, session) for each, session in waiting if step(each, session, NOW)]
        operations += len(waiting)
    assert sorted(each.number for each in claims) == list(range(len(claims)))
    return operations


def test_a_thousand_that_start_at_once_do_not_meet_at_each_number(ensemble):
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
    assert waiting.state is State.CLAIMING and reads > 1_024
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
    assert max(Counter(each // 100 for each in due).values()) < 2 * 1_024 / 10, "a tenth of the time, a tenth of them"


def test_marks_that_were_raised_together_are_raised_at_paces_of_their_own(one):
    chances = iter([0.0, 0.5, 0.0, 1.0])
    c = held(one, chance=lambda: next(chances))
    assert c.next_deadline_ms == NOW + 9_000
    settle(c, one, NOW + 9_000)
    assert c.next_deadline_ms == NOW + 9_000 + 10_000


def test_a_registry_that_does_not_answer_is_asked_again_at_a_pace_of_ones_own(one):
    c = held(one, chance=lambda: 0.5)
    one.cut()
    settle(c, one, NOW)
    assert c.next_deadline_ms == NOW + 1_500
    settle(c, one, NOW + 1_500)
    assert (c.state, c.next_deadline_ms) == (State.SUSPENDED, NOW + 3_000)


# --- whether ids are available ---


def test_a_claim_says_why_it_has_no_ids_and_that_it_has_while_the_lead_lasts(one, other):
    c = claim("a")
    assert c.why_no_ids(NOW) == "it is still being claimed"
    settle(c, one, NOW)
    assert c.why_no_ids(NOW) is None
    one.cut()
    settle(c, one, NOW + 1)
    assert c.problem == "the registry does not answer"
    assert c.why_no_ids(NOW + 29_999) is None
    assert c.why_no_ids(NOW + 30_000) == c.problem
    settle(c, one, NOW + 30_000)
    assert c.why_no_ids(NOW + 30_000) == "the connection is cut"
    other.execute(Delete("/snowflake-servers-marks/0"))
    one.heal()
    while c.state is not State.FENCED:
        step(c, one, NOW + 40_000)
    assert "was deleted; another number is being claimed" in c.why_no_ids(NOW + 40_000)
    settle(c, one, NOW + 40_000)
    assert c.why_no_ids(NOW + 40_000) is None
    c.close(NOW + 40_000)
    assert "closed" in c.why_no_ids(NOW + 40_000)


def test_a_process_that_slept_past_its_mark_says_so(one):
    assert "high-water mark has passed" in held(one).why_no_ids(NOW + 30_000)


# --- the list of workers ---


def test_the_workers_are_listed_with_their_holders_marks_and_roles(one, other, ensemble):
    """The list includes workers without a session whose mark has not passed, and Twitter's, which have no mark."""
    gone = MemoryCoordinator(ensemble)
    assert run(one, Registry().workers()) == []
    held(gone, "a", registry=Registry(address="a:1", role="log"))
    held(one, "b", registry=Registry(address="b:1"))
    gone.expire()
    other.execute(Create("/snowflake-servers/7", b"twitter:7609", ephemeral=True))
    other.execute(Create("/snowflake-servers-marks/9", b"torn"))
    first, second, third, fourth = run(other, Registry().workers())
    assert (first.number, first.living, first.address, first.mark.role) == (0, False, "a:1", "log")
    assert (second.number, second.living, second.address, second.mark.high_water_ms) == (1, True, "b:1", NOW + 30_000)
    assert third == (7, True, "twitter:7609", None, None)
    assert (fourth.number, fourth.mark) == (9, None) and "holds no high-water mark" in fourth.problem


def test_each_process_asks_the_few_that_follow_it_round_the_circle(one):
    """If each of a thousand processes asked all the others, every round would cost a million questions."""
    for number in (0, 1, 4, 9, 30):
        one.execute(Create(f"/snowflake-servers/{number}", b"x", ephemeral=True))

    def neighbours(own, most):
        return [each.number for each in run(one, Registry().neighbours(own, most))]

    assert neighbours({4}, 2) == [9, 30]
    assert neighbours({9}, 3) == [30, 0, 1]
    assert neighbours({0, 30}, 9) == [1, 4, 9]
    assert neighbours(set(), 2) == [0, 1]


def test_a_mark_of_before_there_were_roles_is_read():
    assert Mark.from_bytes("/x", b'{"high_water_ms": 1, "start_ms": 0, "token": "t", "address": "a"}').role == ""


def test_every_state_can_be_closed_and_nothing_leaves_closed():
    assert {state for state, turn in TRANSITIONS if turn is Turn.CLOSED} == set(State) - {State.CLOSED}
    assert all(state is not State.CLOSED for state, _ in TRANSITIONS)
    assert set(TRANSITIONS.values()) == set(State)
