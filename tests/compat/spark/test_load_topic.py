"""Loads into a topic of Flakelog and of Apache Kafka: each message once for readers of committed messages."""

from dataclasses import replace
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.client.offset_lookup import find_offset
from flakelog.operations.topics import delete_records
from spark_bridge.load import topic_sink
from spark_bridge.load.driver import Driver
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import Layout, LoadError
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.load.topic_sink import COLUMNS, TopicSink
from spark_bridge.load.verify import verify
from spark_bridge.output.storage import LocalStorage
from spark_bridge.reading.cluster import Description, Topic
from tests.patience import SECONDS
from tests.spark_bridge.load.tables import Killed, as_an_older_version_wrote_it, offsets, record_of
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, Topics, Watcher, in_order

GROUP = f"flakelog-load-{TOPIC}"


@pytest.fixture(params=["flakelog", "kafka"])
def address(request):
    if request.param == "kafka":
        return request.getfixturevalue("kafka")
    return request.getfixturevalue("broker").address


@pytest.fixture
def target(address):
    name = f"copy-{uuid4().hex[:8]}"
    with Client(address) as client:
        client.create_topic(name, 2)
        for partition in range(2):  # a new topic has its leaders a moment later
            client.retry(lambda p=partition: find_offset(client.core, name, p, LATEST))
    return name


@pytest.fixture(autouse=True)
def small_transactions(monkeypatch):
    monkeypatch.setattr(topic_sink, "ROWS_PER_TRANSACTION", 3)


class Headed(MemoryLog):
    """A log whose messages have a header."""

    def rows(self, load, part):
        return HeadedRows(super().rows(load, part))


class HeadedRows:
    def __init__(self, rows):
        self.rows, self.schema, self.skipped = rows, rows.schema, rows.skipped

    def __iter__(self):
        for batch in self.rows:
            at = batch.schema.get_field_index("headers")
            headers = pa.array([[{"key": "h", "value": b"\0"}]] * len(batch), batch.schema.field("headers").type)
            yield batch.set_column(at, batch.schema.field("headers"), headers)


class SteppedSink(TopicSink):
    """A sink that can be stopped before each transaction."""

    def __init__(self, *arguments, step):
        super().__init__(*arguments)
        self.step = step

    def _send_rows(self, rows, position, producer, consumer):
        self.step(f"send {position.partition} up to {position.offset}")
        super()._send_rows(rows, position, producer, consumer)


def copying(tmp_path, log, address, target, step=lambda step_name: None, name="a"):
    options = LoadOptions(TOPIC, columns=COLUMNS, layout=Layout("topic"))
    sink = SteppedSink(LocalStorage(tmp_path), TOPIC, Attempts(name), address, target, step=step)
    return Driver(options, sink, Headed(log), in_order, Watcher(), "code")


