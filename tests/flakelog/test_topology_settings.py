"""Settings of topologies and spouts: given by file, environment and --set, refused by name."""

import json

import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.settings import UnknownSetting, collect
from flakelog.topology_settings import collect_topology
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
        ("flakelog.spout.max.attempts=-1", "must be at least 0$"),
        ("flakelog.spout.max.attempts=some", "must be a whole number"),
        ("x=1", "`flakelog settings topology spout` lists those of topologies"),
    ],
)
def test_a_wrong_setting_is_refused_with_what_would_be_right(given, reason):
    with pytest.raises(InvalidSetting, match=reason):
        collect_topology(None, [given])


@pytest.mark.parametrize(
    "text", ["flakelog.spout.max.attempts=some", "flakelog.spout.max.attempts=-1", "num.partitions=1", "x=1"]
)
def test_a_wrong_setting_of_a_file_is_refused_with_the_line_that_has_it(tmp_path, text):
    file = tmp_path / "topology.properties"
    file.write_text(f"\n{text}\n")
    with pytest.raises(InvalidSetting) as error:
        collect_topology(file)
    assert str(error.value).startswith(f"{text}: ") and str(error.value).endswith(f" ({file}:2)")


def test_settings_that_do_not_fit_together_are_refused_with_the_line_of_the_one_that_is_named(tmp_path):
    file = tmp_path / "topology.properties"
    file.write_text("flakelog.spout.retry.max.ms=1\nflakelog.spout.retry.initial.ms=5\n")
    with pytest.raises(InvalidSetting) as error:
        collect_topology(file)
    assert str(error.value).startswith("flakelog.spout.retry.") and f" ({file}:" in str(error.value)


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
