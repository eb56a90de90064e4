"""Protect the nodes that a cluster has in ZooKeeper already, or open them, as Kafka's zookeeper-security-migration."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from broker.cluster.protected_nodes import ROOTS
from coordination.access import Access
from coordination.port import Children, Coordinator, NoNode, child

if TYPE_CHECKING:
    from coordination.zookeeper import ZooKeeperCoordinator


def replace_acls(session: "ZooKeeperCoordinator", access: Access, others: Iterable[str] = ()) -> int:
    """Give each node of a cluster the ACL that `access` has for it; return the number of nodes.

    `others` are more nodes at and below which all are included. Nodes that are deleted meanwhile are passed over.
    """
    replaced = 0
    for root in ("/", *ROOTS, *others):
        for path in ("/",) if root == "/" else _nodes(session, root):
            try:
                session.protect(path, access.protection(path))
            except NoNode:
                continue
            replaced += 1
    return replaced


def _nodes(session: Coordinator, root: str) -> Iterator[str]:
    """Yield the nodes at and below one that may exist."""
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            names = session.execute(Children(path))
        except NoNode:
            continue
        assert isinstance(names, tuple)
        waiting += [child(path, str(name)) for name in names]
        yield path
