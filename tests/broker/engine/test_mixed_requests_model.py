"""Requests of all kinds, with threads that end in any order, a disk that runs full, and ids that run out.

Produce requests of every sort share their connections with changes of topics, settings and quotas, and with requests
that are executed in slices. Each request has one answer, in order, and the logs hold what the answers say. A failure
names its seed:

    FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/broker/engine/test_mixed_requests_model.py
"""

import os
from contextlib import suppress
from random import Random

import pytest

from broker.log import log_reader
from broker.log.io_jobs import METADATA_JOBS
from broker.log.validation.open_job import OpenJob
from broker.record.batch import walk
from broker.record.compression import Codec
from broker.record.records import decode_records
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from idgen.errors import SequenceExhausted
from tests.broker.engine.opening_world import OpeningWorld, bomb, large, small_budget, small_slices
from tests.broker.engine_client import (
    ALTER_QUOTAS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INIT_PRODUCER_ID,
    METADATA,
    PRODUCE,
    EngineBroker,
    fetch_request,
)
from tests.broker.handlers.produce_requests import flattened
from tests.broker.quota.test_throttling import altering as quota_of
from tests.broker.services.test_metadata_changes import altering, creating, deleting
from tests.broker.transactional import TransactionalProducer

SEEDS = [int(os.environ["FLAKELOG_SEED"])] if "FLAKELOG_SEED" in os.environ else range(12)
STEPS = 70
CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
PARTITIONS = 2
TOPICS = {
    "plain": {},
    "packed": {"compression_type": "lz4"},
    "stamped": {"flakelog_id_header": "true"},
    "durable": {"flakelog_durable_acks": "true"},
    "timed": {"flakelog_id_header": "true", "message_timestamp_type": "LogAppendTime"},
}
BRIEF = ["brief-%d" % number for number in range(3)]
"""Topics that clients create and delete; what is in them is not looked at."""


class Threads(OpeningWorld):
    """A broker whose threads end when the test says so: jobs of the metadata and of the disk in their order."""

    def __init__(self, *args, **settings):
        self.holds = False
        super().__init__(*args, **settings)

    def run(self, sync):
        if self.holds or isinstance(sync, OpenJob):
            self.jobs.append(sync)
        else:
            super().run(sync)

    def finish(self, number=0):
        """End a job; one of the metadata or of the disk is the first of its kind."""
        wanted = self.jobs[number]
        if not isinstance(wanted, OpenJob):
            kind = isinstance(wanted, METADATA_JOBS)
            wanted = next(
                job for job in self.jobs
                if not isinstance(job, OpenJob) and isinstance(job, METADATA_JOBS) == kind
            )  # fmt: skip
        self.jobs.remove(wanted)
        EngineBroker.run(self, wanted)
        self.pump()


class SentRequest:
    """A request of a client: `parts` are [(topic, partition, mark)] of its batches."""

    def __init__(self, number, parts=(), silent=False):
        self.number = number
        self.parts = parts
        self.silent = silent


