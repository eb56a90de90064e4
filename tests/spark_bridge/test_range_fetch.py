"""A task's requests to a cluster: the whole range, or an exception."""

from dataclasses import replace
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.record.batch import CorruptBatch
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode
from spark_bridge.reading.arrow_decode import MissingId
from spark_bridge.reading.cluster import Patience
from spark_bridge.reading.fetch_size import BYTES_MIN, fetch_size
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.range_cursor import DataLoss
from spark_bridge.reading.range_fetch import RangeFetch, ReadFailed, ReadSettings, Unanswered
from tests.spark_bridge.memory_cluster import (
    BOOTSTRAP,
    FETCH,
    KAFKA_2_1,
    KAFKA_3_9,
    KAFKA_4_0,
    LEADER,
    TOPIC_ID,
    Cluster,
    Throttle,
)

SETTINGS = ReadSettings(patience=Patience(attempts=3))


def read(cluster, start, end, settings=SETTINGS, partition=0, **more):
    within = OffsetRange("t", partition, start, end)
    reader = RangeFetch(within, ("offset", "id", "value"), cluster, settings, **more)
    rows = []
    try:
        for batch in reader.batches():
            rows += pa.Table.from_batches([batch]).to_pylist()
    finally:
        assert not any(cluster.connections.values()), "an answer is outstanding on a kept connection"
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
    """The reader looks up the partition's leader and never assumes it."""
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
    assert set(cluster.connected) == {BOOTSTRAP, LEADER}


def test_a_reader_that_a_quota_holds_back_waits_as_told_and_misses_nothing():
    cluster = Cluster(100, faults=[None, Throttle(3_000), Throttle(500)])
    assert read(cluster, 0, 100) == rows(0, 100)
    assert cluster.paused == [3_000, 500]
    assert cluster.connected == [BOOTSTRAP, LEADER], "it is no failure"


def test_rows_that_came_are_given_out_though_the_next_request_cannot_be_sent():
    """If the next request cannot be sent, the rows received before it are still yielded."""
    cluster = Cluster(100)
    cluster.send_faults = [None, BrokenPipeError()]
    assert read(cluster, 0, 100) == rows(0, 100)


