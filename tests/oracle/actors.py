"""Clients of a script: each sends one kind of requests over one connection and gives the next frame when asked.

A client sends runs of requests that differ little, as real clients do: a broker may treat the second request of a run
in another way than the first. It does not read answers; what it must know of them the driver fills in.
"""

from itertools import count

from tests.oracle import requests
from tests.oracle.batches import GZIP, LZ4, SNAPPY, TRANSACTIONAL, ZSTD, field_of, good_batch, many_small, odd_batch
from tests.oracle.requests import Batch, Message, Session, Wanted

WALL_MS = 1_700_000_000_000
CLIENT_IDS = (b"test", b"test", b"test", None, b"", b"\xff\xfe\x80", b"c" * 127, b"c" * 300, "flüge".encode())


class World:
    """Chance, topics, time, and the approximate length of each partition: the clients of one script share them."""

    def __init__(self, chance, topics, now_ms, several, ids_are_free):
        self.chance = chance
        self.topics = topics
        """(name, number of partitions, properties)."""
        self.now_ms = now_ms
        self.several = several
        """Several requests run in one turn, so a Fetch that waits may see one of them or all."""
        self.ids_are_free = ids_are_free
        """Answers must not depend on ids."""
        self.crowded = False
        """Some batches take all ids of a millisecond."""
        self.ends = {}
        self.numbers = count(1)

    @property
    def time_ms(self):
        return WALL_MS + self.now_ms

    def topic_partition(self):
        """A topic and partition, which now and then does not exist."""
        luck = self.chance.random()
        name, partitions, _ = self.chance.choice(self.topics)
        if luck < 0.02:
            return "nowhere", 0
        if luck < 0.04:
            return name, self.chance.choice((partitions, -1, 1 << 30))
        return name, self.chance.randrange(partitions)

    def keyed(self, topic):
        """Whether a topic wants a key in each record."""
        return any(name == topic and "compact" in more.get("cleanup_policy", "") for name, _, more in self.topics)

    def grew(self, topic_partition, number):
        self.ends[topic_partition] = self.ends.get(topic_partition, 0) + number

    def offset(self, topic_partition):
        """An offset to read from; mostly one that exists."""
        end = self.ends.get(topic_partition, 0)
        luck = self.chance.random()
        if luck < 0.04:
            return self.chance.choice((-1, -2, end + 1_000, 1 << 62))
        if luck < 0.5:
            return max(end - self.chance.randrange(20), 0)
        return self.chance.randrange(end + 1)


class Client:
    """A client on one connection; a subclass makes the frames."""

    def __init__(self, world, conn):
        self.world = world
        self.chance = world.chance
        self.conn = conn
        self.number = next(world.numbers)
        self._correlation_ids = count(self.chance.choice((0, 1, 1 << 20)))
        self.client_id = self.chance.choice(CLIENT_IDS)

    def message(self, api_key, version):
        return Message(api_key, version, next(self._correlation_ids), self.client_id)


