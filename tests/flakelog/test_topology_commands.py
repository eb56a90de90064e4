"""A topology on the command line: found by name, configured, shown as text, health and metrics."""

import re
from dataclasses import replace

import pytest
from prometheus_client import generate_latest

from flakelog.metric_table import TOPOLOGY
from flakelog.topology_figures import registry_of
from flakelog.topology_site import health, ready
from flakelog.topology_view import facts_of, line_of, screen_of
from spout.config import SpoutConfig
from spout.figures.model import ComponentFigures, Snapshot, SpoutPartitionFigures
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.sink_config import SinkConfig
from spout.task import TaskCounts
from spout.topology import Topology
from spout.topology_source import ConfiguredTopology, NoTopology, find_topology

PROGRAM = """
from flakelog import Bolt, LogSpout, Topology
def make():
    made = Topology("words")
    made.spout("lines", LogSpout("lines"))
    return made
topology = make()
number = 3
def wrong(): return 3
"""


def counts(**values):
    made = TaskCounts(**values)
    for ms in (1, 3, 60):
        made.completed_after(ms)
    return made


LOG = ComponentFigures(
    "log", "spout", 1, {"default": ("id",)}, (), (counts(emitted=30, acked=20, failed=10),), {"dead_lettered": 2}, {}
)
COUNT = ComponentFigures("count", "bolt", 1, {}, (), (counts(executed=30, errors=4),), {}, {"words": 7})
PARTITION = SpoutPartitionFigures("log", 0, "lines", 3, "running", 100, 150, 160, 5, 60, 2_500, 1_500, "")
FIGURES = Snapshot("words", "words", "r", "running", 0, 10_000, 12, (LOG, COUNT), (PARTITION,), ("lines.dead-letters",))
BROKEN = replace(FIGURES, partitions=(replace(PARTITION, phase="broken", error="unusable"),))


@pytest.fixture
def words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere"])
    (tmp_path / "words_of_the_test.py").write_text(PROGRAM)
    return "words_of_the_test"


def test_a_topology_is_found_in_a_module_or_a_file_and_made_by_a_function(words):
    for text in (f"{words}:topology", f"{words}:make", f"{words}.py:make", f"./{words}.py:topology"):
        assert find_topology(text).name == "words"


@pytest.mark.parametrize(
    "name, reason",
    [
        (":topolgy", "has no 'topolgy'; did you mean 'topology'?"),
        (":zzz", "its topologies are: topology, its functions: make, wrong"),
        (":number", "is a int, not a Topology"),
        (":wrong", "returns a int, not a Topology"),
        ("", "names no topology; give MODULE:TOPOLOGY"),
        ("_missing:topology", "there is no module"),
        ("_missing.py:topology", "there is no file"),
    ],
)
def test_a_wrong_name_is_answered_with_what_would_be_right(words, name, reason):
    with pytest.raises(NoTopology) as refused:
        find_topology(words + name)
    assert reason in str(refused.value)


def test_settings_of_the_command_line_go_over_those_in_the_code():
    topology = Topology("t")
    config = SpoutConfig(spout_max_attempts=7, spout_retry_share=2)
    topology.spout("log", LogSpout("t", config=config))
    (node,) = ConfiguredTopology(topology, {"flakelog.spout.max.attempts": "9"}).plan().spouts
    assert node.make().config == replace(config, spout_max_attempts=9)
    assert topology.plan().spouts[0].make().config == config


def test_settings_of_the_command_line_reach_the_sinks():
    topology = Topology("t")
    topology.spout("log", LogSpout("t"))
    topology.bolt("out", LogSink("out", config=SinkConfig(sink_batch_bytes=1_000))).shuffle("log")
    (node,) = ConfiguredTopology(topology, {"flakelog.sink.instance": "pod-1"}).plan().bolts
    assert node.make().config == SinkConfig(sink_batch_bytes=1_000, sink_instance="pod-1")


def test_the_figures_are_one_line():
    assert line_of(None, FIGURES) == (
        "emitted 3.0/s; acked 2.0/s; failed 1.0/s; latency 3 ms, p99 63 ms; in flight 12; "
        "lag 60 messages, 2.5 kB, 1.5 s; dead letters 2"
    )
    assert line_of(None, BROKEN).endswith("problems 1, the first: lines-3 (log[0], broken): unusable")


def test_the_figures_name_a_spout_that_waits_for_its_group():
    waits = replace(FIGURES, components=(replace(LOG, group_wait_ms=20_400), COUNT))
    assert "; spout log waits for its group for 20 s; lag 60 messages, " in line_of(None, waits)
    assert "spout log waits for its group for 20 s, lag -" in printed(replace(waits, partitions=()), 24)
    assert facts_of(None, waits)["group_waits_ms"] == {"log": 20_400} and health(waits)[0]
    metrics = generate_latest(registry_of(lambda: waits)).decode()
    assert 'flakelog_topology_group_wait_seconds{component="log"} 20.4' in metrics
    short = replace(FIGURES, components=(replace(LOG, group_wait_ms=3_000), COUNT))
    assert "waits" not in line_of(None, short), "a rebalance without trouble takes so long"


