"""The three processes of `flakelog server --processes 3` under load: a killed one is replaced, and nothing is lost."""

from contextlib import ExitStack

import pytest

from tests.compat.faults.replicated_brokers import ReplicatedProcesses
from tests.compat.faults.replicated_loads import replicated_loads, stock_processes
from tests.compat.faults.rounds import BROKERS, KILLS, rounds


@pytest.fixture(scope="module")
def all_processes():
    with stock_processes() as kinds:
        yield kinds


@pytest.fixture
def processes(request, turn):
    """Return stock clients of other languages in the soak, and none in `make test`, because Java's start is slow."""
    return request.getfixturevalue("all_processes") if turn else ()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ExitStack() as stack:
        yield ReplicatedProcesses(tmp_path_factory.mktemp("processes") / "data", stack)


@pytest.mark.parametrize("turn", rounds(KILLS))
@pytest.mark.parametrize("kind", BROKERS)
def test_the_partitions_of_a_killed_process_go_on_without_it(cluster, processes, kind, turn):
    killed = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        cluster.kill(killed)
        loads.await_more()
