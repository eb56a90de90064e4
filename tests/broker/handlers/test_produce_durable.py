"""Answers that wait for the disk: flakelog.durable.acks, with the journal, and flakelog.visible.after.flush."""

import pytest

from broker.log import log_reader
from broker.log.io_jobs import SyncJournal, SyncLog
from broker.services.topic_changes import create_topic, plan_alteration
from broker.wire.errors import ErrorCode
from broker.wire.fetch import READ_COMMITTED
from broker.wire.produce import ProduceRequest
from tests.broker.engine_client import (
    FETCH,
    LIST_OFFSETS,
    PRODUCE,
    EngineBroker,
    batch_of,
    fetch_request,
    produce_request,
    values_of,
)

DURABLE = {"flakelog.durable.acks": "true"}
VISIBLE = {"flakelog.visible.after.flush": "true"}


@pytest.fixture
def broker():
    return EngineBroker()


def create(broker, properties, partitions=1, topic="flights"):
    create_topic(broker.services, topic, partitions, properties, broker.now)


def kinds(syncs):
    return [type(sync).__name__ for sync in syncs]


def codes(answers):
    return [result.error_code for _, results in answers for result in results]


# --- durable.acks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", [1, -1])
def test_the_answer_comes_when_the_journal_is_on_the_disk(broker, acks):
    create(broker, DURABLE)
    client = broker.connect()
    held = broker.hold_syncs()
    sent = client.send(PRODUCE, 9, produce_request("flights", b"a", acks=acks))
    assert client.replies() == [] and kinds(held) == ["SyncJournal"]
    assert broker.connect().fetch("flights") == [b"a"], "the high watermark is the log's end"
    broker.release()
    ((answered, (result,)),) = client.replies()
    assert (answered, result.error_code, result.base_offset) == (sent, 0, 0)


def test_the_answer_says_the_ids_as_ever(broker):
    create(broker, DURABLE)
    result = broker.connect().produce("flights", b"a", b"b", wants_ids=True)
    assert sum(length for _, length in result.runs) == 2


def test_a_topic_without_it_is_answered_immediately_and_makes_no_journal(broker):
    broker.create("flights")
    broker.hold_syncs()
    assert broker.connect().produce("flights", b"a").error_code == 0
    assert not [path for path in broker.storage.files if path.endswith(".journal")]


def test_fifty_producers_on_fifty_partitions_take_one_sync_a_round(broker):
    """The rate of per-partition syncs collapses with many partitions, so there is one journal and one fdatasync."""
    create(broker, DURABLE, partitions=51)
    clients = [broker.connect() for _ in range(51)]
    held = broker.hold_syncs()
    for partition, client in enumerate(clients):
        client.send(PRODUCE, 9, produce_request("flights", b"a", partition=partition))
    assert kinds(held) == ["SyncJournal"], "the first one's; the others gather meanwhile"
    broker.run(held.pop())
    broker.pump()
    assert kinds(held) == ["SyncJournal"]
    assert [len(client.replies()) for client in clients] == [1] + [0] * 50
    broker.release()
    assert [codes(client.replies()) for client in clients[1:]] == [[0]] * 50


def test_the_shell_says_when_the_next_round_of_the_journal_begins(broker):
    """Other syncs do not wait for that round."""
    create(broker, DURABLE)
    broker.create("trains", flush_messages=1)
    client, other = broker.connect(), broker.connect()
    with broker.turn():
        client.send(PRODUCE, 9, produce_request("flights", b"a"))
        other.send(PRODUCE, 9, produce_request("trains", b"b"))
        broker.engine.execute(broker.now)
        assert kinds(broker.engine.take_syncs(begin_round=False)) == ["SyncLog"]
        assert kinds(broker.engine.take_syncs()) == ["SyncJournal"]


def test_what_one_connection_pipelines_is_synced_together_and_answered_in_order(broker):
    create(broker, DURABLE)
    client = broker.connect()
    held = broker.hold_syncs()
    frames = [client.frame(PRODUCE, 9, produce_request("flights", b"%d" % n)) for n in range(20)]
    client.feed(b"".join(data for _, data in frames))
    assert kinds(held) == ["SyncJournal"]
    broker.release()
    assert [answered for answered, _ in client.replies()] == [sent for sent, _ in frames]


