"""Seeded runs of several AsyncConsumers of a group on the real server that join and leave.

Whatever they do, the program gets each record once, and those of a partition in the order of their offsets: a consumer
commits what its program is done with before it hands a partition over or leaves.
"""

import asyncio
from contextlib import suppress
from random import Random

import pytest

from broker.client.async_consumer import AsyncConsumer
from broker.client.asyncio import AsyncClient
from broker.client.consumer_config import ConsumerConfig
from broker.record.records import BatchRecord, encode_batch
from tests.patience import SECONDS

PARTITIONS = 5
CONSUMERS_MAX = 4
STEPS = 120
SEEDS = [3, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 12))]


class Model:
    def __init__(self, address, topic, seed):
        self.random = Random(seed)
        self.address, self.topic = address, topic
        self.seen = []  # (partition, offset), as programs get them
        self.sent = {partition: 0 for partition in range(PARTITIONS)}
        self.programs = {}  # a task and its stop event
        self.changed = asyncio.Event()
        self.history = []

    async def run(self, steps):
        async with AsyncClient(self.address) as self.client:
            await self.client.create_topic(self.topic, PARTITIONS)
            for _ in range(steps):
                step = self.random.choice((self.send, self.send, self.send, self.join, self.join, self.leave))
                self.history.append(step.__name__)
                await step()
                if self.programs and self.random.random() < 0.5:
                    await self.all_seen()
                self.check()
            await self.join()
            await self.all_seen()
            self.check()
            while self.programs:
                await self.leave()
            self.check()

    async def all_seen(self):
        """Wait until the programs have all records. A program that fails ends the wait."""
        async with asyncio.timeout(SECONDS):
            while len(self.seen) < sum(self.sent.values()):
                self.changed.clear()
                for task, _ in self.programs.values():
                    if task.done():
                        task.result()
                await self.changed.wait()

    def check(self):
        for partition in range(PARTITIONS):
            offsets = [offset for number, offset in self.seen if number == partition]
            assert offsets == list(range(len(offsets))), f"partition {partition}: {offsets} after {self.history}"

    # Steps

    async def send(self):
        partition, count = self.random.randrange(PARTITIONS), self.random.randint(1, 40)
        batch = encode_batch([BatchRecord(at, 0, None, b"v" * 100) for at in range(count)], base_timestamp_ms=0)
        await self.client.produce(self.topic, partition, batch)
        self.sent[partition] += count

    async def join(self):
        if len(self.programs) < CONSUMERS_MAX:
            stop = asyncio.Event()
            name = len(self.history)
            self.programs[name] = asyncio.create_task(self.program(stop, self.random.choice((3, 500)))), stop

    async def leave(self):
        if self.programs:
            task, stop = self.programs.pop(self.random.choice(sorted(self.programs)))
            stop.set()
            await task

    async def program(self, stop, records_max):
        config = ConsumerConfig(
            session_timeout_ms=3_000,
            heartbeat_interval_ms=100,
            fetch_max_wait_ms=50,
            max_poll_records=records_max,
            auto_commit_interval_ms=50,
        )
        async with AsyncConsumer(self.address, self.topic, group=self.topic, config=config) as consumer:
            while not stop.is_set():
                with suppress(TimeoutError):  # a cancelled poll loses neither records nor a change of the assignment
                    async with asyncio.timeout(self.random.choice((0.001, 1))):
                        for record in await consumer.poll(20):
                            self.seen.append((record.partition, record.offset))
                self.changed.set()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_gives_each_record_to_one_program_once(group_broker, name, seed):
    asyncio.run(Model(group_broker.address, name, seed).run(STEPS))
