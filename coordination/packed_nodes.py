"""SHELL (files): many small nodes of a directory in one file, so that a group of writes needs one sync.

    <directory>/packed    a line "flakelog packed nodes 1 <number of this write> <crc32 of the rest>", then for each
                          node a line "<version> <length> <path>", the data, and a line break

A node with a file of its own may be here too: the higher version counts (as git's packed-refs yields to loose refs).
Only nodes of no session are packed. The file is written anew under another name, synced and renamed, so a power cut
leaves all nodes of a group as they were, or all as they are now. The caller holds the directory's lock.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from zlib import crc32

from coordination.port import PERSISTENT, CoordinatorUnavailable, Node

HEADER = b"flakelog packed nodes 1 "
DATA_BYTES_MAX = 4_096  # of a node; the file is written as a whole, so larger ones keep files of their own


class PackedNodes:
    """The packed nodes of a directory. `nodes` are those on the disk since the last `refresh` or `write`."""

    def __init__(self, directory: Path) -> None:
        self.nodes: Mapping[str, Node] = {}
        self._directory = directory
        self._file = directory / "packed"
        self._header = b""  # of the nodes

    def refresh(self) -> None:
        """Read the nodes if another session has written them. Raise CoordinatorUnavailable if the file is damaged."""
        try:
            with open(self._file, "rb") as file:
                header = file.readline()
                if header != self._header:
                    self.nodes = self._decode(header, file.read())
                    self._header = header
        except FileNotFoundError:
            self.nodes, self._header = {}, b""

    def write(self, nodes: Mapping[str, Node]) -> None:
        """Replace all packed nodes; they survive a power cut when this returns."""
        entries = b"".join(
            b"%d %d %s\n%s\n" % (node.version, len(node.data), path.encode(), node.data)
            for path, node in nodes.items()
        )
        number = int(self._header.split()[-2]) + 1 if self._header else 1
        header = HEADER + b"%d %d\n" % (number, crc32(entries))
        new = self._directory / ".packed.new"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as file:
            file.write(header + entries)
            file.flush()
            os.fsync(fd)
        os.rename(new, self._file)
        sync_directory(self._directory)
        self.nodes, self._header = nodes, header

    def _decode(self, header: bytes, entries: bytes) -> dict[str, Node]:
        if not header.startswith(HEADER) or header.split()[-1] != b"%d" % crc32(entries):
            raise CoordinatorUnavailable(f"{self._file} is damaged: {header[:60]!r}")
        nodes, at = {}, 0
        while at < len(entries):
            end = entries.index(b"\n", at)
            version, length, path = entries[at:end].split(b" ", 2)
            at = end + 1 + int(length)
            nodes[path.decode()] = Node(entries[end + 1 : at], int(version), PERSISTENT)
            at += 1
        return nodes


def sync_directory(folder: Path) -> None:
    """Sync the entries of a directory, if it exists."""
    with suppress(FileNotFoundError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
