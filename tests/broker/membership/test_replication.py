"""Partitions with several copies, in a cluster of real engines: what a leader has, its followers have."""

from contextlib import suppress

from broker.log.log_reader import ids_of
from broker.membership import followed_partitions
from broker.membership.followed_partitions import SLICE_BYTES
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import DELETE_RECORDS, PRODUCE, produce_request
from tests.broker.membership.cluster_steps import delete, logs
from tests.broker.membership.replicated_cluster import FETCHED_MS, ReplicatedCluster

HIGH_WATERMARKS = "replication-offset-checkpoint"
BACKOFF_MS = 1_000  # replica.fetch.backoff.ms


def test_followers_copy_what_the_leader_has_and_learn_its_high_watermark():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    assert cluster.produce("flights", b"a", b"b") == (ErrorCode.NONE, 0)
    assert cluster.ends("flights") == {1: 2, 2: 2, 3: 2}
    cluster.later(FETCHED_MS)
    assert cluster.high_watermarks("flights") == {1: 2, 2: 2, 3: 2}
    assert cluster.consume("flights") == [b"a", b"b"]


def test_a_large_answer_of_the_leader_is_copied_in_slices_without_a_wait_for_the_clock():
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=3)
    cluster.cut_pairs = {(2, 1)}
    cluster.later(FETCHED_MS)
    for partition in range(3):
        cluster.produce("flights", bytes(SLICE_BYTES // 2), partition=partition, acks=1)
    cluster.cut_pairs = set()
    cluster.now_ms += BACKOFF_MS
    engine, partitions = cluster.nodes[2].broker.engine, range(3)
    ((call, response),) = cluster.fetch(2)
    engine.called(call, response, cluster.now)
    assert sum(cluster.ends("flights", partition)[2] for partition in partitions) == 2 and engine.has_work
    engine.execute(cluster.now)
    assert sum(cluster.ends("flights", partition)[2] for partition in partitions) == 3 and not engine.has_work


def test_a_fault_at_a_copy_stops_that_partition_by_name_and_no_other(monkeypatch):
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.create("orders")
    follower = cluster.nodes[2].broker.services
    broken, append = cluster.log(2, "flights"), followed_partitions.append_copied

    def fail(log, *arguments):
        if log is broken:
            raise RuntimeError("a bug")
        return append(log, *arguments)

    monkeypatch.setattr(followed_partitions, "append_copied", fail)
    cluster.produce("flights", b"a", acks=1)
    cluster.produce("orders", b"b", acks=1)
    cluster.later(3_000)
    assert cluster.ends("flights") == {1: 1, 2: 0, 3: 1} and cluster.ends("orders") == {1: 1, 2: 1, 3: 1}
    assert follower.replication.followed.failed == {"flights-0": "a fault of the broker's own: RuntimeError('a bug')"}


def test_after_the_leaders_death_another_leads_and_nothing_is_lost():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.kill_and_expire(1)
    assert cluster.leader("flights") == 2 and cluster.isr("flights") == (2, 3)
    assert cluster.consume("flights") == [b"a"]
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    assert cluster.consume("flights") == [b"a", b"b"]


def test_an_append_is_answered_once_all_of_the_isr_have_it():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.cut_pairs = {(3, 1)}
    client = cluster.client(1)
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=-1))
    cluster.later(1_000)
    assert not client.replies() and cluster.consume("flights") == []
    cluster.cut_pairs = set()
    cluster.later(2_000)
    assert [result[0].error_code for _, result in client.replies()] == [0]
    assert cluster.consume("flights") == [b"a"]


def test_a_follower_that_cannot_be_reached_leaves_the_isr_and_joins_again():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.cut_pairs = {(3, 1)}
    assert cluster.produce("flights", b"a", within_ms=50_000) == (ErrorCode.NONE, 0)
    assert cluster.isr("flights") == (1, 2)
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 1)
    cluster.cut_pairs = set()
    cluster.later(3_000)
    assert cluster.isr("flights") == (1, 2, 3) and cluster.ends("flights") == {1: 2, 2: 2, 3: 2}


def test_with_too_few_in_sync_an_append_with_acks_all_is_refused_and_others_are_not_seen():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.kill_and_expire(2)
    cluster.kill_and_expire(3)
    assert cluster.isr("flights") == (1,)
    assert cluster.produce("flights", b"b")[0] is ErrorCode.NOT_ENOUGH_REPLICAS
    assert cluster.produce("flights", b"c", acks=1) == (ErrorCode.NONE, 1)
    assert cluster.consume("flights") == [b"a"]
    cluster.restart(2)
    cluster.later(3_000)
    assert cluster.isr("flights") == (1, 2) and cluster.consume("flights") == [b"a", b"c"]


