"""The three processes of `flakelog server --processes 3` under load: a killed one is replaced, and nothing is lost."""

import signal
from contextlib import ExitStack

import pytest

from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedProcesses
from tests.compat.faults.replicated_loads import replicated_loads
from tests.compat.faults.rounds import BROKERS, KILLS, OUTAGES, ROLLS, rounds


@pytest.fixture
def writers(request, turn):
    """Return stock clients of other languages in the soak, and none in `make test`, because Java's start is slow."""
    return request.getfixturevalue("processes") if turn else ()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with ExitStack() as stack:
        yield ReplicatedProcesses(tmp_path_factory.mktemp("processes") / "data", stack)


@pytest.mark.parametrize("turn", rounds(KILLS))
@pytest.mark.parametrize("kind", BROKERS)
def test_the_partitions_of_a_killed_process_go_on_without_it(cluster, writers, kind, turn):
    killed = cluster.choose(kind)
    with replicated_loads(cluster, writers) as loads:
        cluster.kill(killed)
        loads.await_more()


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(OUTAGES))
@pytest.mark.parametrize("kind", ["leader and controller", "leader"])
def test_a_process_that_sleeps_past_its_session_is_killed_and_replaced(cluster, processes, kind, turn):
    """Until its death it is the leader still, so writers wait for it."""
    asleep = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        mark = cluster.server.mark()
        cluster.server.kill_child(asleep, signal.SIGSTOP)
        assert f"broker {asleep} has not answered for" in cluster.server.log_since(mark)
        loads.await_more()


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(ROLLS))
def test_a_restart_process_by_process_is_no_error_at_any_client(cluster, processes, turn):
    cluster.place_evenly()
    with replicated_loads(cluster, processes) as loads:
        for number in NUMBERS:
            mark = cluster.server.mark()
            cluster.server.kill_child(number, signal.SIGTERM)
            loads.await_more()
            cluster.await_in_sync()
            log = cluster.server.log_since(mark)
            assert f"broker {number} ended with status 0" in log and "recovered" not in log, log
            loads.await_more()
    loads.report(f"restart {turn}")
