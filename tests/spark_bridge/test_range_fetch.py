"""A task's requests to a cluster: the whole range, or an exception (DESIGN section 9)."""

from uuid import UUID

import pyarrow as pa
import pytest

from broker.record.batch import CorruptBatch
from broker.wire.errors import ErrorCode
from spark_bridge.reading.arrow_decode import MissingId
from spark_bridge.reading.cluster import Patience
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss
from spark_bridge.reading.range_fetch import RangeFetch, ReadFailed, ReadSettings
from tests.spark_bridge.memory_cluster import BOOTSTRAP, LEADER, TOPIC_ID, Cluster, Throttle

SETTINGS = ReadSettings(patience=Patience(attempts=3))


def read(cluster, start, end, settings=SETTINGS, partition=0, **more):
    within = OffsetRange("t", partition, start, end)
    reader = RangeFetch(within, ("offset", "id", "value"), [BOOTSTRAP, LEADER], cluster, settings, **more)
    rows = []
    try:
        for batch in reader.batches():
            rows += pa.Table.from_batches([batch]).to_pylist()
    finally:
        assert cluster.open == 0, "a connection was left open"
    return rows


def rows(start, end):
    return [{"offset": n, "id": 1000 + n, "value": b"%d" % n} for n in range(start, end)]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (3, 97), (10, 20), (15, 16), (0, 1), (99, 100)])
def test_all_of_the_range_is_read_and_nothing_beside_it(start, end):
    assert read(Cluster(100), start, end) == rows(start, end)


def test_an_empty_range_asks_nothing():
    cluster = Cluster(100)
    assert read(cluster, 5, 5) == []
    assert cluster.connected == []


def test_it_reads_from_the_leader():
    """The reader looks up the partition's leader and never assumes it (DESIGN section 14)."""
    cluster = Cluster(100)
    read(cluster, 0, 100)
    assert cluster.connected == [BOOTSTRAP, LEADER]


def test_a_server_that_is_down_is_passed_over():
    cluster = Cluster(100)
    cluster.down.add(BOOTSTRAP)
    assert read(cluster, 0, 30) == rows(0, 30)


@pytest.mark.parametrize(
    "fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, ConnectionResetError(), TimeoutError()]
)
def test_after_a_fault_in_passing_the_leader_is_looked_up_again_and_no_row_is_lost_or_repeated(fault):
    cluster = Cluster(100, faults=[None, fault, fault, None, fault])
    assert read(cluster, 0, 100) == rows(0, 100)
    assert cluster.paused == [100, 200, 100]  # progress resets the pauses
    assert cluster.connected == [BOOTSTRAP, LEADER] * 4


def test_a_reader_that_a_quota_holds_back_waits_as_told_and_misses_nothing():
    cluster = Cluster(100, faults=[None, Throttle(3_000), Throttle(500)])
    assert read(cluster, 0, 100) == rows(0, 100)
    assert cluster.paused == [3_000, 500]
    assert cluster.connected == [BOOTSTRAP, LEADER], "it is no failure"


def test_rows_that_came_are_given_out_though_the_next_request_cannot_be_sent():
    """If the next request cannot be sent, the rows received before it are still yielded."""
    cluster = Cluster(100)
    cluster.send_faults = [None, None, BrokenPipeError()]  # metadata, fetch, the next fetch
    assert read(cluster, 0, 100) == rows(0, 100)


def test_without_progress_it_gives_up_and_says_why():
    cluster = Cluster(100, faults=[None] + [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 9)
    with pytest.raises(ReadFailed, match=r"t-0\[0, 100\) could not be read past offset 20 in 3 .* NOT_LEADER"):
        read(cluster, 0, 100)
    assert len(cluster.paused) == 2


def test_when_no_server_answers_each_is_named():
    cluster = Cluster(100)
    cluster.down |= {BOOTSTRAP, LEADER}
    with pytest.raises(ReadFailed, match="bootstrap:9092: .* refused; leader:9093: .* refused"):
        read(cluster, 0, 100)


def test_pauses_grow_to_their_maximum():
    cluster = Cluster(100, faults=[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 99)
    with pytest.raises(ReadFailed):
        read(cluster, 0, 100, ReadSettings())
    assert cluster.paused == [100, 200, 400, 800, 1600, 3200, 5000]


def test_a_range_the_log_has_dropped_is_data_lost():
    """A range removed by retention raises DataLoss (OFFSET_OUT_OF_RANGE; the connector's failOnDataLoss)."""
    with pytest.raises(DataLoss, match=r"t-0 does not have offset 5 .* starts at 20 and ends at 100"):
        read(Cluster(100, start=20), 5, 100)


def test_a_log_that_was_truncated_is_an_error_not_a_shorter_read():
    with pytest.raises(ReadFailed, match="no records at offset 50; its log ends at 50"):
        read(Cluster(50), 0, 60)
    with pytest.raises(DataLoss, match="out of range"):
        read(Cluster(50), 55, 60)


def test_a_topic_made_again_under_the_same_name_is_not_read():
    """A topic recreated under the same name is not read, because the manifest has the topic's id."""
    assert read(Cluster(10), 0, 10, topic_id=str(TOPIC_ID)) == rows(0, 10)
    with pytest.raises(DataLoss, match="deleted and made again"):
        read(Cluster(10), 0, 10, topic_id=str(UUID(int=78)))


def test_a_partition_that_is_not_there_is_data_lost():
    with pytest.raises(DataLoss, match="topic 't' has no partition 7"):
        read(Cluster(10), 0, 10, partition=7)


def test_a_partition_without_a_leader_is_waited_for():
    cluster = Cluster(10)
    cluster.leaders[0] = -1
    with pytest.raises(ReadFailed, match="t-0 has no leader"):
        read(cluster, 0, 10)


def test_an_answer_that_no_retry_changes_is_raised_immediately():
    cluster = Cluster(10)
    cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ReadFailed, match="TOPIC_AUTHORIZATION_FAILED"):
        read(cluster, 0, 10)
    assert cluster.paused == []


def test_a_broker_that_keeps_no_ids_leaves_them_null():
    """Ids are null for a broker without ids: the same Spark job runs against Apache Kafka (DESIGN, first paragraph)."""
    assert {row["id"] for row in read(Cluster(20, ids=False), 0, 20)} == {None}


def test_ids_that_were_asked_for_by_id_must_come():
    with pytest.raises(MissingId, match="gave no ids"):
        read(Cluster(20, ids=False), 0, 20, ReadSettings(require_ids=True))


def test_damage_is_an_error_and_is_not_asked_for_again():
    class Damaged(Cluster):
        def batch(self, base):
            data = super().batch(base)
            data[-1] ^= 1
            return data

    cluster = Damaged(20)
    with pytest.raises(CorruptBatch, match="t-0 at offset 0: CRC"):
        read(cluster, 0, 20)
    assert cluster.paused == []


def test_an_answer_to_another_request_breaks_the_connection():
    class Confused(Cluster):
        def answer(self, frame):
            return memoryview(b"\0\0\0\x63" + bytes(super().answer(frame)[4:]))

    with pytest.raises(ReadFailed, match="answered another request"):
        read(Confused(20), 0, 20)
