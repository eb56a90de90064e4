"""The request path does what it did at one commit: `trees.BEFORE`, the last one before it was written anew.

A script (frames.py) is played on the tree of that commit and on this one. One seed is one script. A failure names the
first step at which the two differ, and the command that plays the script again:

    FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/oracle -k one_seed
    ORACLE_NEW=/another/tree .venv/bin/python -m pytest tests/oracle      # holds that tree to the commit
"""

import os

import pytest

from tests.oracle import frames, trees
from tests.oracle.compare import difference

SEED = int(os.environ.get("FLAKELOG_SEED", "0"))
FRAMES = 500  # of one script
SCRIPTS_AT_ONCE = 5
SEEDS, SOAK_SEEDS = 20, 2_000
AGAIN = "again: FLAKELOG_SEED={} .venv/bin/python -m pytest tests/oracle -k {}"


@pytest.fixture(scope="session")
def before(tmp_path_factory):
    """The tree of the commit."""
    try:
        return trees.unpack(trees.BEFORE, tmp_path_factory.mktemp("oracle") / "before")
    except trees.NoHistory as why:
        pytest.skip(f"nothing to compare with: {why}")


def same(before, seeds, directory):
    """Hold this tree to the commit on the scripts of some seeds."""
    scripts = [frames.script(seed, FRAMES) for seed in seeds]
    reports = trees.play((before, trees.NOW), scripts, directory)
    for seed, script, (was, now) in zip(seeds, scripts, reports, strict=True):
        found = difference(script, was, now)
        assert found is None, f"{found}\n{AGAIN.format(seed, 'one_seed')}"


@pytest.mark.parametrize("first", range(0, SEEDS, SCRIPTS_AT_ONCE))
def test_answers_and_files_are_the_same_to_the_byte(before, first, tmp_path):
    """With one request in a turn: answers, closes, and all files, at the end and after a crash."""
    same(before, range(first, first + SCRIPTS_AT_ONCE), tmp_path)


def test_the_same_for_one_seed(before, tmp_path):
    """The seed of FLAKELOG_SEED, or 0."""
    same(before, [SEED], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, 20))
def test_the_same_for_a_million_frames(before, first, tmp_path):
    same(before, range(first, first + 20), tmp_path)
