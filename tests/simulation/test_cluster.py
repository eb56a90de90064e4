"""Seeded histories of a cluster of real engines: no acknowledged record is lost, and a quiet cluster is whole.

Each seed is one history of the world in cluster_world.py; cluster_oracle.py names what it checks.

    replay:         FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_cluster.py -k one_seed
    its history:    .venv/bin/python -m tests.simulation.cluster_world 123
    many more:      make soak, or FLAKELOG_SEEDS=1000-1999 .venv/bin/python -m pytest tests/simulation/test_cluster.py
"""

import pytest

from tests.simulation import seeds
from tests.simulation.cluster_world import ClusterWorld

FILE = "tests/simulation/test_cluster.py"
SOAK_CPU_S = 6 * 3_600
"""The soak ends after so much CPU time, or with its last seed."""


@pytest.mark.parametrize("start", range(0, 24, 4))
def test_nothing_acknowledged_is_lost_and_a_quiet_cluster_is_whole(start):
    counts = seeds.play_all(ClusterWorld, range(start, start + 4), FILE)
    # The histories do something.
    acts = [f"{act} NONE" for act in ("create", "grow", "delete", "configure")]
    assert min(counts[act] for act in (*acts, "commit in a generation")) >= 1, counts


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    seeds.play_one(ClusterWorld, FILE)


@pytest.mark.soak
@pytest.mark.timeout(2 * SOAK_CPU_S)
def test_nothing_acknowledged_is_lost_for_10000_seeds():
    seeds.soak(ClusterWorld, SOAK_CPU_S, FILE)
