"""Rules of the cluster, and of replication, that are taken out one by one: the simulation notices each."""

import pytest

from tests.simulation import cluster_faults, replicated_faults, seeds
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.replicated_cluster_world import ReplicatedClusterWorld


@pytest.mark.soak
@pytest.mark.parametrize("fault", cluster_faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_noticed(fault, monkeypatch):
    seeds.check_noticed(ClusterWorld, fault, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("fault", replicated_faults.FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_of_replication_is_noticed(fault, monkeypatch):
    seeds.check_noticed(ReplicatedClusterWorld, fault, monkeypatch)
