"""Every error of every API, in the lowest and in the highest version that knows it (tests/broker/every_error.py)."""

import pytest

from broker.api_table import APIS
from tests.broker.any_api import EngineLine, World, codes_of
from tests.broker.engine_client import EngineBroker
from tests.broker.every_error import CASES

ROWS = [(case, version) for case in CASES for version in case.versions]
SETTINGS = {
    "group_initial_rebalance_delay_ms": 0,
    "offsets_topic_num_partitions": 1,
    "transaction_state_log_num_partitions": 1,
}
# What these are asked for is there, or there is none of it.
NEVER_REFUSE = {"ListGroups", "ListPartitionReassignments", "DescribeLogDirs"}


@pytest.mark.parametrize(
    "case, version", ROWS, ids=[f"{case.api}-{version}-{case.code.name}" for case, version in ROWS]
)
def test_an_error_is_answered_in_every_version_that_knows_it(case, version):
    broker = EngineBroker(**SETTINGS | case.settings)
    assert case.code in codes_of(case.ask(World(EngineLine(broker), case.api, version)))


def test_every_api_that_can_refuse_is_in_the_table():
    assert {api.name for api in APIS.values()} - {case.api for case in CASES} == NEVER_REFUSE
