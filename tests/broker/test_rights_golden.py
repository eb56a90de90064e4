"""Clients with some rights get the answers that Apache Kafka 4.3 gives them: tests/golden/rights.json.

`tests/compat/clients/test_rights_as_kafka.py` asks Kafka, and writes the file.
"""

import json
from pathlib import Path

import pytest

from broker.security.authorization.acl import CLUSTER_NAME, AclBinding, PatternType, ResourceType
from tests.broker.any_api import EngineLine
from tests.broker.handlers.rights_client import guarded
from tests.broker.rights_cases import CLIENT_HOST, cases, outcome_of

GOLDEN = Path(__file__).parents[1] / "golden" / "rights.json"


def line_of(broker, user, host):
    line = EngineLine(broker)
    line._client.conn.user = user
    line._client.conn.peer = f"{host}:9"
    return line


@pytest.mark.parametrize("name", dict.fromkeys(api.name for api, _, _ in cases()))
def test_answers_to_clients_with_some_rights_are_kafkas(name):
    golden, differ = json.loads(GOLDEN.read_text()), []
    for api, case, rights in cases():
        if api.name != name:
            continue
        broker = guarded()
        acls = frozenset(
            AclBinding(
                kind, PatternType.LITERAL, CLUSTER_NAME if kind is ResourceType.CLUSTER else "*", "User:ada", host,
                operation, permission,
            )
            for kind, operation, host, permission in rights
        )  # fmt: skip
        broker.services.authorizer.use(acls)
        outcome = outcome_of(api, line_of(broker, "root", "127.0.0.1"), line_of(broker, "ada", CLIENT_HOST))
        key = f"{name}: {case}"
        if outcome != golden[key]:
            differ.append(f"{key}: {outcome}, Kafka {golden[key]}")
    assert not differ, "\n".join(differ)
