"""A change of the metadata, and the values in it that are no topics: owners of quotas, credentials, access rules."""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from broker.metadata.topic import Topic
from broker.security.authorization.acl import AclBinding

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""The owner of a quota: (type, name) pairs, ordered by type. None as name stands for all without a separate quota."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    return tuple(sorted(parts, key=lambda part: part[0]))


class Credential(NamedTuple):
    """The data that a server keeps of a password (RFC 5802)."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def to_json(self) -> dict[str, object]:
        keys = {name: b64encode(getattr(self, name)).decode() for name in ("salt", "stored_key", "server_key")}
        return keys | {"iterations": self.iterations}

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Credential":
        salt, stored_key, server_key = (b64decode(value[name]) for name in ("salt", "stored_key", "server_key"))
        return Credential(salt, value["iterations"], stored_key, server_key)


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the metadata. Requests see none of it before the controller has stored all of it."""

    topics: Mapping[str, Topic | None] = field(default_factory=dict)
    """New and changed topics by name; None deletes the topic."""
    broker_properties: Mapping[str, Mapping[str, str]] | None = None
    quotas: Mapping[Entity, Mapping[str, float]] | None = None
    credentials: Mapping[tuple[str, int], Credential] | None = None
    producer_ids: int = 0
    """The number of producer ids to reserve."""
    acls: frozenset[AclBinding] | None = None