def messages(address, target):
    """Return the committed messages of each partition, in order."""
    settings = {"group.id": uuid4().hex, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": address} | settings)
    received = {}
    try:
        for partition in range(2):
            consumer.assign([TopicPartition(target, partition, 0)])
            _, end = consumer.get_watermark_offsets(TopicPartition(target, partition), timeout=10)
            while True:
                message = consumer.poll(0.5)
                if message is None:
                    if consumer.position([TopicPartition(target, partition)])[0].offset in (end, -1001):
                        break
                    continue
                received.setdefault(partition, []).append(message)
    finally:
        consumer.close()
    return received


def source_offsets(address, target):
    received = messages(address, target)
    values = [message.value() for partition in sorted(received) for message in received[partition]]
    return [tuple(map(int, value.split(b"/")[1:])) for value in values]


def test_each_message_comes_once_to_its_partition_with_key_headers_and_time(tmp_path, address, target):
    log = Topics(8, 2)
    copying(tmp_path, log, address, target).run()
    log.append(1, 3)
    outcome = copying(tmp_path, log, address, target).run()
    assert outcome.rows == 3
    assert copying(tmp_path, log, address, target).run().loads == []
    assert source_offsets(address, target) == offsets(log)
    last = messages(address, target)[0][-1]
    assert (last.key(), last.headers(), last.timestamp()[1]) == (b"1", [("h", b"\0")], 7 * 3_600_000 // 3)
    assert verify(copying(tmp_path, log, address, target).sink).problems == ()


def test_a_run_that_is_killed_before_any_transaction_is_finished_by_the_next(tmp_path, address, target):
    log, steps = Topics(7, 4), []

    def kill_at_first(step_name):
        if step_name not in steps:
            steps.append(step_name)
            raise Killed

    for _ in range(20):
        try:
            copying(tmp_path, log, address, target, kill_at_first).run()
        except Killed:
            continue
        break
    assert len(steps) == 5
    assert source_offsets(address, target) == offsets(log)


def test_a_second_run_that_takes_over_between_transactions_sends_the_rest_once(tmp_path, address, target):
    log, met = Topics(7, 4), []

    def meet(step_name):
        if step_name == "send 0 up to 6":
            met.append(step_name)
            if len(met) == 1:
                copying(tmp_path, log, address, target, name="b").run()

    copying(tmp_path, log, address, target, meet).run()  # it was fenced, and finds its load finished
    assert met and copying(tmp_path, log, address, target).run().loads == []
    assert source_offsets(address, target) == offsets(log)


def forget_positions(address):
    """Do at once what brokers do after offsets.retention.minutes."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.delete_consumer_groups([GROUP])[GROUP].result(SECONDS)


def test_a_killed_load_whose_positions_are_forgotten_is_refused_and_sends_nothing_twice(tmp_path, address, target):
    log = Topics(7, 4)

    def kill(step_name):
        if step_name == "send 0 up to 6":
            raise Killed

    with pytest.raises(Killed):
        copying(tmp_path, log, address, target, kill).run()
    forget_positions(address)
    for _ in range(2):
        with pytest.raises(LoadError, match=r"have forgotten how many in the partitions \[0, 1\] \(offsets.retention"):
            copying(tmp_path, log, address, target).run()
    assert source_offsets(address, target) == offsets(log)[:3]


def test_a_load_goes_on_after_finished_loads_whose_positions_are_forgotten(tmp_path, address, target):
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    forget_positions(address)
    assert verify(copying(tmp_path, log, address, target).sink).problems == ()
    log.append(1, 3)
    assert copying(tmp_path, log, address, target).run().rows == 3
    assert source_offsets(address, target) == offsets(log)


class Large(Headed):
    """A log of a message that is larger than producers send by default."""

    def rows(self, load, part):
        return LargeRows(super().rows(load, part))


class LargeRows(HeadedRows):
    def __iter__(self):
        for batch in super().__iter__():
            at = batch.schema.get_field_index("value")
            yield batch.set_column(at, batch.schema.field("value"), pa.array([bytes(1_500_000)] * len(batch)))


def append_of_another(address, target, number, *, commit=True):
    """Send messages to each partition in a transaction, and commit or abort it."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": f"other-{target}"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    for at in range(2 * number):
        producer.produce(target, b"1/other/%d" % at, partition=at % 2)
    producer.flush(SECONDS)
    (producer.commit_transaction if commit else producer.abort_transaction)(SECONDS)


def make_again(address, target):
    with Client(address) as client:
        client.delete_topic(target)
        client.create_topic(target, 2)
        for partition in range(2):
            client.retry(lambda p=partition: find_offset(client.core, target, p, LATEST))


def refused(tmp_path, log, address, target, match):
    log.append(0, 1)
    before = record_of(tmp_path)
    with pytest.raises(OtherTarget, match=match) as refusal:
        copying(tmp_path, log, address, target).run()
    assert "--start-over" in str(refusal.value)
    assert record_of(tmp_path) == before


def test_a_target_that_was_made_again_is_refused_until_a_new_chain_begins(tmp_path, address, target):
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    make_again(address, target)
    refused(tmp_path, log, address, target, "is not the one of the earlier loads .*made again")
    assert any("made again" in problem for problem in verify(copying(tmp_path, log, address, target).sink).problems)
    run = copying(tmp_path, log, address, target)
    replace(run, options=replace(run.options, start_over=True)).run()
    log.append(1, 2)
    copying(tmp_path, log, address, target).run()
    assert source_offsets(address, target) == offsets(log)
    with pytest.raises(OtherTarget, match="still has messages of load 1, and a new chain would bring them twice"):
        replace(run, options=replace(run.options, start_over=True)).run()


def test_a_target_that_was_made_again_is_refused_with_a_record_of_an_older_version(tmp_path, address, target):
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    as_an_older_version_wrote_it(tmp_path)
    make_again(address, target)
    refused(tmp_path, log, address, target, "partition 0 ends at offset 0, and was at 7 then: it was made again or cut")


def test_a_cluster_without_topic_ids_tells_a_target_made_again_by_its_end(tmp_path, address, target, monkeypatch):
    monkeypatch.setattr(Description, "topic_ids", {target: None, TOPIC: "topic 1"})
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    log.append(1, 3)
    copying(tmp_path, log, address, target).run()
    make_again(address, target)
    refused(tmp_path, log, address, target, "ends at offset 0, and was at .* then")


def test_another_topic_with_the_record_of_this_one_is_refused(tmp_path, address, target):
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    other = f"other-{uuid4().hex[:8]}"
    with Client(address) as client:
        client.create_topic(other, 2)
    refused(tmp_path, log, address, other, "is not the one of the earlier loads")


@pytest.mark.parametrize("age", ["new", "old"])
def test_a_load_goes_on_after_old_messages_of_the_target_are_deleted(tmp_path, address, target, age):
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    if age == "old":
        as_an_older_version_wrote_it(tmp_path)
    forget_positions(address)
    with Client(address) as client:
        for partition, end in enumerate(log.ends):
            delete_records(client, {(target, partition): end})
    log.append(1, 3)
    assert copying(tmp_path, log, address, target).run().rows == 3
    remaining = source_offsets(address, target)  # transactions' markers have offsets too
    assert (0, 0) not in remaining and remaining[-3:] == offsets(log)[-3:]


def test_verification_counts_the_committed_messages_of_the_target(tmp_path, address, target):
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    append_of_another(address, target, 5, commit=False)
    append_of_another(address, target, 2)
    log.append(1, 3)
    copying(tmp_path, log, address, target).run()
    verification = verify(copying(tmp_path, log, address, target).sink)
    assert (verification.rows, verification.target_rows) == (14, 14 + 2 * 2)
    assert (verification.problems, verification.notes) == ((), ())
    with Client(address) as client:
        delete_records(client, {(target, 0): 3})
    verification = verify(copying(tmp_path, log, address, target).sink)
    assert (verification.target_rows, verification.problems) == (14 + 2 * 2 - 3, ())
    assert "has deleted old messages, also of load 0" in verification.notes[0]


def test_verification_misses_messages_in_a_target_that_was_filled_by_others(tmp_path, address, target, monkeypatch):
    """A cluster without topic ids tells a topic made again by its end only, which other messages can reach."""
    monkeypatch.setattr(Description, "topic_ids", {target: None, TOPIC: "topic 1"})
    log = Topics(7, 4)
    copying(tmp_path, log, address, target).run()
    make_again(address, target)
    append_of_another(address, target, 20, commit=False)
    append_of_another(address, target, 1)
    verification = verify(copying(tmp_path, log, address, target).sink)
    assert any(
        "has 0 of 7 messages of load 0, between the offsets 0 and" in problem for problem in verification.problems
    )
    assert (verification.rows, verification.target_rows) == (11, 2)


def test_only_the_target_limits_the_size_of_messages(tmp_path, address, target):
    """A decided load cannot be changed, and a user can raise the target's limit only."""
    run = copying(tmp_path, Topics(1, 0), address, target)
    replace(run, source=Large(Topics(1, 0))).run()
    assert [len(message.value()) for message in messages(address, target)[0]] == [1_500_000]


def test_wrong_targets_are_refused_by_name(tmp_path, address, target):
    with pytest.raises(LoadError, match="create it with: flakelog topic create nothing"):
        copying(tmp_path, Topics(1), address, "nothing").run()
    with pytest.raises(LoadError, match="has 2 partitions, and 't' has 3: add partitions"):
        copying(tmp_path, Topics(1, 1, 1), address, target).run()


def test_a_topic_is_not_loaded_into_itself(tmp_path, address, target):
    """Each load would bring the messages of the load before it once more."""
    run = copying(tmp_path, Topics(2, 0), address, target)
    own = run.sink.check(None)
    run.source.describe = lambda topics=None: Description(
        own.location.rpartition(" ")[2], {TOPIC: Topic(TOPIC, own.id, {0: None, 1: None})}
    )
    with pytest.raises(LoadError, match="is the topic that is loaded"):
        run.run()
    assert source_offsets(address, target) == [] and record_of(tmp_path) == {}


def test_a_record_of_loads_that_is_gone_is_named(tmp_path, address, target):
    copying(tmp_path, Topics(2, 0), address, target).run()
    with pytest.raises(LoadError, match="has no record of these loads: they would come twice"):
        copying(tmp_path / "other", Topics(2, 0), address, target).run()
