"""How a server reaches the ZooKeeper that keeps its worker numbers."""

import pytest

from flakelog.server.worker_numbers import registry_access
from flakelog.settings import Settings


def access(ensemble, **more):
    properties = {
        "zookeeper.connect": "zk1:2181,zk2:2181/flakelog",
        "zookeeper.set.acl": "true",
        "flakelog.ids.zookeeper.credentials.file": "/etc/flakelog/credentials",
    }
    return registry_access(Settings(properties | more), ensemble)


@pytest.mark.parametrize(
    "ensemble", ["zk1:2181,zk2:2181/flakelog", "ZK2, zk1/flakelog/", "zk2:2181/flakelog", "zk1,zk3/flakelog"]
)
def test_worker_numbers_are_protected_as_the_clusters_nodes_of_the_same_ensemble(ensemble):
    """ZooKeeper's port is 2181 by default, and one server belongs to one ensemble."""
    assert access(ensemble).set_acl
    assert not access(ensemble, **{"zookeeper.set.acl": "false"}).set_acl


@pytest.mark.parametrize("ensemble", ["zk1:2181,zk2:2181", "zk1/numbers", "zk3/flakelog", "zk1:2182/flakelog", None])
def test_worker_numbers_elsewhere_have_their_own_setting(ensemble):
    assert not access(ensemble).set_acl
    assert access(ensemble, **{"flakelog.ids.zookeeper.set.acl": "true"}).set_acl
