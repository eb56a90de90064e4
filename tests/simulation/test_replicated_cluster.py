"""Seeded histories of a cluster whose topics have several copies: nothing acknowledged is lost, and all copies equal.

Each seed is one history of the world in replicated_cluster_world.py. cluster_oracle.py names the checks of the answers
to clients, and replicated_logs.py those of the replicas.

    replay:         FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_replicated_cluster.py -k one_seed
    its history:    .venv/bin/python -m tests.simulation.replicated_cluster_world 123
    many more:      make soak, or FLAKELOG_SEEDS=1000-1999 with this file
"""

import os
import time
from collections import Counter

import pytest

from tests.simulation.replicated_cluster_world import ReplicatedClusterWorld

FIRST_SOAK_SEED = 1_000
SOAK_SEEDS = os.environ.get("FLAKELOG_SEEDS", f"{FIRST_SOAK_SEED}-10999")
SOAK_CPU_S = 12 * 3_600
"""The CPU time after which the soak ends, unless its last seed comes first."""
AGAIN = "again: FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_replicated_cluster.py -k one_seed"


def run(seed):
    """Run a seed. Return how often clients did what, and how administrators were answered."""
    world = ReplicatedClusterWorld(seed)
    try:
        world.history()
    except BaseException as error:
        error.add_note("\n".join(world.lines[-40:]))
        error.add_note(AGAIN.format(seed))
        raise
    return world.counts


@pytest.mark.parametrize("start", range(0, 24, 12))
def test_nothing_acknowledged_is_lost_and_all_copies_are_equal(start):
    counts = Counter()
    for seed in range(start, start + 12):
        counts += run(seed)
    # The histories do something.
    assert counts["create NONE"] and counts["commit in a generation"], counts


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