def test_one_that_need_not_wait_is_answered_after_the_one_before_it(broker):
    """Replies leave in the order of their requests, whichever of them waits."""
    create(broker, DURABLE)
    broker.create("fast")
    client = broker.connect()
    broker.hold_syncs()
    slow = client.send(PRODUCE, 9, produce_request("flights", b"a"))
    fast = client.send(PRODUCE, 9, produce_request("fast", b"b"))
    assert client.replies() == []
    broker.release()
    assert [answered for answered, _ in client.replies()] == [slow, fast]


def test_a_connection_that_waits_for_the_disk_is_read_on_when_it_has_answered():
    broker = EngineBroker(max_inflight_requests=2)
    create(broker, DURABLE)
    client = broker.connect()
    broker.hold_syncs()
    frames = [client.frame(PRODUCE, 9, produce_request("flights", b"%d" % n)) for n in range(5)]
    client.feed(b"".join(data for _, data in frames))
    assert broker.services.log_of("flights", 0).log_end_offset == 2 and not client.conn.readable
    broker.release()
    assert [answered for answered, _ in client.replies()] == [sent for sent, _ in frames]


def test_a_disk_that_takes_longer_than_the_producer_waits_is_a_timeout(broker):
    """The messages stay in the log, so a producer that sends them again needs idempotence, as with Kafka."""
    create(broker, DURABLE)
    client = broker.connect()
    broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.at(broker.now_ms + 29_999)
    assert client.replies() == []
    broker.at(broker.now_ms + 2)
    assert codes(client.replies()) == [ErrorCode.REQUEST_TIMED_OUT]
    broker.release()
    assert client.replies() == []


def test_past_the_limit_of_delayed_requests_the_timeout_is_answered_immediately():
    """The limit is flakelog.max.delayed.operations."""
    broker = EngineBroker(max_delayed_operations=1)
    create(broker, DURABLE)
    client = broker.connect()
    broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    client.send(PRODUCE, 9, produce_request("flights", b"b"))
    broker.release()
    assert codes(client.replies()) == [0, ErrorCode.REQUEST_TIMED_OUT]


def test_a_producer_that_sends_again_waits_for_what_it_sent_before(broker):
    """The duplicate is on the disk as soon as the first one is, and not earlier (KIP-98)."""
    create(broker, DURABLE)
    client = broker.connect()
    broker.hold_syncs()
    sent = batch_of(b"a", producer_id=7, producer_epoch=0, base_sequence=0)
    for _ in range(2):
        client.send(PRODUCE, 9, produce_request("flights", batch=bytearray(sent)))
    assert client.replies() == []
    broker.release()
    assert [result.base_offset for _, (result,) in client.replies()] == [0, 0]


