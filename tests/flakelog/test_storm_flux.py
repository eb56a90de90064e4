"""The Flux YAML of a topology: the commands that Storm starts, and the streams between them."""

import pytest
import yaml
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.storm.cluster import check_for_cluster
from flakelog.storm.flux import JAVA_FIELDS, Launch, flux_document, flux_yaml, storm_config
from spout.api import Bolt, Spout
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.once import OncePerMessage
from spout.sink_config import SinkConfig
from spout.topology import Topology, TopologyError

LAUNCH = Launch("words:topology")


class Source(Spout):
    output_fields = ("word", "n")


class Split(Bolt):
    output_fields = ("letter",)

    def declare_output_fields(self, declarer):
        super().declare_output_fields(declarer)
        declarer.declare_stream("long", "word")
        declarer.declare_stream("chosen", "word", direct=True)


class Every5Seconds(Bolt):
    tick_interval_ms = 5_000


def make(name="words"):
    topology = Topology(name)
    topology.spout("source", Source(), parallelism=2)
    topology.bolt("split", Split(), parallelism=3).shuffle("source")
    return topology


def document(topology, launch=LAUNCH, config=None):
    return flux_document(topology.plan(), launch, config or {})


def methods_of(component):
    return [(method["name"], *method["args"]) for method in component["configMethods"]]


def groupings_of(topology):
    return [stream["grouping"] for stream in document(topology)["streams"]]


def test_each_component_is_a_process_that_python_starts_by_names_alone():
    made = document(make())
    (spout,), (bolt,) = made["spouts"], made["bolts"]
    assert spout["className"].endswith(".FluxShellSpout") and bolt["className"].endswith(".FluxShellBolt")
    assert bolt["constructorArgs"] == [["python3", "-m", "spout.multilang", "words:topology", "split"]]
    assert [(component["id"], component["parallelism"]) for component in (spout, bolt)] == [("source", 2), ("split", 3)]


def test_a_component_works_in_the_directory_of_its_worker_and_declares_its_streams_with_the_message():
    (bolt,) = document(make())["bolts"]
    assert methods_of(bolt) == [
        ("changeChildCWD", False),
        ("setNamedStream", "default", ["letter", "__message"]),
        ("setNamedStream", "long", ["word", "__message"]),
        ("setNamedStream", "chosen", ["word", "__message"]),
    ]


def test_variables_are_set_for_each_component():
    variables = {"FLAKELOG_SERVERS": "log:9092"}
    made = document(make(), Launch("w:t", variables=variables))
    assert all(("setEnv", variables) in methods_of(component) for component in made["spouts"] + made["bolts"])


def test_a_packed_environment_comes_from_the_blobstore_and_python_runs_it():
    made = document(make(), Launch("w:t", python="/usr/bin/python3.11", environment="words-1"))
    blob = {"localname": "environment.pex", "uncompress": False}
    assert made["config"] == {"topology.blobstore.map": {"words-1": blob}}
    (command,) = made["spouts"][0]["constructorArgs"]
    assert command == ["/usr/bin/python3.11", "environment.pex", "-m", "spout.multilang", "w:t", "source"]


def test_each_grouping_has_its_name_in_flux():
    topology = make()
    topology.bolt("a", Bolt()).fields("split", "letter").all("source").direct("split", stream="chosen")
    topology.bolt("b", Bolt()).global_("source").none("split", stream="long")
    topology.bolt("c", Bolt()).local_or_shuffle("source")
    streams = sorted(document(topology)["streams"], key=lambda stream: stream["to"])
    assert [stream["grouping"] for stream in streams if stream["to"] != "split"] == [
        {"type": "FIELDS", "streamId": "default", "args": ["letter"]},
        {"type": "ALL", "streamId": "default"},
        {"type": "DIRECT", "streamId": "chosen"},
        {"type": "GLOBAL", "streamId": "default"},
        {"type": "SHUFFLE", "streamId": "long"},
        {"type": "LOCAL_OR_SHUFFLE", "streamId": "default"},
    ]


def test_a_partial_key_is_storms_own_class_on_an_object_with_its_fields():
    topology = make()
    topology.bolt("b", Bolt()).partial_key("source", "word", "n")
    (fields,) = document(topology)["components"]
    assert (fields["className"], fields["constructorArgs"]) == (JAVA_FIELDS, [["word", "n"]])
    custom = groupings_of(topology)[-1]["customClass"]
    assert custom["className"] == "org.apache.storm.grouping.PartialKeyGrouping"
    assert custom["constructorArgs"] == [{"ref": fields["id"]}]


def test_storm_ticks_a_bolt_in_whole_seconds():
    topology = make()
    topology.bolt("clock", Every5Seconds()).shuffle("source")
    clock = document(topology)["bolts"][-1]
    assert ("addComponentConfig", "topology.tick.tuple.freq.secs", 5) in methods_of(clock)


def test_what_cannot_run_inside_storm_is_refused_by_name():
    custom = make()
    custom.bolt("b", Bolt()).custom("source", lambda values, tasks: tasks[0])
    twice = make()
    twice.bolt("b", Bolt()).all("source").shuffle("source")
    once = make()
    once.bolt("sink", LogSink("out", exactly_once=True, config=SinkConfig())).shuffle("source")
    for topology, reason in (
        (custom, "bolt 'b' receives stream 'default' of 'source' by a grouping in Python code"),
        (twice, "bolt 'b' receives stream 'default' of 'source' by several groupings, and Storm keeps one"),
        (once, "bolt 'sink' is a sink with exactly_once"),
        (make("a.b"), r"topology 'a.b': Storm allows none of / . : \\ in a topology's name"),
    ):
        with pytest.raises(TopologyError, match=reason):
            document(topology)


