"""Fixtures of the tests that kill brokers, or take ZooKeeper or disk space from them."""

from contextlib import ExitStack

import pytest

from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat.faults.replicated_loads import stock_processes
from tests.compat.faults.small_disk import SmallDisk

DISK_BYTES = 64 << 20


@pytest.fixture(scope="module")
def mortal_zookeeper(tmp_path_factory):
    """Run a ZooKeeper that the tests of one file kill."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def mounted_disk(tmp_path_factory):
    """Return a disk for one broker of a file's tests, and None where this user may not mount one."""
    with ExitStack() as stack:
        try:
            yield stack.enter_context(SmallDisk(tmp_path_factory.mktemp("small") / "disk", DISK_BYTES))
        except pytest.skip.Exception:
            yield None


@pytest.fixture
def small_disk(mounted_disk):
    """Return the mounted disk, for a test that fills it; skip the test if this user may mount none."""
    if mounted_disk is None:
        pytest.skip("no small disk: this user may not mount one")
    return mounted_disk


@pytest.fixture(scope="module")
def processes():
    """Run the stock clients of other languages, as Loads takes them."""
    with stock_processes() as kinds:
        yield kinds