def test_a_failed_sync_of_the_journal_takes_every_durable_partition_offline_and_no_other(broker):
    """The kernel may have dropped the bytes that it could not write, so the sync is never tried again."""
    create(broker, DURABLE, partitions=2)
    broker.create("fast")
    client = broker.connect()
    held = broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.storage.failing_syncs.add(held[0].to.name)
    broker.release()
    broker.storage.failing_syncs.clear()
    assert codes(client.replies()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert set(broker.services.logs.offline) == {"flights-0", "flights-1"}
    assert "journal" in broker.services.logs.offline["flights-1"]
    assert client.produce("flights", b"b", partition=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert client.produce("fast", b"c").error_code == 0


def test_a_partition_that_goes_offline_meanwhile_answers_its_producers(broker):
    create(broker, DURABLE)
    client = broker.connect()
    held = broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.services.logs.syncs.start_round()
    broker.pump()
    (log_sync,) = (sync for sync in held if isinstance(sync, SyncLog))
    broker.storage.failing_syncs.add(log_sync.files[0].path)
    held.remove(log_sync)
    broker.run(log_sync)
    broker.pump()
    assert codes(client.replies()) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_write_that_cannot_be_undone_answers_all_who_wait_and_is_reported(broker):
    """The content of the files is unknown, so the partition is taken offline, as after a failed sync."""
    create(broker, DURABLE)
    producer, consumer, late = broker.connect(), broker.connect(), broker.connect()
    broker.hold_syncs()
    producer.send(PRODUCE, 9, produce_request("flights", b"a"))
    consumer.send(FETCH, 12, fetch_request("flights", offset=1, max_wait_ms=10_000))
    broker.storage.free_bytes = 40  # enough for the ids, not for the batch
    broker.storage.failing_cuts.add(broker.services.log_of("flights", 0).segments.all[0].log.path)
    late.send(PRODUCE, 9, produce_request("flights", b"b"))
    broker.at(broker.now_ms)
    assert codes(late.replies()) == codes(producer.replies()) == [ErrorCode.KAFKA_STORAGE_ERROR]
    ((_, answer),) = consumer.replies()
    assert answer.partitions[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (line,) = [line for line in broker.reported if "offline" in line]
    assert line.startswith("partition flights-0 is offline: ") and line.endswith("could not be undone")


def test_a_topic_deleted_meanwhile_answers_its_producers(broker):
    create(broker, DURABLE)
    client = broker.connect()
    broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.delete("flights")
    broker.pump()
    assert codes(client.replies()) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    broker.release()


def test_a_full_journal_is_no_refusal_the_partition_is_synced_by_itself():
    broker = EngineBroker(journal_max_bytes=1 << 16)
    create(broker, DURABLE)
    client = broker.connect()
    held = broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", bytes(40_000)))
    client.send(PRODUCE, 9, produce_request("flights", bytes(40_000)))
    assert sorted(kinds(held)) == ["SyncJournal", "SyncLog"]
    broker.release()
    assert codes(client.replies()) == [0, 0]
    assert codes([(0, [client.produce("flights", b"c")])]) == [0], "and the journal is of use again"


def test_a_disk_too_full_for_the_journal_syncs_the_partition_itself(broker):
    create(broker, DURABLE)
    client = broker.connect()
    held = broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a"))
    broker.storage.free_bytes = 10
    broker.run(held.pop())
    broker.pump()
    assert kinds(held) == ["SyncLog"]
    broker.release()
    assert codes(client.replies()) == [0]
    broker.storage.free_bytes = None
    assert client.produce("flights", b"b").error_code == 0 and broker.services.logs.offline == {}


@pytest.mark.parametrize("made", [False, True])
def test_what_the_disk_had_no_room_for_takes_none_in_the_journal(made):
    broker = EngineBroker(journal_max_bytes=1 << 17)
    create(broker, DURABLE)
    client = broker.connect()
    if made:
        client.produce("flights", b"first")
    held = broker.hold_syncs()
    for _ in range(8):
        client.send(PRODUCE, 9, produce_request("flights", bytes(20_000)))
        broker.storage.free_bytes = 10
        for _ in range(2):
            broker.run(held.pop())
            broker.pump()
        broker.storage.free_bytes = None
    assert codes(client.replies()) == [0] * 8
    client.send(PRODUCE, 9, produce_request("flights", b"last"))
    assert kinds(held) == ["SyncJournal"]


def test_one_request_for_several_partitions_waits_for_all_of_them(broker):
    create(broker, DURABLE, partitions=2)
    broker.create("fast")
    client = broker.connect()
    broker.hold_syncs()
    parts = [(t, p, memoryview(bytearray(batch_of(b"x")))) for t, p in (("flights", 0), ("fast", 0))]
    client.send(PRODUCE, 9, ProduceRequest(None, 1, 30_000, parts, False))
    assert client.replies() == []
    broker.release()
    assert codes(client.replies()) == [0, 0]


# --- visible.after.flush -----------------------------------------------------------------------------------------


def latest(client, isolation=0):
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": "flights", "partitions": [partition]}]
    answer = client.ask(LIST_OFFSETS, 5, {"replica_id": -1, "isolation_level": isolation, "topics": topics})
    return answer.topics[0].partitions[0].offset


def test_consumers_see_a_message_when_it_is_on_the_disk(broker):
    """Without flush.messages or flush.ms the journal syncs it immediately."""
    create(broker, VISIBLE)
    producer, consumer = broker.connect(), broker.connect()
    held = broker.hold_syncs()
    waiting = consumer.send(FETCH, 12, fetch_request("flights", max_wait_ms=10_000))
    assert producer.produce("flights", b"a").error_code == 0, "acks=1 need not wait"
    assert consumer.replies() == [] and kinds(held) == ["SyncJournal"]
    assert (latest(producer), latest(producer, READ_COMMITTED)) == (0, 0)
    broker.release()
    ((answered, answer),) = consumer.replies()
    assert answered == waiting and values_of(answer) == [b"a"]
    assert (latest(producer), latest(producer, READ_COMMITTED)) == (1, 1)


def test_acks_all_waits_until_consumers_can_see_the_message(broker):
    create(broker, VISIBLE)
    client = broker.connect()
    broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=-1))
    assert client.replies() == []
    broker.release()
    assert codes(client.replies()) == [0]


def test_a_fetch_ends_before_what_is_not_on_the_disk(broker):
    create(broker, VISIBLE)
    client = broker.connect()
    client.produce("flights", b"a")
    broker.hold_syncs()
    client.produce("flights", b"b")
    assert client.fetch("flights") == [b"a"]
    assert client.fetch("flights", offset=1) == []
    broker.release()
    assert client.fetch("flights") == [b"a", b"b"]


def test_an_id_is_found_only_where_consumers_see_it(broker):
    create(broker, VISIBLE)
    client = broker.connect()
    client.produce("flights", b"a")
    broker.hold_syncs()
    client.produce("flights", b"b")
    log = broker.services.log_of("flights", 0)
    second = log_reader.ids_of(log, 1, 2)[0][0]
    assert log_reader.offset_of_id(log, second + 1) == 1, "the end, as far as anybody sees"
    broker.release()
    assert (log_reader.offset_of_id(log, second), log_reader.offset_of_id(log, second + 1)) == (1, 2)


def test_a_topic_that_is_made_durable_syncs_what_it_had_before(broker):
    """The setting is altered while the broker runs, so earlier records are in no journal."""
    broker.create("flights")
    client = broker.connect()
    client.produce("flights", b"a")
    altered = plan_alteration(broker.services, [(broker.services.metadata.topic("flights"), DURABLE)])
    broker.services.file_executor.run_now(altered, broker.now)
    client.produce("flights", b"b")
    restarted = EngineBroker(broker.storage.power_cut(lambda n: 0), broker.now_ms + 10_000)
    assert restarted.connect().fetch("flights") == [b"a", b"b"]


@pytest.mark.parametrize("acks", [1, -1])
def test_with_one_message_to_a_flush_each_is_answered_when_it_is_on_the_disk(broker, acks):
    """Kafka, too, flushes before it answers. The log's own files are synced, without a journal."""
    create(broker, {"flush.messages": "1"})
    client = broker.connect()
    held = broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"a", acks=acks))
    assert client.replies() == [] and kinds(held) == ["SyncLog"]
    broker.release()
    assert codes(client.replies()) == [0]
    assert client.produce("flights", b"b", acks=acks).base_offset == 1


