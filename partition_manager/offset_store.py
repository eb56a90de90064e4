"""Offset documents stored through `coordination`: one class for ZooKeeper, a directory and memory.

A document is stored where storm-kafka 0.9.3 keeps it, <root>/<id>/partition_<n>; a spout of several topics stores it at
<root>/<id>/<topic>/partition_<n>. Each write names the version last
seen. A write that finds a different version reads the stored owner. If it is our own earlier write, whose answer was
lost, the write is retried on top of it. If it is another owner's, we are fenced.
"""

from collections.abc import Callable, Generator
from typing import Any

from coordination.port import (
    BadVersion,
    CoordinationError,
    Coordinator,
    Create,
    Get,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    check_path,
    run,
)
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument, node_of, process_of
from partition_manager.ports import Answer, Failed, Fenced, Loaded, LoadOffset, Saved, SaveOffset, StoreRequest

Procedure = Generator[Operation, Any, Answer]
# Runs a procedure somewhere and calls back with its return value on the caller's thread.
CarryOut = Callable[[Procedure, Callable[[Answer], None]], None]

NO_NODE = -1  # version of a document that was never written
SAVE_TRIES = 3  # attempts to write over our lost writes before answering Failed


class CoordinatedOffsetStore:
    """An OffsetStore at `path`, which is <root>/<id>. Raise ValueError if that is not a valid node path."""

    def __init__(self, path: str, carry_out: CarryOut, on_close: Callable[[], None] = lambda: None) -> None:
        self._path = check_path(path)
        self._carry_out = carry_out
        self._on_close = on_close

    def ask(self, request: StoreRequest, answer: Callable[[Answer], None]) -> None:
        path = f"{self._path}/{node_of(request.topic, request.partition, request.by_topic)}"
        if isinstance(request, LoadOffset):
            self._carry_out(load(path), answer)
        else:
            self._carry_out(save(path, request), answer)

    def close(self) -> None:
        self._on_close()


def blocking(coordinator: Coordinator) -> CarryOut:
    """Return a CarryOut that runs procedures synchronously, for plain programs and tests."""
    return lambda procedure, answer: answer(run(coordinator, procedure))


def load(path: str) -> Procedure:
    """Load a document. Return Loaded or Failed."""
    try:
        node: Node = yield Get(path)
    except NoNode:
        return Loaded(None, NO_NODE)
    except CoordinationError as error:
        return _failed(error)
    return Loaded(node.data, node.version)


def save(path: str, request: SaveOffset) -> Procedure:
    """Save a document. Return Saved, Fenced or Failed.

    After Failed the write may have been made or may still be made; a later save detects that.
    """
    version = request.version
    try:
        for _ in range(SAVE_TRIES):
            try:
                return Saved((yield from _write(path, request.document, version)))
            except (BadVersion, NodeExists, NoNode):
                pass
            node = yield from _read(path)
            if node is None:
                return Fenced(f"{path} was removed while this topology was running")
            owner = _owner_of(node.data)
            if not owner or owner != OffsetDocument.decode(request.document).owner:
                return Fenced(f"{path} was written by {process_of(owner)}: is this topology running twice?")
            version = node.version
    except CoordinationError as error:
        return _failed(error)
    return Failed(f"{path} changes faster than it can be written")


def _write(path: str, document: bytes, version: int) -> Generator[Operation, Any, int]:
    if version == NO_NODE:
        yield Create(path, document)
        return 0
    written: int = yield Set(path, document, version)
    return written


def _read(path: str) -> Generator[Operation, Any, Node | None]:
    try:
        node: Node = yield Get(path)
    except NoNode:
        return None
    return node


def _owner_of(stored: bytes) -> str:
    try:
        return OffsetDocument.decode(stored).owner
    except BadOffsetDocument:
        return ""


def _failed(error: CoordinationError) -> Failed:
    return Failed(f"{type(error).__name__}: {error}")
