"""Consumers that meet faults: a server killed, a Ctrl-C, a fork, a topic made again, a batch that cannot be decoded."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from broker.client.async_consumer import AsyncConsumer
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.consumer_core import Gap
from broker.client.errors import ClientError
from broker.client.producer import Producer
from coordination.free_port import FreePort
from flakelog.admin import Admin
from tests.compat.conftest import SHORT_SESSIONS
from tests.compat.numbers_topic import BY_HAND, QUICK, SOON_MS, WAIT_MS, fill, say, values
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.patience import SECONDS
from tests.poison import PASSES_LENGTHS, RECORDS


def test_consumers_go_on_after_the_server_was_killed(tmp_path, name):
    with FreePort() as port:
        settings = SHORT_SESSIONS | {"listeners": f"PLAINTEXT://127.0.0.1:{port.number}"}
        with ServerProcess(tmp_path / "data", settings) as server:
            fill(server.address, name)
            with (
                Consumer(server.address, name, timeout_ms=WAIT_MS, config=QUICK) as alone,
                Consumer(server.address, name, group="g", timeout_ms=WAIT_MS, config=QUICK) as member,
            ):
                assert len([next(alone) for _ in range(10)]) == len([next(member) for _ in range(10)]) == 10
                member.commit()
                server.kill()
                assert alone.poll(SOON_MS) == member.poll(SOON_MS) == []
                server.start()
                with Client(server.address) as client:
                    say(client, name, 0, 10)
                    say(client, name, 1, 11)
                assert values([next(alone), next(alone)]) == values([next(member), next(member)]) == [10, 11]


def test_a_consumer_that_gets_a_ctrl_c_leaves_its_group_at_once(group_broker, topic, name):
    argv = [sys.executable, "-m", "tests.compat.python.consumer_program", group_broker.address, topic, name]
    environment = {"PYTHONPATH": PYTHONPATH}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as program:
        lines = [program.stdout.readline() for _ in range(11)]
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=SECONDS)
    assert lines[0] == "assigned 0 1\n" and errors.endswith("KeyboardInterrupt\n")
    with Admin(group_broker.address) as admin:
        assert admin.group(name).members == ()
        # The last record is not committed if the signal came before the program asked for the next one.
        assert sum(admin.committed(name).values()) in (9, 10)


def test_a_consumer_without_a_group_stays_with_the_process_that_made_it(group_broker, topic):
    with Consumer(group_broker.address, topic, config=QUICK) as consumer:
        next(consumer)  # the others are fetched ahead
        child = os.fork()
        if child == 0:
            try:
                next(consumer)
            except ClientError as error:
                consumer.close()
                os._exit(0 if "belongs to the process that made it" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        consumer.seek_to_start()
        assert consumer.poll(WAIT_MS)


def test_a_topic_that_is_made_again_is_read_from_its_start(group_broker, topic):
    servers = group_broker.address
    with Consumer(servers, topic, partitions=[0], config=QUICK) as consumer, Admin(servers) as admin:
        assert values(next(consumer) for _ in range(5)) == [0, 2, 4, 6, 8]
        admin.delete_topic(topic)
        fill(servers, topic)
        assert values(next(consumer) for _ in range(5)) == [0, 2, 4, 6, 8]
        assert consumer.figures().fetches.resets == 1


def test_offsets_that_are_gone_are_skipped_and_told(group_broker, topic):
    resets = []
    with Consumer(group_broker.address, topic, partitions=[0], on_reset=resets.append, config=QUICK) as consumer:
        assert values([next(consumer)]) == [0]
        consumer.seek(topic, 0, 1_000)
        assert values([next(consumer)]) == [0]
        assert consumer.figures().fetches.resets == 1
    assert resets == [Gap((topic, 0), 1_000, "its log does not have that offset")]


def test_offsets_that_are_gone_are_told_to_an_asyncio_program_too(group_broker, topic):
    resets = []

    async def read():
        servers = group_broker.address
        async with AsyncConsumer(servers, topic, partitions=[0], on_reset=resets.append, config=QUICK) as consumer:
            await consumer.poll(WAIT_MS)
            await consumer.seek(topic, 0, 1_000)
            assert values([await anext(consumer)]) == [0]

    asyncio.run(read())
    assert [(reset.key, reset.offset) for reset in resets] == [((topic, 0), 1_000)]


def test_a_group_commits_the_same_offset_of_a_topic_that_was_made_again(group_broker, topic, name):
    servers = group_broker.address
    with Consumer(servers, topic, group=name, config=BY_HAND) as consumer, Admin(servers) as admin:
        assert len([next(consumer) for _ in range(10)]) == 10
        consumer.commit()
        admin.delete_topic(topic)
        fill(servers, topic)
        assert len([next(consumer) for _ in range(10)]) == 10
        consumer.commit()
        assert admin.committed(name) == {(topic, 0): 5, (topic, 1): 5}


def test_a_batch_that_cannot_be_decoded_is_skipped_and_told(group_broker, topic):
    skipped = []
    with Client(group_broker.address) as client:
        client.produce(topic, 0, PASSES_LENGTHS)
        say(client, topic, 0, 10)
    with Consumer(group_broker.address, topic, partitions=[0], on_poison=skipped.append, config=QUICK) as consumer:
        assert values(next(consumer) for _ in range(6)) == [0, 2, 4, 6, 8, 10]
        assert consumer.figures().fetches.poison_batches == 1
    assert [(batch.topic, batch.partition, batch.base_offset, batch.last_offset) for batch in skipped] == [
        (topic, 0, 5, 4 + RECORDS)
    ]


def test_readers_of_committed_records_wait_for_open_transactions_and_leave_out_aborted_ones(group_broker, topic, name):
    config = ConsumerConfig(isolation_level="read_committed", fetch_max_wait_ms=50)
    with (
        Consumer(group_broker.address, topic, partitions=[0], config=config) as consumer,
        Producer(group_broker.address, transactional_id=name) as producer,
    ):
        assert len([next(consumer) for _ in range(5)]) == 5
        producer.begin()
        producer.send(topic, "100", partition=0)
        producer.flush()
        assert consumer.poll(SOON_MS) == []
        producer.abort()
        with producer.transaction():
            producer.send(topic, "101", partition=0)
        assert values([next(consumer)]) == [101]


def test_an_idle_program_that_does_not_ask_loses_its_partitions_and_comes_back(group_broker, topic, name):
    lost = []
    config = ConsumerConfig(
        session_timeout_ms=3_000, heartbeat_interval_ms=200, fetch_max_wait_ms=50, max_poll_interval_ms=500
    )
    with Consumer(group_broker.address, topic, group=name, on_lost=lost.append, config=config) as idle:
        idle.poll(WAIT_MS)
        with Consumer(group_broker.address, topic, group=name, timeout_ms=WAIT_MS, config=BY_HAND) as other:
            while len(other.assignment) < 2:
                other.poll(50)
            assert idle.poll(50) == [] and lost == [frozenset({(topic, 0), (topic, 1)})]


def test_a_callback_that_raises_is_called_again_and_no_revocation_is_lost(group_broker, topic, name):
    calls = []

    def revoked(partitions):
        calls.append(partitions)
        if len(calls) == 1:
            raise KeyError

    with Consumer(group_broker.address, topic, group=name, on_revoked=revoked, config=QUICK) as first:
        assert len([next(first) for _ in range(10)]) == 10
        with Consumer(group_broker.address, topic, group=name, config=QUICK) as second:
            with pytest.raises(KeyError):
                while not second.assignment:
                    assert first.poll(20) + second.poll(20) == []
            while not second.assignment:
                assert first.poll(20) + second.poll(20) == []
    assert len(calls) == 2 and calls[0] == calls[1]
