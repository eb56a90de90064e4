"""A start on a full disk after a power cut serves what a start with space serves, and ends with the same messages."""

from random import Random

import pytest

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import EngineBroker

SEEDS = range(10)
TOPICS = {"plain": {}, "durable": {"flakelog_durable_acks": True}, "__consumer_offsets": {"cleanup_policy": "compact"}}


def filled(random):
    """Return a broker with messages in several segments, some of them past the checkpoint."""
    broker = EngineBroker(log_segment_bytes=2_048, log_index_interval_bytes=128)
    for topic, properties in TOPICS.items():
        broker.create(topic, 2, **properties)
    client = broker.connect("__admin_client")
    for number in range(60):
        topic, partition = random.choice(["plain", "durable"]), random.randrange(2)
        client.produce(topic, b"%d %s" % (number, bytes(random.randrange(200))), partition=partition)
        if random.random() < 0.05:
            broker.services.logs.syncs.start_round()
            broker.pump()
    return broker


def after_power_cut(broker, seed):
    """Return the disk that the restarted machine finds; the same one for the same seed."""
    random = Random(seed)
    return broker.storage.power_cut(lambda n: random.randrange(n))


def messages(broker):
    """Return the messages of each partition that is served; a Fetch returns those of one segment."""
    client = broker.connect()
    by_log = {}
    for log in broker.services.logs.all():
        values = by_log[log.name] = []
        while log.log_start_offset + len(values) < log.log_end_offset:
            values += client.fetch(log.topic, log.log_start_offset + len(values), log.partition)
        for number, value in enumerate(values):  # each by a search of its own
            assert client.fetch(log.topic, log.log_start_offset + number, log.partition)[0] == value
    return by_log


@pytest.mark.parametrize("seed", SEEDS)
def test_a_full_disk_changes_nothing_that_is_served(seed):
    random = Random(seed)
    before = filled(random)
    settings = {"log_segment_bytes": 2_048, "log_index_interval_bytes": 128}
    with_space = EngineBroker(after_power_cut(before, seed), 60_000, **settings)
    disk = after_power_cut(before, seed)
    disk.free_bytes = random.choice([0, 0, 20, 300, 3_000])
    broker = EngineBroker(disk, 60_000, **settings)
    broker.at(broker.now_ms + 1)
    expected, served = messages(with_space), messages(broker)
    assert served == {name: expected[name] for name in served}
    assert served.keys() | broker.services.logs.offline.keys() == expected.keys()
    for log in broker.services.logs.all():
        result = broker.connect().produce(log.topic, bytes(4_000), partition=log.partition)
        assert result.error_code in (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.INVALID_TOPIC_EXCEPTION)
    disk.free_bytes = None
    broker.at(broker.now_ms + 15_000)
    assert messages(broker) == expected
    assert broker.services.logs.offline == with_space.services.logs.offline == {}
    client = broker.connect()
    for name in expected:
        topic, _, partition = name.rpartition("-")
        if not topic.startswith("__"):
            assert client.produce(topic, b"after", partition=int(partition)).error_code == 0
            expected[name] = [*expected[name], b"after"]
    assert messages(broker.restarted()) == expected
