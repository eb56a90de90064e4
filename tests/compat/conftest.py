"""What the compat tests share: real servers, started once for a run."""

import pytest

from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.server_process import ServerProcess


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory):
    """A real ZooKeeper server; tests use a chroot of their own: f"{zookeeper.hosts}/name"."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A running `flakelog server`; tests use topics of their own and leave it running."""
    with ServerProcess(tmp_path_factory.mktemp("broker") / "data") as server:
        yield server
