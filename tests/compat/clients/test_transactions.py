"""Transactions by stock clients and across kill -9 (KIP-98, KIP-447): each committed record exists once, no other does.

A copy job reads `in`, writes `out` and commits its offsets in the same transaction: exactly once, whatever is killed.
"""

import asyncio
import os
import random
import threading
import time
import uuid

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition

from tests.compat.cluster_servers import one_or_three
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS, until

KILLS = 4
SEED = int(os.environ.get("FLAKELOG_KILL_SEED", "9"))
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": 300,
    "log.segment.bytes": 20_000,
    "transaction.state.log.num.partitions": 3,
    "offsets.topic.num.partitions": 3,
    "group.initial.rebalance.delay.ms": 0,
}


def name():
    return f"t{uuid.uuid4().hex[:8]}"


def producing(server, transactional_id=None):
    config = {"bootstrap.servers": server.address, "transactional.id": transactional_id or name(), "linger.ms": 0}
    config["reconnect.backoff.max.ms"] = 200
    producer = confluent_kafka.Producer(config | QUIET)
    producer.init_transactions(SECONDS)
    return producer


def consuming(server, topic, group=None, **more):
    config = {
        "bootstrap.servers": server.address,
        "group.id": group or name(),
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    }
    consumer = confluent_kafka.Consumer(config | more)
    consumer.subscribe([topic])
    return consumer


def read_all(server, topic, isolation="read_committed"):
    """Return all values of the topic's single partition, up to its end."""
    consumer = consuming(server, topic, **{"isolation.level": isolation, "enable.partition.eof": True})
    try:
        values, end = [], time.monotonic() + SECONDS
        while time.monotonic() < end:
            message = consumer.poll(0.5)
            if message is not None and message.error() is not None:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                return values
            if message is not None:
                values.append(message.value())
        raise AssertionError(f"no end of {topic} within {SECONDS} s")
    finally:
        consumer.close()


def in_transaction(producer, topic, values, commit=True):
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.flush(SECONDS)
    producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)