class Producer(Client):
    """Batches for one partition in runs of similar requests; idempotent or not."""

    def __init__(self, world, conn):
        super().__init__(world, conn)
        self._frames_left = 0
        self._sequences = {}
        self._sent = []
        self._producer = None
        self._runs = 0
        self._first = []

    def _begin_run(self):
        chance = self.chance
        self._frames_left = chance.choice((1, 3, 10, 30))
        self._version = chance.choice((3, 5, 7, 8, 9, 9, 9, 10, 11, 12, 13, 13))
        self._topic_partition = self.world.topic_partition()
        self._acks = chance.choices((1, -1, 0, 2, -2), (45, 45, 8, 1, 1))[0]
        self._timeout_ms = chance.choice((30_000, 30_000, 1, 0, -1, 500))
        self._wants_ids = chance.random() < 0.25
        self._size = chance.choice((None, 68 + chance.randrange(400), 127, 128)) if chance.random() < 0.7 else None
        self._codec = chance.choice((GZIP, SNAPPY, LZ4, ZSTD)) if chance.random() < 0.15 else 0
        if chance.random() < 0.55:
            self._choose_producer()
        else:
            self._producer = None

    def _choose_producer(self):
        """Keep the producer id of the last run, make one up, or ask InitProducerId for one."""
        luck = self.chance.random()
        if luck < 0.3 and self._producer is not None:
            return
        if luck < 0.7:
            self._runs += 1
            self._producer = 70_000 + 1_000 * self.number + self._runs, self.chance.choice((0, 0, 0, 1)), None
        else:
            slot = ("producer", self.number)
            self._producer = 0, 0, slot
            message = self.message(requests.INIT_PRODUCER_ID, self.chance.randrange(6))
            self._first.append(requests.init_producer_id(message, slot))

    def next_frame(self):
        if self._frames_left == 0:
            self._begin_run()
        if self._first:
            return self._first.pop()
        self._frames_left -= 1
        topic, partition = self._topic_partition
        batch = self._batch()
        return requests.produce(
            self.message(requests.PRODUCE, self._version), [(topic, [(partition, batch)])], self._acks,
            self._timeout_ms, self.chance.choice((None,) * 60 + (b"", b"payments")), self._wants_ids,
        )  # fmt: skip

    def _batch(self):
        if self._producer is None:
            return Batch(self._data(-1, -1, -1))
        if self._sent and self.chance.random() < 0.08:
            return self.chance.choice(self._sent)
        if self.chance.random() < 0.06:  # a producer that met an error begins anew
            producer_id, epoch, slot = self._producer
            self._producer = producer_id, epoch + 1, slot
        producer_id, epoch, slot = self._producer
        key = self._topic_partition, self._producer
        sequence = self._sequences.get(key, 0)
        luck = self.chance.random()
        if luck < 0.03:
            sequence += self.chance.choice((1, 5, -1, 1 << 30))
        elif luck < 0.05:
            sequence = self.chance.choice((0, -1, (1 << 31) - 1))
        elif luck < 0.06:
            epoch += self.chance.choice((1, -1))
        data = self._data(producer_id, epoch, min(sequence, (1 << 31) - 1))
        self._sequences[key] = sequence + field_of(data, "record_count") & 0x7FFFFFFF
        batch = Batch(data, slot)
        self._sent = [*self._sent[-6:], batch]
        return batch

    def _data(self, *producer):
        chance, time_ms = self.chance, self.world.time_ms
        keyed = self.world.keyed(self._topic_partition[0]) and chance.random() < 0.97
        if chance.random() < 0.004:
            data = many_small(chance.choice((4_095, 4_096, 4_097, 9_000)), time_ms, producer=producer)
        else:
            time_ms += chance.choice((0, 0, 0, -5, 40, -86_400_000))
            data = good_batch(chance, time_ms, keyed, self._size, codec=self._codec, producer=producer)
        if chance.random() < 0.04:
            return odd_batch(chance, data)
        self.world.grew(self._topic_partition, field_of(data, "record_count"))
        return data


class ManyPartitions(Client):
    """Produce with several topics and partitions. Some do not exist; where ids are free some come twice."""

    def next_frame(self):
        chance = self.chance
        topic_partitions = [self._any_topic_partition() for _ in range(chance.choice((0, 1, 2, 3, 4, 8)))]
        if not self.world.several:
            topic_partitions = list(dict.fromkeys(topic_partitions))
        topics = [
            (name, [self._part(pair) for pair in topic_partitions if pair[0] == name])
            for name in dict.fromkeys(name for name, _ in topic_partitions)
        ]
        if chance.random() < 0.05:
            topics.append((self.world.topic_partition()[0], []))
        version = chance.randrange(3, 14)
        acks = chance.choices((1, -1, 0, 3), (50, 40, 9, 1))[0]
        transactional_id = b"payments" if chance.random() < 0.03 else None
        message = self.message(requests.PRODUCE, version)
        return requests.produce(message, topics, acks, 30_000, transactional_id, chance.random() < 0.3)

    def _any_topic_partition(self):
        return self.world.topic_partition()[0], self.chance.choice((0, 0, 0, 1, 1, 2, 9))

    def _part(self, topic_partition):
        chance = self.chance
        topic, partition = topic_partition
        luck = chance.random()
        if luck < 0.02:
            return partition, None
        if luck < 0.03:
            return partition, Batch(b"")
        attributes = TRANSACTIONAL if luck < 0.04 else 0
        producer = (80_000 + self.number, 0, chance.randrange(4)) if chance.random() < 0.1 else (-1, -1, -1)
        size = None if chance.random() < 0.7 else chance.choice((127, 128, 300))
        keyed = self.world.keyed(topic)
        data = good_batch(chance, self.world.time_ms, keyed, size, attributes=attributes, producer=producer)
        self.world.grew(topic_partition, field_of(data, "record_count"))
        return partition, Batch(odd_batch(chance, data) if luck > 0.96 else data)