def test_progress_in_a_zookeeper_or_a_group_and_state_in_memory_need_no_file():
    topology = Topology("words")
    for name, store in (("lines", "kafka"), ("others", "zookeeper://zk:2181/logs")):
        topology.spout(name, LogSpout(name, store=store))
    topology.bolt("count", OncePerMessage(":memory:")).shuffle("lines")
    assert check_for_cluster(topology.plan()) == []


def test_the_configuration_bounds_tuples_in_flight_and_carries_the_settings_of_spouts():
    assert storm_config({}, 2, {}) == {
        "topology.workers": 2,
        "topology.max.spout.pending": 5_000,
        "topology.message.timeout.secs": 30,
    }
    given = {"topology.max.spout.pending": "7", "flakelog.spout.max.attempts": "3"}
    config = storm_config(given, 1, {})
    assert (config["topology.max.spout.pending"], config["flakelog.spout.max.attempts"]) == (7, "3")


def test_the_yaml_reads_back_as_it_was_and_quotes_what_snakeyaml_takes_for_a_number():
    made = document(make(), Launch("w:t", variables={name: name for name in ("1e3", "yes", "0o7", "=", "1:30", "é")}))
    text = flux_yaml(made)
    assert yaml.safe_load(text) == made and '"1e3"' in text and "&id" not in text


PROGRAM = """
from flakelog import Bolt, LogSpout, OncePerMessage, Topology


def make(bolt=Bolt(), group=lambda inputs: inputs.shuffle("lines"), **spout):
    topology = Topology("words")
    topology.spout("lines", LogSpout("lines", **{"store": "kafka", **spout}))
    group(topology.bolt("count", bolt))
    return topology


topology = make()
custom = make(group=lambda inputs: inputs.custom("lines", lambda values, tasks: tasks[0]))
relative_store = make(store="progress")
absolute_store = make(store="/var/lib/progress")
relative_state = make(OncePerMessage("words.db"))
absolute_state = make(OncePerMessage("/var/lib/words.db"))
"""


@pytest.fixture
def storm(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    (tmp_path / "words_for_storm.py").write_text(PROGRAM)

    def run(*arguments):
        result = CliRunner().invoke(main, ["spout", "storm", *arguments])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_the_command_writes_the_file_with_settings_and_variables(storm, tmp_path):
    options = ("--workers", "3", "--set", "topology.max.spout.pending=9", "--env", "A=b=c", "--python", "/opt/python")
    assert storm("words_for_storm:topology", "--out", "words.yaml", *options) == (0, "", "")
    made = yaml.safe_load((tmp_path / "words.yaml").read_text())
    assert (made["config"]["topology.workers"], made["config"]["topology.max.spout.pending"]) == (3, 9)
    assert made["bolts"][0]["constructorArgs"][0][0] == "/opt/python"
    assert ("setEnv", {"A": "b=c"}) in methods_of(made["bolts"][0])
    assert storm("words_for_storm:topology", "--out", "-")[1].startswith("name: words\n")


def test_the_command_refuses_what_a_worker_could_not_start(storm):
    for arguments, code, reason in (
        (["words_for_storm.py:topology", "--out", "-"], 2, "words_for_storm.py is a file of this machine: give"),
        (["words_for_storm:custom", "--out", "-"], 2, "by a grouping in Python code, which Storm cannot call"),
        (["words_for_storm:relative_store", "--out", "-"], 2, "spout 'lines' keeps its progress in the directory prog"),
        (["words_for_storm:relative_state", "--out", "-"], 2, "bolt 'count' keeps its state in the file words.db, and"),
        (["words_for_storm:topolgy", "--out", "-"], 2, "did you mean 'topology'?"),
        (["words_for_storm:topology", "--out", "-", "--env", "A"], 2, "'A' is no NAME=VALUE"),
        (["words_for_storm:topology", "--out", "-", "--set", "topology.max.spout.pendng=9"], 2, "did you mean"),
        (["words_for_storm:topology", "--out", "/nowhere/x"], 1, "/nowhere/x cannot be written: No such file"),
    ):
        exit_code, _, err = storm(*arguments)
        assert exit_code == code and reason in " ".join(err.split()), err


@pytest.mark.parametrize("name, warning", [("absolute_store", "begins anew"), ("absolute_state", "does not find it")])
def test_files_of_one_machine_are_written_with_a_warning(storm, name, warning):
    code, out, err = storm(f"words_for_storm:{name}", "--out", "-")
    assert code == 0 and out.startswith("name: words\n") and err.startswith("Warning: ") and warning in err


def test_what_a_local_cluster_lacks_is_one_line(storm, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("shutil.which", lambda name, **_: None)
    result = CliRunner().invoke(main, ["spout", "run", "--storm", "words_for_storm:topology"])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and "a local Storm cluster needs" in result.stderr


def test_a_local_cluster_has_no_json_log_and_no_site_without_figures(storm):
    name = "words_for_storm:topology"
    for options, reason in (
        (["--log-format", "json"], "--log-format: the log of --storm is Storm's"),
        (["--http-port", "0", "--set", "flakelog.topology.publish=false"], "--http-port: figures come from the topic"),
    ):
        result = CliRunner().invoke(main, ["spout", "run", "--storm", *options, name])
        assert result.exit_code == 2 and reason in " ".join(result.stderr.split())
