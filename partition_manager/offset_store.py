"""Offset documents over `coordination`: one class for ZooKeeper, a directory and memory.

A document lives where storm-kafka 0.9.3 keeps it, <root>/<id>/partition_<n>. Each write names the version seen before;
one that meets another version asks who wrote it. Our own write, whose answer was lost, is built upon; anybody else's
fences us.
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
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument
from partition_manager.ports import Answer, Failed, Fenced, Loaded, LoadOffset, Saved, SaveOffset, StoreRequest

Procedure = Generator[Operation, Any, Answer]
# Carries a procedure out somewhere, and calls back with what it returned, on the caller's own thread.
CarryOut = Callable[[Procedure, Callable[[Answer], None]], None]

NO_NODE = -1  # the version of a document that was never written
SAVE_TRIES = 3  # versions of our own lost writes to step over before asking later


class CoordinatedOffsetStore:
    """An OffsetStore. `path` is <root>/<id>; ValueError when that is no node's path."""

    def __init__(self, path: str, carry_out: CarryOut, on_close: Callable[[], None] = lambda: None) -> None:
        self._path = check_path(path)
        self._carry_out = carry_out
        self._on_close = on_close

    def ask(self, request: StoreRequest, answer: Callable[[Answer], None]) -> None:
        path = f"{self._path}/partition_{request.partition}"
        if isinstance(request, LoadOffset):
            self._carry_out(load(path), answer)
        else:
            self._carry_out(save(path, request), answer)

    def close(self) -> None:
        self._on_close()


def blocking(coordinator: Coordinator) -> CarryOut:
    """Carries procedures out at once, for plain programs and tests."""
    return lambda procedure, answer: answer(run(coordinator, procedure))


def load(path: str) -> Procedure:
    """Loaded or Failed."""
    try:
        node: Node = yield Get(path)
    except NoNode:
        return Loaded(None, NO_NODE)
    except CoordinationError as error:
        return _failed(error)
    return Loaded(node.data, node.version)


def save(path: str, request: SaveOffset) -> Procedure:
    """Saved, Fenced or Failed. After Failed the write may have been made, or be made yet; a later save finds out."""
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
            if not _same_owner(node.data, request.document):
                return Fenced(f"{path} was written by another owner: is this topology running twice?")
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


def _same_owner(stored: bytes, ours: bytes) -> bool:
    try:
        owner = OffsetDocument.decode(stored).owner
    except BadOffsetDocument:
        return False
    return bool(owner) and owner == OffsetDocument.decode(ours).owner


def _failed(error: CoordinationError) -> Failed:
    return Failed(f"{type(error).__name__}: {error}")
