"""The cases of tests/golden/rights.json: each API, asked by a client with some rights.

The request is that of `test_every_api`. An administrator's connection prepares it, and the client under test sends it.
The outcome is the sorted error codes of the client's answers. They end with one that refuses it, or that the test of
the request does not expect.
"""

from broker.engine.api_table import APIS
from broker.security.authorization.acl import Operation, Permission, ResourceType
from tests.broker.any_api import World, answer_of, codes_of
from tests.broker.test_every_api import ASKS

CLIENT_HOST, ADMIN_HOST, OTHER_HOST = "127.0.0.2", "127.0.0.1", "127.0.0.3"
LEFT_OUT = {
    "SaslHandshake", "SaslAuthenticate", "ApiVersions",  # no rights
    "DescribeAcls", "CreateAcls", "DeleteAcls",  # their test expects a broker without an authorizer
    "DescribeUserScramCredentials",  # Kafka fails at a request for all users that it refuses, and does not answer
    "AlterReplicaLogDirs",  # its request names a directory of the broker
    "UnregisterBroker", "DescribeQuorum", "UpdateFeatures", "ListConfigResources",  # they differ anyway
}  # fmt: skip


def needs_of(row):
    """Return the rights that a row of the API table names, as (type, operation)."""
    return [*((ResourceType.CLUSTER, operation) for operation in row.cluster), *row.named, *row.items]


def cases():
    """Return (API, name of the case, rights), each right as (type, operation, host, permission)."""
    for api in APIS.values():
        if api.name in LEFT_OUT:
            continue
        needs = needs_of(api.rights)
        allowed = [(*need, CLIENT_HOST, Permission.ALLOW) for need in needs]
        yield api, "none", []
        yield api, "all", allowed
        yield api, "all of another host", [(*need, OTHER_HOST, Permission.ALLOW) for need in needs]
        for kind, operation, *host_and_permission in allowed:
            right = f"{kind.name} {operation.name}"
            if len(needs) > 1:
                yield api, f"only {right}", [(kind, operation, *host_and_permission)]
            yield api, f"all, and {right} denied", [*allowed, (kind, operation, CLIENT_HOST, Permission.DENY)]
        kinds = dict.fromkeys(kind for kind, _ in needs)
        yield api, "ALL", [(kind, Operation.ALL, CLIENT_HOST, Permission.ALLOW) for kind in kinds]


ALLOWED = {
    "NOT_LEADER_OR_FOLLOWER", "COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR",
    "TOPIC_ALREADY_EXISTS", "UNKNOWN_TOPIC_OR_PARTITION",
}  # fmt: skip
"""Codes that only a client with rights gets: Kafka's node is one for all cases, and leaders begin late. They count as
NONE."""


class Refused(Exception):
    """The client under test lacks a right; its request is not repeated."""


class TwoLines:
    """Two connections: requests of one API go over the client's, all others over the administrator's."""

    def __init__(self, admin, client, key):
        self._admin, self._client, self._key = admin, client, key
        self._last = admin
        self._version = 0
        self.codes = []

    @property
    def broker(self):
        return self._admin.broker

    def another(self):
        other = TwoLines(self._admin.another(), self._client.another(), self._key)
        other.codes = self.codes
        return other

    def send(self, frame):
        key, self._version = (int.from_bytes(frame[at : at + 2], "big") for at in (4, 6))
        self._last = self._client if key == self._key else self._admin
        self._last.send(frame)

    def receive(self):
        frame = self._last.receive()
        if self._last is self._client:
            codes = [code.name for code in codes_of(answer_of(self._key, self._version, frame)[1])]
            self.codes += ["NONE" if code in ALLOWED else code for code in codes]
            if any(code.endswith("AUTHORIZATION_FAILED") for code in codes):
                raise Refused
        return frame

    def pause(self):
        self._admin.pause()


def outcome_of(api, admin, client):
    """Ask an API in its newest version. Return the codes of the answers."""
    line = TwoLines(admin, client, api.key)
    try:
        ASKS[api.name](World(line, api.name, api.newest))
    except Exception:
        pass  # refused, or another answer than that to a client that may do everything
    return sorted(set(line.codes))
