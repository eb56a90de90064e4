"""Flakelog's Python API against the real server: headers, ids, transactions and figures of producers."""

import asyncio
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from broker.client.async_producer import AsyncProducer
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import ClientError, MustAbort, ProduceError, ProducerFenced, QueueFull
from broker.client.producer import Producer
from tests.compat.numbers_topic import BY_HAND, NOBODY, SOON_MS, WAIT_MS, take, values
from tests.patience import SECONDS, until

# --- the Producer --------------------------------------------------------------------------------------------------


def read(broker, topic, count, **settings):
    """Return the first records of a topic."""
    config = ConsumerConfig(fetch_max_wait_ms=50, **settings)
    with Consumer(broker.address, topic, timeout_ms=WAIT_MS, config=config) as consumer:
        return take(consumer, count)


def test_a_message_has_the_headers_partition_and_time_it_was_given(group_broker, topic):
    with Producer(group_broker.address) as producer:
        producer.send(topic, "v", headers={"trace": "7", "raw": b"\xff", "none": None}, partition=1, timestamp_ms=9_000)
    records = [record for record in read(group_broker, topic, 11) if record.value == b"v"]
    wanted = (("trace", b"7"), ("raw", b"\xff"), ("none", None))
    assert [(record.partition, record.timestamp_ms, record.headers) for record in records] == [(1, 9_000, wanted)]


def test_ids_in_headers_are_unique_and_rise_in_the_order_of_sending(group_broker, topic, tmp_path):
    with Producer(group_broker.address, ids="header", directory=tmp_path) as producer:
        for number in range(200):
            producer.send(topic, str(1_000 + number), partition=0)
    records = [record for record in read(group_broker, topic, 210) if int(record.value) >= 1_000]
    ids = [int(dict(record.headers)["flakelog-id"]) for record in records]
    assert len(set(ids)) == 200 and ids == sorted(ids)
    assert values(records) == list(range(1_000, 1_200))


def test_ids_in_headers_rise_with_the_offset_although_threads_share_the_producer(group_broker, topic, tmp_path):
    with Producer(group_broker.address, ids="header", directory=tmp_path) as producer, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda number: producer.send(topic, str(1_000 + number), partition=0), range(2_000)))
    records = [record for record in read(group_broker, topic, 2_010) if int(record.value) >= 1_000]
    ids = [int(dict(record.headers)["flakelog-id"]) for record in records]
    assert len(ids) == 2_000 and ids == sorted(ids)


def test_a_wrong_request_for_ids_says_what_is_right(tmp_path):
    with pytest.raises(ValueError, match="give 'header', or leave it out"):
        Producer(NOBODY, ids="broker")
    with pytest.raises(ValueError, match='used with ids="header" only'):
        Producer(NOBODY, directory=tmp_path)
    with pytest.raises(ValueError, match="one of both"):
        Producer(NOBODY, ids="header")


def test_a_transaction_is_seen_whole_or_not_at_all(group_broker, topic, name):
    with Producer(group_broker.address, transactional_id=name) as producer:
        with producer.transaction():
            producer.send(topic, "100", partition=0)
            producer.send(topic, "101", partition=1)
        with pytest.raises(KeyError), producer.transaction():
            producer.send(topic, "200", partition=0)
            producer.flush()
            raise KeyError
        with producer.transaction():
            producer.send(topic, "102", partition=0)
    assert values(read(group_broker, topic, 13, isolation_level="read_committed")) == [*range(10), 100, 101, 102]
    assert 200 in values(read(group_broker, topic, 14))


@pytest.fixture
def copying(group_broker, topic, name):
    """Join a group that reads the topic of numbers, and make a topic for copies: (consumer, producer, that topic)."""
    copies = f"{name}-out"
    with Client(group_broker.address) as client:
        client.create_topic(copies)
    with (
        Consumer(group_broker.address, topic, group=name, config=BY_HAND) as consumer,
        Producer(group_broker.address, transactional_id=name) as producer,
    ):
        yield consumer, producer, copies


def test_a_transaction_commits_the_positions_of_a_consumer_with_its_messages(group_broker, copying):
    """Read, change and write: after a crash in between, neither the output nor the position is there (KIP-447)."""
    consumer, producer, copies = copying
    with suppress(KeyError), producer.transaction():
        producer.send(copies, next(consumer).value)
        producer.send_offsets(consumer)
        raise KeyError
    assert sum(consumer.committed().values()) == 0
    with producer.transaction():
        for _ in range(9):
            producer.send(copies, next(consumer).value)
        producer.send_offsets(consumer)
    assert sum(consumer.committed().values()) == 10
    assert len(read(group_broker, copies, 9, isolation_level="read_committed")) == 9


