"""Validation of a topology before it runs (Storm: Concepts, Topologies and Stream groupings)."""

import threading

import pytest

from partition_manager.source import InvalidSource
from spout.api import Bolt, OutputDeclarer, Spout
from spout.log_spout import LogSpout
from spout.topology import Topology, TopologyError


class Words(Spout):
    output_fields = ("word", "n")

    def declare_output_fields(self, declarer):
        super().declare_output_fields(declarer)
        declarer.declare_stream("to-one", "word", direct=True)


class Pass(Bolt):
    output_fields = ("word",)


class Sink(Bolt):
    pass


def words():
    topology = Topology("t")
    topology.spout("words", Words())
    return topology


def test_bolts_come_after_all_they_receive_from_whatever_the_order_they_were_added_in():
    topology = words()
    topology.bolt("last", Sink()).shuffle("middle").all("words")
    topology.bolt("middle", Pass()).fields("words", "word")
    assert [bolt.name for bolt in topology.plan().bolts] == ["middle", "last"]


def test_each_task_has_a_copy_of_its_own():
    topology = words()
    sink = Sink()
    topology.bolt("sink", sink, parallelism=2).shuffle("words")
    (node,) = topology.plan().bolts
    assert len({id(bolt) for bolt in (sink, node.make(), node.make())}) == 3


def test_a_component_can_be_given_as_what_makes_it():
    topology = words()
    topology.bolt("sink", Sink).shuffle("words")
    assert isinstance(topology.plan().bolts[0].make(), Sink)


def test_progress_is_kept_under_the_name_unless_an_id_is_given():
    assert (words().plan().id, Topology("t", id="t-2").id) == ("t", "t-2")


def wrong_inputs():
    yield "no such component, did you mean 'words'", lambda b: b.shuffle("wrods")
    yield "no such component; there are: words, bolt", lambda b: b.shuffle("zzz")
    yield "no such stream; there are: default, to-one", lambda b: b.shuffle("words", stream="x")
    yield "by field 'wrd': no such field, did you mean 'word'", lambda b: b.fields("words", "wrd")
    yield "by fields, and names none", lambda b: b.fields("words")
    yield r"is direct: receive it with \.direct\(\)", lambda b: b.shuffle("words", stream="to-one")
    yield "is not declared direct", lambda b: b.direct("words")
    yield r"receives from nobody: give it an input, as \.shuffle\('words'\)", lambda b: b


@pytest.mark.parametrize("reason, connect", [pytest.param(*case, id=case[0][:30]) for case in wrong_inputs()])
def test_a_wrong_input_is_refused_by_name_with_what_would_be_right(reason, connect):
    topology = words()
    connect(topology.bolt("bolt", Pass()))
    with pytest.raises(TopologyError, match=f"bolt 'bolt' .*{reason}"):
        topology.plan()


def test_a_cycle_is_refused_by_its_members():
    topology = words()
    topology.bolt("a", Pass()).shuffle("words").shuffle("c")
    topology.bolt("b", Pass()).shuffle("a")
    topology.bolt("c", Pass()).shuffle("b")
    with pytest.raises(TopologyError, match="bolts form a cycle: .*[abc] -> [abc] -> [abc] -> [abc]"):
        topology.plan()


def test_a_topology_without_a_spout_is_refused():
    with pytest.raises(TopologyError, match="has no spout"):
        Topology("t").plan()


@pytest.mark.parametrize(
    "reason, add",
    [
        ("two components 'words'", lambda t: t.spout("words", Words())),
        ("'__acker' is no name", lambda t: t.bolt("__acker", Sink())),
        ("parallelism of at least 1, got 0", lambda t: t.bolt("b", Sink(), parallelism=0)),
        ("'b' makes a Words, not a Bolt", lambda t: t.bolt("b", Words)),
        ("'b' is a int, not a Bolt", lambda t: t.bolt("b", 5)),
    ],
)
def test_a_wrong_component_is_refused_when_it_is_added(reason, add):
    with pytest.raises(TopologyError, match=reason):
        add(words())


def test_streams_are_declared_once_and_their_fields_are_different():
    declarer = OutputDeclarer()
    declarer.declare("a")
    with pytest.raises(ValueError, match="'default' is declared twice"):
        declarer.declare("b")
    with pytest.raises(ValueError, match="has a field twice: a, a"):
        declarer.declare_stream("s", "a", "a")


@pytest.mark.parametrize("id", ["a/b", "/", "a\nb", "", 5])
def test_a_name_that_progress_cannot_be_stored_under_is_refused(id):
    with pytest.raises(TopologyError, match="is not the id of a topology: .* without a slash, such as 'flight-delays'"):
        Topology("t", id=id)
    with pytest.raises(TopologyError, match="is not the name of a component: .* without a slash"):
        words().bolt(id, Sink())


def test_the_id_of_a_spout_has_no_slash_unless_it_is_a_group_of_kafkas():
    with pytest.raises(InvalidSource, match="id='a/b': it has a slash; .* such as 'a-b'"):
        LogSpout("lines", id="a/b", store="progress")
    assert LogSpout("lines", id="a/b", store="kafka").id == "a/b"


class Locked(Sink):
    def __init__(self):
        self.fine = [1]
        self.guard = threading.Lock()


def test_a_component_that_cannot_be_copied_is_refused_with_the_attribute_and_the_way_out():
    cause = r"'sink' cannot be copied for each task, because of its attribute 'guard' \(.*lock.*\): "
    with pytest.raises(TopologyError, match=cause + "make it in prepare, or give a function that returns a new Locked"):
        words().bolt("sink", Locked())
    words().bolt("sink", Locked)


def test_a_bolt_with_streamparses_process_is_refused_with_the_name_that_is_right():
    class Old(Bolt):
        def process(self, tup):
            pass

    class Both(Old):
        def execute(self, tup):
            self.process(tup)

    with pytest.raises(TopologyError, match="'old': it has a method process, .*: call the method execute"):
        words().bolt("old", Old())
    words().bolt("both", Both())
