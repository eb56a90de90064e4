"""Apache Kafka 4.3's answers to clients with some rights are those of tests/golden/rights.json.

The client under test and the administrator are both User:ANONYMOUS, at different addresses. A rule allows the
administrator everything. RIGHTS_GOLDEN=write writes the file anew.
"""

import json
import os

import pytest

from benchmarks.apache import SHORT_LIVED, Unavailable, await_answer, start_kafka
from broker.security.authorization.acl import CLUSTER_NAME, Operation, Permission, ResourceType
from tests.broker.any_api import World
from tests.broker.rights_cases import ADMIN_HOST, CLIENT_HOST, OTHER_HOST, cases, outcome_of
from tests.broker.test_rights_golden import GOLDEN
from tests.compat.raw_connection import RawConnection, SocketLine
from tests.patience import until

pytestmark = pytest.mark.soak
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until the administrator has its rule
}
LITERAL = 3
KINDS = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID)


class Line(SocketLine):
    """A connection from an address."""

    def __init__(self, address, source):
        self._address, self._source = address, source
        self._connection = RawConnection(address, source=source)

    def another(self):
        return Line(self._address, self._source)


@pytest.fixture(scope="module")
def guarded_kafka(tmp_path_factory):
    directory = tmp_path_factory.mktemp("kafka")
    try:
        _, process = start_kafka(directory, SETTINGS, SHORT_LIVED)
    except Unavailable as why:
        pytest.skip(str(why))
    try:
        address = (directory / "address").read_text()
        await_answer(address, process)
        add(World(Line(address, ADMIN_HOST)), [(k, Operation.ALL, ADMIN_HOST, Permission.ALLOW) for k in KINDS])
        yield address
    finally:
        process.kill()
        process.wait()


def add(world, rights):
    creations = [
        {
            "resource_type": int(kind), "resource_name": CLUSTER_NAME if kind is ResourceType.CLUSTER else "*",
            "resource_pattern_type": LITERAL, "principal": "User:ANONYMOUS", "host": host,
            "operation": int(operation), "permission_type": int(permission),
        }
        for kind, operation, host, permission in rights
    ]  # fmt: skip
    if creations:
        answer = world.ask("CreateAcls", {"creations": creations})
        assert not any(result.error_code for result in answer.results), answer
    until(lambda: number_of_rules(world) >= len(creations) or None)


def selected(host=None):
    return {
        "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
        "host_filter": host, "operation": 1, "permission_type": 1,
    }  # fmt: skip


def number_of_rules(world, host=None):
    return sum(len(resource.acls) for resource in world.ask("DescribeAcls", selected(host)).resources)


def remove(world):
    world.ask("DeleteAcls", {"filters": [selected(CLIENT_HOST), selected(OTHER_HOST)]})
    until(lambda: not number_of_rules(world, CLIENT_HOST) + number_of_rules(world, OTHER_HOST) or None)


def test_kafkas_answers_to_clients_with_some_rights_are_those_of_the_file(guarded_kafka):
    golden = {} if os.environ.get("RIGHTS_GOLDEN") == "write" else json.loads(GOLDEN.read_text())
    outcomes = {}
    for api, case, rights in cases():
        world = World(Line(guarded_kafka, ADMIN_HOST))
        remove(world)
        add(world, rights)
        number = len(rights) + len(KINDS)
        until(lambda world=world, number=number: number_of_rules(world) >= number or None)
        admin, client = Line(guarded_kafka, ADMIN_HOST), Line(guarded_kafka, CLIENT_HOST)
        outcomes[f"{api.name}: {case}"] = outcome_of(api, admin, client)
    if not golden:
        rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(codes)}" for key, codes in outcomes.items())
        GOLDEN.write_text(f"{{\n{rows}\n}}\n")
        return
    differ = [f"{key}: {outcomes[key]}, not {golden.get(key)}" for key in outcomes if outcomes[key] != golden.get(key)]
    assert not differ and outcomes.keys() == golden.keys(), "\n".join(differ)
