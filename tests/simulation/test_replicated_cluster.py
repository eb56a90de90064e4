"""Seeded histories of a cluster whose topics have several copies: nothing acknowledged is lost, and all copies equal.

Each seed is one history of the world in replicated_cluster_world.py. cluster_oracle.py names the checks of the answers
to clients, and replicated_logs.py those of the replicas.

    replay:         FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_replicated_cluster.py -k one_seed
    its history:    .venv/bin/python -m tests.simulation.replicated_cluster_world 123
    many more:      make soak, or FLAKELOG_SEEDS=1000-1999 with this file
"""

import pytest

from tests.simulation import seeds
from tests.simulation.replicated_cluster_world import ReplicatedClusterWorld

FILE = "tests/simulation/test_replicated_cluster.py"
SOAK_CPU_S = 12 * 3_600
"""The CPU time after which the soak ends, unless its last seed comes first."""


@pytest.mark.parametrize("start", range(0, 24, 12))
def test_nothing_acknowledged_is_lost_and_all_copies_are_equal(start):
    counts = seeds.play_all(ReplicatedClusterWorld, range(start, start + 12), FILE)
    # The histories do something.
    assert counts["create NONE"] and counts["commit in a generation"], counts


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    seeds.play_one(ReplicatedClusterWorld, FILE)


@pytest.mark.soak
@pytest.mark.timeout(2 * SOAK_CPU_S)
def test_nothing_acknowledged_is_lost_for_10000_seeds():
    seeds.soak(ReplicatedClusterWorld, SOAK_CPU_S, FILE)
