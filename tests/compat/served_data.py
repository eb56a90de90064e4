"""A topic that a real server serves: fill it, read it, and compare the files of its data directory."""

import hashlib

import pytest

from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.record.records import BatchRecord, encode_batch
from tests.compat.server_process import DidNotStart

TOPIC = "kept"
SEGMENT = "00000000000000000000.log"
MESSAGES = 50


def batch_of(*values, producer=None, sequence=-1):
    records = [BatchRecord(number, 0, None, value, ()) for number, value in enumerate(values)]
    producer_id, epoch = producer or (-1, -1)
    return encode_batch(
        records, base_timestamp_ms=1, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )


def fill(address, topic=TOPIC, partitions=2):
    with Client(address) as client:
        client.create_topic(topic, partitions)
        for partition in range(partitions):
            for number in range(MESSAGES):
                client.produce(topic, partition, batch_of(b"message %d" % number))


def values_in(client, topic, partition=0):
    """Return every message, fetched from offset 0 on."""
    values, offset, end = [], 0, client.find_offset(topic, partition, LATEST)
    while offset < end:
        records, offset = client.fetch(topic, partition, offset)
        values += [record.value for record in records]
    return values


def assert_serves(address, topic=TOPIC, partition=0):
    with Client(address) as client:
        assert values_in(client, topic, partition)[:MESSAGES] == [b"message %d" % n for n in range(MESSAGES)]


def checksums(directory):
    """Return the checksum of each data file.

    The lock file and the registry are left out, because they record the last process and the holders of worker numbers.
    """
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name != ".lock"]
    data_files = [path for path in files if path.relative_to(directory).parts[0] != "ids"]
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in data_files}


def refused(server):
    """Return the single line that the server prints when it does not start."""
    with pytest.raises(DidNotStart) as caught, server:
        pass
    assert caught.value.exit_code != 0
    lines = caught.value.stderr.splitlines()
    assert len(lines) == 1, caught.value.stderr
    return lines[-1]
