"""What the compat tests share: real servers, started once for a run."""

import pytest

from coordination.embedded_zookeeper import EmbeddedZooKeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """A real ZooKeeper server; tests use a chroot of their own: f"{zookeeper.hosts}/name"."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server
