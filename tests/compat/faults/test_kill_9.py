"""kill -9 of the broker at random moments under load: acknowledged batches survive with their ids.

`make test` kills it eight times, `make soak` fifty times with each of two seeds. One topic is plain, one is durable.

The page cache outlives the process, so no acknowledged batch may be missing, even without a sync.
Ids rise with the offset in each partition, and no id is given twice, over all runs and together with the id service
(section 4). A failure prints the command that repeats its choices; the command does not repeat its races.
"""

import os
import random
import threading
import time
from itertools import pairwise

import pytest
from confluent_kafka import KafkaException, Producer

from broker.client.blocking import Client
from broker.client.core import EARLIEST, LATEST
from broker.client.errors import Unreachable
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from idgen.client.blocking import IdClient
from idgen.errors import IdError
from tests.compat.server_process import ServerProcess
from tests.patience import MS, SECONDS, until

KILLS = 8
SOAK_KILLS, SOAK_SEEDS = 50, (1, 2)
SEED = int(os.environ.get("FLAKELOG_KILL_SEED", "9"))
TOPICS = {"kill-a": 2, "kill-b": 3}
PARTITIONS = [(topic, partition) for topic, partitions in TOPICS.items() for partition in range(partitions)]
DURABLE = "kill-b"
IDEMPOTENT = "kill-idempotent"
# Small values, so that some kills hit the broker during rolls, checkpoints and index writes.
SETTINGS = {
    "log.segment.bytes": 400_000,
    "log.index.interval.bytes": 1024,
    "log.flush.offset.checkpoint.interval.ms": 200,
}


class Load:
    """State that all producers share: whether to stop, whether the server is up, and the acknowledged batches."""

    def __init__(self):
        self.stopped = threading.Event()
        self.up = threading.Event()
        self.acknowledged = {at: [] for at in PARTITIONS}  # (base offset, id runs, values)
        self._count = 0
        self._counted = threading.Condition()
        self.served_ids = []
        self.faults = []

    def run(self, target, *args):
        def guarded():
            try:
                target(self, *args)
            except Exception as fault:
                self.faults.append(fault)
                raise

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def acked(self, at, base_offset, runs, values):
        with self._counted:
            self.acknowledged[at].append((base_offset, runs, values))
            self._count += 1
            self._counted.notify_all()

    def wait_for_more(self, batches):
        """Wait until `batches` more batches are acknowledged or a producer fails; return False after a deadline."""
        with self._counted:
            wanted = self._count + batches
            return self._counted.wait_for(lambda: self._count >= wanted or self.faults, SECONDS)

    def snapshot(self):
        with self._counted:
            return {at: list(batches) for at, batches in self.acknowledged.items()}


def produce(load, name, address, seed):
    """Produce batches of all sizes and codecs. A failed batch is not retried: it has no ack and may be in the log."""
    chance = random.Random(seed)
    number = 0
    with Client(address) as client:
        while not load.stopped.is_set():
            load.up.wait(SECONDS)
            number += 1
            size = chance.choice([1, 1, 1, 3, 20, 100, 400])
            padding = bytes(chance.randrange(0, 400))
            values = [b"%s %d %d %s" % (name, number, each, padding) for each in range(size)]
            records = [BatchRecord(each, each, None, value, ()) for each, value in enumerate(values)]
            batch = encode_batch(records, base_timestamp_ms=int(time.time() * 1000), codec=chance.choice(list(Codec)))
            at = chance.choice(PARTITIONS)
            try:
                result = client.produce(*at, batch)
            except Unreachable:
                continue
            load.acked(at, result.base_offset, result.runs, values)


def ask_ids(load, address):
    """Get ids by RPC until the load stops."""
    with IdClient(address, timeout_ms=MS) as client:
        while not load.stopped.is_set():
            load.up.wait(SECONDS)
            try:
                load.served_ids.extend(client.get_ids(50))
            except (ConnectionError, IdError):
                continue


