"""The transition table of a transactional id, row by row (KIP-98)."""

from dataclasses import replace

import pytest

from broker.txn.states import TRANSITIONS, Event, InvalidTransition, TransactionState, next_state
from broker.txn.transaction import Transaction

S, E = TransactionState, Event
TABLE = """
    EMPTY            INITIALIZED       EMPTY
    EMPTY            PARTITIONS_ADDED  ONGOING
    EMPTY            ABORTED           PREPARE_ABORT
    EMPTY            EXPIRED           DEAD
    ONGOING          PARTITIONS_ADDED  ONGOING
    ONGOING          COMMITTED         PREPARE_COMMIT
    ONGOING          ABORTED           PREPARE_ABORT
    ONGOING          FENCED            PREPARE_ABORT
    PREPARE_COMMIT   MARKED            COMPLETE_COMMIT
    PREPARE_ABORT    MARKED            COMPLETE_ABORT
    COMPLETE_COMMIT  INITIALIZED       EMPTY
    COMPLETE_COMMIT  PARTITIONS_ADDED  ONGOING
    COMPLETE_COMMIT  ABORTED           PREPARE_ABORT
    COMPLETE_COMMIT  EXPIRED           DEAD
    COMPLETE_ABORT   INITIALIZED       EMPTY
    COMPLETE_ABORT   PARTITIONS_ADDED  ONGOING
    COMPLETE_ABORT   ABORTED           PREPARE_ABORT
    COMPLETE_ABORT   EXPIRED           DEAD
"""
ROWS = [(S[state], E[event], S[following]) for state, event, following in map(str.split, TABLE.strip().splitlines())]
BEGUN = Transaction(transactional_id="t", producer_id=7, producer_epoch=3, timeout_ms=1_000, updated_ms=50)
AT = frozenset({("flights", 0)})
STEPS = {
    E.INITIALIZED: lambda t: t.initialized(2_000, 99, 4, -1),
    E.PARTITIONS_ADDED: lambda t: t.with_partitions(AT, 99),
    E.COMMITTED: lambda t: t.ended(True, 99),
    E.ABORTED: lambda t: t.ended(False, 99),
    E.FENCED: lambda t: t.fenced(99),
    E.MARKED: lambda t: t.completed(99),
}


def test_these_are_all_the_rows():
    assert {(state, event): following for state, event, following in ROWS} == TRANSITIONS


@pytest.mark.parametrize("state, event, following", [row for row in ROWS if row[1] is not E.EXPIRED])
def test_each_step_of_a_transaction_follows_its_row(state, event, following):
    before = replace(BEGUN, state=state, partitions=AT if state in (S.ONGOING, S.PREPARE_COMMIT) else frozenset())
    after = STEPS[event](before)
    assert after.state is following and after.updated_ms == 99
    assert before.state is state, "a step gives another value"
    assert after.producer_epoch == before.producer_epoch + (event in (E.INITIALIZED, E.FENCED))
    assert bool(after.partitions) == (event is E.PARTITIONS_ADDED or following.is_prepared and bool(before.partitions))


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("event", E)
def test_what_is_not_in_the_table_cannot_happen(state, event):
    if (state, event) not in TRANSITIONS:
        with pytest.raises(InvalidTransition, match=event.name):
            next_state(state, event)


def test_the_names_are_those_kafka_shows():
    titles = "Empty Ongoing PrepareCommit PrepareAbort CompleteCommit CompleteAbort Dead"
    assert [state.title for state in S] == titles.split()
