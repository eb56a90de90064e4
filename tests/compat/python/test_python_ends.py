"""How clients of the Python API end: by an exception, by `close` elsewhere, by a fork, or with the program."""

import asyncio
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from broker.client.async_consumer import AsyncConsumer
from broker.client.async_producer import AsyncProducer
from broker.client.asyncio import AsyncClient
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import ClientError, GroupRefused
from broker.client.offset_spec import Latest
from broker.client.producer import Producer
from flakelog.admin import Admin
from tests.compat.numbers_topic import NOBODY, QUICK, WAIT_MS, values
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS, until

OFTEN = ConsumerConfig(
    session_timeout_ms=3_000, heartbeat_interval_ms=200, fetch_max_wait_ms=50, auto_commit_interval_ms=1
)


def committed(broker, group):
    with Admin(broker.address) as admin:
        return sum(admin.committed(group).values())


# --- exceptions of the program -------------------------------------------------------------------------------------


def test_a_record_that_the_program_fails_on_comes_again(group_broker, topic, name):
    with suppress(KeyError), Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        for number, _ in enumerate(consumer):
            if number == 3:
                raise KeyError
    assert committed(group_broker, name) == 3


def test_records_of_a_poll_that_the_program_fails_on_come_again(group_broker, topic, name):
    with suppress(KeyError), Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        assert len(consumer.poll(WAIT_MS, max_records=4)) == 4
        assert consumer.poll(WAIT_MS, max_records=2)
        raise KeyError
    assert committed(group_broker, name) == 4


def test_a_record_that_an_asyncio_program_fails_on_comes_again(group_broker, topic, name):
    async def read():
        async with AsyncConsumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
            for _ in range(4):
                await anext(consumer)
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(read())
    assert committed(group_broker, name) == 3


def test_a_record_that_an_asyncio_program_works_on_is_not_committed_by_time(group_broker, topic, name):
    """A separate task commits by time, also while the program processes a record."""

    async def read():
        async with AsyncConsumer(group_broker.address, topic, group=name, config=OFTEN) as consumer:
            for number in range(5):
                record = await anext(consumer)
                until_commit = asyncio.get_running_loop().time() + 0.2
                while number and asyncio.get_running_loop().time() < until_commit:
                    await asyncio.sleep(0.01)
                    committed = await consumer.committed([(record.topic, record.partition)])
                    assert committed.get((record.topic, record.partition), 0) <= record.offset

    asyncio.run(read())


# --- close, elsewhere ----------------------------------------------------------------------------------------------


def test_a_consumer_that_is_closed_by_another_thread_ends_its_iterator(group_broker, topic, name):
    consumer = Consumer(group_broker.address, topic, group=name, config=QUICK)
    seen = []
    reader = threading.Thread(target=lambda: seen.extend(consumer), daemon=True)
    reader.start()
    until(lambda: len(seen) == 10)
    consumer.close()
    reader.join(SECONDS)
    assert not reader.is_alive() and values(seen) == list(range(10))
    assert committed(group_broker, name) == 10
    assert list(consumer) == []


def test_a_poll_of_a_consumer_that_another_thread_closes_says_so(group_broker, topic):
    consumer = Consumer(group_broker.address, topic, start=Latest(), config=QUICK)
    errors = []

    def wait():
        try:
            consumer.poll(WAIT_MS)
        except ClientError as error:
            errors.append(str(error))

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    until(lambda: consumer.assignment)
    consumer.close()
    waiting.join(SECONDS)
    assert errors == ["the consumer was closed"]


PROGRAM = """
import signal, sys
from flakelog import Consumer
consumer = Consumer(sys.argv[1], sys.argv[2], group=sys.argv[3])
signal.signal(signal.SIGTERM, lambda *_: consumer.close())
for record in consumer:
    print("record", flush=True)
print("ended", flush=True)
"""


def run(program, *arguments):
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": PYTHONPATH},
    )


def test_a_signal_handler_may_close_a_consumer(group_broker, topic, name):
    with run(PROGRAM, group_broker.address, topic, name) as program:
        assert [program.stdout.readline() for _ in range(10)] == ["record\n"] * 10
        program.send_signal(signal.SIGTERM)
        assert program.communicate(timeout=SECONDS) == ("ended\n", "")
    assert committed(group_broker, name) == 10


UNCLOSED = """
import sys
from flakelog import Consumer
consumer = Consumer(sys.argv[1], sys.argv[2], group=sys.argv[3])
for number, record in enumerate(consumer):
    if number == 4:
        break
"""


def test_a_program_that_ends_without_a_close_leaves_its_group(group_broker, topic, name):
    with run(UNCLOSED, group_broker.address, topic, name) as program:
        assert program.communicate(timeout=SECONDS) == ("", "") and program.returncode == 0
    with Admin(group_broker.address) as admin:
        assert admin.group(name).members == () and sum(admin.committed(name).values()) == 4