def produce_idempotent(load, address, delivered):
    """Produce with librdkafka, which resends unacknowledged messages with the same sequence numbers (KIP-98)."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": 2,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 10,
            "message.timeout.ms": MS,
            "log_level": 0,
        }
    )

    def on_delivery(error, message):
        if error is not None:
            load.faults.append(KafkaException(error))
        else:
            delivered[message.offset()] = message.value()

    number = 0
    while not load.stopped.is_set():
        load.up.wait(SECONDS)
        producer.poll(0.002)
        if len(producer) < 200:
            for _ in range(10):
                number += 1
                producer.produce(IDEMPOTENT, b"%d" % number, partition=0, on_delivery=on_delivery)
    assert producer.flush(SECONDS) == 0, "some messages were never delivered"
    assert len(delivered) == number


def read(client, at, start, end):
    """Return all records from `start` to before `end`."""
    found = []
    while start < end:
        records, following = client.fetch(*at, start)
        assert following > start, f"nothing at offset {start} of {at}, which ends at {client.find_offset(*at, LATEST)}"
        found += [record for record in records if record.offset < end]
        start = following
    return found


def check(client, at, acknowledged, start=0):
    """Check that each batch from offset `start` on is stored at its acknowledged offset with its ids."""
    batches = sorted(batch for batch in acknowledged if batch[0] >= start)
    if not batches:
        return
    first = batches[0][0]
    records = read(client, at, first, batches[-1][0] + len(batches[-1][2]))
    by_offset = {record.offset: record for record in records}
    for base_offset, runs, values in batches:
        ids = [first_id + each for first_id, count in runs for each in range(count)]
        stored = [by_offset[base_offset + each] for each in range(len(values))]
        assert [record.value for record in stored] == values
        assert [record.id for record in stored] == ids


def kill_somewhere(server, load, chance):
    """Kill the server at a random moment under load, and sometimes again while it starts."""
    load.up.set()
    assert load.wait_for_more(chance.randrange(1, 100)), f"no batch is acknowledged any more: {server.log}"
    load.stopped.wait(chance.uniform(0, 0.2))
    load.up.clear()
    server.kill()
    if chance.random() < 0.25:
        server.launch()
        load.stopped.wait(chance.uniform(0, 0.4))
        server.kill()


def test_what_was_acknowledged_outlives_eight_kills_with_its_ids(tmp_path):
    print(f"replay: FLAKELOG_KILL_SEED={SEED} .venv/bin/python -m pytest tests/compat/faults/test_kill_9.py")
    kill_under_load(tmp_path, SEED, KILLS)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_what_was_acknowledged_outlives_fifty_kills_with_its_ids(tmp_path, seed):
    kill_under_load(tmp_path, seed, SOAK_KILLS)


def kill_under_load(tmp_path, seed, kills):
    """Kill a server under load `kills` times, and check after each start what was acknowledged before."""
    chance = random.Random(seed)
    load, delivered = Load(), {}
    with ServerProcess(tmp_path / "data", SETTINGS).keep_ports() as server:
        address = server.address
        with Client(address) as client:
            for topic, partitions in (TOPICS | {IDEMPOTENT: 1}).items():
                client.create_topic(topic, partitions, {"flakelog.durable.acks": str(topic == DURABLE).lower()})
        threads = [load.run(produce, b"producer-%d" % each, address, seed * 100 + each) for each in range(3)]
        threads += [load.run(ask_ids, server.ids), load.run(produce_idempotent, address, delivered)]
        checked = dict.fromkeys(PARTITIONS, 0)
        for _ in range(kills):
            kill_somewhere(server, load, chance)
            known = load.snapshot()
            server.start()
            assert not load.faults, load.faults
            with Client(address) as client:
                for at, batches in known.items():
                    check(client, at, batches, checked[at])
                    checked[at] = max([0] + [batch[0] for batch in batches])
        load.up.set()
        until(lambda: load.served_ids, "an id by RPC")
        load.stopped.set()
        for thread in threads:
            thread.join(SECONDS)
        assert not load.faults, load.faults
        with Client(address) as client:
            check_everything(client, load, delivered)


def test_a_clean_stop_under_load_leaves_nothing_to_recover(tmp_path):
    """After SIGTERM under the same load, the next start recovers nothing and prints only its `ready:` line."""
    load = Load()
    with ServerProcess(tmp_path / "data", SETTINGS).keep_ports() as server:
        with Client(server.address) as client:
            for topic, partitions in TOPICS.items():
                client.create_topic(topic, partitions, {"flakelog.durable.acks": str(topic == DURABLE).lower()})
        load.up.set()
        threads = [load.run(produce, b"producer-%d" % each, server.address, each) for each in range(3)]
        assert load.wait_for_more(100), server.log
        load.up.clear()
        assert server.stop() == 0
        load.stopped.set()
        mark = server.mark()
        server.start()
        assert [line for line in server.log_since(mark).splitlines() if not line.startswith("ready: ")] == []
        load.up.set()
        for thread in threads:
            thread.join(SECONDS)
        assert not load.faults, load.faults
        with Client(server.address) as client:
            for at, batches in load.acknowledged.items():
                check(client, at, batches)


def check_everything(client, load, delivered):
    logs = {}
    for at in [*PARTITIONS, (IDEMPOTENT, 0)]:
        assert client.find_offset(*at, EARLIEST) == 0
        logs[at] = read(client, at, 0, client.find_offset(*at, LATEST))
        assert [record.offset for record in logs[at]] == list(range(len(logs[at]))), f"offsets of {at} have a gap"
        assert all(one.id < other.id for one, other in pairwise(logs[at])), f"ids of {at} do not rise"
    for at, acknowledged in load.acknowledged.items():
        assert acknowledged, f"nothing was acknowledged in {at}: this test tested nothing"
        check(client, at, acknowledged)
    stored = [record.value for record in logs[IDEMPOTENT, 0]]
    assert stored == [b"%d" % number for number in range(1, len(stored) + 1)], "an idempotent message twice, or lost"
    assert delivered == dict(enumerate(stored))
    ids = [record.id for records in logs.values() for record in records] + load.served_ids
    assert len(set(ids)) == len(ids), "an id was given twice"
