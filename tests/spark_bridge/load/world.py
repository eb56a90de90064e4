"""A log and a storage in memory. Each operation of either is a step, at which a driver can be killed or must wait."""

import io
from contextlib import contextmanager
from dataclasses import dataclass, field

import pyarrow as pa

from spark_bridge.load.driver import Driver
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.output.storage import Storage
from spark_bridge.reading.cluster import Description, Topic
from spark_bridge.reading.range_cursor import DataLoss
from spark_bridge.reading.row import arrow_schema

TOPIC = "t"
ID = 1_000_000
HOUR_MS = 3_600_000


def no_step(step_name):
    pass


class Topics:
    """The log itself: partitions of values. The record at an offset of the first topic has the value `1/p/offset`."""

    def __init__(self, *ends):
        self.starts = [0] * len(ends)
        self.ends = list(ends)
        self.life, self.cluster_id = 1, "c"

    @property
    def topic_id(self):
        return f"topic {self.life}"

    def append(self, partition, number):
        self.ends[partition] += number

    def expire(self, partition, before):
        self.starts[partition] = max(self.starts[partition], min(before, self.ends[partition]))

    def truncate(self, partition, end):
        self.ends[partition] = min(end, self.ends[partition])
        self.starts[partition] = min(self.starts[partition], self.ends[partition])

    def recreate(self, *ends):
        self.starts, self.ends = [0] * len(ends), list(ends)
        self.life += 1

    def values(self):
        """Return the values of all records that were ever appended to this life of the topic."""
        return {f"{self.life}/{p}/{offset}" for p, end in enumerate(self.ends) for offset in range(end)}


