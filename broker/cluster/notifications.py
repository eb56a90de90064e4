"""Nodes by which brokers notify the controller: of a disk that failed, of ISRs that a leader wrote itself.

    /log_dir_event_notification/log_dir_event_N   a broker whose disk failed
    /isr_change_notification/isr_change_N         partitions, from leaders of Kafka before 2.7

The controller watches both paths, and deletes the nodes that it has processed. A new controller deletes those that it
finds: it reads all states and orders all replicas anyway.
"""

from collections.abc import Callable
from typing import TypeVar

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import DamagedDocument
from broker.cluster.procedure import Procedure, chunks, failed_index, read, read_children, write
from coordination.port import ConnectionLost, CoordinationError, Delete, Get, Multi, Node, NoNode

NODES_AT_ONCE = 100

T = TypeVar("T")


def read_notifications(
    context: ControllerContext, parent: str, decode: Callable[[str, bytes], T]
) -> Procedure[tuple[list[str], list[T]]]:
    """Watch a path. Return the nodes below it, and what they say; a damaged node is reported and left out."""
    names = yield from read_children(parent, watch=True)
    paths = [f"{parent}/{name}" for name in names]
    nodes = yield from read([Get(path) for path in paths])
    documents: list[T] = []
    for path, node in zip(paths, nodes, strict=True):
        if isinstance(node, Node):
            try:
                documents.append(decode(path, node.data))
            except DamagedDocument as error:
                context.policy.report(f"A notification for the controller is ignored: {error}")
    return paths, documents


def delete_notifications(context: ControllerContext, paths: list[str]) -> Procedure[None]:
    """Delete nodes, each Multi with a check of the controller epoch; skip those that are gone."""
    for chunk in chunks(paths, NODES_AT_ONCE):
        pending = [Delete(path) for path in chunk]
        while pending:
            outcome = yield from write(Multi((context.fence(), *pending)))
            if not isinstance(outcome, CoordinationError):
                break
            index = failed_index(outcome)
            if isinstance(outcome, NoNode) and index is not None:
                del pending[index - 1]
            elif not isinstance(outcome, ConnectionLost):
                raise outcome


def drop_notifications(context: ControllerContext, parent: str) -> Procedure[None]:
    """Watch a path, and delete the nodes below it unread."""
    names = yield from read_children(parent, watch=True)
    yield from delete_notifications(context, [f"{parent}/{name}" for name in names])
