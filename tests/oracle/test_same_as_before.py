"""The request path behaves as it did at one commit: `trees.BEFORE`, the last one before its rooms moved.

Each test plays scripts on the tree of that commit and on this one. `kinds.py` lists the kinds of scripts; a seed makes
one script. A failure names the first step at which the two trees differ, and the command that plays the script again:

    FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/oracle -k "one_seed and bytes"
    ORACLE_NEW=/another/tree .venv/bin/python -m pytest tests/oracle      # holds that tree to the commit
"""

import os

import pytest

from tests.oracle import trees
from tests.oracle.kinds import KINDS

SEED = int(os.environ.get("FLAKELOG_SEED", "0"))
FRAMES = 500  # of one script
AT_ONCE = 5
SEEDS = {"bytes": 10, "several": 5, "full_disk": 5, "neighbours": 5, "limits": 5}
SOAK_SEEDS = {"bytes": 2_000, "several": 400, "full_disk": 200, "neighbours": 400, "limits": 200}
AGAIN = 'again: FLAKELOG_SEED={} .venv/bin/python -m pytest tests/oracle -k "one_seed and {}"'


def batches(seeds, at_once):
    """(kind, first seed, number of seeds) of each test."""
    return [(kind, first, at_once) for kind in seeds for first in range(0, seeds[kind], at_once)]


def hold(before, kind, seeds, directory):
    """Hold this tree to the commit on the scripts of some seeds."""
    make, difference = KINDS[kind]
    scripts = [make(seed, FRAMES) for seed in seeds]
    reports = trees.play((before, trees.NOW), scripts, directory)
    for seed, script, (was, now) in zip(seeds, scripts, reports, strict=True):
        text = difference(script, was, now)
        assert text is None, f"{text}\n{AGAIN.format(seed, kind)}"


@pytest.mark.parametrize("kind, first, number", batches(SEEDS, AT_ONCE))
def test_answers_and_files_are_the_same(before, kind, first, number, tmp_path):
    hold(before, kind, range(first, first + number), tmp_path)


@pytest.mark.soak  # seed 0 is also among those above
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_for_one_seed(before, kind, tmp_path):
    """The seed of FLAKELOG_SEED, or 0."""
    hold(before, kind, [SEED], tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind, first, number", batches(SOAK_SEEDS, 2 * AT_ONCE))
def test_the_same_for_a_million_frames(before, kind, first, number, tmp_path):
    hold(before, kind, range(first, first + number), tmp_path)
