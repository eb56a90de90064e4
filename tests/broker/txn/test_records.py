"""The records of __transaction_state, in Kafka's format (TransactionLogKey.json, TransactionLogValue.json)."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.txn.records import (
    BadTransactionRecord,
    read_key,
    read_value,
    transaction_key,
    transaction_value,
)
from broker.txn.states import TransactionState
from broker.txn.transaction import Transaction

TRANSACTION = Transaction(
    transactional_id="t",
    producer_id=7,
    producer_epoch=3,
    timeout_ms=60_000,
    updated_ms=200,
    state=TransactionState.ONGOING,
    partitions=frozenset({("b", 1), ("a", 2), ("a", 0)}),
    started_ms=100,
    previous_producer_id=6,
)


def test_a_key_is_version_0_and_the_id():
    assert transaction_key("pay") == b"\0\0\0\x03pay"
    assert read_key(b"\0\0\0\x03pay") == "pay"
    assert read_key(b"\0\x01\0\x03pay") is None, "a kind only a newer Kafka writes"


def test_a_value_is_flexible_version_1_with_its_producer_before_as_tag_0():
    topics = b"\x03" + b"\x02a\x03" + struct.pack(">ii", 0, 2) + b"\0" + b"\x02b\x02" + struct.pack(">i", 1) + b"\0"
    tags = b"\x01\x00\x08" + struct.pack(">q", 6)
    wanted = struct.pack(">hqhib", 1, 7, 3, 60_000, 1) + topics + struct.pack(">qq", 200, 100) + tags
    assert transaction_value(TRANSACTION) == wanted
    assert read_value("t", wanted) == TRANSACTION


def test_version_0_of_older_brokers_is_read():
    """Kafka wrote this version before transaction.version 1."""
    topics = struct.pack(">i", 1) + b"\0\x01a" + struct.pack(">iii", 2, 0, 2)
    old = struct.pack(">hqhib", 0, 7, 3, 60_000, 1) + topics + struct.pack(">qq", 200, 100)
    assert read_value("t", old).partitions == {("a", 0), ("a", 2)}
    empty = struct.pack(">hqhibi", 0, 7, 3, 60_000, 4, -1) + struct.pack(">qq", 200, 100)
    assert read_value("t", empty).state is TransactionState.COMPLETE_COMMIT


partitions = st.frozensets(st.tuples(st.text("abc", min_size=1, max_size=9), st.integers(0, 99)), max_size=9)


@given(partitions, st.sampled_from(TransactionState), st.integers(-1, 9), st.integers(-1, 9), st.sampled_from((0, 2)))
def test_whatever_is_written_is_read_back(partitions, state, previous, following, version):
    transaction = Transaction(
        transactional_id="t",
        producer_id=7,
        producer_epoch=32767,
        timeout_ms=2**31 - 1,
        updated_ms=2**50,
        state=state,
        partitions=partitions,
        previous_producer_id=previous,
        next_producer_id=following,
        client_version=version,
    )
    assert read_value("t", transaction_value(transaction)) == transaction


def test_a_damaged_record_is_named_wherever_it_ends():
    value = transaction_value(TRANSACTION)
    for end in range(len(value)):
        with pytest.raises(BadTransactionRecord, match="t"):
            read_value("t", value[:end])
    for key in (b"", b"\0", b"\0\0", b"\0\0\0\x05pay", b"\0\0\xff\xff"):
        with pytest.raises(BadTransactionRecord):
            read_key(key)
    with pytest.raises(BadTransactionRecord, match="version 2"):
        read_value("t", b"\0\x02" + value[2:])
    with pytest.raises(BadTransactionRecord):
        read_value("t", value[:16] + b"\x07" + value[17:])
