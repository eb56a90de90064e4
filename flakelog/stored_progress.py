"""The progress of spouts as a directory or ZooKeeper stores it, read and moved while no topology runs."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from coordination.port import Children, Get, NoNode, Set
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument
from partition_manager.progress import Progress
from spout.log_spout import STORE_ROOT

if TYPE_CHECKING:
    from coordination.port import Coordinator

MOVED = "moved by flakelog spout progress move"


class Stored(NamedTuple):
    """The stored progress of one partition. `document` is None if it cannot be used, for the reason in `error`."""

    id: str
    path: str
    version: int
    text: bytes
    document: OffsetDocument | None
    error: str

    def to_json(self) -> dict[str, Any]:
        """Return the document as it is stored, with its place."""
        try:
            document = json.loads(self.text)
        except ValueError:
            document = None
        return {"id": self.id, "path": self.path, "document": document} | ({"error": self.error} if self.error else {})


def spouts_in(coordinator: "Coordinator") -> list[str]:
    """Return the ids of the spouts whose progress is stored."""
    return list(_children(coordinator, STORE_ROOT))


def progress_of(coordinator: "Coordinator", id: str) -> list[Stored]:
    """Return the stored progress of a spout, by topic and partition."""
    progress = [_stored(coordinator, id, path) for path in _documents(coordinator, f"{STORE_ROOT}/{id}")]
    return sorted(
        progress, key=lambda stored: (stored.document.topic, stored.document.partition) if stored.document else ("", -1)
    )


def move(coordinator: "Coordinator", stored: Stored, offset: int) -> None:
    """Store `offset` as the progress of a partition. Raise BadVersion if a topology has written meanwhile.

    A topology that still runs finds another owner's document at its next commit, and stops reading the partition.
    """
    assert stored.document is not None, "the caller moves only what it can read"
    moved = stored.document.at(Progress(offset))
    text = json.loads(moved.encode()) | {"owner": MOVED}
    coordinator.execute(Set(stored.path, json.dumps(text, separators=(",", ":")).encode(), stored.version))


def _documents(coordinator: "Coordinator", path: str) -> Iterator[str]:
    for name in _children(coordinator, path):
        if name.startswith("partition_"):
            yield f"{path}/{name}"
        else:  # a spout of several topics has a node for each
            yield from (f"{path}/{name}/{inner}" for inner in _children(coordinator, f"{path}/{name}"))


def _children(coordinator: "Coordinator", path: str) -> tuple[str, ...]:
    try:
        names: Any = coordinator.execute(Children(path))
    except NoNode:
        return ()
    return tuple(names)


def _stored(coordinator: "Coordinator", id: str, path: str) -> Stored:
    node: Any = coordinator.execute(Get(path))
    try:
        return Stored(id, path, node.version, node.data, OffsetDocument.decode(node.data), "")
    except BadOffsetDocument as error:
        return Stored(id, path, node.version, node.data, None, str(error))
