"""The offsets of a position, asked of a broker without sockets that has records, times and ids."""

import pytest

from broker.client.errors import BrokerError
from broker.client.offset_lookup import find_bounds, find_offsets, find_positions
from broker.client.offset_spec import AtId, AtOffset, AtTime, Bounds, Earliest, Last, Latest
from broker.record.records import BatchRecord, encode_batch
from broker.wire.fetch import READ_COMMITTED
from tests.broker.client.engine_shell import EngineShell
from tests.broker.engine_client import EngineBroker, produce_request

FULL, EMPTY, OFFLINE = ("flights", 0), ("flights", 1), ("flights", 2)
PRODUCE, LIST_OFFSETS = 0, 2
RECORDS = 10  # with the times 1,000 to 1,009


@pytest.fixture
def shell():
    broker = EngineBroker()
    broker.create("flights", 3)
    records = [BatchRecord(number, number, None, b"v") for number in range(RECORDS)]
    batch = bytes(encode_batch(records, base_timestamp_ms=1_000))
    broker.connect().ask(PRODUCE, 9, produce_request("flights", batch=batch))
    broker.services.log_of(*OFFLINE).offline = "its disk is gone"
    return EngineShell(broker)


def ids_of(shell):
    log = shell.broker.services.log_of(*FULL)
    return [log.last_id - number for number in reversed(range(RECORDS))]


def offsets(shell, spec):
    by_partition = shell.run(find_offsets(shell.core, [FULL, EMPTY], spec))
    with_bounds = shell.run(find_positions(shell.core, [FULL, EMPTY], spec))
    assert by_partition == {partition: position.offset for partition, position in with_bounds.items()}
    assert with_bounds[FULL].bounds == Bounds(0, RECORDS) and with_bounds[EMPTY].bounds == Bounds(0, 0)
    return by_partition[FULL], by_partition[EMPTY]


@pytest.mark.parametrize(
    "spec, full",
    [
        (Earliest(), 0),
        (Latest(), RECORDS),
        (AtOffset(4), 4),
        (AtOffset(11), RECORDS),
        (AtTime(0), 0),
        (AtTime(1_004), 4),
        (AtTime(1_010), RECORDS),
        (Last(3), 7),
        (Last(11), 0),
    ],
)
def test_each_position_has_an_offset_in_each_partition(shell, spec, full):
    assert offsets(shell, spec) == (full, 0)


def test_an_id_is_found_by_the_brokers_index(shell):
    ids = ids_of(shell)
    assert [offsets(shell, AtId(id)) for id in (ids[0], ids[4], ids[-1] + 1)] == [(0, 0), (4, 0), (RECORDS, 0)]


def test_a_position_tells_an_offset_outside_the_log_from_one_within(shell):
    positions = shell.run(find_positions(shell.core, [FULL, EMPTY], AtOffset(4)))
    assert [(position.offset, position.wanted) for position in positions.values()] == [(4, 4), (0, 4)]
    positions = shell.run(find_positions(shell.core, [FULL, EMPTY], AtTime(1_004)))
    assert [(position.offset, position.wanted) for position in positions.values()] == [(4, 4), (0, None)]


@pytest.mark.parametrize("spec, requests", [(Earliest(), 1), (Latest(), 1), (AtTime(0), 1), (AtTime(1_010), 2),
                                            (AtOffset(4), 2), (Last(3), 2)])  # fmt: skip
def test_a_look_up_asks_as_little_as_the_position_needs(shell, spec, requests):
    shell.run(find_offsets(shell.core, [FULL], spec))
    assert shell.api_keys.count(LIST_OFFSETS) == requests


@pytest.mark.parametrize("spec", [Latest(), AtTime(1_010), Last(3)])
def test_the_error_of_a_partition_is_raised_unless_the_caller_takes_errors(shell, spec):
    with pytest.raises(BrokerError, match="flights-2"):
        shell.run(find_offsets(shell.core, [FULL, OFFLINE], spec))
    failed = {}
    by_partition = shell.run(find_offsets(shell.core, [FULL, OFFLINE], spec, failed=failed))
    assert list(by_partition) == [FULL] and list(failed) == [OFFLINE]


def test_bounds_of_committed_records_and_errors_of_partitions(shell):
    failed = {}
    bounds = shell.run(find_bounds(shell.core, [FULL, EMPTY, OFFLINE], isolation_level=READ_COMMITTED, failed=failed))
    assert (bounds, list(failed)) == ({FULL: Bounds(0, RECORDS), EMPTY: Bounds(0, 0)}, [OFFLINE])
