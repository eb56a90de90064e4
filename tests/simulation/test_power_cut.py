"""Seeded power cuts: synced records keep their ids, no record is stamped twice, and the log ends at a clean point.

    replay a failing seed:   FLAKELOG_SEED=123 make unit
                       or:   FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_power_cut.py -k one_seed
    many more seeds:         make soak

The world is in power_cut_world.py.
"""

import os

import pytest

from tests.simulation.power_cut_world import Life

AGAIN = "FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_power_cut.py -k one_seed"


def live(seed, generations):
    try:
        life = Life(seed)
        for _ in range(generations):
            life.generation()
    except Exception as error:
        error.add_note("again: " + AGAIN.format(seed))
        raise
    return life


FIRST = int(os.environ.get("FLAKELOG_SEED", "0"))


@pytest.mark.parametrize("start", range(0, 200, 20))
def test_what_was_synced_survives_power_cuts_with_its_ids(start):
    """Recovery cuts both files at the first batch without a valid entry and re-stamps nothing."""
    for seed in range(start, start + 20):
        live(seed, generations=4)


def test_readers_find_lost_ends_after_the_log_has_grown_past_them():
    assert sum(live(seed, generations=6).truncations for seed in range(200, 230)) > 5


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    live(FIRST, generations=40)


@pytest.mark.soak
def test_what_was_synced_survives_power_cuts_for_5000_seeds():
    for seed in range(5_000):
        live(seed, generations=8)