def test_after_an_abort_a_consumer_reads_the_records_of_the_transaction_again(group_broker, copying):
    consumer, producer, copies = copying
    for fails_after in (3, None):
        with suppress(KeyError), producer.transaction():
            for number in range(10):
                producer.send(copies, next(consumer).value)
                if number == fails_after:
                    raise KeyError
            producer.send_offsets(consumer)
        consumer.seek_to_committed()
    assert sum(consumer.committed().values()) == 10
    records = read(group_broker, copies, 10, isolation_level="read_committed")
    assert values(records) == list(range(10))


def test_a_newer_producer_of_the_same_transactional_id_fences_the_older(group_broker, topic, name):
    older, newer = (Producer(group_broker.address, transactional_id=name) for _ in range(2))
    older.begin()
    newer.begin()
    older.send(topic, "300")
    with pytest.raises((ProducerFenced, MustAbort)):
        older.commit()
    newer.send(topic, "301")
    newer.commit()
    for producer in (older, newer):
        with suppress(ProduceError, ProducerFenced):
            producer.close()
    numbers = values(read(group_broker, topic, 11, isolation_level="read_committed"))
    assert 301 in numbers and 300 not in numbers


def test_a_producer_that_is_fenced_in_the_middle_of_a_block_says_so(group_broker, topic, name):
    older, newer = (Producer(group_broker.address, transactional_id=name) for _ in range(2))
    with pytest.raises(ProducerFenced), older.transaction():
        older.send(topic, "300")
        newer.begin()
        older.send(topic, "301")
        older.flush()
    with pytest.raises(ProducerFenced):
        older.begin()
    newer.abort()
    for producer in (older, newer):
        with suppress(ProduceError, ProducerFenced):
            producer.close()


def test_transactions_need_a_transactional_id():
    with pytest.raises(ClientError, match='give it transactional_id="..."'):
        Producer(NOBODY).begin()


def test_a_producer_counts_what_it_sends_and_what_it_drops(group_broker, topic):
    with Producer(group_broker.address) as producer:
        producer.send(topic, "value", key="key")
        producer.flush()
        figures = producer.figures()
    assert (figures.sent, figures.acknowledged, figures.failed, figures.queued, figures.bytes) == (1, 1, 0, 0, 5)
    assert figures.ack_ms_max >= figures.ack_ms_avg > 0
    dropping = Producer(NOBODY, timeout_ms=SOON_MS)
    dropping.send("t", "v", callback=lambda error, delivered: None)
    dropping.flush()
    assert (dropping.figures().failed, dropping.figures().acknowledged) == (1, 0)


def test_figures_are_exact_although_threads_share_the_producer(group_broker, topic):
    deliveries = []
    with Producer(group_broker.address) as producer, ThreadPoolExecutor(4) as threads:
        for _ in threads.map(lambda _: producer.send(topic, "value"), range(2_000)):
            pass
        for _ in threads.map(
            lambda _: producer.send(topic, "v", callback=lambda *outcome: deliveries.append(outcome)), range(500)
        ):
            producer.figures()
        producer.flush()
        figures = producer.figures()
    assert (figures.sent, figures.acknowledged, figures.queued, figures.bytes) == (2_500, 2_500, 0, 10_500)
    assert len(set(deliveries)) == 500 and all(error is None for error, _ in deliveries)


def test_a_message_that_the_full_queue_refuses_is_not_counted():
    producer = Producer(NOBODY, timeout_ms=SOON_MS, queue_size=1, enqueue_timeout_ms=0)
    producer.send("t", "v")
    for more in ({}, {"headers": {"a": "b"}}):
        with pytest.raises(QueueFull):
            producer.send("t", "v", **more)
    assert (producer.figures().sent, producer.figures().queued) == (1, 1)
    with pytest.raises(ProduceError, match="a message was not acknowledged"):
        producer.flush()
    assert (producer.figures().failed, producer.figures().queued) == (1, 0)


