"""LogSpout in a consumer group, in memory: what a real group does is in tests/compat/storm/test_group_spouts.py."""

import pytest

from flakelog.testing import MemoryWorld, TopologyDriver
from idgen.settings import InvalidSetting
from partition_manager.task_partition import Phase
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.topology import Topology
from tests.spout.worlds import Collect

T0, T1 = ("t", 0), ("t", 1)


@pytest.fixture
def world():
    world = MemoryWorld()
    for partition in (0, 1):
        world.topic("t", partitions=2).append(b"first", partition=partition)
    return world


def topology(**arguments):
    made = Topology("shared")
    made.spout("log", LogSpout("t", store="kafka", id="g", **arguments), parallelism=2)
    made.bolt("end", Collect()).shuffle("log")
    return made


def test_the_tasks_of_a_process_divide_its_partitions_and_store_progress_in_the_group(world):
    with TopologyDriver(topology(), world) as test:
        test.advance(5_000)
        assert len(test.emitted("log")) == 2
        assert [len(spout.status()) for spout in test.tasks("log")] == [1, 1]
    assert {number: progress.offset for number, progress in world.progress("t").items()} == {0: 1, 1: 1}


def test_a_revoked_partition_is_read_no_more_and_given_back(world):
    with TopologyDriver(topology(), world) as test:
        test.advance(1_000)
        world.groups["g"].revoke(T1)
        test.advance(1_000)
        world.topic("t").append(b"second", partition=0)
        world.topic("t").append(b"second", partition=1)
        test.advance(1_000)
        assert world.groups["g"].released == [T1]
        assert len(test.emitted("log")) == 3
        world.groups["g"].assign(T1)
        test.advance(1_000)
        assert len(test.emitted("log")) == 4
        phases = [status.phase for spout in test.tasks("log") for status in spout.status()]
        assert phases == [Phase.RUNNING] * 2


def test_a_handover_longer_than_the_groups_rebalance_is_refused_when_the_spout_is_made():
    with pytest.raises(InvalidSetting, match="flakelog.spout.handover.ms=600000: must be below max.poll.interval.ms"):
        LogSpout("t", store="kafka", config=SpoutConfig(spout_handover_ms=600_000))
