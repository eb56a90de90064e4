"""OffsetForLeaderEpoch through the wire (KIP-101, KIP-320): are a reader's records still in the log?"""

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import OFFSET_FOR_LEADER_EPOCH, EngineBroker

VERSIONS = [2, 4]
ENDS = {
    7: (7, 4), 6: (4, 3), 5: (4, 3), 4: (4, 3), 3: (2, 2), 2: (2, 2), 1: (1, 0), 8: (-1, -1), -1: (-1, -1), -2: (-2, 0)
}  # fmt: skip


@pytest.fixture
def client():
    """Return a client of a log whose epoch 2 begins at offset 0, epoch 4 at 2, epoch 7 at 3; the log ends at 4."""
    broker = EngineBroker()
    broker.create("flights")
    client, log = broker.connect(), broker.services.log_of("flights", 0)
    for epoch, values in ((2, (b"a", b"b")), (4, (b"c",)), (7, (b"d",))):
        log.start_leader_epoch(epoch)
        client.produce("flights", *values)
    return client


def ask(client, version, epoch, topic="flights", partition=0, current=-1):
    """Ask where an epoch ends; return (error, epoch, end offset)."""
    partition_fields = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    fields = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [partition_fields]}]}
    answer = client.ask(OFFSET_FOR_LEADER_EPOCH, version, fields).topics[0].partitions[0]
    return answer.error_code, answer.leader_epoch, answer.end_offset


@pytest.mark.parametrize("version", VERSIONS)
def test_an_epoch_ends_where_the_next_begins_and_the_latest_at_the_end(client, version):
    assert {epoch: ask(client, version, epoch) for epoch in ENDS} == {epoch: (0, *end) for epoch, end in ENDS.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_end_of_an_epoch_is_found_after_a_restart(client, version):
    again = client.broker.restarted().connect()
    assert ask(again, version, 5) == (0, 4, 3)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topic, partition", [("trains", 0), ("flights", 1), ("flights", -1)])
def test_what_is_not_there_is_unknown(client, version, topic, partition):
    assert ask(client, version, 7, topic, partition) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_client_that_names_another_leader_epoch_is_told(client, version):
    assert ask(client, version, 7, current=6) == (ErrorCode.FENCED_LEADER_EPOCH, -1, -1)
    assert ask(client, version, 7, current=7) == (0, 7, 4)
    assert ask(client, version, 7, current=8) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, -1)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_partition_that_is_offline_is_a_storage_error(client, version):
    client.broker.services.log_of("flights", 0).offline = "its disk is gone"
    assert ask(client, version, 7) == (ErrorCode.KAFKA_STORAGE_ERROR, -1, -1)
