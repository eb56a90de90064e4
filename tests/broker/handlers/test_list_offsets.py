"""ListOffsets through the wire (https://kafka.apache.org/protocol#The_Messages_ListOffsets)."""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import LIST_OFFSETS, WALL_MS, EngineBroker

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


@pytest.fixture
def client():
    broker = EngineBroker()
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"a", b"b")
    return client


def ask(client, version, timestamp, **more):
    partition = {"partition_index": 0, "timestamp": timestamp, **more}
    fields = {"replica_id": -1, "topics": [{"name": "flights", "partitions": [partition]}]}
    answer = client.ask(LIST_OFFSETS, version, fields).topics[0].partitions[0]
    return answer.error_code, answer.offset


@pytest.mark.parametrize("version", [1, 7, 11])
@pytest.mark.parametrize("timestamp, offset", [(LATEST, 2), (EARLIEST, 0), (WALL_MS, 0), (WALL_MS + 1, -1), (0, 0)])
def test_ends_and_times_are_known_to_all_versions(client, version, timestamp, offset):
    assert ask(client, version, timestamp) == (0, offset)


@pytest.mark.parametrize(
    "timestamp, since, offset", [(MAX_TIMESTAMP, 7, 0), (EARLIEST_LOCAL, 8, 0), (LATEST_TIERED, 9, -1)]
)
def test_other_places_are_known_since_the_version_that_brought_them(client, timestamp, since, offset):
    """KIP-734, KIP-405, KIP-1005: an older version cannot mean them."""
    assert ask(client, since - 1, timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1)
    assert ask(client, since, timestamp) == (0, offset)


@pytest.mark.parametrize("timestamp", [-6, -(2**63)])
def test_a_place_nobody_knows_is_refused(client, timestamp):
    assert ask(client, 11, timestamp) == (ErrorCode.UNSUPPORTED_VERSION, -1)


@pytest.mark.parametrize("version", [4, 11])
def test_a_client_that_names_another_leader_epoch_is_told(client, version):
    """KIP-320, as in Fetch: its metadata is older than the leader's, or newer."""
    client.broker.services.log_of("flights", 0).start_leader_epoch(3)
    assert ask(client, version, LATEST, current_leader_epoch=3) == (0, 2)
    assert ask(client, version, LATEST, current_leader_epoch=2) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert ask(client, version, LATEST, current_leader_epoch=4) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
