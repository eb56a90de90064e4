"""ZooKeeper is killed with SIGKILL and started again under a topology that keeps its progress there."""

import signal
from itertools import count

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from coordination.port import Get
from coordination.zookeeper import ZooKeeperCoordinator
from partition_manager.offset_document import OffsetDocument
from tests.compat.storm.test_spout_progress import Lines
from tests.patience import MS, until

TOPICS = count()
NODE = "/flakelog-spouts/lines.log/partition_0"


class Reading:
    """A topic of numbers, a ZooKeeper, and the topology that reads the topic and keeps its progress there."""

    def __init__(self, address, topic, directory):
        self.address, self.topic, self.directory = address, topic, directory
        self.zookeeper = EmbeddedZooKeeper(directory / "zookeeper")
        self.store = f"zookeeper://{self.zookeeper.hosts}/spouts"
        self.client = Client(address)
        self.client.create_topic(topic)
        self.sent = 0
        self.runs = []

    def start(self):
        with open(self.directory / "log", "a") as log:
            self.runs.append(Lines(self.address, self.store, self.topic, log_file=log))
        return self.runs[-1]

    def send(self, number):
        numbers = range(self.sent, self.sent + number)
        records = [BatchRecord(at, 0, None, b"%d" % each) for at, each in enumerate(numbers)]
        self.client.produce(self.topic, 0, encode_batch(records, base_timestamp_ms=1))
        self.sent += number
        return list(numbers)

    def read(self, number):
        return [int(self.runs[-1].next()[1]) for _ in range(number)]

    def stop(self, how=signal.SIGTERM):
        """End the topology; return the messages that were not read yet."""
        return [int(value) for _, value in self.runs[-1].stop(how)]

    def await_log(self, text):
        until(lambda: text in (self.directory / "log").read_text(), what=f"{text!r} in the log")

    def await_stored(self, offset):
        """Wait until ZooKeeper has stored the progress up to an offset."""
        session = ZooKeeperCoordinator(f"{self.zookeeper.hosts}/spouts", connect_timeout_ms=MS)
        try:
            until(lambda: OffsetDocument.decode(session.execute(Get(NODE)).data).progress.offset == offset, "progress")
        finally:
            session.close()

    def close(self):
        for run in self.runs:
            run.__exit__()
        self.client.close()
        self.zookeeper.kill()


# The log names a ZooKeeper that does not answer after 10 to 15 seconds.
LONG_AWAY = pytest.mark.parametrize("long_away", [False, pytest.param(True, marks=pytest.mark.soak)])


@pytest.fixture
def reading(broker, tmp_path):
    reading = Reading(broker.address, f"killed-{next(TOPICS)}", tmp_path)
    yield reading
    reading.close()


@LONG_AWAY
def test_a_topology_reads_on_while_zookeeper_is_away_and_stores_its_progress_when_it_is_back(reading, long_away):
    reading.zookeeper.start()
    wanted = reading.send(100)
    reading.start()
    found = reading.read(100)
    reading.await_stored(100)
    reading.zookeeper.kill()
    wanted += reading.send(100)
    found += reading.read(100)
    if long_away:
        reading.await_log("SaveOffset failed: zookeeper://")
    reading.zookeeper.start()
    if long_away:
        reading.await_log("SaveOffset works again")
    wanted += reading.send(100)
    found += reading.read(100)
    found += reading.stop()
    assert found == wanted, "each message once, in order"
    (last,) = reading.send(1)
    reading.start()
    assert reading.read(1) == [last], "the progress is stored"


@LONG_AWAY
def test_killed_together_with_zookeeper_a_topology_repeats_only_what_was_not_stored(reading, long_away):
    reading.zookeeper.start()
    reading.send(100)
    reading.start()
    reading.read(100)
    reading.await_stored(100)
    reading.zookeeper.kill()
    again = reading.send(100)
    assert reading.read(100) == again
    reading.stop(signal.SIGKILL)
    reading.start()
    if long_away:
        reading.await_log("LoadOffset failed: zookeeper://")
    reading.zookeeper.start()
    assert reading.read(100) == again
    reading.await_stored(200)
    assert reading.stop() == []


@pytest.mark.soak
def test_killed_again_and_again_zookeeper_costs_no_message(reading):
    reading.zookeeper.start()
    wanted = reading.send(1)
    reading.start()
    found = reading.read(1)
    for _ in range(10):
        wanted += reading.send(500)
        reading.zookeeper.kill()
        found += reading.read(250)
        reading.zookeeper.start()
        found += reading.read(250)
    found += reading.stop()
    assert found == wanted
    reading.await_stored(5_001)


@pytest.mark.soak
def test_a_topology_that_stops_while_zookeeper_is_away_says_what_comes_again(reading):
    reading.zookeeper.start()
    reading.send(100)
    reading.start()
    reading.read(100)
    reading.await_stored(100)
    reading.zookeeper.kill()
    again = reading.send(100)
    assert reading.read(100) == again
    assert reading.stop() == []
    reading.await_log("progress could not be stored: the messages it covers come again at the next start")
    reading.zookeeper.start()
    reading.start()
    assert reading.read(100) == again
