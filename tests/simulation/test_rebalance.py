"""Consumers that agree through ZooKeeper: no partition has two owners, no offset goes back, each message is delivered.

Play a seed again:  FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_rebalance.py -k one_seed
"""

import pytest

from tests.simulation import seeds
from tests.simulation.rebalance_faults import FAULTS, RARE_FAULTS
from tests.simulation.rebalance_world import RebalanceWorld

UNIT_SEEDS = 200
CPU_S_MAX = 600


@pytest.mark.parametrize("first", range(0, UNIT_SEEDS, 50))
def test_a_group_agrees_and_loses_nothing(first):
    counts = seeds.play_all(RebalanceWorld, range(first, first + 50), __file__)
    assert min(counts[act.__name__] for act in RebalanceWorld.ACTS) > 0, counts
    assert counts["delivered"] > 1_000


def test_one_seed():
    seeds.play_one(RebalanceWorld, __file__)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_broken_rule_is_noticed(fault, monkeypatch):
    seeds.check_noticed(RebalanceWorld, fault, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("fault", RARE_FAULTS, ids=lambda fault: fault.__name__)
def test_a_rule_that_seldom_matters_is_noticed_too(fault, monkeypatch):
    seeds.check_noticed(RebalanceWorld, fault, monkeypatch)


@pytest.mark.soak
def test_soak():
    seeds.soak(RebalanceWorld, CPU_S_MAX, __file__)
