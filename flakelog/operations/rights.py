"""Missing rights: how messages name one, the command that grants it, and whether brokers hide things from a user."""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from broker.client.api_versions import DESCRIBE_CLUSTER
from broker.client.blocking import Client
from broker.client.errors import BrokerError, ClientError
from broker.security.authorization.acl import OPERATIONS, Operation, ResourceType
from broker.wire.errors import ErrorCode

SOME_USER = "User:NAME"
"""The principal in commands for a user whose name is not known here."""
GRANTS = "unless a rule denies it (flakelog acl list), this grants it:"
"""Comes before a command that adds a rule: a rule that denies comes before all others, and no answer tells of it."""
_KINDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLUSTER: "cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional-id",
}
"""The resources as options of `flakelog acl add`."""
_DENIALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: ResourceType.TOPIC,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: ResourceType.GROUP,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: ResourceType.CLUSTER,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: ResourceType.TRANSACTIONAL_ID,
}


class Right(NamedTuple):
    """The right to do an operation with a resource."""

    operation: Operation
    resource_type: ResourceType
    name: str

    @property
    def words(self) -> str:
        """Return the right as messages name it."""
        kind = _KINDS[self.resource_type].replace("-", " ")
        resource = "the cluster" if self.resource_type is ResourceType.CLUSTER else f"{kind} {self.name}"
        return f"the right {self._verb} on {resource}"

    def command(self, principal: str = SOME_USER) -> str:
        """Return the command that grants the right."""
        kind = _KINDS[self.resource_type]
        option = f"--{kind}" if self.resource_type is ResourceType.CLUSTER else f"--{kind} {shlex.quote(self.name)}"
        return f"flakelog acl add --allow {shlex.quote(principal)} --operation {self._verb} {option}"

    @property
    def _verb(self) -> str:
        return self.operation.name.lower().replace("_", "-")


def remedy(error: BrokerError, needed: Sequence[Right]) -> str:
    """Return which of the needed rights an error says is missing, and what grants it; "" for any other error."""
    denied = [right for right in needed if right.resource_type is _DENIALS.get(error.code)]
    resource = error.what.removeprefix("topic ")  # or a partition, NAME-NUMBER
    named = [right for right in denied if right.name in (resource, resource.rpartition("-")[0])]
    for missing in (named or denied)[:1]:
        return f"; the user lacks {missing.words}; {GRANTS} {missing.command()}"
    return ""


def needed_for_topics(operation: Operation, topics: Sequence[str]) -> list[Right]:
    """Return the right to do an operation with each topic."""
    return [Right(operation, ResourceType.TOPIC, topic) for topic in topics]


def may_hide(client: Client) -> bool:
    """Return True if brokers may leave things out of their lists for this user, because an authorizer decides.

    Nothing counts as hidden from a user who may do everything with the cluster.
    """
    everything = sum(1 << operation for operation in OPERATIONS[ResourceType.CLUSTER])
    try:
        fields = {"include_cluster_authorized_operations": True}
        answer = client.run(client.core.ask_any(DESCRIBE_CLUSTER, fields))
    except ClientError:
        return False
    return not answer.error_code and int(answer.cluster_authorized_operations) != everything
