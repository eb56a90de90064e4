"""A storage in memory for tens of thousands of files: listing a directory does not look at all others."""

from broker.log.storage.memory_storage import MemoryStorage


class ManyFiles(MemoryStorage):
    """Files are created, and not renamed or removed; nothing is lost, because no test cuts the power."""

    def __init__(self):
        super().__init__()
        self._inside = {}

    def open(self, path, create=False, ahead_bytes=0, size=None):
        if create and path not in self.files:
            self._note(path)
        return super().open(path, create, ahead_bytes)

    def make_directory(self, *paths):
        super().make_directory(*paths)
        for path in paths:
            self._note(path)

    def replace(self, path, data):
        self._note(path)
        super().replace(path, data)

    def _note(self, path):
        parent, _, name = path.rpartition("/")
        self._inside.setdefault(parent, {})[name] = None

    def list(self, directory):
        return sorted(self._inside.get(directory, ()))

    def sizes(self, directory):
        paths = ((name, f"{directory}/{name}") for name in self._inside.get(directory, ()))
        return {name: len(self.files[path].data) for name, path in paths if path in self.files}

    def sync_directory(self, path):
        self.directory_syncs += 1

    def space(self):
        return 1 << 40, 1 << 39