def test_purged_messages_fail_at_once_and_are_counted():
    reasons = []
    with Producer(NOBODY) as producer:
        producer.send("t", "v", callback=lambda error, delivered: reasons.append(str(error)))
        producer.purge()
        assert reasons == ["t: dropped by purge()"]
        assert (producer.figures().failed, producer.figures().queued) == (1, 0)


@pytest.mark.parametrize("acks", ("all", "1", "0"))
def test_messages_arrive_whoever_acknowledges_them(group_broker, topic, acks):
    with Producer(group_broker.address, acks=acks) as producer:
        producer.send(topic, "value")
    assert producer.figures().acknowledged == 1
    assert [record.value for record in read(group_broker, topic, 11)].count(b"value") == 1


def test_a_callback_may_send_the_next_message(group_broker, topic):
    with Producer(group_broker.address) as producer:

        def send_next(error, delivered):
            if (sent := producer.figures().sent) < 5:
                producer._due = 0.0  # as 1 ms later, when `send` would call the callbacks that are due
                producer.send(topic, str(100 + sent), partition=0, callback=send_next)

        producer.send(topic, "100", partition=0, callback=send_next)
        producer.flush()
    records = read(group_broker, topic, 15)[10:]
    assert [record.value for record in records] == [b"%d" % n for n in range(100, 105)]


@pytest.mark.parametrize("method", ("flush", "close", "poll", "purge"))
def test_a_callback_that_calls_more_than_send_is_named_after_all_callbacks_ran(group_broker, topic, method):
    """Within a callback, librdkafka's Python API would end the process with a failed assertion."""
    delivered = []
    with Producer(group_broker.address) as producer:
        producer.send(topic, "v", callback=lambda error, sent: getattr(producer, method)())
        producer.send(topic, "v", callback=lambda error, sent: delivered.append(sent))
        with pytest.raises(ClientError, match="a callback of a producer may only queue messages"):
            producer.flush()
        assert len(delivered) == 1
        assert producer.send(topic, "v") is None


def test_a_callback_that_meets_a_full_queue_does_not_wait_for_it():
    """librdkafka counts a message until its callback has returned."""
    producer = Producer(NOBODY, timeout_ms=SOON_MS, queue_size=1)
    producer.send("t", "v", callback=lambda error, delivered: producer.send("t", "v"))
    with pytest.raises(QueueFull, match="the queue is full, and a callback cannot wait for it"):
        producer.flush()
    assert producer.figures().queued == 0


def test_each_callback_gets_the_place_of_its_own_message(group_broker, topic):
    offsets = {}

    def keeper(number):
        return lambda error, delivered: offsets.update({number: delivered.offset})

    with Producer(group_broker.address) as producer:
        for number in range(100):
            if number % 3:
                producer.send(topic, str(1_000 + number), partition=0, callback=keeper(number))
            else:
                producer.send(topic, str(1_000 + number), partition=0)
    stored = {int(record.value): record.offset for record in read(group_broker, topic, 110)}
    assert offsets == {number: stored[1_000 + number] for number in range(100) if number % 3}


class OffsetKeeper:
    """Keeps the offsets of its messages. It is equal to all others, as empty lists are."""

    def __init__(self):
        self.offsets = []

    def __eq__(self, other):
        return isinstance(other, OffsetKeeper)

    def __call__(self, error, delivered):
        self.offsets.append(delivered.offset)

    def keep(self, error, delivered):
        self.offsets.append(delivered.offset)


