"""Any requests, with threads that end in any order, lead to what a plain model of the broker says.

Several connections send small batches, which the reactor thread checks, and large ones, which threads open. Meanwhile
topics are deleted and made again, connections are closed, settings are altered, and ids run out. A failure names its
seed:

    FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/broker/engine/test_batch_opening_model.py
"""

import os
from contextlib import suppress
from random import Random

import pytest

from broker.log import log_reader
from broker.record.batch import walk
from broker.record.compression import Codec
from broker.record.records import decode_records
from broker.wire.errors import ErrorCode
from broker.wire.produce import ProduceRequest
from idgen.errors import SequenceExhausted
from tests.broker.engine.opening_world import OpeningWorld, bomb, large, small_budget, small_slices
from tests.broker.engine_client import FETCH, METADATA, PRODUCE, fetch_request
from tests.broker.handlers.produce_requests import LONG_ID, flattened

SEEDS = [int(os.environ["FLAKELOG_SEED"])] if "FLAKELOG_SEED" in os.environ else range(20)
STEPS = 60
TOPICS = {
    "plain": {},
    "packed": {"compression_type": "lz4"},
    "stamped": {"flakelog_id_header": "true"},
    "both": {"flakelog_id_header": "true", "compression_type": "gzip", "cleanup_policy": "compact"},
    "timed": {"flakelog_id_header": "true", "message_timestamp_type": "LogAppendTime"},
}
CORRUPT = ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE
REFUSED = {
    ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.REQUEST_TIMED_OUT, ErrorCode.MESSAGE_TOO_LARGE,
}  # fmt: skip


