"""A topic of numbers, for the tests of the Python API."""

from broker.client.blocking import Client
from broker.client.consumer_config import ConsumerConfig
from broker.record.records import BatchRecord, encode_batch
from tests.patience import SECONDS

NOBODY = "127.0.0.1:1"
SOON_MS = 300  # how long an iterator waits for a record that does not come
WAIT_MS = SECONDS * 1_000
QUICK = ConsumerConfig(session_timeout_ms=3_000, heartbeat_interval_ms=200, fetch_max_wait_ms=50)
BY_HAND = ConsumerConfig(
    session_timeout_ms=3_000, heartbeat_interval_ms=200, fetch_max_wait_ms=50, auto_commit_interval_ms=None
)


def fill(address, name):
    """Make a topic of two partitions with the values 0 to 9: even ones in partition 0, odd ones in partition 1."""
    with Client(address) as client:
        client.create_topic(name, 2)
        for number in range(10):
            say(client, name, number % 2, number)
    return name


def say(client, topic, partition, *values):
    """Send values; the timestamp of each is 1,000 ms and the first value."""
    records = [BatchRecord(at, 0, b"key", b"%d" % value) for at, value in enumerate(values)]
    return client.produce(topic, partition, encode_batch(records, base_timestamp_ms=1_000 + values[0]))


def take(consumer, count):
    """Return the next records of a consumer."""
    return [next(consumer) for _ in range(count)]


def values(records):
    """Return the values of records as numbers, sorted."""
    return sorted(int(record.value) for record in records)
