"""The instance of a process: the names that its group members and its transactions have, and a second one's start."""

import json
from dataclasses import replace

import pytest
from twisted.internet.task import Clock

from broker.client.group_config import GroupMemberConfig
from flakelog.commands.exit_codes import REPLACED
from flakelog.console.topologies import topology_page
from flakelog.testing import MemoryWorld, TopologyDriver
from flakelog.topology_site import health
from idgen.settings import InvalidSetting
from spout.config import TopologyConfig
from spout.figures.collect import snapshot
from spout.figures.document import document_of
from spout.figures.published import snapshot_of
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.multilang.world import StormWorld
from spout.sink_config import SinkConfig
from spout.topology import Topology
from spout.work import FENCED_CODE, InstanceFenced
from tests.spout.multilang.storm_side import CoreDriver
from tests.spout.worlds import Collect

POD = TopologyConfig(topology_instance="pod-1")


class NamingWorld(MemoryWorld):
    """A world that keeps the names under which members and transactions are opened."""

    def __init__(self):
        super().__init__()
        self.names = {}

    def group_member(self, servers, group_id, component, tasks, config, *, security=None):
        self.names[component] = config.group_instance_id
        return super().group_member(servers, group_id, component, tasks, config, security=security)

    def transactor(self, servers, sources, transactional_id, config, *, security=None):
        self.names["transactions"] = transactional_id
        return super().transactor(servers, sources, transactional_id, config, security=security)


def topology(parallelism=1, **settings):
    made = Topology("copies")
    group = GroupMemberConfig(group_instance_id=settings.pop("group_instance_id", None))
    for name in ("flights", "trains"):
        made.spout(name, LogSpout(name, store="kafka", group=group), parallelism=parallelism)
    made.bolt("end", Collect()).shuffle("flights")
    sink = LogSink("out", exactly_once=True, config=SinkConfig(**settings))
    made.bolt("out", sink).shuffle("flights").shuffle("trains")
    return made


def world():
    made = NamingWorld()
    for name in ("flights", "trains", "out"):
        made.topic(name)
    return made


def test_each_spout_of_an_instance_is_a_static_member_of_its_own_and_the_transactions_have_its_name():
    with TopologyDriver(topology(parallelism=2), world(), config=POD) as test:
        test.advance(100)
        assert test.world.names == {
            "flights": "pod-1-flights", "trains": "pod-1-trains", "transactions": "copies.pod-1",
        }  # fmt: skip


def test_the_instance_goes_before_names_in_the_code_which_all_processes_have():
    with TopologyDriver(topology(group_instance_id="a", sink_instance="b"), world(), config=POD) as test:
        assert test.world.names["flights"] == "pod-1-flights" and test.world.names["transactions"] == "copies.pod-1"
    with TopologyDriver(topology(group_instance_id="a", sink_instance="b"), world()) as test:
        assert test.world.names["flights"] == "a" and test.world.names["transactions"] == "copies.b"


def test_without_an_instance_members_are_dynamic_and_each_run_has_its_own_transactions():
    with TopologyDriver(topology(), world()) as test:
        assert test.world.names["flights"] is None and test.world.names["transactions"].startswith("copies.")


def test_inside_storm_each_task_is_a_process_and_has_its_own_name():
    made = Topology("flights")
    made.spout("flights", LogSpout("flights", store="kafka"), parallelism=2)

    def names(conf):
        tasks = [CoreDriver(made, "flights", index, conf, StormWorld(Clock(), None)) for index in (0, 1)]
        return [task.instance._driver._store.instance for task in tasks]

    assert names({"flakelog.topology.instance": "pod-1"}) == ["pod-1-flights-0", "pod-1-flights-1"]
    assert names({}) == [None, None]


@pytest.mark.parametrize("name", ["a b", "..", "a" * 129, "a/b", "ä", "a\0"])
def test_an_instance_that_is_no_name_for_kafka_is_refused(name):
    with pytest.raises(InvalidSetting, match="flakelog.topology.instance=(?s:.*): must be 1 to 128 letters and digits"):
        replace(POD, topology_instance=name)


def test_another_process_of_the_instance_ends_this_one_with_one_line_and_a_code_of_its_own():
    test = TopologyDriver(topology(parallelism=2), world(), config=POD)
    test.log("flights").append(b"a")
    test.advance(1_000)
    test.world.groups["copies.flights"].fence("another process has joined group g as 'pod-1-flights'")
    with pytest.raises(InstanceFenced) as raised:
        test.advance(1_000)
    assert raised.value.code == FENCED_CODE == REPLACED
    (line,) = [text for _, text in test.reports if "another process" in text]
    assert line == "another process has joined group g as 'pod-1-flights': the topology stops with exit code 9"


def test_a_spout_that_its_group_refuses_is_a_problem_because_it_reads_nothing():
    with TopologyDriver(topology(), world()) as test:
        test.advance(1_000)
        test.world.groups["copies.flights"].refuse("group copies.flights: INCONSISTENT_GROUP_PROTOCOL")
        test.advance(1_000)
        now_ms = test.executor.now_ms
        figures = snapshot(test.executor, state="running", started_ms=0, at_ms=0, now_ms=now_ms)
        reason = "group copies.flights: INCONSISTENT_GROUP_PROTOCOL"
        problem = f"flights reads nothing, because its group does not take it: {reason}"
        assert figures.problems == [problem] and not health(figures)[0]
        document = json.loads(document_of(None, figures, host="a", pid=1))
        page = topology_page([document], "copies")
        assert page.problems == [problem]
        assert snapshot_of(topology().plan(), [document], run_id="r", since_ms=0, at_ms=0).problems == [problem]


def test_the_figures_say_for_how_long_a_spout_waits_for_its_group():
    with TopologyDriver(topology(), world(), config=POD) as test:
        test.advance(1_000)
        executor = test.executor
        test.world.groups["copies.flights"].wait(since_ms=executor.now_ms)
        test.advance(20_000)
        figures = snapshot(executor, state="running", started_ms=0, at_ms=0, now_ms=executor.now_ms)
        assert figures.group_waits == {"flights": "waits for its group for 20 s"} and figures.problems == []
        test.world.groups["copies.flights"].wait(since_ms=None)
        test.advance(1_000)
        assert figures.component("trains").group_wait_ms == 0
        again = snapshot(executor, state="running", started_ms=0, at_ms=0, now_ms=executor.now_ms)
        assert again.group_waits == {}
