"""In-memory ports of partition_manager with failures on demand: a log, dead letters and an offset store."""

from collections import defaultdict

from broker.client.records import PoisonBatch
from broker.record.batch import read_header
from coordination.memory import Ensemble, MemoryCoordinator
from partition_manager.offset_store import CoordinatedOffsetStore, blocking
from partition_manager.ports import (
    Bounds,
    Buried,
    Failed,
    Fetch,
    Fetched,
    FetchedRecord,
    FindBounds,
    FindId,
    FindTime,
    Found,
    ListPartitions,
    OutOfRange,
    Partitions,
)
from tests.poison import at_offset


def record(offset, value=b"v", id=None, timestamp_ms=None, key=None, headers=()):
    """Return a record of the test log. By default its id is 1000 + offset and its timestamp 10 ms times the offset."""
    id = 1000 + offset if id is None else id
    return FetchedRecord(offset, id, 10 * offset if timestamp_ms is None else timestamp_ms, key, value, headers)


def records(start, end, **fields):
    return [record(offset, **fields) for offset in range(start, end)]


class MemoryLog:
    """An in-memory topic. A fetch at its end is held until a message is appended, as at a broker."""

    def __init__(self, partitions=1):
        self.kept = {number: {} for number in range(partitions)}
        self.poison = defaultdict(list)
        self.ends = defaultdict(int)
        self.starts = defaultdict(int)
        self.down = None
        self.fetches = 0
        self._held = []

    def append(self, value=b"v", partition=0, key=None):
        offset = self.ends[partition]
        self.kept[partition][offset] = record(offset, value, id=10**9 * partition + 1000 + offset, key=key)
        self.ends[partition] = offset + 1
        self._answer_held()
        return offset

    def append_poison(self, batch, partition=0):
        """Append a batch whose records cannot be decoded; it has as many offsets as its header says."""
        base = self.ends[partition]
        last, id = base + read_header(batch).last_offset_delta, 10**9 * partition + 1000 + base
        found = PoisonBatch("flights", partition, base, last, id, "a field is cut off", at_offset(batch, base))
        self.poison[partition].append(found)
        self.ends[partition] = last + 1
        self._answer_held()
        return found

    def compact(self, partition, offset):
        del self.kept[partition][offset]

    def retain_from(self, partition, offset):
        self.starts[partition] = offset
        self.kept[partition] = {o: r for o, r in self.kept[partition].items() if o >= offset}

    def truncate(self, partition, end):
        self.ends[partition] = end
        self.kept[partition] = {o: r for o, r in self.kept[partition].items() if o < end}
        self._answer_held()

    def _answer_held(self):
        held, self._held = self._held, []
        for request, answer in held:
            self.ask(request, answer)

    def ask(self, request, answer):
        if self.down:
            answer(Failed(self.down))
        elif isinstance(request, ListPartitions):
            answer(Partitions(tuple(self.kept), "127.0.0.1", 9092))
        elif isinstance(request, FindBounds):
            answer(Bounds(self.starts[request.partition], self.ends[request.partition]))
        elif isinstance(request, FindTime):
            answer(self._find(request.partition, lambda r: r.timestamp_ms >= request.timestamp_ms))
        elif isinstance(request, FindId):
            answer(self._find(request.partition, lambda r: r.id >= request.id))
        else:
            self._fetch(request, answer)

    def _find(self, partition, wanted):
        return Found(min((o for o, r in self.kept[partition].items() if wanted(r)), default=None))

    def _fetch(self, request: Fetch, answer):
        number, (offset, max_records, _) = request.partition, request.wanted
        start, end = self.starts[number], self.ends[number]
        if offset == end:
            self._held.append((request, answer))
        elif not start <= offset <= end:
            answer(OutOfRange(start, end))
        else:
            self.fetches += 1
            upto = min(end, offset + max_records)
            kept = self.kept[number]
            poison = [each for each in self.poison[number] if each.base_offset < upto and each.last_offset >= offset]
            upto = max([upto, *(each.last_offset + 1 for each in poison)])
            found = [kept[o] for o in range(offset, upto) if o in kept]
            answer(Fetched(found, upto, end, poison))

    def close(self):
        pass


class MemoryDeadLetters:
    """A sink that keeps letters. While `down` it refuses them; while `slow` it withholds answers until `confirm`."""

    def __init__(self):
        self.letters = []
        self.down = None
        self.slow = False
        self._unconfirmed = []

    def ask(self, request, answer):
        if self.down:
            answer(Failed(self.down))
            return
        self.letters.append(request.letter)
        if self.slow:
            self._unconfirmed.append(answer)
        else:
            answer(Buried())

    def confirm(self):
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for answer in unconfirmed:
            answer(Buried())

    def close(self):
        pass


class World:
    """All three ports. `carry` brings a coordinator's requests to them until it has none left."""

    def __init__(self, partitions=1, path="/spouts/test"):
        self.log = MemoryLog(partitions)
        self.dead = MemoryDeadLetters()
        self.ensemble = Ensemble()
        self.path = path
        self.session = MemoryCoordinator(self.ensemble)

    def store(self):
        return CoordinatedOffsetStore(self.path, blocking(self.session))

    def carry(self, coordinator, now_ms):
        store = self.store()
        while asks := coordinator.take_asks(now_ms):
            for ask in asks:
                self.port_of(ask.request, store).ask(
                    ask.request, lambda answer, number=ask.number: coordinator.answered(number, answer, now_ms)
                )

    def port_of(self, request, store):
        name = type(request).__name__
        return {"LoadOffset": store, "SaveOffset": store, "Bury": self.dead}.get(name, self.log)