def test_a_returning_leader_drops_what_it_alone_had():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.produce_alone("flights")
    cluster.cut_pairs = set()
    cluster.kill_and_expire(1)
    cluster.produce("flights", b"b", b"c")
    cluster.restart(1)
    cluster.later(5_000)
    assert cluster.isr("flights") == (1, 2, 3)
    assert cluster.ends("flights") == cluster.high_watermarks("flights") == {1: 3, 2: 3, 3: 3}
    assert len({bytes(contents(cluster, broker_id)) for broker_id in (1, 2, 3)}) == 1
    (line,) = [line for line in cluster.nodes[1].reported if "drops" in line]
    assert line == (
        "flights-0 drops the record at offset 1, which its leader does not have: none of them is known to be committed"
    )


def test_a_change_of_leaders_reports_a_few_of_many_logs_that_it_cuts():
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=13)
    cluster.cut_pairs = {(2, 1), (3, 1)}
    cluster.later(FETCHED_MS)
    for partition in range(13):
        cluster.produce("flights", b"alone", acks=1, partition=partition)
    cluster.cut_pairs = set()
    cluster.kill_and_expire(1)
    cluster.restart(1)
    cluster.later(5_000)
    assert all(cluster.ends("flights", partition) == dict.fromkeys((1, 2, 3), 0) for partition in range(13))
    lines = [line for line in cluster.nodes[1].reported if "drop" in line]
    assert len(lines) == 11
    assert lines[-1] == "3 other partitions drop records too that are not known to be committed"


def contents(cluster, broker_id):
    return cluster.nodes[broker_id].storage.files["flights-0/00000000000000000000.log"].data


def test_ids_rise_over_leader_changes():
    """Rule I1."""
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    first = cluster.log(2, "flights").last_id
    cluster.kill_and_expire(1)
    cluster.produce("flights", b"b")
    assert cluster.log(3, "flights").last_id > first == ids_of(cluster.log(3, "flights"), 0, 1)[0][0]


def test_a_returning_leader_drops_ids_that_nobody_gives_again():
    """Rule I4: the new leader gives other ids to these offsets, and the returning one follows."""
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.produce_alone("flights")
    dropped = cluster.log(1, "flights").last_id
    cluster.cut_pairs = set()
    cluster.kill_and_expire(1)
    cluster.produce("flights", b"b", b"c")
    cluster.restart(1)
    cluster.later(5_000)
    runs = [ids_of(cluster.log(broker_id, "flights"), 0, 3) for broker_id in (1, 2, 3)]
    assert runs[0] == runs[1] == runs[2]
    assert all(dropped not in range(first, first + length) for first, length in runs[0])


def test_a_follower_without_records_forgets_a_last_id_of_records_that_were_never_committed():
    """Rule I7: a leader told it of its records, and died before any other broker had them."""
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.log(3, "flights").know_last_id(1 << 62)
    assert cluster.produce("flights", b"a", b"b") == (ErrorCode.NONE, 0)
    cluster.later(6_000)
    last_id = cluster.log(1, "flights").last_id
    assert cluster.isr("flights") == (1, 2, 3) and cluster.log(3, "flights").last_id == last_id
    cluster.kill_and_expire(3)
    cluster.restart(3)
    cluster.later(1_000)
    assert cluster.ends("flights")[3] == 2 and cluster.log(3, "flights").last_id == last_id


def test_a_start_knows_how_far_its_logs_were_committed():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a", b"b")
    cluster.later(6_000)
    cluster.kill_and_expire(2)
    cluster.cut_pairs = {(2, 1), (2, 3)}
    cluster.restart(2)
    assert cluster.high_watermarks("flights")[2] == 2
    cluster.nodes[2].storage.files.pop(HIGH_WATERMARKS)
    cluster.kill_and_expire(2)
    cluster.restart(2)
    assert cluster.high_watermarks("flights")[2] == 0
    cluster.cut_pairs = set()
    cluster.later(3_000)
    assert cluster.high_watermarks("flights")[2] == 2


def test_a_stop_before_the_first_order_keeps_the_stored_high_watermarks():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a", b"b")
    cluster.later(6_000)
    cluster.kill_and_expire(2)
    cluster.cut_pairs = {(1, 2), (2, 1), (2, 3), (3, 2)}
    for _ in range(2):
        cluster.restart(2)
        assert cluster.high_watermarks("flights")[2] == 2
        cluster.stop(2)


