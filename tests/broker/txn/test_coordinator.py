"""Transactions found open in a partition after a power cut: the coordinator's records decide how they end."""

import pytest

from broker.now import Now
from broker.settings.transaction_config import TransactionConfig
from broker.txn.coordinator import TransactionCoordinator
from broker.txn.records import transaction_key, transaction_value
from broker.txn.transaction import Transaction
from broker.wire.errors import ErrorCode

AT, BESIDE = ("flights", 0), ("flights", 1)
BEGUN = Transaction(transactional_id="t", producer_id=7, producer_epoch=0, timeout_ms=1_000, updated_ms=50)
ONGOING = BEGUN.with_partitions(frozenset({AT}), 100)


def past_of(*records):
    core = TransactionCoordinator(TransactionConfig(), lambda: 99)
    core.remember({7: 0})
    for record in records:
        core.load(transaction_key("t"), transaction_value(record))
    return core.loaded()


@pytest.mark.parametrize("commit", [True, False])
def test_what_was_decided_is_how_it_ends(commit):
    decided = ONGOING.ended(commit, 150)
    for records in ((decided,), (ONGOING, decided), (ONGOING, decided, decided.completed(160))):
        assert past_of(*records).outcome(7, AT, 120) is commit


def test_what_is_on_is_left_on():
    assert past_of(ONGOING).outcome(7, AT, 100) is None


def test_a_transaction_that_no_record_names_is_aborted():
    assert past_of(ONGOING).outcome(8, AT, 120) is False
    assert past_of(ONGOING).outcome(7, BESIDE, 120) is False, "it was not added"
    assert past_of(BEGUN).outcome(7, AT, 120) is False


def test_what_was_written_before_the_last_transaction_began_is_an_earlier_one_whose_abort_is_gone():
    """The end of one transaction must not commit another one that the same producer aborted."""
    decided = ONGOING.ended(True, 150)
    assert past_of(ONGOING, decided).outcome(7, AT, 99) is False
    assert past_of(ONGOING).outcome(7, AT, 99) is False
    assert past_of(ONGOING, decided).outcome(7, AT, None) is True, "where it cannot be told, the records stand"


def test_a_batch_written_after_the_last_decision_is_of_a_later_transaction_whose_record_was_lost():
    """The later transaction's records were lost; the earlier commit had its marker long ago."""
    past = past_of(ONGOING, ONGOING.ended(True, 150))
    assert past.outcome(7, AT, 650) is True, "ids may be ahead of the clock"
    assert past.outcome(7, AT, 651) is False


def test_a_marker_that_was_lost_is_that_of_its_own_transaction_though_a_later_one_is_known():
    first = ONGOING.ended(True, 150)
    for later in (first.completed(160).with_partitions(frozenset({at}), 200) for at in (AT, BESIDE)):
        past = past_of(ONGOING, first, later)
        assert past.outcome(7, AT, 120) is True
        assert past.outcome(7, AT, 99) is False


def test_a_batch_of_a_later_epoch_belongs_to_a_transaction_whose_records_were_lost():
    past = past_of(ONGOING)
    assert past.outcome(7, AT, 100, epoch=0) is None
    assert past.outcome(7, AT, 100, epoch=1) is False


def test_only_what_can_still_matter_is_remembered():
    core = TransactionCoordinator(TransactionConfig(), lambda: 99)
    core.remember({7: 10_000})
    key, transaction = transaction_key("t"), BEGUN
    for begun_ms in range(100, 11_000, 100):
        transaction = transaction.with_partitions(frozenset({AT}), begun_ms).ended(True, begun_ms + 50)
        core.load(key, transaction_value(transaction))
        transaction = transaction.completed(begun_ms + 60)
    past = core.loaded()
    assert past.outcome(7, AT, 10_000) is True and len(past._by_producer[7]) == 15


def test_a_later_record_of_a_transaction_does_not_move_its_beginning():
    more = ONGOING.with_partitions(frozenset({BESIDE}), 140)
    assert past_of(more).outcome(7, AT, 110) is None


def test_nothing_is_changed_by_a_verb_until_its_change_is_applied():
    core = TransactionCoordinator(TransactionConfig(), lambda: 99)
    now = Now(1, 1_000)
    decision = core.init_producer_id("t", 1_000, None, now)
    assert decision.change is not None and core.get("t") is None
    core.apply(decision.change)
    assert core.add_partitions("t", 99, 0, [AT], now).change is not None
    assert core.get("t").partitions == frozenset()
    assert core.end("t", 99, 0, True, False, now) == (ErrorCode.INVALID_TXN_STATE, None)
