"""Settings of topologies and spouts: given by file, environment and --set, refused by name."""

import json

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.settings import UnknownSetting, collect, collect_topology
from idgen.settings import InvalidSetting


def test_set_goes_over_the_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "topology.properties"
    file.write_text("topology.max.spout.pending=1\nflakelog.spout.max.attempts=1\nflakelog.topology.drain.ms=1\n")
    environment = {"FLAKELOG_SPOUT_MAX_ATTEMPTS": "2", "FLAKELOG_TOPOLOGY_DRAIN_MS": "2", "HOME": "/"}
    assert collect_topology(file, ["flakelog.topology.drain.ms=3"], environment) == {
        "topology.max.spout.pending": "1",
        "flakelog.spout.max.attempts": "2",
        "flakelog.topology.drain.ms": "3",
    }


@pytest.mark.parametrize(
    "given, reason",
    [
        ("flakelog.spout.max.attemps=3", "did you mean flakelog.spout.max.attempts?"),
        ("log.segment.bytes=3", "it is a setting of `flakelog server`, not of a topology"),
        ("flakelog.spout.max.attempts=-1", r"must be at least 0 \(--set\)"),
        ("flakelog.spout.max.attempts=some", "must be a whole number"),
        ("x=1", "`flakelog settings topology spout` lists those of topologies"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(given, reason):
    with pytest.raises(InvalidSetting, match=reason):
        collect_topology(None, [given])


def test_a_server_refuses_the_settings_of_a_topology():
    with pytest.raises(UnknownSetting):
        collect(None, ["flakelog.spout.max.attempts=3"])


def test_the_command_lists_settings_of_spouts_and_topologies():
    printed = CliRunner().invoke(main, ["settings", "--json", "max.attempts", "max.spout.pending"]).stdout
    rows = [json.loads(line) for line in printed.splitlines()]
    assert {(row["scope"], row["name"], row["default"]) for row in rows} == {
        ("spout", "flakelog.spout.max.attempts", 5),
        ("topology", "topology.max.spout.pending", 5_000),
    }
