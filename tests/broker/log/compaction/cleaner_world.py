"""A broker with one compacted log, for tests of the cleaner: put keyed records, run passes, read the rest."""

from broker.log import log_appender, log_reader
from broker.log.compaction.cleaner import CleanLog
from broker.log.validation.batch import validate
from broker.now import Now
from broker.record.batch import walk
from broker.record.records import BatchRecord, decode_records, encode_batch
from broker.wire.id_entries import read_entries
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.log.conftest import BROKER, NOW, START_MS
from tests.broker.log.manager_world import Broker

BACKOFF_MS = BROKER.log_cleaner_backoff_ms
DAY_MS = 86_400_000
COMPACT = {
    "cleanup_policy": "compact",
    "segment_bytes": 1024,
    "min_cleanable_dirty_ratio": 0,
    "file_delete_delay_ms": 0,
}


class CleanerWorld(Broker):
    """A compacted log and its clock `ms`; a cleaner pass keeps the time at which it began."""

    def __init__(self, storage=None, config=BROKER, **topic):
        super().__init__(storage, config, **(COMPACT | topic))
        self.ms = NOW.ms
        self.worker = IdWorker(Layout(), 1, start_ms=START_MS, limit_ms=START_MS + 10_000 * 86_400_000)
        self.log = self.open()

    @property
    def now(self):
        return Now(self.ms, START_MS + self.ms)

    def put(self, *records, timestamp_ms=None, **fields):
        """Append one batch of (key, value) pairs of str, None or bytes; return the append's result."""
        made = [BatchRecord(i, 0, *map(_bytes, pair)) for i, pair in enumerate(records)]
        time_ms = START_MS + self.ms if timestamp_ms is None else timestamp_ms
        batch = memoryview(encode_batch(made, base_timestamp_ms=time_ms, **fields))
        fields.pop("codec", None)
        header = validate(batch, self.log.config, BROKER)
        done = log_appender.append(self.log, batch, header, self.worker, self.now)
        self.manager.appended(self.log)
        return done

    def roll(self):
        """Close the segment and let a checkpoint cover it, because only such segments are cleaned."""
        self.log.roll()
        self.round()

    def clean(self, ms=BACKOFF_MS):
        """Run the cleaner until it finds no more work; return the number of slices."""
        self.ms += ms
        slices = 0
        self.manager.tick(self.now)
        while syncs := self.manager.take_syncs():
            slices += sum(isinstance(sync, CleanLog) for sync in syncs)
            self.run(*syncs)
            self.manager.tick(self.now)
        return slices

    def clean_before_the_checkpoint(self):
        """Run the cleaner like `clean`, and return all other disk work, the checkpoint included, without running it."""
        self.ms += BACKOFF_MS
        self.manager.tick(self.now)
        undone = []
        while syncs := self.manager.take_syncs():
            undone += [sync for sync in syncs if not isinstance(sync, CleanLog)]
            if slices := [sync for sync in syncs if isinstance(sync, CleanLog)]:
                self.run(*slices)
            self.manager.tick(self.now)
        return undone

    def reopened(self, storage=None, **topic):
        """Return another world on the same files, as a new process would open them."""
        return CleanerWorld(storage or self.storage, **({name: getattr(self.topic, name) for name in COMPACT} | topic))

    # --- readers -------------------------------------------------------------------------------------------------

    def records(self):
        """Return {offset: (key, value)} as a consumer reads them from the log's start."""
        records, offset = {}, self.log.log_start_offset
        while offset < self.log.high_watermark:
            region = log_reader.read(self.log, offset, 3000, True).records
            assert region, f"nothing at {offset}, before the end"
            data = region.file.read(region.position, region.length)
            for position, header in walk(data):
                for record in decode_records(data, position):
                    if record.offset >= offset and not header.is_control:
                        records[record.offset] = record.key, record.value
                offset = header.last_offset + 1
        return records

    def latest(self):
        """Return {key: value} as a consumer has it after reading the whole log."""
        values = {}
        for key, value in self.records().values():
            values[key] = value
        return {key: value for key, value in values.items() if value is not None}

    def ids(self):
        """Return {offset: id} of the offsets that have an id."""
        ids = {}
        for segment in self.log.segments.all:
            data = segment.ids.file.read(0, segment.ids.file.size)
            for entry in read_entries(data, segment.base_offset):
                ids |= {entry.offset + n: entry.first_id + n for n in range(entry.length)}
        return ids

    def batches(self):
        return [header for segment in self.log.segments.all for _, header in segment.batches()]

    def bases(self):
        return [segment.base_offset for segment in self.log.segments.all]

    def files(self, ending):
        return [name for name in self.storage.list("flights-0") if name.endswith(ending)]


def _bytes(value):
    return value.encode() if isinstance(value, str) else value
