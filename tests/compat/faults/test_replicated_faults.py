"""Three brokers with a ZooKeeper and replicated topics under load lose no acknowledged record, whatever dies.

Apache Kafka's Java client, librdkafka, kafka-python, franz-go and Flakelog's client write as idempotent producers, and
none of them sees an error. `make test` makes a few of the faults once, `make soak` all of them many times.
"""

from contextlib import ExitStack

import pytest

from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.faults.replicated_loads import replicated_loads
from tests.compat.faults.rounds import BROKERS, KILLS, OUTAGES, ROLLS, rounds


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield ReplicatedServers(tmp_path_factory.mktemp("brokers"), f"{zookeeper.hosts}/replicated-faults", stack)


@pytest.mark.parametrize("turn", rounds(KILLS))
@pytest.mark.parametrize("kind", BROKERS)
def test_the_partitions_of_a_killed_broker_go_on_without_it(cluster, processes, kind, turn):
    killed = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        cluster.kill(killed)
        loads.await_more()
        cluster.start(killed)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(KILLS))
@pytest.mark.parametrize("kind", ["leader and controller", "leader"])
def test_a_killed_broker_that_is_back_before_its_session_ends_goes_on(cluster, processes, kind, turn):
    killed = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        cluster.kill(killed)
        cluster.start(killed)
        loads.await_more()


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(OUTAGES))
@pytest.mark.parametrize("kind", ["leader and controller", "leader"])
def test_a_broker_that_slept_past_its_session_follows_the_new_leader(cluster, processes, kind, turn):
    paused = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        cluster.pause(paused)
        loads.await_more()
        cluster.resume(paused)


@pytest.mark.parametrize("turn", rounds(ROLLS))
def test_a_restart_broker_by_broker_is_no_error_at_any_client(cluster, processes, turn):
    cluster.place_evenly()
    with replicated_loads(cluster, processes) as loads:
        for number in NUMBERS:
            server = cluster[number]
            mark = server.mark()
            assert server.stop() == 0
            loads.await_more()
            server.start()
            assert "recovered" not in server.log_since(mark), server.log_since(mark)
            cluster.await_in_sync()
            loads.await_more()
    loads.report(f"restart {turn}")
