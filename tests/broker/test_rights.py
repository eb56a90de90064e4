"""Every row of the API table asks for the rights that its row of the table of rights names, and for no other.

A client with all rights of a row gets the answer that `test_every_api` expects. A client that lacks a right
which the row requires is refused. The client that prepares the request may do everything.
"""

import pytest

from broker.engine.api_table import APIS, INTER_BROKER
from broker.engine.rights_table import RIGHTS
from broker.security.authorization.acl import (
    CLUSTER_NAME,
    AclBinding,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from broker.security.authorization.rights import Rights
from broker.wire.errors import ErrorCode
from tests.broker.any_api import EngineLine, World, answer_of, codes_of
from tests.broker.engine_client import EngineBroker
from tests.broker.test_every_api import ASKS

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
FAILURES = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
SILENT = {"ListGroups", "ListTransactions", "Metadata", "DescribeTopicPartitions", "DescribeCluster"}
"""APIs whose answers leave out what a client may not see."""
OPEN = {"SaslHandshake", "SaslAuthenticate", "ApiVersions"}


class ClientLine(EngineLine):
    """A connection on which the API under test is asked for by ada, and everything else by a super user."""

    def __init__(self, broker, key):
        super().__init__(broker)
        self._key = key
        self.codes = []
        self._waits = False

    def another(self):
        return ClientLine(self.broker, self._key)

    def send(self, frame):
        key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (4, 6))
        self._waits = key == self._key
        self._version = version
        self._client.conn.user = "ada" if self._waits else "root"
        super().send(frame)

    def receive(self):
        frame = super().receive()
        if self._waits:
            self.codes += codes_of(answer_of(self._key, self._version, frame)[1])
        return frame

    def pause(self):
        """Wait between two tries. Raise AssertionError if ada was refused, because a further try would be, too."""
        assert not FAILURES.intersection(self.codes)
        super().pause()


def granted(needs):
    """Return rules that give ada rights on all resources of their types."""
    return frozenset(
        AclBinding(
            kind,
            PatternType.LITERAL,
            CLUSTER_NAME if kind is ResourceType.CLUSTER else "*",
            "User:ada",
            "*",
            operation,
            Permission.ALLOW,
        )
        for kind, operation in needs
    )


def needs_of(row):
    return [*((ResourceType.CLUSTER, operation) for operation in row.cluster[-1:]), *row.named, *row.items]


def line_of(api, needs):
    broker = EngineBroker(
        authorizer_class_name=STANDARD,
        super_users="User:root",
        group_initial_rebalance_delay_ms=0,
        offsets_topic_num_partitions=1,
    )
    broker.services.authorizer.use(granted(needs))
    return ClientLine(broker, api.key)


@pytest.mark.parametrize("name", [api.name for api in APIS.values()])
def test_a_client_with_the_rights_of_a_row_is_answered(name, monkeypatch):
    checked = set()
    sees, visible = Rights.sees, Rights.visible

    def noted(rights, operation, kind, resource):
        if rights.principal == "User:ada":
            checked.add((kind, operation))
        return sees(rights, operation, kind, resource)

    def all_noted(rights, operation, kind, resources):
        if rights.principal == "User:ada":
            checked.add((kind, operation))
        return visible(rights, operation, kind, resources)

    monkeypatch.setattr(Rights, "sees", noted)
    monkeypatch.setattr(Rights, "visible", all_noted)
    api = next(api for api in APIS.values() if api.name == name)
    line = line_of(api, needs_of(api.rights))
    if name.endswith("Acls"):
        line.broker.services.authorizer = None  # the test expects SECURITY_DISABLED
    ASKS[name](World(line, name, api.newest))
    assert not FAILURES.intersection(line.codes)
    cluster = {(ResourceType.CLUSTER, operation) for operation in api.rights.cluster}
    assert checked <= {*cluster, *api.rights.named, *api.rights.items}, "the row names all that is asked for"


@pytest.mark.parametrize("name", [api.name for api in APIS.values() if api.name not in OPEN | SILENT])
@pytest.mark.parametrize("age", ["oldest", "newest"])
def test_a_client_without_rights_is_refused(name, age):
    api = next(api for api in APIS.values() if api.name == name)
    line = line_of(api, [])
    try:
        ASKS[name](World(line, name, getattr(api, age)))
    except (AssertionError, ValueError, TypeError, IndexError, AttributeError):
        pass  # it expects another answer
    assert FAILURES.intersection(line.codes)
    assert line.broker.services.audit.denied_total


def test_every_row_of_the_api_table_has_a_row_here_and_the_reverse():
    modules = {api.module for api in (*APIS.values(), *INTER_BROKER.values())}
    assert RIGHTS.keys() == modules


def test_what_only_brokers_send_needs_cluster_action():
    assert all(api.rights.cluster == (Operation.CLUSTER_ACTION,) for api in INTER_BROKER.values())
