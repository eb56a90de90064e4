"""What the console may show and do: the rights of its principal, by the access rules that hold for every client.

The pages that show this broker's own state ask here. Messages, actions, and what other brokers know come by requests,
which the brokers check. The needed rights are those of the API that tells a client the same.
"""

import re

from broker.address import LOCAL_HOST
from broker.client.errors import BrokerError, ClientError
from broker.engine.api_table import APIS
from broker.security.authorization.acl import CLUSTER_NAME, USER, Operation, ResourceType
from broker.security.authorization.rights import AUTHORIZATION_FAILED, ApiRights, Rights, may, sees
from broker.services.context import BrokerServices
from flakelog.operations.rights import GRANTS, Right

API = "Console"
"""The name of the console in the audit log, in place of an API's."""
_FAILED = {error.code: resource_type for resource_type, error in AUTHORIZATION_FAILED.items()}
_PREFIXES = {
    ResourceType.TOPIC: "topic ",
    ResourceType.GROUP: "group ",
    ResourceType.TRANSACTIONAL_ID: "transactional id ",
}
_PARTITION = re.compile(r"-\d+\Z")


class MissingRight(ClientError):
    """The console's principal lacks a right. `reason` says which one, and `command` grants it.

    It is an error of the client, so that an operation that has done a part still tells so.
    """

    def __init__(self, principal: str, operation: Operation, resource_type: ResourceType, name: str) -> None:
        right = Right(operation, resource_type, name)
        self.command = right.command(principal)
        self.reason = f"the console acts as {principal}, which lacks {right.words}"
        super().__init__(f"{self.reason}; {GRANTS} {self.command}")


class Access:
    """The rights of the console's principal. Without an authorizer it may do everything, and `principal` is empty."""

    def __init__(self, services: BrokerServices) -> None:
        self._services = services
        self._rights: Rights | None = None
        self.principal = ""
        if services.authorizer is not None:
            self.principal = f"{USER}:{services.own_user}"
            user = services.own_user
            self._rights = Rights(services.authorizer, services.audit, LOCAL_HOST, user, API, ApiRights())

    def sees(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> bool:
        """Return True if a page may show a resource. If not, the page leaves it out, without a line in the audit log.
        """
        return sees(self._rights, operation, resource_type, name)

    def sees_topic(self, name: str) -> bool:
        return self.sees(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def sees_group(self, name: str) -> bool:
        return self.sees(Operation.DESCRIBE, ResourceType.GROUP, name)

    def require(self, operation: Operation, resource_type: ResourceType, name: str = CLUSTER_NAME) -> None:
        """Raise MissingRight, and note it in the audit log, unless the console may do an operation."""
        if not may(self._rights, operation, resource_type, name):
            raise MissingRight(self.principal, operation, resource_type, name)

    def require_topic(self, name: str) -> None:
        """Raise MissingRight unless the console may show that a topic exists."""
        self.require(Operation.DESCRIBE, ResourceType.TOPIC, name)

    def explained(self, error: BrokerError, api_key: int) -> Exception:
        """Return MissingRight for a broker's answer that a request lacked a right, and any other error as it is."""
        resource_type, api = _FAILED.get(error.code), APIS.get(api_key)
        if resource_type is None or api is None or self._rights is None:
            return error
        row = api.rights
        needs = [operation for kind, operation in (*row.named, *row.items) if kind is resource_type]
        needs += row.cluster if resource_type is ResourceType.CLUSTER else ()
        name = self._name(resource_type, error.what)
        missing = [
            operation
            for operation in needs
            if operation is not Operation.CLUSTER_ACTION and not self.sees(operation, resource_type, name)
        ]
        return MissingRight(self.principal, missing[0], resource_type, name) if missing else error

    def _name(self, resource_type: ResourceType, what: str) -> str:
        """Return the name of the resource that an error is about."""
        if resource_type is ResourceType.CLUSTER:
            return CLUSTER_NAME
        prefix = _PREFIXES[resource_type]
        if what.startswith(prefix):
            return what.removeprefix(prefix)
        if resource_type is ResourceType.TOPIC and self._services.metadata.topic(what) is None:
            return _PARTITION.sub("", what)
        return what
