"""The operations that a client may do with a resource: on a broker without access rules, all of them (KIP-430).

The bits are Kafka's AclOperation codes, limited to those that a kind of resource has.
"""

from broker.security.authorization.acl import CLUSTER_NAME, OPERATIONS, Operation, ResourceType
from broker.services.context import RequestContext

NOT_ASKED = -(2**31)
_ALL = {kind: sum(1 << operation for operation in operations) for kind, operations in OPERATIONS.items()}
TOPIC, GROUP = _ALL[ResourceType.TOPIC], _ALL[ResourceType.GROUP]
CLUSTER = _ALL[ResourceType.CLUSTER]


def operations(call: RequestContext, is_requested: bool, resource_type: ResourceType, name: str) -> int:
    """Return the operations that a request's client may do if it asked for them, else NOT_ASKED."""
    if not is_requested:
        return NOT_ASKED
    return _ALL[resource_type] if call.rights is None else call.rights.operations(resource_type, name)


def cluster_operations(call: RequestContext, is_requested: bool) -> int:
    """Return the operations on the cluster: none, as in Kafka, if the client may not describe the cluster."""
    rights = call.rights
    if is_requested and rights is not None:
        if not rights.may(Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
            return 0
    return operations(call, is_requested, ResourceType.CLUSTER, CLUSTER_NAME)
