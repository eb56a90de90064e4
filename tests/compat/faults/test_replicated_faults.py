"""Three brokers with a ZooKeeper and replicated topics under load lose no acknowledged record, whatever dies.

Apache Kafka's Java client, librdkafka, kafka-python, franz-go and Flakelog's client write as idempotent producers, and
none of them sees an error. `make test` makes a few of the faults once, `make soak` all of them many times.
"""

from contextlib import ExitStack

import pytest

from coordination.embedded_zookeeper import EmbeddedZooKeeper
from tests.compat import stock_java
from tests.compat.clients import stock_go
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.faults.replicated_loads import FranzGo, Java, replicated_loads

KILLS = 25
"""How often the soak kills each kind of broker."""
ROLLS = 10
"""How often the soak restarts all brokers, one after the other."""


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory):
    """Return a ZooKeeper that these tests kill."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="module")
def processes():
    """Return the stock clients of other languages that are here."""
    with ExitStack() as stack:
        kinds = []
        if stock_java.missing() is None:
            kinds.append((Java, stack.enter_context(stock_java.StockJava())))
        if stock_go.missing() is None:
            kinds.append((FranzGo, stack.enter_context(stock_go.stock_go())))
        yield kinds


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield ReplicatedServers(tmp_path_factory.mktemp("brokers"), f"{zookeeper.hosts}/cluster", stack)


KINDS = ["leader and controller", "leader", "controller", "follower"]


def rounds(number):
    """Return the turns of a test: `make test` runs one, `make soak` all others."""
    return [0, *(pytest.param(turn, marks=pytest.mark.soak) for turn in range(1, number))]


def chosen(cluster, kind):
    """Return a broker of this kind, which leads all partitions of the topics that are created from now on, or none."""
    controller = cluster.controller
    number = controller if "controller" in kind else cluster.others(controller)[0]
    cluster.place(number, first="leader" in kind)
    return number


@pytest.mark.parametrize("turn", rounds(KILLS))
@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.soak) for kind in KINDS[1:])])
def test_the_partitions_of_a_killed_broker_go_on_without_it(cluster, processes, kind, turn):
    killed = chosen(cluster, kind)
    with replicated_loads(cluster, processes) as loads:
        cluster.kill(killed)
        loads.await_more()
        cluster.start(killed)


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