class MemoryLog:
    """The Source port over topics. Three records of a partition have the time of one hour."""

    def __init__(self, topics, step=no_step):
        self.topics = topics
        self.step = step
        self.reads = []

    def describe(self, topics=None):
        self.step("describe")
        leaders = dict.fromkeys(range(len(self.topics.ends)))
        return Description(self.topics.cluster_id, {TOPIC: Topic(TOPIC, self.topics.topic_id, leaders)})

    def keeps_ids(self, topic):
        return True

    def compacted(self, topics):
        return frozenset()

    def earliest(self, topic):
        self.step("earliest")
        return dict(enumerate(self.topics.starts))

    def latest(self, topic, *, committed=False):
        self.step("latest")
        return dict(enumerate(self.topics.ends))

    def first_at_time(self, topic, time_ms):
        return self._first(-(-time_ms * 3 // HOUR_MS))

    def first_at_id(self, topic, id):
        return self._first(id - ID)

    def _first(self, wanted):
        starts, ends = self.topics.starts, self.topics.ends
        firsts = (max(wanted, start) if wanted < end else None for start, end in zip(starts, ends, strict=True))
        return dict(enumerate(firsts))

    def bytes_per_offset(self, ranges):
        return dict.fromkeys(range(len(self.topics.ends)), 10.0)

    def rows(self, load, part):
        return MemoryRows(self, load, part)

    def records(self, partition, start, end, topic_id):
        """Return (offset, value) of a fetch. Raise DataLoss."""
        self.step("fetch")
        if topic_id != self.topics.topic_id:
            raise DataLoss(f"topic {TOPIC!r} is not the one the manifest was made of")
        first, last = self.topics.starts[partition], self.topics.ends[partition]
        if not first <= start <= end <= last:
            raise DataLoss(f"{TOPIC}-{partition} does not have offset {start}: its log is {first} to {last}")
        return [(offset, f"{self.topics.life}/{partition}/{offset}".encode()) for offset in range(start, end)]


@dataclass
class MemoryRows:
    """The Rows port, in batches of two rows; the log is asked at each batch, so that it may lose the rest meanwhile."""

    log: MemoryLog
    load: object
    part: object
    skipped: list = field(default_factory=list)

    @property
    def schema(self):
        return arrow_schema(self.load.manifest.columns)

    def __iter__(self):
        part, schema = self.part, self.schema
        self.log.reads.append(str(part))
        for start in range(part.start, part.end, 2):
            end = min(start + 2, part.end)
            rows = self.log.records(part.partition, start, end, self.load.manifest.topic_ids[TOPIC])
            columns = {
                "key": [b"%d" % (offset % 2) for offset, _ in rows],
                "value": [value for _, value in rows],
                "partition": [part.partition] * len(rows),
                "offset": [offset for offset, _ in rows],
                "timestamp": [offset * HOUR_MS // 3 * 1000 for offset, _ in rows],
                "id": [ID + offset for offset, _ in rows],
            }
            arrays = [pa.array(columns.get(field.name, [None] * len(rows)), field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class MemoryStorage(Storage):
    """The Storage port over a dictionary. Without `renames` it is a store of objects."""

    def __init__(self, objects=None, step=no_step, *, renames=True, exclusive=True):
        super().__init__("memory")
        self.objects = {} if objects is None else objects
        self.step = step
        self.can_rename = renames
        self.can_create_exclusively = exclusive

    def under(self, name):
        raise NotImplementedError

    def name_of(self, name):
        return f"{self}/{name}"

    def create(self, name, data):
        self.step(f"create {name}")
        if name in self.objects:
            raise FileExistsError(name)
        self.objects[name] = data

    @contextmanager
    def write(self, name):
        self.step(f"open {name}")
        file = io.BytesIO()
        yield file
        self.step(f"write {name}")
        self.objects[name] = file.getvalue()

    def open(self, name):
        return io.BytesIO(self.read(name))

    def read(self, name):
        self.step(f"read {name}")
        if name not in self.objects:
            raise FileNotFoundError(name)
        return self.objects[name]

    def size(self, name):
        self.step(f"size {name}")
        return len(self.objects[name]) if name in self.objects else None

    def names(self, prefix=""):
        self.step(f"names {prefix}")
        return sorted(name for name in self.objects if name.startswith(prefix))

    def delete(self, name):
        self.step(f"delete {name}")
        self.objects.pop(name, None)

    def rename(self, name, to):
        raise NotImplementedError

    def move(self, name, to):
        self.step(f"move {name}")
        if name not in self.objects:
            raise FileNotFoundError(name)
        self.objects[to] = self.objects[name]
        if not self.can_rename:
            self.step(f"copied {name}")
        self.objects.pop(name, None)


class Watcher:
    """Notes what a driver tells."""

    def __init__(self):
        self.notes = []

    def begins(self, load, unread):
        self.notes.append(("begins", load.number, len(unread)))

    def ends(self, load, receipt):
        self.notes.append(("ends", receipt.number, receipt.rows))

    def withdrawn(self, load):
        self.notes.append(("withdrawn", load.number))


def in_order(jobs):
    return [job() for job in jobs]


class Attempts:
    def __init__(self, name="attempt"):
        self.name, self.number = name, 0

    def __call__(self):
        self.number += 1
        return f"{self.name}-{self.number}"


def driver(log, storage, name="a", sink=ParquetSink, **options):
    """Return a driver of the topic; `options` are those of LoadOptions."""
    return Driver(LoadOptions(TOPIC, **options), sink(storage, TOPIC, Attempts(name)), log, in_order, Watcher(), "code")


def plain_reader(objects):
    """Return (file, value) of each row that a reader of the directory sees, which knows nothing of receipts."""
    rows = []
    for name, data in objects.items():
        if name.endswith(".parquet") and not name.startswith("_"):
            rows += [(name, value) for value in values_of(data)]
    return rows


_decoded = {}


def values_of(data):
    import pyarrow.parquet as pq

    if data not in _decoded:
        _decoded[data] = [value.decode() for value in pq.read_table(io.BytesIO(data))["value"].to_pylist()]
    return _decoded[data]