class Transactions(Client):
    """A transactional producer that makes mistakes."""

    def __init__(self, world, conn):
        super().__init__(world, conn)
        self._slot = ("producer", self.number)
        self._id = b"payments-%d" % (self.number % 2)
        self._script = self._transactions()
        self._sequences = {}

    def next_frame(self):
        return next(self._script)

    def _transactions(self):
        chance = self.chance
        yield requests.find_coordinator(self.message(requests.FIND_COORDINATOR, chance.randrange(7)), self._id, 1)
        while True:
            yield self._init()
            self._sequences = {}
            for _ in range(chance.choice((1, 2, 5))):
                yield from self._transaction()

    def _init(self):
        message = self.message(requests.INIT_PRODUCER_ID, self.chance.randrange(6))
        return requests.init_producer_id(message, self._slot, self._id, self.chance.choice((60_000, 200, 1 << 30)))

    def _transaction(self):
        chance = self.chance
        topic_partitions = [self.world.topic_partition() for _ in range(chance.choice((1, 1, 2, 3)))]
        version = chance.choice((11, 11, 9, 3, 12, 13))
        if chance.random() < 0.92:
            message = self.message(requests.ADD_PARTITIONS_TO_TXN, chance.randrange(4))
            yield requests.add_partitions_to_txn(message, self._id, self._slot, topic_partitions)
        for _ in range(chance.choice((0, 1, 2, 6))):
            yield self._write(chance.choice(topic_partitions), version)
        if chance.random() < 0.3:
            yield from self._commit_offset(topic_partitions[0])
        if chance.random() < 0.93:
            message = self.message(requests.END_TXN, chance.randrange(6))
            yield requests.end_txn(message, self._id, self._slot, chance.random() < 0.6)

    def _write(self, topic_partition, version):
        chance, world = self.chance, self.world
        sequence = self._sequences.get(topic_partition, 0)
        keyed = world.keyed(topic_partition[0])
        attributes = TRANSACTIONAL if chance.random() < 0.95 else 0
        data = good_batch(chance, world.time_ms, keyed, attributes=attributes, producer=(0, 0, sequence))
        number = field_of(data, "record_count")
        self._sequences[topic_partition] = sequence + number
        world.grew(topic_partition, number)
        transactional_id = self._id if chance.random() < 0.93 else chance.choice((None, b"", b"strangers"))
        topics = [(topic_partition[0], [(topic_partition[1], Batch(data, self._slot))])]
        return requests.produce(
            self.message(requests.PRODUCE, version), topics, chance.choice((-1, -1, 1, 0)), 30_000, transactional_id,
            chance.random() < 0.2,
        )  # fmt: skip

    def _commit_offset(self, topic_partition):
        group = b"readers-1"
        message = self.message(requests.ADD_OFFSETS_TO_TXN, self.chance.randrange(5))
        yield requests.add_offsets_to_txn(message, self._id, self._slot, group)
        message = self.message(requests.TXN_OFFSET_COMMIT, self.chance.randrange(6))
        offset = self.world.offset(topic_partition)
        yield requests.txn_offset_commit(message, self._id, self._slot, group, topic_partition, offset)


