import pytest

from broker.cluster.assignment import Spread, alternate_racks, assign_replicas, in_order
from broker.wire.errors import ApiError, ErrorCode

NO_RACKS = dict.fromkeys(range(5))


def test_example_of_kafkas_admin_utils():
    """The table in the comment of Kafka's AdminUtils: ten partitions, three replicas, five brokers."""
    replicas = assign_replicas(in_order(NO_RACKS), 10, 3, Spread(0, 0))
    assert list(replicas.values()) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1), (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_one_copy_goes_round_from_the_start():
    brokers = in_order({3: None, 1: None, 2: None})
    assert list(assign_replicas(brokers, 4, 1, Spread(1, 0)).values()) == [(2,), (3,), (1,), (2,)]


def test_growth_goes_on_where_the_topic_ended():
    whole = assign_replicas(in_order(NO_RACKS), 10, 2, Spread(2, 0))
    begun = assign_replicas(in_order(NO_RACKS), 4, 2, Spread(2, 0))
    grown = assign_replicas(in_order(NO_RACKS), 6, 2, Spread(2, 0), first_partition=4)
    assert {p: replicas[0] for p, replicas in (begun | grown).items()} == {p: r[0] for p, r in whole.items()}


def test_racks_alternate():
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks(racks) == [0, 3, 1, 5, 4, 2]


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("shift", range(6))
def test_no_rack_has_two_replicas_while_another_has_none(start, shift):
    racks = {0: "a", 1: "b", 2: "b", 3: "c", 4: "c", 5: "a"}
    replicas = assign_replicas(in_order(racks), 12, 3, Spread(start, shift))
    assert all(sorted(racks[broker_id] for broker_id in row) == ["a", "b", "c"] for row in replicas.values())
    leaders = [row[0] for row in replicas.values()]
    assert all(leaders.count(broker_id) == 2 for broker_id in racks)


def test_more_replicas_than_racks():
    racks = {0: "a", 1: "a", 2: "b"}
    assert all(sorted(row) == [0, 1, 2] for row in assign_replicas(in_order(racks), 4, 3, Spread(1, 2)).values())


@pytest.mark.parametrize(
    "racks, partitions, factor, code",
    [
        (NO_RACKS, 0, 1, ErrorCode.INVALID_PARTITIONS),
        (NO_RACKS, 1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (NO_RACKS, 1, 6, ErrorCode.INVALID_REPLICATION_FACTOR),
        ({1: "a", 2: None}, 1, 1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_refusals(racks, partitions, factor, code):
    with pytest.raises(ApiError) as refused:
        assign_replicas(in_order(racks), partitions, factor, Spread(0, 0))
    assert refused.value.code == code
