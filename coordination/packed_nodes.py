"""SHELL (files): nodes of a directory in one file, so that a group of changes is whole and needs one sync.

    <directory>/packed    a line "flakelog packed nodes 2 <number of this write> <crc32 of the rest>", then for each
                          node a line "<version> <owner> <czxid> <length> <path>", the data, and a line break; for a
                          deleted node a line "<version> <owner> <czxid> gone <path>" and a line break

A node may have an entry and a file of its own. The node created later counts, then the higher version, then the entry
(as git's packed-refs yields to loose refs). A deleted node has an entry as long as it may still have a file of its own.
The packed nodes are written under another name, synced and renamed, so a power cut leaves all nodes of a group as they
were, or all as they are now. Format 1 had the line "<version> <length> <path>". The caller holds the directory's lock.
"""

import os
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from coordination.port import PERSISTENT, CoordinatorUnavailable, Node, parent

HEADER = b"flakelog packed nodes "
FORMAT = 2
GONE = b"gone"


class Gone(NamedTuple):
    """A node that was deleted at this version."""

    version: int
    owner: int
    czxid: int


Entry = Node | Gone


class PackedNodes:
    """The packed nodes of a directory. `entries` are those on the disk since the last `refresh` or `write`."""

    def __init__(self, directory: Path) -> None:
        self.entries: Mapping[str, Entry] = {}
        self._names: dict[str, list[str]] | None = None  # of the entries, by parent
        self._directory = directory
        self._file = directory / "packed"
        self._header = b""  # of the entries

    def refresh(self) -> None:
        """Read the nodes if another session has written them. Raise CoordinatorUnavailable if the file is damaged."""
        try:
            with open(self._file, "rb") as file:
                header = file.readline()
                if header != self._header:
                    self._take(self._decode(header, file.read()), header)
        except FileNotFoundError:
            self._take({}, b"")

    def names(self, path: str) -> Collection[str]:
        """Return the names of the entries below a node."""
        if self._names is None:
            self._names = defaultdict(list)
            for child in self.entries:
                if child != "/":
                    self._names[parent(child)].append(child.rpartition("/")[2])
        return self._names.get(path, ())

    def write(self, entries: Mapping[str, Entry]) -> None:
        """Replace all packed nodes; they survive a power cut when this returns."""
        encoded = b"".join(_encode(path, entry) for path, entry in entries.items())
        number = int(self._header.split()[-2]) + 1 if self._header else 1
        header = HEADER + b"%d %d %d\n" % (FORMAT, number, crc32(encoded))
        write_durably(self._file, self._directory / ".packed.new", header + encoded)
        self._take(entries, header)

    def _take(self, entries: Mapping[str, Entry], header: bytes) -> None:
        self.entries, self._header, self._names = entries, header, None

    def _decode(self, header: bytes, encoded: bytes) -> dict[str, Entry]:
        fields = header.removeprefix(HEADER).split()
        if not header.startswith(HEADER) or fields[-1] != b"%d" % crc32(encoded):
            raise CoordinatorUnavailable(f"{self._file} is damaged: {header[:60]!r}")
        if fields[0] not in (b"1", b"%d" % FORMAT):
            raise CoordinatorUnavailable(f"{self._file} is of a newer version of Flakelog: {header[:60]!r}")
        decode_line = _decode_line_1 if fields[0] == b"1" else _decode_line
        entries: dict[str, Entry] = {}
        at = 0
        while at < len(encoded):
            end = encoded.index(b"\n", at)
            gone, length, path = decode_line(encoded[at:end])
            at = end + 1 + (length or 0)
            entries[path] = gone if length is None else Node(encoded[end + 1 : at], *gone)
            at += 1
        return entries


def _encode(path: str, entry: Entry) -> bytes:
    length, data = (GONE, b"") if isinstance(entry, Gone) else (b"%d" % len(entry.data), entry.data)
    return b"%d %d %d %s %s\n%s\n" % (entry.version, entry.owner, entry.czxid, length, path.encode(), data)


def _decode_line(line: bytes) -> tuple[Gone, int | None, str]:
    version, owner, czxid, length, path = line.split(b" ", 4)
    gone = Gone(int(version), int(owner), int(czxid))
    return gone, None if length == GONE else int(length), path.decode()


def _decode_line_1(line: bytes) -> tuple[Gone, int | None, str]:
    version, length, path = line.split(b" ", 2)
    return Gone(int(version), PERSISTENT, 0), int(length), path.decode()


def write_durably(file: Path, new: Path, data: bytes) -> None:
    """Replace a file by way of `new`, in the same folder; a power cut leaves the old content or the new one."""
    replace_file(file, new, data)
    sync_directory(file.parent)


def replace_file(file: Path, new: Path, data: bytes) -> None:
    """Replace a file by way of `new`, in the same folder, without a sync of the folder."""
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as opened:
        opened.write(data)
        opened.flush()
        os.fsync(fd)
    os.rename(new, file)


def sync_directory(folder: Path) -> None:
    """Sync the entries of a directory, if it exists."""
    try:
        fd = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
