"""A broker whose threads open the records of batches above a few units of work, and end when the test says so."""

from broker.engine import request_handler
from broker.handlers import produce
from broker.log.validation import opening
from broker.log.validation.open_job import OpenJob
from broker.produce import validate
from broker.record.batch import HEADER_BYTES, LENGTH_END, read_header, seal
from broker.record.compression import Codec, compress
from broker.record.records import BatchRecord, encode_batch
from broker.wire import multi_produce_template
from tests.broker.engine_client import WALL_MS, EngineBroker, batch_of

SMALL_UNITS = 2_000
"""A budget for one request: small batches are below it, and `large` ones above."""


class OpeningWorld(EngineBroker):
    """`jobs` are those that threads have; the disk syncs at once."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.jobs = []

    def run(self, sync):
        if isinstance(sync, OpenJob):
            self.jobs.append(sync)
        else:
            super().run(sync)

    def finish(self, number=0):
        """Run one job, and let the broker go on."""
        job = self.jobs.pop(number)
        super().run(job)
        self.pump()

    def finish_all(self):
        while self.jobs:
            self.finish()

    def log(self, topic="flights", partition=0):
        return self.services.log_of(topic, partition)


def small_budget(monkeypatch):
    monkeypatch.setattr(opening, "INLINE_UNITS", SMALL_UNITS)


def small_slices(monkeypatch, partitions):
    """Have a Produce for more partitions than these executed in slices."""
    for module in (produce, validate, request_handler):
        monkeypatch.setattr(module, "PARTITIONS_AT_ONCE", partitions)
    monkeypatch.setattr(multi_produce_template, "PARTITIONS_MAX", partitions)


def large(*values, count=300, codec=Codec.NONE, **fields):
    """Return a batch that costs more than the budget: its records have ever other lengths, 300 or so of them."""
    made = [BatchRecord(n, 0, b"k%d" % n, b"%d " % n * (n % 40)) for n in range(count)]
    made += [BatchRecord(count + n, 0, b"k", value) for n, value in enumerate(values)]
    return encode_batch(made, base_timestamp_ms=WALL_MS, codec=codec, **fields)


def bomb(data, count=1, codec=Codec.ZSTD, packed=None):
    """Return a batch whose header is right and whose records unpack to `data`, or are `packed` already."""
    batch = bytearray(HEADER_BYTES) + (bytes(compress(codec, data)) if packed is None else packed)
    header = read_header(batch_of(b"x"))._replace(record_count=count, last_offset_delta=count - 1)
    seal(batch, header._replace(batch_length=len(batch) - LENGTH_END, attributes=int(codec)))
    return batch