def test_with_flush_messages_the_watermark_moves_with_each_flush(broker):
    create(broker, VISIBLE | {"flush.messages": "3"})
    client = broker.connect()
    held = broker.hold_syncs()
    for n in range(3):
        assert held == [] and latest(client) == 0
        client.produce("flights", b"%d" % n)
    assert kinds(held) == ["SyncLog"], "no journal"
    broker.release()
    assert latest(client) == 3


# --- after a crash -----------------------------------------------------------------------------------------------


def test_what_was_answered_is_there_after_a_power_cut_with_its_ids(broker):
    create(broker, DURABLE)
    client = broker.connect()
    runs = [client.produce("flights", b"%d" % n, wants_ids=True).runs for n in range(3)]
    assert not any(isinstance(sync, SyncLog) for sync in broker.engine.take_syncs()), "the segments were not synced"
    again = EngineBroker(broker.storage.power_cut(lambda n: 0), broker.now_ms + 10_000)
    assert again.connect().fetch("flights") == [b"0", b"1", b"2"]
    log = again.services.log_of("flights", 0)
    assert [log_reader.ids_of(log, n, n + 1) for n in range(3)] == runs
    assert any("3 from the journal" in line for line in again.reported)
    assert not [path for path in again.storage.files if path.endswith(".journal")]


def test_a_clean_stop_leaves_no_journal(broker):
    create(broker, DURABLE)
    broker.connect().produce("flights", b"a")
    again = broker.restarted()
    assert again.reported == [] and not [path for path in broker.storage.files if path.endswith(".journal")]
    assert again.connect().fetch("flights") == [b"a"]


def test_the_journal_is_cut_when_the_partitions_are_synced(broker):
    """This happens at each checkpoint, and in between when half of flakelog.journal.max.bytes is reached."""
    create(broker, DURABLE)
    client = broker.connect()
    client.produce("flights", b"a")
    (journal,) = (path for path in broker.storage.files if path.endswith(".journal"))
    broker.at(broker.now_ms + 60_001)
    assert journal not in broker.storage.files
    held = broker.hold_syncs()
    client.send(PRODUCE, 9, produce_request("flights", b"b"))
    assert isinstance(held[0], SyncJournal) and held[0].to.name != journal