def create(server, topic):
    """Create a topic with one partition by asking for its metadata."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.address, "group.id": "none"})
    producer = confluent_kafka.Producer({"bootstrap.servers": server.address})
    producer.list_topics(topic, SECONDS)
    consumer.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with one_or_three(tmp_path_factory.mktemp("transactions"), SETTINGS) as server:
        yield server


def test_librdkafka_commits_and_aborts_and_readers_see_only_what_was_committed(server):
    topic, producer = name(), producing(server)
    in_transaction(producer, topic, [b"a", b"b"])
    in_transaction(producer, topic, [b"not"], commit=False)
    in_transaction(producer, topic, [b"c"])
    assert read_all(server, topic) == [b"a", b"b", b"c"]
    assert read_all(server, topic, "read_uncommitted") == [b"a", b"b", b"not", b"c"]


def test_librdkafka_is_fenced_by_who_takes_its_transactional_id(server):
    topic, transactional_id = name(), name()
    old = producing(server, transactional_id)
    old.begin_transaction()
    old.produce(topic, b"half")
    old.flush(SECONDS)
    new = producing(server, transactional_id)
    with pytest.raises(KafkaException) as raised:
        old.commit_transaction(SECONDS)
    assert raised.value.args[0].fatal()
    in_transaction(new, topic, [b"whole"])
    assert read_all(server, topic) == [b"whole"]


def copy(server, source, target, group, transactional_id, wanted):
    """Copy `wanted` records in small transactions, some of which are aborted; return when all records are copied."""
    producer, consumer = producing(server, transactional_id), consuming(server, source, group)
    chance, done = random.Random(SEED), 0
    try:
        while done < wanted:
            messages = consumer.consume(7, 1.0)
            if not messages:
                done = len(read_all(server, target))
                continue
            producer.begin_transaction()
            for message in messages:
                producer.produce(target, message.value())
            positions = [TopicPartition(source, 0, messages[-1].offset() + 1)]
            producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), SECONDS)
            if chance.randrange(4):
                producer.commit_transaction(SECONDS)
            else:
                producer.abort_transaction(SECONDS)
                committed = consumer.committed([TopicPartition(source, 0)], SECONDS)[0].offset
                consumer.seek(TopicPartition(source, 0, max(committed, 0)))
    finally:
        consumer.close()


def test_a_copy_with_its_offsets_in_the_transaction_is_exactly_once(server):
    source, target, group = name(), name(), name()
    values = [b"%d" % n for n in range(60)]
    in_transaction(producing(server), source, values)
    create(server, target)
    copy(server, source, target, group, name(), len(values))
    assert read_all(server, target) == values


def test_aiokafka_commits_aborts_and_sends_offsets(server):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka import TopicPartition as Place

    topic, group = name(), name()

    async def run():
        producer = AIOKafkaProducer(bootstrap_servers=server.address, transactional_id=name())
        await producer.start()
        async with producer.transaction():
            await producer.send_and_wait(topic, b"a")
            await producer.send_offsets_to_transaction({Place(topic, 0): 1}, group)
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction():
                await producer.send_and_wait(topic, b"not")
                raise ZeroDivisionError
        async with producer.transaction():
            await producer.send_and_wait(topic, b"b")
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=server.address, group_id=group, isolation_level="read_committed"
        )
        await consumer.start()
        try:
            return (await asyncio.wait_for(consumer.getone(), SECONDS)).value
        finally:
            await consumer.stop()

    assert asyncio.run(run()) == b"b", "the group goes on behind what it committed in the transaction"
    assert read_all(server, topic) == [b"a", b"b"]


def test_kill_9_in_the_middle_of_transactions_leaves_each_whole_or_not_at_all(tmp_path):
    """Each transaction writes its number to two topics, and after every kill both topics have the same numbers."""
    chance = random.Random(SEED)
    with ServerProcess(tmp_path / "data", SETTINGS) as server:
        transactional_id, left, right = name(), name(), name()
        acknowledged, number = [], 0
        for _ in range(KILLS):
            producer = producing(server, transactional_id)
            killed, wanted = threading.Event(), len(acknowledged) + chance.randrange(1, 40)
            when = server, acknowledged, wanted, chance.uniform(0, 0.1), killed
            killer = threading.Thread(target=kill_later, args=when)
            killer.start()
            number = write_until_killed(producer, left, right, number, acknowledged, killed)
            killer.join()
            server.start()
            visible = read_all(server, left)
            assert visible == read_all(server, right), f"FLAKELOG_KILL_SEED={SEED}: half a transaction is visible"
            assert len(visible) == len(set(visible))
            missing = [value for value in acknowledged if value not in visible]
            assert not missing, f"FLAKELOG_KILL_SEED={SEED}: committed, and gone: {missing}"


def test_librdkafka_goes_on_over_a_kill_and_is_fenced_by_the_next_which_has_another_producer_id(tmp_path):
    """After a crash the coordinator gives away no further epoch of a producer id, because it may have lost some."""
    with ServerProcess(tmp_path / "data", SETTINGS).keep_ports() as server:
        topic, transactional_id = name(), name()
        first = producing(server, transactional_id)
        in_transaction(first, topic, [b"a"])
        first.begin_transaction()
        first.produce(topic, b"b")
        first.flush(SECONDS)
        server.restart()
        first.produce(topic, b"c")
        first.commit_transaction(SECONDS)
        in_transaction(first, topic, [b"not"], commit=False)
        in_transaction(first, topic, [b"d"])
        second = producing(server, transactional_id)
        in_transaction(second, topic, [b"e"])
        with pytest.raises(KafkaException, match="INVALID_PRODUCER_ID_MAPPING"):
            in_transaction(first, topic, [b"late"])
        with pytest.raises(KafkaException, match="_FENCED"):
            first.abort_transaction(SECONDS)
            in_transaction(first, topic, [b"later"])
        assert read_all(server, topic) == [b"a", b"b", b"c", b"d", b"e"]


def kill_later(server, acknowledged, wanted, seconds, killed):
    """Kill the server `seconds` after `wanted` commits are acknowledged, in the middle of another transaction."""
    try:
        until(lambda: len(acknowledged) >= wanted, "a commit")
        killed.wait(seconds)
    finally:
        server.kill()
        killed.set()


def write_until_killed(producer, left, right, number, acknowledged, killed):
    """Run one transaction after the other, and append the values of answered commits to `acknowledged`."""
    while not killed.is_set():
        number += 1
        value = b"%d" % number
        producer.begin_transaction()
        producer.produce(left, value)
        producer.produce(right, value)
        if committed(producer, killed):
            acknowledged.append(value)
    producer.purge()
    return number


def committed(producer, killed):
    """Wait for the answer to the commit without a limit; return False if the server was killed before the answer."""
    while True:
        try:
            producer.commit_transaction(0.5)
            return True
        except KafkaException as error:
            if killed.is_set():
                return False
            assert error.args[0].retriable(), error


def test_the_command_line_shows_what_is_committed_where_that_is_wanted(broker, flakelog):
    topic, producer = name(), producing(broker)
    for value, end in (("kept", producer.commit_transaction), ("dropped", producer.abort_transaction), ("open", None)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(SECONDS)
        if end is not None:
            end(SECONDS)
    assert flakelog(f"consume {topic}")[1] == "kept\ndropped\nopen\n"
    assert flakelog(f"consume {topic} --committed")[1] == "kept\n"
    producer.abort_transaction(SECONDS)