def test_the_figures_are_facts_for_programs():
    facts = facts_of(None, FIGURES)
    assert (facts["lag_messages"], facts["lag_bytes"], facts["lag_ms"], facts["dead_letters"]) == (60, 2_500, 1_500, 2)
    assert facts["spouts"]["log"]["latency_p99_ms"] == 63


def printed(figures, height, width=140):
    from rich.console import Console

    console = Console(width=width, height=height, force_terminal=False)
    with console.capture() as capture:
        console.print(screen_of(None, figures, height, width))
    return capture.get()


def test_the_figures_fit_on_one_screen():
    many = replace(FIGURES, partitions=tuple(replace(PARTITION, partition=n, lag=n) for n in range(100)))
    lines = printed(many, 24).splitlines()
    assert len(lines) <= 24 and lines[-1] == "and 86 more partitions"
    assert lines[0].startswith("words, running for 0:00:10")
    assert [line.split()[0] for line in lines if line.startswith("lines-")][:2] == ["lines-99", "lines-98"]
    assert "unusable" in printed(BROKEN, 24)


@pytest.mark.parametrize("topic", ["orders", "a-long-name-that-fills-the-terminal-and-more-of-it-than-there-is"])
@pytest.mark.parametrize("error", ["", "the broker answers nothing " * 5])
@pytest.mark.parametrize("width", [40, 60, 80])
def test_on_a_narrow_terminal_partition_and_lag_stay_readable(topic, error, width):
    """Columns that do not fit are left out, those first that are needed least."""
    wide = replace(PARTITION, topic=topic, partition=11, lag=1_234_567, watermark=9_876_543_210, error=error)
    lines = printed(replace(FIGURES, partitions=(wide,)), 24, width).splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= width
    head, row = next((line, lines[at + 1]) for at, line in enumerate(lines) if line.startswith("PARTITION"))
    assert row.split()[0].endswith("-11") and "1,234,567" in row.split() and "LAG" in head
    assert row.index("1,234,567") + len("1,234,567") == head.index("LAG") + len("LAG")
    assert any(line.startswith("COMPONENT") and "ACKED/S" in line for line in lines)


def test_a_wide_terminal_has_all_columns():
    screen = printed(BROKEN, 24)
    assert all(name in screen for name in ("TASKS", "EMITTED/S", "WATERMARK", "BYTES", "ERROR"))


def test_health_names_partitions_that_are_not_read():
    assert health(FIGURES) == (
        True,
        {"healthy": True, "topology": "words", "state": "running", "problems": []}
        | {"lag_messages": 60, "lag_bytes": 2_500, "lag_ms": 1_500},
    )
    assert health(BROKEN)[0] is False and health(BROKEN)[1]["problems"] == ["lines-3 (log[0], broken): unusable"]
    assert ready(FIGURES)[0] and ready(BROKEN) == (
        False,
        {"ready": False, "state": "running", "partitions_not_read": ["lines-3"]},
    )
    assert not ready(replace(FIGURES, state="draining"))[0]


def test_metrics_have_lag_latency_and_what_the_components_count():
    text = generate_latest(registry_of(lambda: FIGURES)).decode()
    topology = {row.name for rows in TOPOLOGY.values() for row in rows}
    assert set(re.findall(r"^# TYPE (flakelog_topology\w+) ", text, re.MULTILINE)) == topology
    for line in (
        'flakelog_topology_emitted_total{component="log"} 30.0',
        'flakelog_topology_errors_total{component="count"} 4.0',
        'flakelog_topology_metric{component="count",name="words"} 7.0',
        'flakelog_topology_messages_total{component="log",outcome="dead_lettered"} 2.0',
        'flakelog_topology_lag_messages{component="log",partition="3",topic="lines"} 60.0',
        'flakelog_topology_settled_offset{component="log",partition="3",topic="lines"} 100.0',
        'flakelog_topology_fetched_offset{component="log",partition="3",topic="lines"} 150.0',
        'flakelog_topology_end_offset{component="log",partition="3",topic="lines"} 160.0',
        'flakelog_topology_lag_seconds{component="log",partition="3",topic="lines"} 1.5',
        'flakelog_topology_latency_seconds_bucket{component="log",le="0.004"} 2.0',
        'flakelog_topology_latency_seconds_count{component="log"} 3.0',
        'flakelog_topology_partitions{component="log",phase="running"} 1.0',
        "flakelog_topology_running 1.0",
    ):
        assert line in text, f"{line}\n{text}"
