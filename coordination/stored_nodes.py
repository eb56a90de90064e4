"""SHELL (files): the nodes of a directory, alone or together.

    <directory>/nodes/a/b/.node   the node /a/b: one line "<version> <owner> <czxid>", then its data
    <directory>/packed            nodes that were changed together (coordination/packed_nodes.py)

A change of one node is a file of its own, written under another name, synced and renamed over the old one; then its
directory is synced. That of an ephemeral node is not, unless a persistent node was there before, because a power cut
ends its session anyway.
Changes of several nodes are one write of the packed nodes, so they are whole or absent after a power cut. The next such
write first moves the entries that should not stay packed: a large node gets a file of its own, and the file of a
deleted node is removed. Each step can be repeated after a power cut.
The former format had the line "<version> <owner>". The caller holds the directory's lock.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from coordination.packed_nodes import Entry, Gone, PackedNodes, replace_file, sync_directory
from coordination.port import PERSISTENT, CoordinatorUnavailable, Node, parent

NODE_FILE, NEW_FILE = ".node", ".new"  # RESERVED_NAMES of the port: no node has such a folder
PACKED_BYTES_MAX = 4_096  # of a node; the packed nodes are written as a whole, so larger ones do not stay there


class StoredNodes:
    """The nodes below `root`; `is_alive` tells whether a session lives."""

    def __init__(self, root: Path, is_alive: Callable[[int], bool]) -> None:
        self._root = root
        self._is_alive = is_alive
        self._packed = PackedNodes(root)

    def refresh(self) -> None:
        """Read what other sessions have packed."""
        self._packed.refresh()

    def node(self, path: str) -> Node | None:
        """Return the node, or None. An ephemeral node whose session has ended counts as missing."""
        packed, alone = self._packed.entries.get(path), self._read_file(path)
        newest = packed if alone is None or (packed is not None and _age(packed) >= _age(alone)) else alone
        if newest is None:
            return Node(b"", 0, PERSISTENT) if path == "/" else None
        if isinstance(newest, Gone):
            return None
        if self._lives(newest):
            return newest
        if packed is None:  # else its file hides the older one that is packed
            self._remove_file(path, durable=False)  # after a power cut its session is still over
        return None

    def names(self, path: str) -> tuple[str, ...]:
        """Return the names of the node's children."""
        names = set(self._packed.names(path))
        with suppress(FileNotFoundError):  # a packed node needs no folder
            names.update(entry.name for entry in os.scandir(self._folder(path)) if entry.is_dir())
        return tuple(name for name in names if self.node(f"{path.rstrip('/')}/{name}") is not None)

    def store_each(self, changes: Mapping[str, Node | None]) -> None:
        """Store changes one after the other, each in a separate file, such as a node after its parents. So damage to
        one file is damage to one node."""
        for path, node in changes.items():
            self.store({path: node})

    def store(self, changes: Mapping[str, Node | None]) -> None:
        """Store all changes; they survive a power cut when this returns. A cut before leaves all or none of them."""
        if len(changes) > 1:
            return self._store_packed(changes)
        for path, node in changes.items():
            if node is not None:
                self._write_file(path, node, durable=self._must_last(path, node))
            elif path in self._packed.entries:
                self._store_packed(changes)
            else:
                self._remove_file(path, durable=True)

    def _store_packed(self, changes: Mapping[str, Node | None]) -> None:
        entries = {path: entry for path, entry in self._packed.entries.items() if not self._move_out(path, entry)}
        for path, node in changes.items():
            packed, alone = entries.pop(path, None), self._read_file(path)
            if node is not None:
                entries[path] = node
            elif alone is not None:
                newest = alone if packed is None else max(packed, alone, key=_age)
                entries[path] = Gone(newest.version, newest.owner, newest.czxid)
        self._packed.write(entries)

    def _move_out(self, path: str, entry: Entry) -> bool:
        """Return False if the entry stays packed. Otherwise move it to a file of its own, or remove the one it had.

        The directory is synced for an ephemeral node too, because its file may replace one that was deleted.
        """
        node = entry if isinstance(entry, Node) and self._lives(entry) else None
        if node is not None and len(node.data) <= PACKED_BYTES_MAX:
            return False
        alone = self._read_file(path)
        if alone is None or _age(alone) <= _age(entry):
            if node is not None:
                self._write_file(path, node, durable=True)
            elif alone is not None:
                self._remove_file(path, durable=True)
        return True

    def _must_last(self, path: str, node: Node) -> bool:
        """Return True if a power cut must not undo the write: the node is persistent, or hides one that was."""
        packed = self._packed.entries.get(path)
        hides_packed = isinstance(packed, Node) and packed.owner == PERSISTENT
        return node.owner == PERSISTENT or hides_packed or self._is_durable(path)

    def _lives(self, node: Node) -> bool:
        return node.owner == PERSISTENT or self._is_alive(node.owner)

    def _read_file(self, path: str) -> Node | None:
        file = self._file(path)
        try:
            header, _, data = file.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        try:
            version, owner, *czxid = map(int, header.split())
            return Node(data, version, owner, *czxid)
        except (ValueError, TypeError):
            raise CoordinatorUnavailable(f"{file} is damaged: {header[:40]!r}") from None

    def _write_file(self, path: str, node: Node, *, durable: bool) -> None:
        """Write the node's file. A durable one is found after a power cut, so the folders above it are synced too.

        They were synced before, up to the first node with a durable file.
        """
        folder = self._folder(path)
        unsynced = []
        above = path
        while durable and above != "/" and not self._is_durable(above):
            above = parent(above)
            unsynced.append(self._folder(above))
        folder.mkdir(parents=True, exist_ok=True)
        line = b"%d %d %d\n" % (node.version, node.owner, node.czxid)
        replace_file(folder / NODE_FILE, folder / NEW_FILE, line + node.data)
        for changed in (folder, *unsynced) if durable else ():
            sync_directory(changed)

    def _is_durable(self, path: str) -> bool:
        """Return True if the file of a persistent node is there."""
        alone = self._read_file(path)
        return alone is not None and alone.owner == PERSISTENT

    def _remove_file(self, path: str, *, durable: bool) -> None:
        folder = self._folder(path)
        (folder / NODE_FILE).unlink(missing_ok=True)
        (folder / NEW_FILE).unlink(missing_ok=True)
        if durable:
            sync_directory(folder)
        with suppress(OSError):  # a power cut may leave part of a child in it; a folder without a node file is no node
            folder.rmdir()

    def _file(self, path: str) -> Path:
        return self._folder(path) / NODE_FILE

    def _folder(self, path: str) -> Path:
        return self._root / "nodes" / path[1:]


def _age(entry: Entry) -> tuple[int, int]:
    """Return what orders the states of a path: a node created later is newer, then one that was set later."""
    return entry.czxid, entry.version