def test_a_consumer_that_nothing_refers_to_leaves_its_group(group_broker, topic, name):
    consumer = Consumer(group_broker.address, topic, group=name, config=QUICK)
    next(consumer)
    threads = {thread for thread in threading.enumerate() if name in thread.name}
    del consumer
    gc.collect()
    with Admin(group_broker.address) as admin:
        until(lambda: admin.group(name).members == ())
    until(lambda: not any(thread.is_alive() for thread in threads), "the end of its threads")


def test_an_asyncio_consumer_that_nothing_refers_to_leaves_its_group(group_broker, topic, name):
    async def read():
        await anext(AsyncConsumer(group_broker.address, topic, group=name, config=QUICK))

    asyncio.run(read())
    gc.collect()
    with Admin(group_broker.address) as admin:
        until(lambda: admin.group(name).members == ())


def test_an_asyncio_iterator_ends_when_another_task_closes_the_consumer(group_broker, topic):
    async def read():
        consumer = AsyncConsumer(group_broker.address, topic, config=QUICK)
        seen = []

        async def iterate():
            async for record in consumer:
                seen.append(record)

        task = asyncio.create_task(iterate())
        while len(seen) < 10:
            await asyncio.sleep(0.01)
        await consumer.close()
        await asyncio.wait_for(task, SECONDS)
        with pytest.raises(ClientError, match="was closed"):
            await consumer.poll()

    asyncio.run(read())


def test_a_close_that_is_cancelled_leaves_the_group_nevertheless(group_broker, topic, name):
    async def read():
        consumer = AsyncConsumer(group_broker.address, topic, group=name, config=QUICK)
        await anext(consumer)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with suppress(asyncio.CancelledError):
            await closing

    asyncio.run(read())
    with Admin(group_broker.address) as admin:
        until(lambda: admin.group(name).members == ())


# --- two at once ---------------------------------------------------------------------------------------------------


def test_a_second_thread_that_asks_for_a_record_is_told_that_one_waits(group_broker, topic):
    with Consumer(group_broker.address, topic, start=Latest(), config=QUICK) as consumer:
        waiting = threading.Thread(target=lambda: list(consumer), daemon=True)
        waiting.start()
        until(lambda: consumer.assignment)
        with pytest.raises(ClientError, match="only one task or thread"):
            next(consumer)
        consumer.close()
        waiting.join(SECONDS)


def test_a_callback_that_asks_for_a_record_is_told_so(group_broker, topic, name):
    with Consumer(
        group_broker.address, topic, group=name, on_assigned=lambda _: consumer.poll(), config=QUICK
    ) as consumer:
        with pytest.raises(ClientError, match="no callback of the consumer"):
            consumer.poll(WAIT_MS)


def test_callbacks_run_in_the_thread_that_asks_for_a_record(group_broker, topic, name):
    threads = []

    def note(_):
        threads.append(threading.current_thread())

    with Consumer(
        group_broker.address, topic, group=name, on_assigned=note, on_revoked=note, on_lost=note, config=QUICK
    ) as consumer:
        asking = threading.Thread(target=consumer.poll, args=(WAIT_MS, 1), daemon=True)
        asking.start()
        asking.join(SECONDS)
        assert threads and set(threads) == {asking}
        with Consumer(group_broker.address, topic, group=name, config=QUICK) as second:
            before = len(threads)
            while not second.assignment:
                consumer.poll(20)
                second.poll(20)
        assert set(threads[before:]) == {threading.main_thread()}


def test_a_consumer_works_inside_a_program_with_an_event_loop_of_its_own(group_broker, topic, name):
    """Its loop is in its own thread, so that calls block the program's loop and nothing else."""

    async def main():
        with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
            records = [next(consumer) for _ in range(4)]
            loop = asyncio.get_running_loop()
            records += await loop.run_in_executor(None, lambda: [next(consumer) for _ in range(6)])
            consumer.commit()
            return records

    assert values(asyncio.run(main())) == list(range(10)) and committed(group_broker, name) == 10


def test_another_thread_may_commit_while_a_record_is_waited_for(group_broker, topic, name):
    with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        assert len([next(consumer) for _ in range(10)]) == 10
        waiting = threading.Thread(target=lambda: list(consumer), daemon=True)
        waiting.start()
        consumer.commit()
        assert committed(group_broker, name) == 10
        consumer.close()
        waiting.join(SECONDS)


def test_a_group_that_refuses_the_member_says_so_each_time(group_broker, topic, name):
    config = ConsumerConfig(session_timeout_ms=900, heartbeat_interval_ms=100)
    with Consumer(group_broker.address, topic, group=name, config=config) as consumer:
        for _ in range(2):
            with pytest.raises(GroupRefused, match="session.timeout.ms must lie between"):
                consumer.poll(WAIT_MS)


