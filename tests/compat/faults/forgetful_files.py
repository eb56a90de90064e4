"""Files that lose unsynced writes at a power cut. No I/O: `forgetful_disk_program` serves them to the kernel.

The bytes of a file survive once the file was synced. Its name, or its removal, survives once its directory was synced.
Nothing else does, so the files forget more than those of a real disk, which may write anything back by itself.
"""

import errno
import stat
from itertools import count

ROOT = 1


class Node:
    """A file or directory. `number` identifies it until the next power cut."""

    kind = 0

    def __init__(self, number, mode, now_ns):
        self.number, self.mode, self.modified_ns = number, mode & 0o7777, now_ns


class File(Node):
    kind = stat.S_IFREG

    def __init__(self, number, mode, now_ns, data=b""):
        super().__init__(number, mode, now_ns)
        self.data = bytearray(data)
        self.synced = bytearray(data)
        self._written = []  # pairs of positions: the bytes between them were written since the last sync
        self._smallest = len(data)  # the smallest size since the last sync

    @property
    def size(self):
        return len(self.data)

    def write(self, position, data, now_ns):
        if position > self.size:
            self.data += bytes(position - self.size)
        end = position + len(data)
        self.data[position:end] = data
        self._written.append((position, end))
        self.modified_ns = now_ns

    def truncate(self, size, now_ns):
        if size > self.size:
            self.data += bytes(size - self.size)
        del self.data[size:]
        self._smallest = min(self._smallest, size)
        self.modified_ns = now_ns

    def sync(self):
        """Copy the changed bytes only, because a file may be large and synced often."""
        del self.synced[self._smallest :]
        for position, end in self._written:
            end = min(end, self._smallest)
            if position < end:
                self.synced[position:end] = self.data[position:end]
        self.synced += memoryview(self.data)[self._smallest :]
        self._written.clear()
        self._smallest = self.size


class Directory(Node):
    kind = stat.S_IFDIR
    size = 0

    def __init__(self, number, mode, now_ns, nodes=()):
        super().__init__(number, mode, now_ns)
        self.nodes = dict(nodes)
        """The files and directories here, by name."""
        self.synced = dict(nodes)

    def sync(self):
        self.synced = dict(self.nodes)

    def find(self, name):
        """Return the node of a name. Raise FileNotFoundError."""
        if name not in self.nodes:
            raise FileNotFoundError(errno.ENOENT, "no such name")
        return self.nodes[name]


class ForgetfulFiles:
    def __init__(self):
        self._numbers = count(ROOT)
        self.root = Directory(next(self._numbers), 0o700, 0)

    def create(self, kind, directory, name, mode, now_ns):
        """Create a File or a Directory. Raise FileExistsError."""
        if name in directory.nodes:
            raise FileExistsError(errno.EEXIST, "the name is there")
        node = directory.nodes[name] = kind(next(self._numbers), mode, now_ns)
        directory.modified_ns = now_ns
        return node

    def remove(self, directory, name, now_ns):
        """Remove a file, or an empty directory. Raise OSError."""
        _check_empty(directory.find(name))
        del directory.nodes[name]
        directory.modified_ns = now_ns

    def rename(self, directory, name, target_directory, target, now_ns):
        """Give a node another name, and remove the node that had it. Raise OSError."""
        node = directory.find(name)
        if target in target_directory.nodes:
            _check_empty(target_directory.nodes[target])
        del directory.nodes[name]
        target_directory.nodes[target] = node
        directory.modified_ns = target_directory.modified_ns = now_ns

    def cut_power(self):
        """Forget unsynced writes. All nodes but the root get other numbers."""
        self.root.synced = self._remembered(self.root)
        self.root.nodes = dict(self.root.synced)

    def _remembered(self, directory):
        """Return the nodes of a directory after a power cut, by name."""
        return {name: self._as_synced(node) for name, node in directory.synced.items()}

    def _as_synced(self, node):
        content = node.synced if isinstance(node, File) else self._remembered(node)
        return type(node)(next(self._numbers), node.mode, node.modified_ns, content)


def _check_empty(node):
    if isinstance(node, Directory) and node.nodes:
        raise OSError(errno.ENOTEMPTY, "the directory has files")