def test_a_topic_that_is_made_again_does_not_get_the_high_watermark_of_the_deleted_one():
    """A broker dies soon afterwards, before the time of the next write of its high watermarks."""
    cluster = ReplicatedCluster(replica_high_watermark_checkpoint_interval_ms=60_000)
    cluster.create("flights")
    cluster.produce("flights", b"a", b"b", b"c")
    cluster.later(60_000)
    assert b"flights 0 3" in bytes(cluster.nodes[3].storage.files[HIGH_WATERMARKS].data)
    assert delete(cluster, "flights") == 0
    cluster.create("flights")
    cluster.cut_pairs = {(2, 1)}
    cluster.produce("flights", b"d", b"e", acks=1)
    cluster.later(FETCHED_MS)
    assert cluster.ends("flights") == {1: 2, 2: 0, 3: 2}
    cluster.cut_pairs |= {(3, 1), (3, 2)}
    cluster.kill_and_expire(3)
    cluster.restart(3)
    assert cluster.ends("flights")[3] == 2 and cluster.high_watermarks("flights")[3] == 0


def test_followers_of_durable_acks_confirm_what_is_on_their_disks():
    cluster = ReplicatedCluster()
    cluster.create("flights", flakelog_durable_acks="true")
    cluster.nodes[3].broker.hold_syncs()
    client = cluster.client(1)
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=-1))
    cluster.later(1_000)
    assert cluster.ends("flights") == {1: 1, 2: 1, 3: 1} and not client.replies()
    cluster.nodes[3].broker.release()
    cluster.later(1_000)
    assert [result[0].error_code for _, result in client.replies()] == [0]


def test_a_topic_is_deleted_with_all_its_copies():
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=3)
    cluster.produce("flights", b"a")
    assert delete(cluster, "flights") == 0
    cluster.later(2_000)
    assert logs(cluster, "flights") == {1: [], 2: [], 3: []}
    cluster.create("flights")
    assert cluster.produce("flights", b"b") == (ErrorCode.NONE, 0)


def test_a_follower_below_the_start_of_the_leaders_log_begins_anew_there():
    cluster = ReplicatedCluster()
    cluster.create("flights")
    cluster.produce("flights", b"a")
    cluster.kill_and_expire(3)
    cluster.produce("flights", b"b", b"c")
    cluster.later(FETCHED_MS)
    delete_before(cluster, 3)
    cluster.produce("flights", b"d")
    cluster.restart(3)
    cluster.later(5_000)
    assert cluster.isr("flights") == (1, 2, 3) and cluster.log(3, "flights").log_start_offset == 3
    assert cluster.ends("flights") == {1: 4, 2: 4, 3: 4}


def delete_before(cluster, offset):
    request = {
        "topics": [{"name": "flights", "partitions": [{"partition_index": 0, "offset": offset}]}],
        "timeout": 30_000,
    }
    client = cluster.client(1)
    client.send(DELETE_RECORDS, 2, request)
    cluster.later(2_000)
    ((_, answer),) = client.replies()
    assert not answer.topics[0].partitions[0].error_code


def test_a_log_whose_disk_failed_is_led_by_another_broker_and_its_replica_is_offline():
    cluster = ReplicatedCluster()
    cluster.create("flights", partitions=2, flush_messages=1)
    cluster.produce("flights", b"a")
    node = cluster.nodes[1]
    node.storage.failing_syncs.add("flights-0/00000000000000000000.log")
    cluster.produce("flights", b"lost?", acks=1)
    cluster.later(2_000)
    assert cluster.leader("flights") == 2 and cluster.isr("flights") == (2, 3)
    assert cluster.leader("flights", 1) == 1 and cluster.isr("flights", 1) == (1, 2, 3)
    assert cluster.produce("flights", b"b")[0] is ErrorCode.NONE


def test_a_fault_in_each_tick_of_another_part_does_not_stop_the_copies(monkeypatch):
    """The server catches it. The fetchers try again after a pause, and need no tick without a fault for that."""
    cluster = ReplicatedCluster()
    cluster.create("flights", min_insync_replicas=1)
    cluster.produce("flights", b"a")
    leader = cluster.leader("flights")
    follower = next(broker_id for broker_id in cluster.nodes if broker_id != leader)
    engine = cluster.nodes[follower].broker.engine

    def fail(now):
        raise RuntimeError("a fault")

    monkeypatch.setattr(engine.services.coordinators, "tick", fail)
    cluster.cut_pairs = {(follower, leader)}
    tick_with_faults(cluster, 2_000)
    cluster.cut_pairs = set()
    cluster.nodes[leader].broker.now_ms = cluster.now_ms
    cluster.client(leader).produce("flights", b"b", acks=1)
    tick_with_faults(cluster, 5_000)
    assert cluster.log(follower, "flights").log_end_offset == 2


def tick_with_faults(cluster, ms):
    """Tick all brokers each 100 ms, and catch the faults of parts as the server does."""
    for _ in range(ms // 100):
        cluster.now_ms += 100
        for node in cluster.nodes.values():
            node.broker.now_ms = cluster.now_ms
            with suppress(RuntimeError):
                node.broker.engine.tick(cluster.now)
            node.broker.pump()
        cluster.settle()
