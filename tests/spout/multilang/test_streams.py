"""Declarations of a topology to Storm, and topologies that cannot run there."""

import pytest

from spout.api import Bolt, Spout
from spout.log_sink import LogSink
from spout.multilang.streams import StormGrouping, check_for_storm, storm_grouping, storm_streams, storm_tick_seconds
from spout.topology import Topology, TopologyError


class Lines(Spout):
    output_fields = ("line",)

    def declare_output_fields(self, declarer):
        declarer.declare("line")
        declarer.declare_stream("errors", "text", "code", direct=True)

    def next_tuple(self):
        pass


class Count(Bolt):
    def execute(self, tup):
        pass


def planned(connect, bolt=Count):
    topology = Topology("words")
    topology.spout("lines", Lines())
    connect(topology.bolt("count", bolt))
    return topology.plan()


def grouping_of(connect):
    return storm_grouping(planned(connect).bolts[0].inputs[0].grouping)


def test_each_stream_has_one_more_field_at_the_end_for_the_origin_of_its_tuples():
    streams = storm_streams(planned(lambda inputs: inputs.shuffle("lines")).spouts[0])
    assert {name: stream.fields for name, stream in streams.items()} == {
        "default": ("line", "__message"),
        "errors": ("text", "code", "__message"),
    }
    assert streams["errors"].direct and not streams["default"].direct


def test_a_component_without_streams_declares_none():
    assert storm_streams(planned(lambda inputs: inputs.shuffle("lines")).bolts[0]) == {}


@pytest.mark.parametrize(
    "connect, expected",
    [
        (lambda inputs: inputs.shuffle("lines"), StormGrouping("SHUFFLE")),
        (lambda inputs: inputs.none("lines"), StormGrouping("SHUFFLE")),
        (lambda inputs: inputs.local_or_shuffle("lines"), StormGrouping("LOCAL_OR_SHUFFLE")),
        (lambda inputs: inputs.fields("lines", "line"), StormGrouping("FIELDS", ("line",))),
        (lambda inputs: inputs.all("lines"), StormGrouping("ALL")),
        (lambda inputs: inputs.global_("lines"), StormGrouping("GLOBAL")),
        (lambda inputs: inputs.direct("lines", stream="errors"), StormGrouping("DIRECT")),
        (
            lambda inputs: inputs.partial_key("lines", "line"),
            StormGrouping("CUSTOM", ("line",), "org.apache.storm.grouping.PartialKeyGrouping"),
        ),
    ],
)
def test_each_grouping_of_a_topology_has_one_of_storm(connect, expected):
    assert grouping_of(connect) == expected


def test_a_grouping_in_python_code_is_refused_by_name():
    plan = planned(lambda inputs: inputs.custom("lines", lambda values, tasks: tasks[0]))
    with pytest.raises(TopologyError, match="bolt 'count' receives stream 'default' of 'lines' by a grouping in"):
        check_for_storm(plan)


def test_a_sink_with_exactly_once_is_refused_by_name():
    plan = planned(lambda inputs: inputs.shuffle("lines"), LogSink("out", exactly_once=True))
    with pytest.raises(TopologyError, match="bolt 'count' is a sink with exactly_once"):
        check_for_storm(plan)
    check_for_storm(planned(lambda inputs: inputs.shuffle("lines"), LogSink("out")))


@pytest.mark.parametrize(
    "declare, fault",
    [
        (lambda declarer: declarer.declare("__message"), "'lines' declares field '__message'"),
        (lambda declarer: declarer.declare_stream("__ack", "a"), "'lines' declares stream '__ack'"),
    ],
)
def test_names_that_storm_or_flakelog_need_are_refused(declare, fault):
    class Odd(Lines):
        def declare_output_fields(self, declarer):
            declarer.declare_stream("errors", "text", direct=True)
            declare(declarer)

    topology = Topology("words")
    topology.spout("lines", Odd())
    with pytest.raises(TopologyError, match=fault):
        check_for_storm(topology.plan())


@pytest.mark.parametrize(
    "interval_ms, first_ms, seconds",
    [(None, None, None), (100, None, None), (1500, None, None), (2000, None, 2), (2000, 2000, 2), (2000, 0, None)],
)
def test_storm_ticks_a_bolt_whose_interval_is_in_whole_seconds(interval_ms, first_ms, seconds):
    bolt = Count()
    bolt.tick_interval_ms, bolt.tick_first_ms = interval_ms, first_ms
    assert storm_tick_seconds(bolt) == seconds
