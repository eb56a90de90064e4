"""Many connections in one turn: scripts for that, and what must hold of a tree that chooses another order of them.

A tree keeps the order of one connection's requests; the order of connections in a turn is free. Each connection has a
private topic, and all connections write to the shared topics. The base timestamp of a batch is unique, so that a batch
can be found in a log.
"""

from random import Random

from tests.oracle import requests
from tests.oracle.actors import WALL_MS, Client, World
from tests.oracle.batches import LZ4, ZSTD, good_batch, many_small
from tests.oracle.frames import MAX_AHEAD_MS, START_MS
from tests.oracle.mutations import cut_short, flipped, lengthened, stuffed
from tests.oracle.requests import Batch, Frame, Wanted

CONNECTIONS = 12
PARTITIONS = 2
FETCH_VERSION = 11  # of shared topics: the last one before the flexible versions is the simplest to read
FIRST_MARK_MS = WALL_MS - 10_000_000
DURABLE, ID_HEADER = {"flakelog_durable_acks": "true"}, {"flakelog_id_header": "true"}
SHARED = (
    {}, DURABLE, ID_HEADER, {"message_timestamp_type": "LogAppendTime"}, {"segment_bytes": "3000"},
    DURABLE | {"compression_type": "lz4"}, {"cleanup_policy": "compact"}, {"flush_messages": "1"},
)  # fmt: skip
OWN = ({}, DURABLE, {"message_timestamp_type": "LogAppendTime"}, {"segment_bytes": "2000"}, {"flush_messages": "1"})
TIMED = "message_timestamp_type"
WAITS_FOR_DISK = ("flakelog_durable_acks", "flush_messages")


LIMITS = (
    {"max_inflight_requests": 1},
    {"max_inflight_requests": 2},
    {"max_inflight_requests": 1, "max_ahead_ms": 0},
    {"max_ahead_ms": 0},
    {"max_ahead_ms": 1},
    {"queued_max_request_bytes": 5_000},
)
"""Limits that let requests wait. With little run-ahead there are soon no ids."""
IDS_PER_MS = 4_096
LAST_STEPS_MS = (1_000,) * 60  # until all requests are answered


def script(seed, frames):
    return Maker(seed).script(frames)


def limited_script(seed, frames):
    """Make a script in which requests wait for limits of the broker: when they are answered is free. No connection is
    closed in it, because a connection that is closed earlier leaves more requests without an answer."""
    return Maker(seed, limited=True).script(frames)


def round_robin(script):
    """The same script with one request of each connection after the other: another order that is as good."""
    return script | {"steps": [_turned(step) if step[0] == "turn" else step for step in script["steps"]]}


def _turned(step):
    waiting = {}
    for conn, frames, _, _ in step[1:]:
        waiting.setdefault(conn, []).extend(frames)
    deliveries = []
    while waiting:
        for conn in list(waiting):
            deliveries.append((conn, (waiting[conn].pop(0),), (), 0))
            if not waiting[conn]:
                del waiting[conn]
    return "turn", *deliveries