# --- forks ---------------------------------------------------------------------------------------------------------


def in_a_child(work):
    """Return the exit code of a child that calls `work`, 0 if it is true."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def refused(call):
    """Return True if a call raises the error that a client of the parent's has in a child."""
    try:
        call()
    except ClientError as error:
        return "make one after a fork" in str(error)


def test_a_consumer_stays_with_the_process_that_made_it(group_broker, topic, name):
    """The parent hands out the records that were fetched before the fork, and commits them."""
    with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        records = [next(consumer)]
        for call in (lambda: next(consumer), consumer.poll, consumer.commit, consumer.committed):
            assert in_a_child(lambda: refused(call)) == 0
        assert in_a_child(lambda: consumer.close() is None) == 0
        records += [next(consumer) for _ in range(9)]
    assert values(records) == list(range(10)) and committed(group_broker, name) == 10


def test_a_producer_stays_with_the_process_that_made_it(group_broker, topic):
    """librdkafka's threads are not in the child, so that a message would wait there for ever."""

    with Producer(group_broker.address) as producer:
        producer.send(topic, "10")
        assert in_a_child(lambda: refused(lambda: producer.send(topic, "11")) and refused(producer.flush)) == 0
        assert in_a_child(lambda: producer.close() is None) == 0
        producer.flush()
        assert producer.figures().acknowledged == 1


def test_a_client_and_its_fork_do_not_take_each_others_answers(group_broker, topic):
    with Client(group_broker.address) as client:
        client.fetch(topic, 0, 0)

        def reads(partition):
            return all(client.fetch(topic, partition, 0)[0][0].partition == partition for _ in range(50))

        child = os.fork()
        if child == 0:
            with suppress(BaseException):
                os._exit(0 if reads(1) else 1)
            os._exit(2)
        assert reads(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# --- producers -----------------------------------------------------------------------------------------------------


def test_a_closed_producer_says_so(group_broker, topic):
    with Producer(group_broker.address) as producer:
        producer.send(topic, "10")
    producer.close()
    for call in (lambda: producer.send(topic, "11"), producer.flush):
        with pytest.raises(ClientError, match="the producer was closed"):
            call()


def test_a_closed_asyncio_producer_says_so(group_broker, topic):
    async def send():
        async with AsyncProducer(group_broker.address) as producer:
            await producer.send_and_wait(topic, "10")
        with pytest.raises(ClientError, match="the producer was closed"):
            await asyncio.wait_for(producer.send_and_wait(topic, "11"), SECONDS)

    asyncio.run(send())


def test_an_asyncio_producer_belongs_to_the_event_loop_that_used_it_first(group_broker, topic):
    producer = AsyncProducer(group_broker.address)
    asyncio.run(producer.send_and_wait(topic, "10"))

    async def again():
        with pytest.raises(ClientError, match="belongs to the event loop"):
            await asyncio.wait_for(producer.send_and_wait(topic, "11"), SECONDS)
        producer._loop = None
        await producer.close()

    asyncio.run(again())


def test_a_closed_asyncio_client_says_so(group_broker):
    async def ask():
        async with AsyncClient(group_broker.address) as client:
            await client.topics()
        with pytest.raises(ClientError, match="the client was closed"):
            await client.topics()

    asyncio.run(ask())


def test_a_program_that_ends_without_a_close_is_told_what_it_may_have_lost():
    program = f"from flakelog import Producer; Producer('{NOBODY}').send('t', 'v')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": PYTHONPATH}
    )
    assert done.stderr == "messages that may be lost, because the program did not close their producer: 1\n"


def test_a_callback_that_raises_neither_stops_a_flush_nor_hides_later_failures(caplog):
    calls = []

    def fails(error, delivered):
        calls.append(error)
        raise KeyError(len(calls))

    producer = Producer(NOBODY, timeout_ms=100)
    for _ in range(3):
        producer.send("t", "v", callback=fails)
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="1"):
        producer.flush()
    assert len(calls) == 3 and len(caplog.records) == 2
    producer.close()


def test_a_callback_that_raises_in_a_commit_leaves_the_transaction_committed(group_broker, topic, name):
    def fails(error, delivered):
        raise KeyError

    with Producer(group_broker.address, transactional_id=name) as producer:
        producer.begin()
        producer.send(topic, "100", partition=0, callback=fails)
        with pytest.raises(KeyError):
            producer.commit()
        with producer.transaction():
            producer.send(topic, "101", partition=0)
    config = ConsumerConfig(isolation_level="read_committed", fetch_max_wait_ms=50)
    with Consumer(group_broker.address, topic, partitions=[0], config=config) as consumer:
        assert values(next(consumer) for _ in range(7)) == [0, 2, 4, 6, 8, 100, 101]


def test_figures_are_there_before_the_first_message():
    assert AsyncProducer(NOBODY).figures().sent == 0