def test_callbacks_of_equal_objects_are_not_taken_for_each_other(group_broker, topic):
    first, second = OffsetKeeper(), OffsetKeeper()
    with Producer(group_broker.address) as producer:
        for number in range(8):
            keeper = (first, second)[number // 2 % 2]
            producer.send(topic, "v", partition=0, callback=keeper if number < 4 else keeper.keep)
    assert (first.offsets, second.offsets) == ([5, 6, 9, 10], [7, 8, 11, 12])


def test_a_later_send_calls_the_callbacks_that_are_due(group_broker, topic):
    deliveries = []
    with Producer(group_broker.address) as producer:
        producer.send(topic, "100", callback=lambda error, delivered: deliveries.append(delivered))
        until(lambda: producer.send(topic, "101") or deliveries)


def test_a_producer_without_a_reference_lives_until_its_messages_are_sent(group_broker, topic):
    Producer(group_broker.address).send(topic, "100", partition=0)
    Producer(group_broker.address).send(topic, "101", partition=1, callback=lambda error, delivered: None)
    gc.collect()
    assert sorted(values(read(group_broker, topic, 12)))[10:] == [100, 101]


def test_a_closed_producer_does_not_wait_for_the_garbage_collector(group_broker, topic):
    with Producer(group_broker.address) as producer:
        producer.send(topic, "100", callback=lambda error, delivered: None)
        seen = weakref.ref(producer)
    gc.disable()
    try:
        del producer
        assert seen() is None
    finally:
        gc.enable()


def test_the_asyncio_producer_sends_many_messages_at_once(group_broker, topic, name):
    async def send():
        async with AsyncProducer(group_broker.address, queue_size=50) as producer:
            deliveries = await asyncio.gather(
                *(producer.send_and_wait(topic, str(number), partition=1) for number in range(1_000, 1_500))
            )
            with pytest.raises(ProduceError, match="no-such-partition|Unknown partition"):
                await producer.send_and_wait(topic, "v", partition=7)
            return sorted(delivered.offset for delivered in deliveries), producer.figures().acknowledged

    assert asyncio.run(send()) == (list(range(5, 505)), 500)
    assert values(read(group_broker, topic, 510))[10:] == list(range(1_000, 1_500))


def test_the_asyncio_producer_has_transactions(group_broker, topic, name):
    async def send():
        async with AsyncProducer(group_broker.address, transactional_id=name) as producer:
            async with producer.transaction():
                await producer.send_and_wait(topic, "100", partition=0)
            with suppress(KeyError):
                async with producer.transaction():
                    await producer.send_and_wait(topic, "200", partition=0)
                    raise KeyError

    asyncio.run(send())
    assert values(read(group_broker, topic, 11, isolation_level="read_committed")) == [*range(10), 100]


def test_an_asyncio_producer_that_is_fenced_says_so_and_does_not_hang(group_broker, topic, name):
    async def send():
        async with (
            AsyncProducer(group_broker.address, transactional_id=name) as older,
            AsyncProducer(group_broker.address, transactional_id=name) as newer,
        ):
            await older.begin()
            await newer.begin()
            for _ in range(2):
                with pytest.raises((ProduceError, ProducerFenced)):
                    await asyncio.wait_for(older.send_and_wait(topic, "300"), SECONDS)
            with pytest.raises(ProducerFenced):
                await older.abort()
            await newer.send_and_wait(topic, "301", partition=0)
            await newer.commit()
            with suppress(ProducerFenced):
                await older.close()

    asyncio.run(send())
    assert values(read(group_broker, topic, 11, isolation_level="read_committed")) == [*range(10), 301]


def test_a_future_of_the_asyncio_producer_is_awaited_when_the_program_wants_to(group_broker, topic):
    async def send():
        async with AsyncProducer(group_broker.address) as producer:
            futures = [await producer.send(topic, str(number), partition=1) for number in range(100, 103)]
            return [(await future).offset for future in reversed(futures)]

    assert asyncio.run(send()) == [7, 6, 5]


@pytest.mark.parametrize("method", ("flush", "close"))
def test_lost_messages_whose_futures_nobody_awaited_are_reported_and_once(method, caplog):
    async def send():
        producer = AsyncProducer(NOBODY, timeout_ms=SOON_MS)
        for _ in range(2):
            await producer.send("t", "v")
        with pytest.raises(ProduceError, match="2 messages were not acknowledged; the first: t: not acknowledged"):
            await getattr(producer, method)()
        await producer.close()

    asyncio.run(send())
    gc.collect()
    assert caplog.messages == []  # asyncio does not report them too


def test_a_lost_message_whose_future_was_awaited_is_not_reported_again():
    async def send():
        async with AsyncProducer(NOBODY, timeout_ms=SOON_MS) as producer:
            future = await producer.send("t", "v")
            with pytest.raises(ProduceError):
                await future
            waited = asyncio.gather(*[await producer.send("t", "v") for _ in range(2)], return_exceptions=True)
            await producer.flush()
            assert [type(error) for error in await waited] == [ProduceError, ProduceError]

    asyncio.run(send())


def test_what_the_block_raised_is_not_hidden_by_a_message_lost_in_it():
    async def send():
        async with AsyncProducer(NOBODY, timeout_ms=SOON_MS) as producer:
            await producer.send("t", "v")
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(send())