class Maker:
    """Makes one script."""

    def __init__(self, seed, limited=False):
        self._limited = limited
        self._chance = chance = Random(f"interleaved {seed}")
        # Where the time of an append is free a topic must not keep it.
        shared, own = (
            [properties for properties in given if not (limited and TIMED in properties)] for given in (SHARED, OWN)
        )
        topics = [(f"shared-{number}", PARTITIONS, shared[number % len(shared)]) for number in range(len(SHARED))]
        topics += [(f"own-{conn}", PARTITIONS, chance.choice(own)) for conn in range(CONNECTIONS)]
        self._topics = topics
        self._settings = {"max_ahead_ms": MAX_AHEAD_MS, "auto_create_topics_enable": False}
        if limited:
            self._settings |= chance.choice(LIMITS)
        self._world = World(chance, topics, START_MS, True, True)
        self._world.crowded = limited
        self.sent = {}
        """{(connection, correlation id as bytes): [(topic, partition, base timestamp) of each batch]}, of requests that
        are not damaged."""
        self.senders = {}
        """{base timestamp: connection}, of all batches."""
        self._clients = [Neighbour(self._world, conn, self.sent, self.senders) for conn in range(CONNECTIONS)]
        self._frames = 0
        self._rushing = 0
        """For how many turns all still write to one partition."""

    def script(self, frames):
        steps = []
        while self._frames < frames:
            if self._chance.random() < 0.3:
                later_ms = self._chance.choice((1, 5, 20, 200))
                self._world.now_ms += later_ms
                steps.append(("at", later_ms))
            if self._chance.random() < 0.1:
                steps.append((self._chance.choice(("hold", "release")),))
            steps.append(("turn", *self._turn()))
        if self._limited:
            steps += [("release",), *(("at", later_ms) for later_ms in LAST_STEPS_MS)]
        return {
            "settings": self._settings, "topics": self._topics, "steps": steps, "whole_files": True, "sent": self.sent,
            "senders": self.senders, "is_timing_free": self._limited,
        }  # fmt: skip

    def _turn(self):
        """A few connections with requests of all kinds; or, for some turns, all of them write to one partition."""
        chance = self._chance
        if self._rushing == 0 and chance.random() < 0.2:
            self._rushing = 5
            topic_partition = self._clients[0].choose_shared()
            for client in self._clients:
                client.begin_run(topic_partition)
        if self._rushing:
            self._rushing -= 1
            return self._rush()
        deliveries = []
        for client in chance.choices(self._clients, k=chance.choice((2, 4, 12, 20))):
            frames = [client.next_frame() for _ in range(chance.choice((1, 1, 1, 2, 5)))]
            if chance.random() < 0.03 and not self._limited:
                mutate = chance.choice((flipped, cut_short, lengthened, stuffed))
                frames.append(self._damaged(client, mutate))
            deliveries.append(self._delivery(client, frames))
        return deliveries

    def _damaged(self, client, mutate):
        """A damaged frame with a correlation id that no other frame of its connection has."""
        frame = client.next_frame()
        correlation_id = frame.data[8:12]
        self.sent.pop((client.conn, correlation_id), None)
        data = mutate(self._chance, frame, []).data
        return Frame(data[:8] + correlation_id + data[12:] if len(data) >= 12 else data)

    def _rush(self):
        clients = self._chance.sample(self._clients, self._chance.choice((3, 8, CONNECTIONS)))
        return [self._delivery(client, [client.produce()]) for client in clients]

    def _delivery(self, client, frames):
        self._frames += len(frames)
        return client.conn, tuple(frame.for_driver for frame in frames), (), 0


