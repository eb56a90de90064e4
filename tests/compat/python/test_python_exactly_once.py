"""Seeded runs of programs that read, change and write in transactions, fail, leave, and join again (KIP-447).

Whatever they do, the output has each record of the input once.
"""

import threading
from random import Random

import pytest

from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import MustAbort, TryAgain
from broker.client.producer import Producer
from broker.record.records import BatchRecord, encode_batch
from tests.compat.numbers_topic import BY_HAND
from tests.patience import until

PARTITIONS, RECORDS, FEW_RECORDS = 4, 240, 40
COMMITTED = ConsumerConfig(isolation_level="read_committed", fetch_max_wait_ms=50)
RUNS = [(1, FEW_RECORDS), *(pytest.param(seed, RECORDS, marks=pytest.mark.soak) for seed in range(2, 8))]


class Failed(Exception):
    """A failure of a program."""


class Program:
    """A thread that copies `name` to `name-out`. It ends when `stop` is set, or raises what it did not expect."""

    def __init__(self, address, name, number, seed):
        self.stop = threading.Event()
        self.error = None
        self._address, self._name, self._number = address, name, number
        self._random = Random(seed * 100 + number)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        try:
            with (
                Consumer(self._address, self._name, group=self._name, config=BY_HAND) as consumer,
                Producer(self._address, transactional_id=f"{self._name}-{self._number}") as producer,
            ):
                while not self.stop.is_set():
                    self._copy(consumer, producer, consumer.poll(50, max_records=self._random.randint(1, 9)))
        except BaseException as error:
            self.error = error

    def _copy(self, consumer, producer, records):
        try:
            with producer.transaction():
                for record in records:
                    producer.send(f"{self._name}-out", record.value)
                if self._random.random() < 0.2:
                    raise Failed
                producer.send_offsets(consumer)
                if self._random.random() < 0.2:
                    raise Failed
        except (Failed, MustAbort, TryAgain):
            if consumer.assignment:
                consumer.seek_to_committed()


@pytest.mark.parametrize("seed, records", RUNS)
def test_the_output_has_each_record_of_the_input_once(group_broker, name, seed, records):
    random = Random(seed)
    with Client(group_broker.address) as client:
        client.create_topic(name, PARTITIONS)
        client.create_topic(f"{name}-out")
        for number in range(records):
            batch = encode_batch([BatchRecord(0, 0, None, b"%d" % number)], base_timestamp_ms=0)
            client.produce(name, number % PARTITIONS, batch)
    programs = [Program(group_broker.address, name, number, seed) for number in range(3)]
    numbers = []
    with Consumer(group_broker.address, f"{name}-out", config=COMMITTED) as consumer:
        while len(numbers) < records:
            numbers += [int(record.value) for record in consumer.poll(50)]
            assert [program.error for program in programs if program.error is not None] == []
            if random.random() < 0.1:
                leaving = programs.pop(random.randrange(len(programs)))
                leaving.stop.set()
                programs.append(Program(group_broker.address, name, len(programs) + random.randrange(10**6), seed))
        for program in programs:
            program.stop.set()
        until(lambda: not any(program.thread.is_alive() for program in programs), "the end of the programs")
        numbers += [int(record.value) for record in consumer.poll(300)]
    assert sorted(numbers) == list(range(records))
