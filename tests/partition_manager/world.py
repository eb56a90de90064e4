"""The world of one topic: flakelog.testing's log, dead letters and offset store, for tests of cores and spouts."""

from coordination.access import Access
from flakelog.testing.memory import MemoryDeadLetters, MemoryLog, MemoryWorld
from partition_manager.ports import Bury, FetchedRecord, LoadOffset, SaveOffset


def record(offset, value=b"v", id=None, timestamp_ms=None, key=None, headers=()):
    """Return a record of the test log. By default its id is 1000 + offset and its timestamp 10 ms times the offset."""
    id = 1000 + offset if id is None else id
    return FetchedRecord(offset, id, 10 * offset if timestamp_ms is None else timestamp_ms, key, value, headers)


def records(start, end, **fields):
    return [record(offset, **fields) for offset in range(start, end)]


class World(MemoryWorld):
    """A world whose every topic is `log`, with the dead letters `dead`.

    `carry` brings a coordinator's requests to the ports until it has none left.
    """

    def __init__(self, partitions=1, path="/spouts/test"):
        super().__init__()
        self.log = MemoryLog(partitions)
        self.dead = MemoryDeadLetters()
        self.path = path

    def store(self):
        return self.offset_store("memory", self.path, Access())

    def carry(self, coordinator, now_ms):
        store = self.store()
        while asks := coordinator.take_asks(now_ms):
            for ask in asks:
                self.port_of(ask.request, store).ask(
                    ask.request, lambda answer, number=ask.number: coordinator.answered(number, answer, now_ms)
                )

    def port_of(self, request, store):
        if isinstance(request, (LoadOffset, SaveOffset)):
            return store
        return self.dead if isinstance(request, Bury) else self.log
