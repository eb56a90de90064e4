"""The access rules in the coordinator, where 3.9's AclAuthorizer keeps them: paths, documents, and change nodes.

    /kafka-acl/Topic/orders                       {"acls":[{"principal":"User:ada", ...}],"version":1}
    /kafka-acl-extended/prefixed/Topic/ord        the same, for a pattern that is the begin of names
    /kafka-acl-changes/acl_changes_0000000000     TOPIC:orders
    /kafka-acl-extended-changes/acl_changes_...   {"version":1,"resourceType":"TOPIC","name":"ord", ...}
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from broker.cluster.json_document import DamagedDocument, decode_json, encode_json, json_number, json_value
from broker.security.authorization.acl import AclBinding, Operation, PatternType, Permission, ResourceType
from coordination.port import Get, check_operation

ACLS, EXTENDED_ACLS = "/kafka-acl", "/kafka-acl-extended/prefixed"
ACL_CHANGES, EXTENDED_ACL_CHANGES = "/kafka-acl-changes", "/kafka-acl-extended-changes"
CHANGE_PATHS = (ACL_CHANGES, EXTENDED_ACL_CHANGES)
_VERSION = 1
_ROOTS = {PatternType.LITERAL: ACLS, PatternType.PREFIXED: EXTENDED_ACLS}


def _pascal_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


_TYPES = {kind: _pascal_case(kind.name) for kind in ResourceType if kind > ResourceType.ANY}
_OPERATIONS = {_pascal_case(operation.name): operation for operation in Operation if operation > Operation.ANY}
_PERMISSIONS = {"Allow": Permission.ALLOW, "Deny": Permission.DENY}
_PERMISSION_NAMES = {permission: name for name, permission in _PERMISSIONS.items()}


class AclResource(NamedTuple):
    """A pattern of resources, which has one node."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str

    @property
    def path(self) -> str:
        return f"{_ROOTS[self.pattern_type]}/{_TYPES[self.resource_type]}/{self.name}"

    @property
    def change_path(self) -> str:
        """Return the path of its change nodes, without their numbers."""
        changes = ACL_CHANGES if self.pattern_type is PatternType.LITERAL else EXTENDED_ACL_CHANGES
        return f"{changes}/acl_changes_"

    def check(self) -> None:
        """Raise ValueError if the coordinator can have no node of this name."""
        check_operation(Get(self.path))
        if "/" in self.name:
            raise ValueError(f"{self.name!r} has a slash, and rules of a cluster are nodes of ZooKeeper")


def resource_of(binding: AclBinding) -> AclResource:
    return AclResource(binding.resource_type, binding.pattern_type, binding.name)


PARENTS: dict[str, tuple[ResourceType, PatternType]] = {
    f"{root}/{name}": (kind, pattern_type) for pattern_type, root in _ROOTS.items() for kind, name in _TYPES.items()
}
"""The nodes above those of resources."""


def encode_acls(acls: Iterable[AclBinding]) -> bytes:
    """Encode the rules of one resource, with the keys in the order that Kafka 3.9.1 writes."""
    entries = [
        {
            "principal": binding.principal,
            "permissionType": _PERMISSION_NAMES[binding.permission],
            "host": binding.host,
            "operation": _pascal_case(binding.operation.name),
        }
        for binding in sorted(acls)
    ]
    return encode_json({"acls": entries, "version": _VERSION})


def decode_acls(resource: AclResource, data: bytes) -> frozenset[AclBinding]:
    """Decode the rules of one resource. Raise DamagedDocument."""
    path = resource.path
    if not data:
        return frozenset()
    document = decode_json(path, data)
    if json_number(path, document, "version") != _VERSION:
        raise DamagedDocument(f"{path}: version {document['version']} is not known; {_VERSION} is")
    return frozenset(_entry(resource, entry) for entry in json_value(path, document, "acls", list))


def _entry(resource: AclResource, entry: Any) -> AclBinding:
    path = resource.path
    if not isinstance(entry, dict):
        raise DamagedDocument(f"{path}: {entry!r} is no access rule")
    operation, permission, principal, host = (
        json_value(path, entry, key, str) for key in ("operation", "permissionType", "principal", "host")
    )
    if operation not in _OPERATIONS or permission not in _PERMISSIONS:
        raise DamagedDocument(f"{path}: {operation!r} or {permission!r} is not known")
    return AclBinding(*resource, principal, host, _OPERATIONS[operation], _PERMISSIONS[permission])


def encode_acl_change(resource: AclResource) -> bytes:
    """Encode the change node of a resource."""
    if resource.pattern_type is PatternType.LITERAL:
        return f"{resource.resource_type.name}:{resource.name}".encode()
    return encode_json(
        {
            "version": _VERSION,
            "resourceType": resource.resource_type.name,
            "name": resource.name,
            "patternType": resource.pattern_type.name,
        }
    )


def decode_acl_change(path: str, data: bytes) -> AclResource:
    """Return the resource that a change node names. Raise DamagedDocument."""
    try:
        if path.startswith(f"{ACL_CHANGES}/"):
            kind, _, name = data.decode().partition(":")
            return AclResource(ResourceType[_upper(kind)], PatternType.LITERAL, name)
        document = decode_json(path, data)
        kind, name, pattern = (json_value(path, document, key, str) for key in ("resourceType", "name", "patternType"))
        return AclResource(ResourceType[_upper(kind)], PatternType[_upper(pattern)], name)
    except (KeyError, UnicodeDecodeError) as error:
        raise DamagedDocument(f"{path}: {data[:80]!r} names no resource ({error})") from error


def _upper(name: str) -> str:
    """Return a name in upper case; older brokers wrote "Topic"."""
    return {"transactionalid": "TRANSACTIONAL_ID", "delegationtoken": "DELEGATION_TOKEN"}.get(
        name.lower(), name.upper()
    )
