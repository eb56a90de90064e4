"""A client at a Flakelog server that crashed and leads its partitions in a new epoch (KIP-320)."""

import pytest

from broker.client.core import LATEST
from broker.client.epoch_ends import find_epoch_ends
from broker.client.errors import BrokerError
from broker.client.records import read_records
from broker.wire.errors import ErrorCode
from tests.broker.client.engine_shell import EngineShell
from tests.broker.engine_client import EngineBroker, batch_of

T = "flights", 0


@pytest.fixture
def shell():
    """A client that has read three records, and knows a leader epoch that is over."""
    broker = EngineBroker()
    broker.create("flights")
    shell = EngineShell(broker)
    shell.run(shell.core.produce(*T, batch_of(b"a", b"b", b"c")))
    assert read(shell, 0) == [b"a", b"b", b"c"]
    shell.broker = broker.restarted(clean=False)
    return shell


def read(shell, offset):
    fetched = shell.run(shell.core.fetch(*T, offset, max_wait_ms=0))
    return [record.value for record in read_records(fetched, offset).records]


def refused(shell, steps):
    with pytest.raises(BrokerError) as error:
        shell.run(steps)
    return error.value


def test_a_fetch_is_refused_once_and_goes_on_without_a_gap_or_a_repetition(shell):
    epoch = shell.core.known_epoch(*T)
    error = refused(shell, shell.core.fetch(*T, 3, max_wait_ms=0))
    assert error.code is ErrorCode.FENCED_LEADER_EPOCH and error.retriable
    assert read(shell, 3) == []
    assert shell.core.known_epoch(*T) == epoch + 1
    shell.run(shell.core.produce(*T, batch_of(b"d")))
    assert read(shell, 3) == [b"d"]


def test_offsets_are_listed_in_the_new_epoch(shell):
    assert refused(shell, shell.core.list_offsets([T], LATEST)).code is ErrorCode.FENCED_LEADER_EPOCH
    assert shell.run(shell.core.list_offsets([T], LATEST)) == {T: 3}


def test_ends_of_epochs_are_found_in_the_new_epoch(shell):
    failed = {}
    assert shell.run(find_epoch_ends(shell.core, {T: 0}, failed)) == {}
    assert failed[T].code is ErrorCode.FENCED_LEADER_EPOCH
    assert shell.run(find_epoch_ends(shell.core, {T: 0}, failed)) == {T: (0, 3)}


def test_a_produce_names_no_epoch_so_it_is_taken_at_once(shell):
    assert shell.run(shell.core.produce(*T, batch_of(b"d"))).base_offset == 3