class Play:
    """A run of one seed."""

    def __init__(self, seed):
        self.chance = Random(seed)
        self.broker = Threads(
            max_ahead_ms=self.chance.choice((0, 500)),
            max_inflight_requests=self.chance.choice((2, 5, 100)),
            max_queued_bytes=self.chance.choice((65_536, 1 << 20)),
            queued_max_request_bytes=self.chance.choice((-1, 5_000, 100_000)),
        )
        for name, settings in TOPICS.items():
            self.broker.create(name, PARTITIONS, **settings)
        self.payments = TransactionalProducer(self.broker)
        assert self.payments.init() == 0
        assert self.payments.add(*[(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]) == 0
        self.payer = self.payments.client
        self.sequences = {}
        """By (client, topic, partition), without a client for the transaction: the next sequence, the last batch."""
        self.again = set()
        """The marks of batches that were sent again."""
        self.sent = {}
        self.marks = 0
        self.rubbish = set()
        """The marks of batches that a broker must refuse."""
        self.owner = {}
        """By mark, (client, its producer id or None)."""
        self.outcome = {}
        """By mark, (error code, base offset) of its answer."""
        self.silent = set()
        self.lost = set()
        self.clients = [self.payer, *[self.connect() for _ in range(3)]]
        self.broker.holds = True

    def connect(self):
        client = self.broker.connect(self.chance.choice(("one", "two")))
        self.sent[client] = []
        return client

    # --- steps ---------------------------------------------------------------------------------------------------

    def play(self):
        self.sent[self.payer] = []
        steps = [self.turn] * 12 + [self.finish] * 10 + [self.close, self.spend, self.wait, self.disk, self.fail]
        for _ in range(STEPS):
            self.chance.choice(steps)()
            self.check_answers()
            if self.chance.random() < 0.1:
                self.broker.storage.free_bytes = None
        self.settle()
        self.check_logs()

    def turn(self):
        """Several connections send in one turn of the reactor, some of them several requests."""
        with self.broker.turn():
            for client in self.chance.sample(self.clients, self.chance.choice((1, 1, 2, 3))):
                pieces = b"".join(self.request(client) for _ in range(self.chance.choice((1, 1, 2, 5))))
                cut = self.chance.randrange(len(pieces)) if self.chance.random() < 0.3 else 0
                if cut:
                    client.feed(pieces[:cut])
                    if self.chance.random() < 0.5:
                        self.broker.execute()
                client.feed(pieces[cut:])

    def request(self, client):
        luck = self.chance.random()
        if luck < 0.65:
            return self.produce(client)
        number, frame = client.frame(*self.cold())
        self.sent[client].append(SentRequest(number))
        return frame

    def cold(self):
        """Return a request of another API: a change, or a large one, or one that waits."""
        chance = self.chance
        names = [{"name": "no-such-topic-%d" % number} for number in range(900)]
        return chance.choice((
            lambda: (METADATA, 1, {"topics": []}),
            lambda: (METADATA, 4, {"topics": names, "allow_auto_topic_creation": False}),
            lambda: (DELETE_TOPICS, 6, {"topics": [topic | {"topic_id": None} for topic in names], "timeout": 30_000}),
            lambda: (DESCRIBE_CONFIGS, 1, {
                "resources": [{"resource_type": 2, "resource_name": topic["name"], "configuration_keys": None}
                              for topic in names],
                "include_synonyms": False}),
            lambda: (FETCH, 12, fetch_request(chance.choice(list(TOPICS)), 10_000_000)),
            lambda: (FETCH, 12, fetch_request("plain", 0, max_wait_ms=50, min_bytes=1 << 20)),
            lambda: (INIT_PRODUCER_ID, 2, {"transactional_id": None, "transaction_timeout": 1_000}),
            lambda: creating(chance.choice(BRIEF), timeout=chance.choice((10, 30_000))),
            lambda: creating(chance.choice(BRIEF), partitions=3),
            lambda: deleting(chance.choice(BRIEF)),
            lambda: altering(chance.choice(["packed"]), compression_type=chance.choice(("zstd", "producer", "gzip"))),
            lambda: altering(chance.choice(BRIEF), retention_ms=chance.choice((60_000, 90_000))),
            lambda: (ALTER_QUOTAS, 1, quota_of(
                [("client-id", "two")], producer_byte_rate=chance.choice((None, 2_000.0, 100_000.0)))),
        ))()  # fmt: skip

    def produce(self, client):
        """Return the bytes of a Produce."""
        chance = self.chance
        acks = 0 if chance.random() < 0.05 else chance.choice((1, -1))
        topics = sorted(chance.choice([*TOPICS] * 3 + BRIEF) for _ in range(chance.choice((1, 1, 1, 2, 3))))
        parts, records = [], []
        kind = chance.choice(("usual", "usual", "idempotent", "transactional" if client is self.payer else "usual"))
        for topic in topics:
            partition = chance.randrange(PARTITIONS)
            if kind == "usual" or any(part[:2] == (topic, partition) for part in parts):
                mark, batch = self.batch({})
                if kind == "transactional":
                    continue
            else:
                mark, batch = self.in_sequence(client, topic, partition, kind == "transactional")
            self.owner.setdefault(mark, client)
            parts.append((topic, partition, mark))
            records.append((topic, partition, memoryview(batch)))
        name = self.payments.transactional_id if kind == "transactional" else None
        number, frame = client.frame(PRODUCE, 9, ProduceRequest(name, acks, chance.choice((20, 500)), records, False))
        self.sent[client].append(SentRequest(number, parts, acks == 0))
        return frame

    def in_sequence(self, client, topic, partition, transactional):
        """Return the next batch of a producer, or its last one again."""
        key = None if transactional else client, topic, partition
        sequence, last = self.sequences.get(key, (0, None))
        if last is not None and self.chance.random() < 0.3:
            self.again.add(last[0])
            return last
        if transactional:
            producer_id, epoch = self.payments.id, self.payments.epoch
        else:
            producer_id, epoch = 1_000_000 + list(self.sent).index(client), 0
        mark, batch = self.batch(
            {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence,
             "transactional": transactional}, rubbish=False,
        )  # fmt: skip
        count = int.from_bytes(batch[57:61], "big")
        self.sequences[key] = sequence + count, (mark, batch)
        return mark, batch

    def batch(self, fields, rubbish=True):
        self.marks += 1
        luck, value = self.chance.random(), b"mark %d" % self.marks
        codec = self.chance.choice(list(Codec))
        if rubbish and luck < 0.07:
            self.rubbish.add(self.marks)
            return self.marks, bomb(b"\x07rubbish" * 5_000, self.chance.choice((3, 900)), codec)
        count = self.chance.choice((5, 30, 200)) if luck < 0.5 else 0
        return self.marks, large(value, count=count, codec=codec, **fields)

    def finish(self):
        if self.broker.jobs:
            self.broker.finish(self.chance.randrange(len(self.broker.jobs)))

    def close(self):
        client = self.chance.choice(self.clients)
        self.take(client)
        if client.closed is None:
            self.broker.engine.closed(client.conn)
            self.broker.pump()
            self.replace(client)

    def replace(self, client):
        for request in self.sent[client]:
            self.lost |= {mark for _, _, mark in request.parts}
        self.sent[client] = []
        new = self.connect()
        if client is self.payer:
            self.payer = new
        self.clients[self.clients.index(client)] = new

    def spend(self):
        """Take ids, so that some requests find none for a while."""
        worker = self.broker.worker
        with suppress(SequenceExhausted):
            worker.next_ids(self.chance.randrange(1, worker.max_batch), self.broker.now.wall_ms)

    def wait(self):
        self.broker.at(self.broker.now_ms + self.chance.choice((1, 20, 100, 2_000, 31_000)))

    def disk(self):
        """The disk runs full, or has space again."""
        storage = self.broker.storage
        storage.free_bytes = self.chance.choice((0, 3_000, 20_000)) if storage.free_bytes is None else None

    def fail(self):
        """The next write of the metadata fails."""
        storage = self.broker.storage
        before, storage.free_bytes = storage.free_bytes, 0
        for job in self.broker.jobs:
            if isinstance(job, METADATA_JOBS):
                self.broker.finish(self.broker.jobs.index(job))
                break
        storage.free_bytes = before

    # --- what must hold ------------------------------------------------------------------------------------------

    def check_answers(self):
        self.broker.pump()
        for client in list(self.clients):
            self.take(client)
            if client.closed is not None:
                assert client.closed.startswith("a Produce with acks=0 failed"), client.closed
                self.replace(client)
        for line in self.broker.reported:
            assert "fault of the broker" not in line, line
            assert "offline" not in line, line

    def take(self, client):
        """Answers come in the order of their requests, and each request has one, except with acks=0."""
        waiting = self.sent[client]
        for number, answer in client.replies():
            while waiting and waiting[0].silent:
                self.silent |= {mark for _, _, mark in waiting.pop(0).parts}
            request = waiting.pop(0)
            assert number == request.number, f"answer {number} came, {request.number} is next"
            if request.parts:
                for (topic, _, mark), result in zip(request.parts, answer, strict=True):
                    assert mark in self.rubbish or result.error_code not in CORRUPT, result
                    if topic in TOPICS and self.outcome.get(mark, (1,))[0]:
                        self.outcome[mark] = result.error_code, result.base_offset
                    elif topic in TOPICS and result.error_code == 0:
                        assert self.outcome[mark][1] == result.base_offset

    def settle(self):
        """Let all jobs end and all ids come: each request is answered."""
        self.broker.storage.free_bytes = None
        for _ in range(300):
            self.broker.finish_all()
            self.broker.at(self.broker.now_ms + 50)
            self.check_answers()
        for _ in range(20):  # the longest throttle time
            self.broker.finish_all()
            self.broker.at(self.broker.now_ms + 5_000)
            self.check_answers()
        unanswered = {
            client: [request.number for request in requests if not request.silent]
            for client, requests in self.sent.items()
        }
        assert not any(unanswered.values()), unanswered
        for requests in self.sent.values():
            self.silent |= {mark for request in requests for _, _, mark in request.parts}
        turn, memory = self.broker.services.turn, self.broker.engine.channel.memory
        assert not turn.reserved and not turn.requests and not self.broker.engine.has_work
        assert not memory.claimed_bytes and not memory._waiting
        for client in self.clients:
            conn = client.conn
            assert conn.opened is None and conn.readable and conn.wants_data and not conn.slots and not conn.staged
            assert not conn.queued_bytes and conn.behind is None

    def check_logs(self):
        """Each acknowledged batch is there once, where its answer says; no refused one is; ids rise."""
        everywhere = {}
        for topic in TOPICS:
            for partition in range(PARTITIONS):
                base_offsets = self.found_in(topic, partition)
                assert not everywhere.keys() & base_offsets.keys(), "a batch is there twice"
                everywhere |= base_offsets
                by_client = {}
                for mark in [mark for mark in base_offsets if mark not in self.again]:
                    by_client.setdefault(self.owner[mark], []).append(mark)
                for marks in by_client.values():
                    assert marks == sorted(marks), "out of order"
        for mark, (code, offset) in self.outcome.items():
            if code == 0:
                assert everywhere.get(mark) == offset, f"mark {mark} was answered with {offset}"
            elif code != ErrorCode.REQUEST_TIMED_OUT:  # that may be the disk's, and then the batch is in the log
                assert mark not in everywhere or mark in self.silent | self.lost | self.again, (mark, code)

    def found_in(self, topic, partition):
        """Return the base offsets of a partition's batches by their marks."""
        log = self.broker.log(topic, partition)
        ids = flattened(log_reader.ids_of(log, 0, log.log_end_offset))
        assert ids == sorted(set(ids)) and len(ids) == log.log_end_offset
        reader = self.broker.connect("reader")
        records = reader.ask(FETCH, 12, fetch_request(topic, partition=partition, max_bytes=1 << 30))
        data, offset, base_offsets = records.partitions[0].records, 0, {}
        for position, header in walk(data):
            assert header.base_offset == offset
            offset = header.last_offset + 1
            if header.is_control:
                continue
            opened = decode_records(data, position)
            if "flakelog_id_header" in TOPICS[topic]:
                assert [int(record.headers[-1][1]) for record in opened] == ids[header.base_offset : offset]
            mark = int(opened[-1].value.split()[1])
            assert mark not in base_offsets, "a batch is there twice"
            base_offsets[mark] = header.base_offset
        self.broker.engine.closed(reader.conn)
        return base_offsets


@pytest.mark.parametrize("seed", SEEDS)
def test_requests_of_all_kinds_are_answered_once_and_in_order(seed, monkeypatch):
    small_budget(monkeypatch)
    if seed % 2:
        small_slices(monkeypatch, 1)
    Play(seed).play()


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 2_000, 500))
def test_the_same_for_two_thousand_seeds(first, monkeypatch):
    small_budget(monkeypatch)
    for seed in range(first, first + 500):
        with monkeypatch.context() as patch:
            if seed % 2:
                small_slices(patch, 1)
            Play(seed).play()
