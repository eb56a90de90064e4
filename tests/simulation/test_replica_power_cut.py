"""Seeded power cuts of a leader and its followers: what is committed stays, with its bytes and ids, on each replica.

Each seed is a life of two or three brokers (replica_world.py): they lead, fetch, truncate, copy, compact and delete,
and die at any step. replica_oracle.py names what is checked; replica_faults.py takes rules out one by one.

    replay:        FLAKELOG_SEED=123 .venv/bin/python -m pytest tests/simulation/test_replica_power_cut.py -k one_seed
    its history:   .venv/bin/python -m tests.simulation.replica_world 123
    many more:     make soak
"""

import os
import time
from collections import Counter

import pytest

from tests.simulation.replica_faults import FAULTS
from tests.simulation.replica_world import ReplicaWorld

AGAIN = "again: FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_replica_power_cut.py -k one_seed"
FIRST = int(os.environ.get("FLAKELOG_SEED", "0"))
SOAK_SEEDS, FAULT_SEEDS = 5_000, 2_000


def live(seed, generations=4):
    """Live one life. Return how often things happened."""
    world = ReplicaWorld(seed, generations)
    try:
        world.history()
    except Exception as error:
        error.add_note("\n".join(world.lines[-40:]))
        error.add_note(AGAIN.format(seed))
        raise
    return world.counts


@pytest.mark.parametrize("start", range(0, 200, 25))
def test_what_is_committed_survives_power_cuts_on_every_trusted_replica(start):
    counts = Counter()
    for seed in range(start, start + 25):
        counts += live(seed)
    for kind in ("truncations", "anew", "power cuts", "kills", "interrupted", "W4", "duplicates", "leads anew"):
        assert counts[kind] > 5, f"too few {kind} to prove anything: {counts}"
    assert counts["kills in cuts"], counts


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    live(FIRST)


@pytest.mark.soak
def test_what_is_committed_survives_power_cuts_for_5000_seeds():
    began_s = time.process_time()
    for seed in range(SOAK_SEEDS):
        live(seed)
    print(f"{(time.process_time() - began_s) / SOAK_SEEDS:.3f} s of CPU a seed")


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    fault(monkeypatch)
    for seed in range(FAULT_SEEDS):
        try:
            live(seed)
        except Exception as error:  # an assertion of the oracle, or of a broker that meets what cannot be
            print(f"{fault.__name__}: noticed by seed {seed}: {error}"[:300])
            return
    pytest.fail(f"{FAULT_SEEDS} seeds do not notice: {fault.__doc__}")
