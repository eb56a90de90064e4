"""A reader of many partitions at our own broker, under chance: each partition's messages come once and in order.

The broker loses sessions, has no room for one, and the topic is made again; answers are lost, and partitions pause.
"""

import random

import pytest

from broker.client.fetch_session import BY_ID_MAX, BY_NAME_MAX, FetchSession, PartitionAsk
from broker.client.records import read_records
from broker.wire.errors import ErrorCode
from broker.wire.fetch import INITIAL_EPOCH, READ_UNCOMMITTED, FetchPartition, FetchRequest
from tests.broker.engine_client import FETCH, EngineBroker

PARTITIONS = 5
STEPS = 60
SEEDS = 40
WAIT_MS = 200
ANSWER_BYTES = 300  # two or three messages, so that partitions compete for an answer
EVICTION_MS = 130_000


class World:
    def __init__(self, seed, by_id):
        self.chance = random.Random(seed)
        self.broker = EngineBroker(max_incremental_fetch_session_cache_slots=1)
        self.client, self.other = self.broker.connect(), self.broker.connect()
        self.by_id = by_id
        self.session = FetchSession(WAIT_MS, ANSWER_BYTES, READ_UNCOMMITTED)
        self.pending = set()
        self.numbers = iter(range(10**6))
        self.create()

    def create(self):
        self.broker.create("flights", PARTITIONS)
        self.id = self.broker.services.metadata.topic("flights").id
        self.written = [[] for _ in range(PARTITIONS)]
        self.read = [[] for _ in range(PARTITIONS)]
        self.offsets = [0] * PARTITIONS

    # --- what may happen

    def produce(self):
        partition, value = self.chance.randrange(PARTITIONS), b"%d" % next(self.numbers)
        self.other.produce("flights", value, partition=partition)
        self.written[partition].append(value)

    def want(self, partition=None):
        partition = self.chance.randrange(PARTITIONS) if partition is None else partition
        if partition not in self.pending:
            self.pending.add(partition)
            id = self.id if self.by_id else None
            ask = PartitionAsk("flights", partition, self.offsets[partition], ANSWER_BYTES, id)
            assert self.session.want(ask, self.broker.now_ms) is None

    def exchange(self):
        if not self.session:
            return
        version = BY_ID_MAX if self.session.has_topic_ids else BY_NAME_MAX
        self.client.send(FETCH, version, self.session.request(version == BY_ID_MAX, self.broker.now_ms))
        for _ in range(self.chance.randrange(3)):
            self.chance.choice((self.produce, self.want))()
        self.broker.at(self.broker.now_ms + WAIT_MS)
        ((_, response),) = self.client.replies()
        if self.chance.random() < 0.1:
            for ask in self.session.fail():
                self.pending.discard(ask.partition)
            return
        for ask, result in self.session.accept(response, self.broker.now_ms):
            self.pending.remove(ask.partition)
            self.answered(ask, result)

    def answered(self, ask, result):
        if result.error_code:
            assert result.error_code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID)
            assert ask.topic_id != self.id
            return
        assert ask.topic_id in (None, self.id), "a topic that was made again is never read by its former id"
        read = read_records(result, ask.offset)
        self.read[ask.partition] += [record.value for record in read.records]
        assert all(record.id is not None for record in read.records)
        self.offsets[ask.partition] = read.next_offset

    def lose_the_session(self):
        """Another reader begins a session when ours is old, and takes the only place."""
        self.broker.at(self.broker.now_ms + EVICTION_MS)
        topic = self.id if self.by_id else "flights"
        count = self.chance.randrange(1, PARTITIONS + 1)
        partitions = [FetchPartition(topic, partition, 0, 1) for partition in range(count)]
        request = FetchRequest(0, 0, 1, partitions, session_epoch=INITIAL_EPOCH)
        self.other.ask(FETCH, BY_ID_MAX if self.by_id else BY_NAME_MAX, request)

    def make_the_topic_again(self):
        """Names cannot tell the new topic from the former one, so only a reader by id sees this."""
        if self.by_id:
            self.broker.delete("flights")
            self.create()

    def run(self):
        usual = [self.produce, self.want, self.want, self.exchange, self.exchange]
        for _ in range(STEPS):
            rare = self.chance.random() < 0.05
            self.chance.choice((self.lose_the_session, self.make_the_topic_again) if rare else usual)()

    def drain(self):
        """Want all partitions until everything is read."""
        for _ in range(20 * STEPS):
            if self.read == self.written:
                return
            for partition in range(PARTITIONS):
                self.want(partition)
            self.exchange()
        raise AssertionError(f"read {self.read} of {self.written}")


@pytest.mark.parametrize("by_id", (True, False), ids=("by id", "by name"))
def test_every_message_is_read_once_and_in_order(by_id):
    for seed in range(SEEDS):
        world = World(seed, by_id)
        world.run()
        world.drain()