def test_without_progress_it_gives_up_and_says_why():
    cluster = Cluster(100, faults=[None] + [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 9)
    with pytest.raises(ReadFailed, match=r"t-0\[0, 100\) could not be read past offset 20 in 3 .* NOT_LEADER"):
        read(cluster, 0, 100)
    assert len(cluster.paused) == 2


def test_each_wait_for_another_attempt_is_told_with_its_reason():
    cluster, reasons = Cluster(100, faults=[None, ErrorCode.NOT_LEADER_OR_FOLLOWER, ConnectionResetError()]), []
    assert read(cluster, 0, 100, on_wait=reasons.append) == rows(0, 100)
    assert len(reasons) == len(cluster.paused) == 2
    assert "NOT_LEADER" in reasons[0] and "leader:9093" in reasons[1]


def test_when_no_server_answers_each_is_named():
    cluster = Cluster(100)
    cluster.down |= {BOOTSTRAP, LEADER}
    with pytest.raises(Unanswered, match="bootstrap:9092.* refused; leader:9093.* refused"):
        read(cluster, 0, 100)


def test_pauses_grow_to_their_maximum():
    cluster = Cluster(100, faults=[ErrorCode.NOT_LEADER_OR_FOLLOWER] * 99)
    with pytest.raises(ReadFailed):
        read(cluster, 0, 100, ReadSettings())
    assert cluster.paused == [100, 200, 400, 800, 1600, 3200, 5000]


def test_a_compacted_topic_is_read_though_it_lacks_offsets():
    cluster = Cluster(30)
    records = [BatchRecord(n, n, None, b"%d" % (10 + n)) for n in (0, 3, 9)]
    cluster.poison[10] = encode_batch(records, base_timestamp_ms=0)
    offsets = [row["offset"] for row in read(cluster, 0, 30, replace(SETTINGS, compacted_topics=frozenset({"t"})))]
    assert offsets == [*range(10), 10, 13, 19, *range(20, 30)]
    with pytest.raises(DataLoss, match="has 3 records; if the topic was compacted once, read it with compacted=true"):
        read(cluster, 0, 30, replace(SETTINGS, compacted_topics=frozenset({"other"})))


def test_a_compacted_log_may_have_no_records_at_its_end():
    """Compaction removes old tombstones. The reader asks several times, because KIP-405 brokers may answer late."""
    cluster = Cluster(60)
    cluster.removed_from = 30
    compacted = replace(SETTINGS, compacted_topics=frozenset({"t"}))
    assert read(cluster, 0, 60, compacted) == rows(0, 30)
    assert len(cluster.paused) == 2
    for settings, end in ((SETTINGS, 60), (compacted, 70)):
        with pytest.raises(ReadFailed, match="has no records at offset 30; its log ends at 60"):
            read(cluster, 0, end, settings)
    cluster.open_from = 40
    with pytest.raises(ReadFailed, match="a transaction is open since 40"):
        read(cluster, 0, 60, replace(compacted, read_committed=True))


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


def test_the_next_range_of_a_topic_needs_no_metadata():
    """A client that is kept asks again only after an error (KIP-516: the broker checks the id of the topic)."""
    cluster = Cluster(100)
    cluster.leaders = {0: 1, 1: 1}
    assert read(cluster, 0, 50, topic_id=str(TOPIC_ID)) == rows(0, 50)
    assert read(cluster, 50, 100, partition=1, topic_id=str(TOPIC_ID)) == rows(50, 100)
    assert cluster.requests["metadata"] == 1
    cluster.leaders = {0: 0, 1: 0}
    cluster.faults = [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert read(cluster, 0, 50) == rows(0, 50)
    assert cluster.requests["metadata"] == 2


@pytest.mark.parametrize("topic_id", [None, str(TOPIC_ID)])
def test_a_kept_client_sees_that_a_topic_was_made_again(topic_id):
    cluster = Cluster(100)
    read(cluster, 0, 50, topic_id=topic_id)
    cluster.topic_id = UUID(int=78)
    if topic_id is None:
        assert read(cluster, 0, 100) == rows(0, 100), "no manifest says which topic it must be"
    else:
        with pytest.raises(DataLoss, match="deleted and made again"):
            read(cluster, 0, 100, topic_id=topic_id)


def test_a_broker_without_topic_ids_is_asked_for_metadata_by_each_range():
    cluster = Cluster(100, versions=KAFKA_2_1, ids=False)
    for _ in range(2):
        assert len(read(cluster, 0, 50)) == 50
    assert cluster.requests["metadata"] == 2


def test_a_partition_that_is_not_there_is_data_lost():
    with pytest.raises(DataLoss, match="topic 't' has no partition 7"):
        read(Cluster(10), 0, 10, partition=7)


def test_a_partition_without_a_leader_is_waited_for():
    cluster = Cluster(10)
    cluster.leaders[0] = -1
    with pytest.raises(ReadFailed, match="t-0: LEADER_NOT_AVAILABLE"):
        read(cluster, 0, 10)


def test_an_answer_that_no_retry_changes_is_raised_immediately():
    cluster = Cluster(10)
    cluster.topic_error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(ReadFailed, match="TOPIC_AUTHORIZATION_FAILED"):
        read(cluster, 0, 10)
    assert cluster.paused == []


def test_a_broker_that_keeps_no_ids_leaves_them_null():
    """Ids are null for a broker without ids: the same Spark job runs against Apache Kafka."""
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


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("versions", "version"), [(KAFKA_2_1, 10), (KAFKA_3_9, 13), (KAFKA_4_0, 13)])
def test_every_kafka_from_2_1_to_4_is_read_in_a_version_that_both_have(versions, version):
    cluster = Cluster(50, ids=False, versions=versions)
    assert [row["offset"] for row in read(cluster, 3, 47)] == list(range(3, 47))
    assert cluster.asked_versions["fetch"] == version


def test_a_broker_without_a_version_that_would_do_is_named_immediately():
    cluster = Cluster(50, versions=KAFKA_4_0 | {FETCH: (0, 3)})
    with pytest.raises(ReadFailed, match="leader:9093 serves v0 to v3 of Fetch; this client needs one of v4 to v12"):
        read(cluster, 0, 50)
    assert cluster.paused == []


# --- the size of a fetch ----------------------------------------------------------------------------------------------


def big(end, size, **more):
    return Cluster(end, per_fetch=1_000_000, value=lambda offset: b"v" * size, **more)


def test_small_ranges_fetch_about_their_size():
    """Five ranges of 1,000 records of 100 bytes fetched 20 MB for 0.5 MB."""
    cluster = big(20_000, 100)
    for start in range(0, 5_000, 1_000):
        assert len(read(cluster, start, start + 1_000)) == 1_000
    assert len(cluster.fetched) == 5
    assert cluster.fetched_bytes < 5 * 160_000


def test_the_second_fetch_knows_the_size_of_the_records():
    cluster = big(2_000, 2_000)
    assert len(read(cluster, 0, 1_000)) == 1_000
    assert len(cluster.fetched) == 2
    assert cluster.fetched_bytes < 2_300_000


def test_a_large_range_is_fetched_in_pieces_of_the_largest_size():
    cluster = big(10_000, 100)
    read(cluster, 0, 10_000, ReadSettings(fetch_bytes=1 << 18))
    assert len(cluster.fetched) == 5


@given(
    offsets_left=st.integers(1, 1 << 40),
    passed=st.integers(0, 1 << 40),
    offset_bytes=st.integers(1, 1 << 20),
    most=st.integers(1, 1 << 26),
)
def test_a_fetch_asks_for_at_least_what_is_left_or_the_most_allowed(offsets_left, passed, offset_bytes, most):
    fetch_bytes = fetch_size(offsets_left, passed, passed * offset_bytes, offset_bytes if passed else 0, most)
    assert fetch_bytes >= min(offsets_left * offset_bytes, most) if passed else fetch_bytes >= min(BYTES_MIN, most)
    assert 0 < fetch_bytes <= most


# --- transactions -----------------------------------------------------------------------------------------------------

COMMITTED = ReadSettings(read_committed=True, patience=Patience(attempts=3))


def test_aborted_transactions_are_left_out_and_their_offsets_count():
    cluster = Cluster(100)
    cluster.aborted = (0, 30, 40, 90)
    assert read(cluster, 0, 100, COMMITTED) == rows(10, 30) + rows(50, 90)


def test_by_default_aborted_transactions_are_read_too():
    cluster = Cluster(50)
    cluster.aborted = (30,)
    assert read(cluster, 0, 50) == rows(0, 39) + rows(40, 50)


@given(data=st.data())
def test_any_range_has_exactly_the_committed_records(data):
    aborted = data.draw(st.sets(st.integers(0, 9).map(lambda n: 10 * n)))
    start = data.draw(st.integers(0, 100))
    end = data.draw(st.integers(start, 100))
    cluster = Cluster(100, per_fetch=data.draw(st.integers(1, 10)))
    cluster.aborted = tuple(sorted(aborted))
    committed = [row for row in rows(start, end) if row["offset"] // 10 * 10 not in aborted]
    assert read(cluster, start, end, COMMITTED) == committed


def test_a_range_beyond_the_last_stable_offset_says_that_a_transaction_is_open():
    cluster = Cluster(100)
    cluster.open_from = 40
    assert read(cluster, 0, 40, COMMITTED) == rows(0, 40)
    with pytest.raises(ReadFailed, match="no records at offset 40; a transaction is open since 40"):
        read(cluster, 0, 50, COMMITTED)


# --- lost data --------------------------------------------------------------------------------------------------------

GO_ON = ReadSettings(fail_on_data_loss=False, patience=Patience(attempts=3))


def read_with_losses(cluster, start, end, **more):
    """Return (rows, lost offsets as "[start, end)", reasons)."""
    lost = []
    read_rows = read(cluster, start, end, GO_ON, on_lost=lambda within, reason: lost.append((within, reason)), **more)
    return read_rows, [str(within).partition("[")[2].rstrip(")") for within, _ in lost], [reason for _, reason in lost]


def test_without_fail_on_data_loss_a_range_that_the_log_dropped_is_reported_and_the_rest_is_read():
    read_rows, lost, (reason,) = read_with_losses(Cluster(100, start=20), 5, 100)
    assert (read_rows, lost) == (rows(20, 100), ["5, 20"])
    assert reason == "t-0 does not have offset 5 of t-0[5, 100) (out of range): its log starts at 20 and ends at 100"


def test_a_range_that_is_wholly_gone_is_one_loss():
    assert read_with_losses(Cluster(200, start=120), 5, 100)[:2] == ([], ["5, 100"])


def test_the_end_of_a_truncated_log_is_reported_after_the_attempts():
    read_rows, lost, (reason,) = read_with_losses(Cluster(50), 30, 80)
    assert (read_rows, lost) == (rows(30, 50), ["50, 80"])
    assert "no records at offset 50; its log ends at 50" in reason
    assert read_with_losses(Cluster(50), 60, 80)[:2] == ([], ["60, 80"])


def test_an_open_transaction_is_no_loss():
    cluster = Cluster(100)
    cluster.open_from = 40
    with pytest.raises(ReadFailed, match="a transaction is open since 40"):
        read(cluster, 0, 50, replace(COMMITTED, fail_on_data_loss=False))


def test_a_topic_that_was_deleted_or_made_again_is_a_loss():
    cluster = Cluster(100, topics=())
    assert read_with_losses(cluster, 5, 100)[:2] == ([], ["5, 100"])
    read_rows, lost, (reason,) = read_with_losses(Cluster(100), 5, 100, topic_id=str(UUID(int=78)))
    assert (read_rows, lost) == ([], ["5, 100"]) and "deleted and made again" in reason
    assert read_with_losses(Cluster(100), 5, 100, partition=7)[:2] == ([], ["5, 100"])


def test_a_cluster_that_does_not_answer_is_no_loss():
    cluster = Cluster(100)
    cluster.down |= {BOOTSTRAP, LEADER}
    with pytest.raises(ReadFailed):
        read(cluster, 0, 100, GO_ON)
