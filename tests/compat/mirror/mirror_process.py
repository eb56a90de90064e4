"""`flakelog mirror` as a process, and the logs of its source and its target, as tests see them."""

import signal
import subprocess
import sys
import time
from itertools import islice

from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.core import LATEST
from broker.client.producer import Producer
from tests.patience import MS, until

TIME_MS = time.time_ns() // 1_000_000  # now, so that the retention keeps all records


class MirrorProcess:
    """A mirror that is started, killed and started again; at the end it has to stop cleanly."""

    def __init__(self, source, target, *options, output):
        self._command = [
            sys.executable, "-m", "flakelog", "mirror", "--from", source, "--to", target, "--every", "0.2", *options,
        ]  # fmt: skip
        self._output = output
        self._process = None
        self._begin = 0
        """Where the output of the last start begins."""

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, kind, error, trace):
        if self._process.poll() is None and kind is None:
            assert self.stop() == 0, self.log
        elif self._process.poll() is None:
            self.kill()

    def start(self):
        with self._output.open("ab") as output:
            self._begin = output.tell()
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def kill(self):
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def stop(self):
        until(self._has_begun, "the mirror copies, and takes SIGTERM as its end")
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def _has_begun(self):
        return self._process.poll() is not None or b"copying " in self._output.read_bytes()[self._begin :]

    def wait(self):
        return self._process.wait(MS / 1000)

    @property
    def log(self):
        return self._output.read_text()


def send(servers, topic, values, **options):
    """Send values. Each has a key, headers and a time."""
    with Producer(servers, **options) as producer:
        for value in values:
            text = str(value)
            producer.send(topic, text, text, headers={"h": text, "none": None}, timestamp_ms=TIME_MS + value)


def end_of(client, topic):
    """Return the number of offsets of a topic, 0 if it does not exist."""
    keys = [(topic, number) for info in client.topics() if info.name == topic for number in range(info.partitions)]
    return sum(client.retry(lambda: client.core.list_offsets(keys, LATEST)).values())


def has_all(client, topic, number):
    until(lambda: end_of(client, topic) >= number, f"record {number} of {topic} at the target")


def records_of(servers, topic, number, security=None):
    """Return the first `number` committed records of each partition of a topic, without ids, offsets and codecs."""
    config = ConsumerConfig(isolation_level="read_committed")
    with Consumer(servers, topic, timeout_ms=MS, config=config, security=security) as consumer:
        partitions = {}
        for record in islice(consumer, number):
            fields = record.timestamp_ms, record.key, record.value, record.headers
            partitions.setdefault(record.partition, []).append(fields)
    return partitions


def committed_records(client, topic):
    """Return the number of committed records of a topic."""
    return sum(len(values_from(client, topic, number, 0)) for number in range(client.topic(topic).partitions))


def values_from(client, topic, partition, offset):
    """Return the values of the committed records of a partition from an offset on."""
    values, end = [], client.find_offset(topic, partition, -1)
    while offset < end:
        records, offset = client.fetch(topic, partition, offset, committed=True)
        values += [record.value for record in records]
    return values
