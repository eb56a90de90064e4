"""A storage in memory that counts the writes of each file, and raises an exception that the broker does not expect."""

from collections import Counter

from broker.log.storage.memory_storage import MemoryFile, MemoryStorage


class WatchedStorage(MemoryStorage):
    """`writes` counts the appends by path, and `read_bytes` the bytes that were read.

    Opening or writing a path in `faults` raises its exception, as does reading a path in `read_faults`. `on_space` is
    called whenever the free space is asked for.

    A fault is not a StorageError, so no handler knows it: it is like a bug or a lack of memory in the broker itself.
    """

    def __init__(self):
        super().__init__()
        self.writes = Counter()
        self.read_bytes = Counter()
        self.faults = {}
        self.read_faults = {}
        self.on_space = lambda: None

    def open(self, path, create=False, ahead_bytes=0, size=None):
        self.fail_by_fault(path)
        super().open(path, create, ahead_bytes)
        return WatchedFile(self, path, self.files[path], ahead_bytes)

    def replace(self, path, data):
        self.fail_by_fault(path)
        super().replace(path, data)

    def space(self):
        self.on_space()
        return super().space()

    def fail_by_fault(self, path):
        if path in self.faults:
            raise self.faults[path]

    def writes_of(self, broker, topic, partition=0):
        """Return the number of writes to the active segment of a partition."""
        return self.writes[active(broker, topic, partition)]


class WatchedFile(MemoryFile):
    def append(self, data):
        self._storage.fail_by_fault(self.path)
        self._storage.writes[self.path] += 1
        super().append(data)

    def read(self, position, length):
        if self.path in self._storage.read_faults:
            raise self._storage.read_faults[self.path]
        data = super().read(position, length)
        self._storage.read_bytes[self.path] += len(data)
        return data


def active(broker, topic, partition=0):
    """Return the path of a partition's active segment."""
    return broker.services.log_of(topic, partition).segments.active.log.path
