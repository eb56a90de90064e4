"""Each text file in this directory is replayed, and its output must match the file exactly.

    one scenario:               .venv/bin/python -m pytest tests/scenarios -k partition_fail_then_ack
    rewrite its expectations:   FLAKELOG_REWRITE=1 .venv/bin/python -m pytest tests/scenarios -k partition_fail_then_ack
"""

import os
from pathlib import Path

import pytest

from tests.scenarios.group_world import GroupWorld
from tests.scenarios.log_world import LogWorld
from tests.scenarios.partition_world import PartitionWorld
from tests.scenarios.rebalance_world import RebalanceWorld
from tests.scenarios.scenario import difference, replay

WORLDS = {"partition": PartitionWorld, "group": GroupWorld, "log": LogWorld, "rebalance": RebalanceWorld}
FILES = sorted(Path(__file__).parent.glob("*.txt"))
AGAIN = ".venv/bin/python -m pytest tests/scenarios -k {}"
FAILED = "{}\n\nagain:                 {}\nif this is right now:  FLAKELOG_REWRITE=1 {}"


def verdict(name, expected, happened):
    """Return None if the output is as expected, otherwise the diff and the two commands to continue with."""
    if expected == happened:
        return None
    again = AGAIN.format(name)
    return FAILED.format(difference(expected, happened, f"{name}.txt"), again, again)


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_scenario(path):
    expected = path.read_text()
    happened = replay(expected, WORLDS[path.stem.partition("_")[0]]())
    if os.environ.get("FLAKELOG_REWRITE"):
        path.write_text(happened)
        pytest.skip("rewritten, not judged: read what has changed")
    if difference := verdict(path.stem, expected, happened):
        pytest.fail(difference, pytrace=False)


def test_a_scenario_that_fails_shows_what_differs_and_both_commands():
    expected = (FILES[0].parent / "partition_fail_then_ack.txt").read_text().replace("stores 5", "stores 4")
    difference = verdict("partition_fail_then_ack", expected, replay(expected, PartitionWorld()))
    assert "\n-stores 4\n+stores 5\n" in difference
    assert f"\nagain:                 {AGAIN.format('partition_fail_then_ack')}\n" in difference
    assert difference.endswith(f"FLAKELOG_REWRITE=1 {AGAIN.format('partition_fail_then_ack')}")


def test_prose_and_commands_stay_as_they_are_and_a_new_step_gets_its_expectation():
    written = "# Prose.\n\n# Why.\nappend 2\n\nat 5\n----\nwrong\n"
    right = "# Prose.\n\n# Why.\nappend 2\n----\n{}\n{}\n\nat 5\n----\n{}\n"
    right = right.format("the log begins at 0 and ends at 2", "not started", "not started")
    assert replay(written, PartitionWorld()) == right
    assert replay(right, PartitionWorld()) == right


def test_a_command_nobody_knows_is_refused_with_those_there_are():
    with pytest.raises(AssertionError, match="'aqk 3': no such command; there are ack, append"):
        replay("aqk 3", PartitionWorld())