class Neighbour(Client):
    """A client on one connection: mostly a producer, sometimes a reader."""

    def __init__(self, world, conn, sent, senders):
        super().__init__(world, conn)
        self._sent = sent
        self._senders = senders
        self._own = f"own-{conn}"
        self._batches_left = 0
        self._sequences = {}
        self._last = None

    def next_frame(self):
        chance = self.chance
        kinds = self.produce, self._produce_many, self._fetch_own, self._fetch_shared, self._list, self._ask
        return chance.choices(kinds, (60, 12, 12, 8, 5, 3))[0]()

    def _note(self, frame, batches):
        self._sent[self.conn, frame.data[8:12]] = batches
        return frame

    # --- Produce -------------------------------------------------------------------------------------------------

    def begin_run(self, topic_partition=None):
        """Choose what the next batches have in common."""
        chance = self.chance
        self._batches_left = chance.choice((6, 20))
        self._version = chance.choice((3, 7, 8, 9, 9, 11, 12, 13))
        self._acks = chance.choices((1, -1, 0), (5, 5, 0 if self.world.crowded else 1))[0]
        self._topic_partition = topic_partition or self._choose_topic_partition()
        self._size = chance.choice((None, 127, 128, 68 + chance.randrange(300)))
        self._codec = chance.choice((0, 0, 0, 0, LZ4, ZSTD)) if self._version >= 7 else 0
        self._idempotent = chance.random() < 0.5
        self._wants_ids = chance.random() < 0.4

    def choose_shared(self):
        return f"shared-{self.chance.randrange(len(SHARED))}", self.chance.randrange(PARTITIONS)

    def _choose_topic_partition(self):
        if self.chance.random() < 0.3:
            return self._own, self.chance.randrange(PARTITIONS)
        return self.choose_shared()

    def produce(self):
        if self._batches_left == 0:
            self.begin_run()
        self._batches_left -= 1
        if self._idempotent and self._last is not None and self.chance.random() < 0.1:
            topic, partition, data, mark = self._last
        else:
            topic, partition = self._topic_partition
            data, mark = self._batch(self._topic_partition, self._idempotent)
        if self._idempotent:
            self._last = topic, partition, data, mark
        message = self.message(requests.PRODUCE, self._version)
        topics = [(topic, [(partition, Batch(data))])]
        frame = requests.produce(message, topics, self._acks, wants_ids=self._wants_ids)
        return self._note(frame, [(topic, partition, mark)])

    def _produce_many(self):
        chance = self.chance
        # A request that finds ids for some of its partitions only has errors in others: in which ones is free.
        number = 1 if self.world.crowded else chance.choice((2, 3, 5))
        topic_partitions = {self._choose_topic_partition() for _ in range(number)}
        topics, noted = [], []
        for topic in sorted({topic for topic, _ in topic_partitions}):
            parts = []
            for pair in sorted(pair for pair in topic_partitions if pair[0] == topic):
                data, mark = self._batch(pair, chance.random() < 0.3)
                parts.append((pair[1], Batch(data)))
                noted.append((*pair, mark))
            topics.append((topic, parts))
        message = self.message(requests.PRODUCE, chance.choice((3, 8, 9, 13)))
        return self._note(requests.produce(message, topics, chance.choice((1, -1)), wants_ids=True), noted)

    def _batch(self, topic_partition, idempotent):
        mark = FIRST_MARK_MS + next(self.world.numbers)
        self._senders[mark] = self.conn
        producer = -1, -1, -1
        if idempotent:
            producer = 90_000 + self.conn, 0, self._sequences.get(topic_partition, 0)
        keyed = self.world.keyed(topic_partition[0])
        codec = self._codec if self._batches_left else 0
        if self.world.crowded and not keyed and self.chance.random() < 0.05:
            data = many_small(IDS_PER_MS, mark, producer=producer)
        else:
            size = self._size if self._batches_left else None
            data = good_batch(self.chance, mark, keyed, size, codec=codec, producer=producer)
        if idempotent:
            gap = self.chance.random() < 0.02
            self._sequences[topic_partition] = producer[2] + int.from_bytes(data[57:61], "big") + gap
        return data, mark

    # --- the others ----------------------------------------------------------------------------------------------

    def _fetch_own(self):
        chance = self.chance
        message = self.message(requests.FETCH, chance.choice((4, 7, 11, 12, 13, 16)))
        offset = chance.choice((0, 0, 1, 5, 20))
        return requests.fetch(message, [Wanted(self._own, chance.randrange(PARTITIONS), offset, 5_000)])

    def _fetch_shared(self):
        chance = self.chance
        message = self.message(requests.FETCH, FETCH_VERSION)
        return requests.fetch(message, [Wanted(*self.choose_shared(), chance.choice((0, 3, 30)), 2_000)])

    def _list(self):
        message = self.message(requests.LIST_OFFSETS, self.chance.randrange(1, 9))
        times = -1, -2, -3, FIRST_MARK_MS + self.chance.randrange(1_000)
        topic_partition = self._own, self.chance.randrange(PARTITIONS)
        return requests.list_offsets(message, [(*topic_partition, self.chance.choice(times))])

    def _ask(self):
        if self.chance.random() < 0.5:
            return requests.api_versions(self.message(requests.API_VERSIONS, self.chance.randrange(5)))
        return requests.metadata(self.message(requests.METADATA, self.chance.randrange(1, 14)), (self._own,))
