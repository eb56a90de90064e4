"""Seeded histories of a cluster of real engines: no acknowledged record is lost, and a quiet cluster is whole.

Each seed is one history of the world in cluster_world.py; cluster_oracle.py names what it checks.

    replay:         FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_cluster.py -k one_seed
    its history:    .venv/bin/python -m tests.simulation.cluster_world 123
    many more:      make soak, or FLAKELOG_SEEDS=1000-1999 .venv/bin/python -m pytest tests/simulation/test_cluster.py
"""

import os
import time
from collections import Counter

import pytest

from tests.simulation.cluster_world import ClusterWorld

FIRST_SOAK_SEED = 1_000
SOAK_SEEDS = os.environ.get("FLAKELOG_SEEDS", f"{FIRST_SOAK_SEED}-10999")
SOAK_CPU_S = 6 * 3_600
"""The soak ends after so much CPU time, or with its last seed."""
AGAIN = "again: FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_cluster.py -k one_seed"


def run(seed):
    """Run a seed. Return how often clients did what, and how administrators were answered."""
    world = ClusterWorld(seed)
    try:
        world.history()
    except BaseException as error:
        error.add_note("\n".join(world.lines[-40:]))
        error.add_note(AGAIN.format(seed))
        raise
    return world.counts


@pytest.mark.parametrize("start", range(0, 24, 4))
def test_nothing_acknowledged_is_lost_and_a_quiet_cluster_is_whole(start):
    counts = Counter()
    for seed in range(start, start + 4):
        counts += run(seed)
    # The histories do something.
    acts = [f"{act} NONE" for act in ("create", "grow", "delete", "configure")]
    assert min(counts[act] for act in (*acts, "commit in a generation")) >= 1, counts


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    run(int(os.environ.get("FLAKELOG_SEED", "0")))


@pytest.mark.soak
@pytest.mark.timeout(2 * SOAK_CPU_S)
def test_nothing_acknowledged_is_lost_for_10000_seeds():
    first, _, last = SOAK_SEEDS.partition("-")
    began, number = time.process_time(), 0
    for seed in range(int(first), int(last or first) + 1):
        run(seed)
        number += 1
        if time.process_time() - began > SOAK_CPU_S:
            break
    cpu_s = time.process_time() - began
    print(f"{number} seeds, {cpu_s:.0f} s of CPU, {cpu_s / number:.2f} s a seed")
