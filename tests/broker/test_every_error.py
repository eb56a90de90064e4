"""Every error of every API, in the lowest and in the highest version that knows it (tests/broker/every_error)."""

import ast
from pathlib import Path

import pytest

import broker
from broker.engine.api_table import APIS
from tests.broker.any_api import EngineLine, World, codes_of
from tests.broker.engine_client import EngineBroker
from tests.broker.engine_cluster import EngineCluster
from tests.broker.every_error.table import CASES

BROKER = Path(broker.__file__).parent
ROWS = [(case, version) for case in CASES for version in case.versions]
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
}
# Codes that the broker's package names and that no API answers.
NOT_ANSWERED = {
    "NETWORK_EXCEPTION": "flakelog.testing closes connections with it, and it stands for a broker that does not answer",
}
# Codes that only clusters, partitions of several copies, or listeners of SASL answer, by API, with their tests.
ELSEWHERE = {
    "ListOffsets": {"OFFSET_NOT_AVAILABLE", "LEADER_NOT_AVAILABLE"},  # handlers/test_replicated_offsets.py
    "DeleteRecords": {"REQUEST_TIMED_OUT", "NOT_LEADER_OR_FOLLOWER"},  # there too
    "Fetch": {"STALE_BROKER_EPOCH"},  # handlers/test_follower_fetch.py
    "Produce": {"NOT_ENOUGH_REPLICAS_AFTER_APPEND"},  # handlers/test_acks_all.py
    "SaslAuthenticate": {"SASL_AUTHENTICATION_FAILED"},  # engine/test_authenticator.py
    "Envelope": {"PRINCIPAL_DESERIALIZATION_FAILURE"},  # membership/test_envelope.py
}


@pytest.mark.parametrize(
    "case, version", ROWS, ids=[f"{case.api}-{version}-{case.code.name}" for case, version in ROWS]
)
def test_an_error_is_answered_in_every_version_that_knows_it(case, version):
    settings = SETTINGS | case.settings
    broker = EngineCluster(2, **settings).nodes[2].broker if case.elsewhere else EngineBroker(**settings)
    assert case.code in codes_of(case.ask(World(EngineLine(broker), case.api, version)))


def named_in(path):
    """Return the error codes that a module names."""
    nodes = ast.walk(ast.parse(path.read_text()))
    attributes = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)]
    names = {attribute.attr for attribute in attributes if attribute.value.id == "ErrorCode"}
    return {name for name in names if name.isupper()} - {"NONE"}


@pytest.mark.parametrize("api", APIS.values(), ids=[api.name for api in APIS.values()])
def test_every_error_that_a_handler_names_is_in_the_table(api):
    tested = {c.code.name for c in CASES if c.api == api.name} | ELSEWHERE.get(api.name, set())
    assert named_in(BROKER / "handlers" / f"{api.module}.py") <= tested


def test_every_error_that_the_broker_names_is_in_the_table():
    others = {BROKER / "client", BROKER / "cluster", BROKER / "membership"}  # they answer no client
    modules = [path for path in BROKER.rglob("*.py") if others.isdisjoint(path.parents)]
    named = set().union(*map(named_in, modules))
    tested = {case.code.name for case in CASES}.union(*ELSEWHERE.values())
    assert named - tested == NOT_ANSWERED.keys()


def test_every_api_that_can_refuse_is_in_the_table():
    assert {api.name for api in APIS.values()} - {case.api for case in CASES} == set()