class Play:
    """A run of one seed."""

    def __init__(self, seed):
        self.chance = Random(seed)
        self.broker = OpeningWorld(max_ahead_ms=self.chance.choice((0, 500)))
        for name, settings in TOPICS.items():
            self.broker.create(name, 2, **settings)
        self.clients = [self.connect() for _ in range(4)]
        self.sent = {}
        """By client, the requests that wait for answers, in order: (correlation id, [(topic, partition, mark)])."""
        self.marks = 0
        self.rubbish = set()
        """The marks of batches that a broker must refuse."""
        self.answered = {}
        """By mark, the error code that its batch was answered with."""
        self.appended = set()
        """The marks of batches that must be in a log; those of deleted topics are taken out."""
        self.lost = set()
        """The marks whose connection was closed before they were answered: they may be in the log or not."""

    def connect(self):
        return self.broker.connect(self.chance.choice(("one", "two", LONG_ID)))

    # --- steps ---------------------------------------------------------------------------------------------------

    def play(self):
        steps = [self.send] * 10 + [self.finish] * 6 + [self.turn] * 3
        steps += [self.close, self.delete, self.alter, self.spend, self.wait]
        for _ in range(STEPS):
            self.chance.choice(steps)()
            self.check_answers()
        self.settle()
        self.check_logs()

    def send(self):
        client = self.chance.choice(self.clients)
        if self.chance.random() < 0.1:
            number = client.send(METADATA, 1, {"topics": []})
            self.sent.setdefault(client, []).append((number, []))
            return
        number, frames, parts = self.request(client)
        self.sent.setdefault(client, []).append((number, parts))
        client.feed(frames)

    def turn(self):
        """Several connections send in one turn of the reactor, some of them several requests."""
        with self.broker.turn():
            for client in self.chance.sample(self.clients, self.chance.randrange(1, 4)):
                pieces = b""
                for _ in range(self.chance.randrange(1, 4)):
                    number, frame, parts = self.request(client)
                    self.sent.setdefault(client, []).append((number, parts))
                    pieces += frame
                cut = self.chance.randrange(len(pieces)) if self.chance.random() < 0.3 else 0
                if cut:
                    client.feed(pieces[:cut])
                client.feed(pieces[cut:])

    def request(self, client):
        """Return a Produce: its correlation id, its bytes, and its batches' topics, partitions and marks."""
        parts, records = [], []
        topics = sorted(self.chance.choice(list(TOPICS)) for _ in range(self.chance.choice((1, 1, 1, 2, 3))))
        for topic in topics:  # sorted, because a request has the partitions of a topic together
            partition = self.chance.randrange(2)
            self.marks += 1
            parts.append((topic, partition, self.marks))
            records.append((topic, partition, memoryview(self.batch(self.marks))))
        number, frame = client.frame(PRODUCE, 9, ProduceRequest(None, self.chance.choice((1, -1)), 500, records, False))
        return number, frame, parts

    def batch(self, mark):
        """Return a batch whose last record names its mark, or with rubbish in place of records."""
        luck, value = self.chance.random(), b"mark %d" % mark
        codec = self.chance.choice(list(Codec))
        if luck < 0.1:
            self.rubbish.add(mark)
            return bomb(b"\x07rubbish" * 5_000, self.chance.choice((3, 900)), codec)
        if luck < 0.55:
            return large(value, count=self.chance.choice((5, 30, 200)), codec=codec)
        return large(value, count=0, codec=codec)

    def finish(self):
        if self.broker.jobs:
            self.broker.finish(self.chance.randrange(len(self.broker.jobs)))

    def close(self):
        client = self.chance.choice(self.clients)
        self.take(client)
        for _, parts in self.sent.pop(client, []):
            self.lost |= {mark for _, _, mark in parts}
        self.broker.engine.closed(client.conn)
        self.broker.pump()
        self.clients[self.clients.index(client)] = self.connect()

    def delete(self):
        """Delete a topic with its records, and make it again."""
        topic = self.chance.choice(list(TOPICS))
        self.check_logs([topic])
        marks = self.marks_in(topic)
        self.appended -= marks
        self.lost |= {mark for sent in self.sent.values() for _, parts in sent for _, _, mark in parts}
        self.broker.delete(topic)
        self.broker.create(topic, 2, **TOPICS[topic])

    def alter(self):
        topic = self.broker.services.metadata.topic(self.chance.choice(list(TOPICS)))
        properties = dict(topic.properties) | {"compression.type": self.chance.choice(("zstd", "producer", "gzip"))}
        self.broker.alter(topic.name, properties)

    def spend(self):
        """Take ids, so that some requests find none for a while."""
        worker = self.broker.worker
        with suppress(SequenceExhausted):
            worker.next_ids(self.chance.randrange(1, worker.max_batch), self.broker.now.wall_ms)

    def wait(self):
        self.broker.at(self.broker.now_ms + self.chance.choice((1, 20, 100)))

    # --- what must hold ------------------------------------------------------------------------------------------

    def check_answers(self):
        for client in self.clients:
            self.take(client)
        assert not self.broker.reported, self.broker.reported

    def take(self, client):
        """Answers come in the order of their requests, and each request has one."""
        assert client.closed is None, client.closed
        for number, answer in client.replies():
            expected, parts = self.sent[client].pop(0)
            assert number == expected, f"answer {number} came, {expected} is next"
            for (_, _, mark), result in zip(parts, answer if parts else (), strict=True):
                assert result.error_code == 0 or result.error_code in REFUSED, result
                assert mark in self.rubbish or result.error_code not in CORRUPT, result
                self.answered[mark] = result.error_code
                if result.error_code == 0 and mark not in self.lost:
                    self.appended.add(mark)

    def settle(self):
        """Let all jobs end and all ids come: each request is answered, and no log is reserved."""
        for _ in range(200):
            self.broker.finish_all()
            self.broker.at(self.broker.now_ms + 20)
            self.check_answers()
        assert not any(self.sent.values()), self.sent
        assert not self.broker.services.turn.reserved and not self.broker.services.turn.requests
        assert all(client.conn.opened is None and client.conn.readable for client in self.clients)

    def check_logs(self, topics=TOPICS):
        """Each acknowledged batch is there once, in the order of its connection; no refused one is; ids rise."""
        everywhere = set()
        for topic in topics:
            marks = self.marks_in(topic)
            assert not marks & everywhere
            everywhere |= marks
        refused = {mark for mark, code in self.answered.items() if code}
        assert not everywhere & refused, {mark: self.answered[mark] for mark in everywhere & refused}
        if set(topics) == set(TOPICS):
            assert self.appended <= everywhere, "acknowledged, and not in the log"

    def marks_in(self, topic):
        marks = []
        for partition in range(2):
            log = self.broker.log(topic, partition)
            ids = flattened(log_reader.ids_of(log, 0, log.log_end_offset))
            assert ids == sorted(set(ids)) and len(ids) == log.log_end_offset
            reader = self.broker.connect()
            records = reader.ask(FETCH, 12, fetch_request(topic, partition=partition, max_bytes=1 << 30))
            data, offset = records.partitions[0].records, 0
            for position, header in walk(data):
                assert header.base_offset == offset
                offset = header.last_offset + 1
                opened = decode_records(data, position)
                if "flakelog_id_header" in TOPICS[topic]:
                    assert [int(record.headers[-1][1]) for record in opened] == ids[header.base_offset : offset]
                marks.append(int(opened[-1].value.split()[1]))
            self.broker.engine.closed(reader.conn)
        assert len(marks) == len(set(marks)), "a batch is there twice"
        return set(marks)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_threads_and_clients_do_nothing_is_lost_doubled_or_out_of_order(seed, monkeypatch):
    small_budget(monkeypatch)
    if seed % 2:
        small_slices(monkeypatch, 1)
    Play(seed).play()


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 10_000, 1_000))
def test_the_same_for_ten_thousand_seeds(first, monkeypatch):
    small_budget(monkeypatch)
    for seed in range(first, first + 1_000):
        Play(seed).play()