class Reader(Client):
    """Fetches of one partition, or of several, in runs; with a session or without."""

    def __init__(self, world, conn):
        super().__init__(world, conn)
        self._frames_left = 0
        self._sessions = 0

    def _begin_run(self):
        chance = self.chance
        self._frames_left = chance.choice((1, 4, 12))
        self._version = chance.choice((4, 5, 6, 7, 8, 9, 10, 11, 12, 12, 13, 15, 16, 17, 18))
        self._topic_partitions = [self.world.topic_partition() for _ in range(chance.choice((1, 1, 1, 2, 4)))]
        self._max_wait_ms = 0 if self.world.several else chance.choice((0, 0, 0, 50, 500))
        if self._max_wait_ms:  # one request may write to several partitions, and a Fetch of them may see some or all
            self._topic_partitions = self._topic_partitions[:1]
        self._min_bytes = chance.choice((0, 1, 1, 1, 1_000, 50_000))
        self._committed = chance.random() < 0.3
        self._wants_ids = chance.random() < 0.25 and not self.world.ids_are_free
        self._limits = chance.choice(((1 << 20, 1 << 20), (5_000, 1_000), (1, 1), (0, 0), (1 << 20, 300)))
        self._epoch = 0 if self._version >= 7 and chance.random() < 0.4 else None
        if self._epoch == 0:
            self._sessions += 1

    def next_frame(self):
        if self._frames_left == 0:
            self._begin_run()
        self._frames_left -= 1
        chance = self.chance
        session, wanted, forgotten = Session(), self._topic_partitions, ()
        if self._epoch is not None:
            session = Session(("session", self.number, self._sessions), self._epoch)
            self._epoch = self._epoch + 1 if chance.random() < 0.97 else chance.choice((0, -1, 7))
            if session.epoch > 0:
                wanted = [topic_partition for topic_partition in self._topic_partitions if chance.random() < 0.7]
                forgotten = self._topic_partitions[-1:] if chance.random() < 0.1 else ()
        parts = [
            Wanted(
                *topic_partition, self.world.offset(topic_partition), self._limits[1],
                chance.choice((-1, -1, -1, 0, 0, 5)), chance.choice((-1,) * 9 + (0,)),
            )
            for topic_partition in wanted
        ]  # fmt: skip
        return requests.fetch(
            self.message(requests.FETCH, self._version), parts, self._max_wait_ms, self._min_bytes, self._limits[0],
            self._committed, session, forgotten, self._wants_ids, chance.choice((-1,) * 30 + (2,)),
        )  # fmt: skip


class Lister(Client):
    """ListOffsets of one partition, or of several, in runs."""

    def __init__(self, world, conn):
        super().__init__(world, conn)
        self._frames_left = 0

    def next_frame(self):
        chance = self.chance
        if self._frames_left == 0:
            self._frames_left = chance.choice((1, 5, 10))
            self._version = chance.randrange(1, 12)
            self._topic_partitions = [self.world.topic_partition() for _ in range(chance.choice((1, 1, 3)))]
            self._wants_ids = chance.random() < 0.15 and not self.world.ids_are_free
        self._frames_left -= 1
        times = (-1, -2, -1, -2, -3, -4, -5, self.world.time_ms - chance.randrange(2_000), 0)
        partitions = [(*topic_partition, chance.choice(times)) for topic_partition in self._topic_partitions]
        message = self.message(requests.LIST_OFFSETS, self._version)
        return requests.list_offsets(message, partitions, chance.random() < 0.2, self._wants_ids)


