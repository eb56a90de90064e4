"""Rules of replication that are taken out one by one (replicated_faults.py): the simulation notices each."""

import pytest

from tests.simulation.replicated_cluster_world import ReplicatedClusterWorld
from tests.simulation.replicated_faults import FAULTS

SEEDS = 2_000


@pytest.mark.soak
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    fault(monkeypatch)
    for seed in range(SEEDS):
        try:
            ReplicatedClusterWorld(seed).history()
        except Exception as error:  # an assertion of the oracle, or of a broker that meets what cannot be
            print(f"{fault.__name__}: noticed by seed {seed}: {error}"[:300])
            return
    pytest.fail(f"{SEEDS} seeds do not notice: {fault.__doc__}")
