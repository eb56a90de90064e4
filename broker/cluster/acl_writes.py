"""Writes of access rules in the coordinator, which any broker may carry out, as in Kafka.

A write sets the resource's node and creates a change node, which tells the other brokers to read the resource again, in
one Multi. The node of a resource without rules is deleted. A Set names the version that was read: if another broker has
written meanwhile, the node is read again and the change is made anew, so that the rules of both are kept.
"""

from collections.abc import Collection

from broker.cluster.acl_documents import AclResource, decode_acls, encode_acl_change, encode_acls
from broker.cluster.procedure import Procedure, read_node, write
from broker.cluster.registration import create_if_missing
from broker.security.authorization.acl import AclBinding
from coordination.port import (
    BadVersion,
    ConnectionLost,
    CoordinationError,
    Create,
    Delete,
    Multi,
    NodeExists,
    NoNode,
    Set,
    check_operation,
    parent,
)


def write_acls(
    resource: AclResource, added: Collection[AclBinding], removed: Collection[AclBinding]
) -> Procedure[None]:
    """Add rules of one resource, and remove others. Raise ValueError if the coordinator cannot keep them."""
    resource.check()
    path = resource.path
    change_node = Create(resource.change_path, encode_acl_change(resource), sequential=True)
    while True:
        node = yield from read_node(path)
        present = frozenset[AclBinding]() if node is None else decode_acls(resource, node.data)
        acls = (present | frozenset(added)) - frozenset(removed)
        if acls == present:
            return
        data = encode_acls(acls)
        change: Create | Delete | Set
        if node is None:
            change = Create(path, data)
        elif acls:
            change = Set(path, data, node.version)
        else:
            change = Delete(path, node.version)
        operation = Multi((change, change_node))
        check_operation(operation)
        outcome = yield from write(operation)
        if isinstance(outcome, NoNode) and node is None and outcome.index == 0:
            yield from create_if_missing(parent(path))
        elif isinstance(outcome, NoNode) and outcome.index == 1:
            yield from create_if_missing(parent(resource.change_path))
        elif isinstance(outcome, CoordinationError):
            # After a lost answer the rules are read again: if they were written, nothing is left to do.
            if not isinstance(outcome, ConnectionLost | NodeExists | BadVersion | NoNode):
                raise outcome
        else:
            return