class Visitor(Client):
    """A client that asks rare questions and changes topics."""

    def __init__(self, world, conn):
        super().__init__(world, conn)
        self._next = []

    def next_frame(self):
        if self._next:
            return self._next.pop()
        chance, world = self.chance, self.world
        topic, partition = topic_partition = world.topic_partition()
        group = b"readers-%d" % chance.randrange(3)
        asks = (
            lambda: requests.api_versions(self.message(requests.API_VERSIONS, chance.choice((0, 1, 2, 3, 4, 5, 99)))),
            lambda: self._metadata(topic),
            lambda: self._metadata(topic),
            lambda: requests.find_coordinator(
                self.message(requests.FIND_COORDINATOR, chance.randrange(7)), group, chance.choice((0, 0, 1))
            ),
            lambda: requests.offset_commit(
                self.message(requests.OFFSET_COMMIT, chance.randrange(2, 11)), group, topic_partition,
                world.offset(topic_partition),
            ),
            lambda: requests.offset_fetch(
                self.message(requests.OFFSET_FETCH, chance.randrange(1, 11)), group, topic_partition
            ),
            lambda: requests.init_producer_id(
                self.message(requests.INIT_PRODUCER_ID, chance.randrange(6)), ("producer", self.number)
            ),
            self._change,
        )
        return chance.choice(asks)()

    def _metadata(self, topic):
        topics = self.chance.choice((None, (), (topic,), (topic,), (topic, "nowhere"), ("new-%d" % self.number,)))
        message = self.message(requests.METADATA, self.chance.randrange(14))
        return requests.metadata(message, topics, self.chance.random() < 0.3)

    def _change(self):
        """Change what topics there are, where they begin or how they are set, or what clients may use."""
        chance = self.chance
        changes = (self._delete_records, self._make, self._unmake, self._alter, self._make_anew, self._limit)
        return chance.choices(changes, (40, 20, 10, 20, 5, 5))[0]()

    def _delete_records(self):
        topic, partition = topic_partition = self.world.topic_partition()
        end = self.world.ends.get(topic_partition, 0)
        offset = self.chance.choice((end // 2, end // 4, -1, end, end + 100, 0))
        message = self.message(requests.DELETE_RECORDS, self.chance.randrange(3))
        return requests.delete_records(message, topic, partition, offset)

    def _make(self, name=None):
        chance = self.chance
        configs = chance.choice(((), ((b"flakelog.durable.acks", b"true"),), ((b"retention.ms", b"no number"),)))
        message = self.message(requests.CREATE_TOPICS, chance.randrange(2, 8))
        return requests.create_topic(message, name or self._made(), chance.choice((1, 2)), configs)

    def _unmake(self, name=None):
        message = self.message(requests.DELETE_TOPICS, self.chance.randrange(1, 7))
        return requests.delete_topic(message, name or self._made())

    def _make_anew(self):
        """Delete a topic that others are writing to and reading from; the next request makes it again."""
        name = self.chance.choice(self.world.topics)[0]
        self._next.append(self._make(name))
        return self._unmake(name)

    def _made(self):
        name = "made-%d" % self.chance.randrange(3)
        if not any(topic == name for topic, _, _ in self.world.topics):
            self.world.topics.append((name, 1, {}))
        return name

    def _alter(self):
        key, value = self.chance.choice((
            (b"max.message.bytes", b"500"), (b"max.message.bytes", b"1000000"), (b"flakelog.durable.acks", b"true"),
            (b"flakelog.durable.acks", b"false"), (b"message.timestamp.type", b"LogAppendTime"),
            (b"message.timestamp.type", b"CreateTime"), (b"segment.bytes", b"3000"),
            (b"flakelog.id.header", b"false"),
        ))  # fmt: skip
        message = self.message(requests.INCREMENTAL_ALTER_CONFIGS, self.chance.randrange(2))
        return requests.alter_topic(message, self.world.topic_partition()[0], key, value)

    def _limit(self):
        """Set a quota that no client reaches, because requests that a quota delays may run in one turn afterwards."""
        key = self.chance.choice((b"producer_byte_rate", b"consumer_byte_rate", b"request_percentage"))
        message = self.message(requests.ALTER_CLIENT_QUOTAS, self.chance.randrange(2))
        return requests.alter_quota(message, key, self.chance.choice((None, 1e12)))
