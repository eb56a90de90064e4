"""Replicated brokers without their ZooKeeper, each other or space on their disks go on, or wait, and lose nothing."""

from contextlib import ExitStack, contextmanager

import pytest

from tests.compat.cluster_servers import Alone
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.faults.replicated_loads import replicated_loads
from tests.compat.faults.rounds import OUTAGES
from tests.patience import until

FULL = 2
"""The broker whose disk is small."""

pytestmark = [pytest.mark.soak, pytest.mark.parametrize("turn", range(OUTAGES))]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, mortal_zookeeper, mounted_disk):
    directory, chroot = tmp_path_factory.mktemp("brokers"), f"{mortal_zookeeper.hosts}/cluster"
    with ExitStack() as stack:
        yield ReplicatedServers(directory, chroot, stack, disks={FULL: mounted_disk}, proxied=NUMBERS)


@contextmanager
def cut(proxy, pids=()):
    """Cut the connections of these processes to a proxy, or of all, for the block."""
    proxy.cut(*pids)
    try:
        yield
    finally:
        proxy.heal()


def test_writes_go_on_while_zookeeper_is_away(cluster, processes, mortal_zookeeper, turn):
    cluster.place_evenly()
    with replicated_loads(cluster, processes) as loads:
        mortal_zookeeper.kill()
        loads.await_more()
        mortal_zookeeper.start()
        until(lambda: len(cluster.brokers) == len(NUMBERS), "all brokers")


@pytest.mark.parametrize("kind", ["leader and controller", "leader"])
def test_a_broker_whose_session_expired_follows_the_new_leader(cluster, processes, kind, turn):
    """A coordinator that is cut off names itself, as in Kafka. librdkafka asks it again and again, so that transactions
    may wait until it hears of its successor.
    """
    expired = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads:
        with cut(cluster.to_zookeeper[expired]):
            other = Alone(cluster[cluster.others(expired)[0]])
            until(lambda: expired not in other.leaders(loads.numbers[0].topic).values(), "other leaders")
            loads.await_numbers()


@pytest.mark.parametrize("kind", ["leader and controller", "leader", "controller", "follower"])
def test_a_broker_that_the_others_cannot_reach_waits_for_them(cluster, processes, kind, turn):
    """Its followers leave the ISR, so that it commits nothing until they are back."""
    number = cluster.choose(kind)
    others = [cluster[other].pid for other in cluster.others(number)]
    with replicated_loads(cluster, processes) as loads, cut(cluster.from_brokers[number], others):
        if "leader" in kind:
            until(lambda: cluster.out_of_sync(), "followers leave the ISR")
        else:
            loads.await_numbers()


@pytest.mark.parametrize("kind", ["leader and controller", "leader", "controller", "follower"])
def test_a_broker_that_cannot_reach_the_others_leaves_the_isr_if_it_follows(cluster, processes, kind, turn):
    number = cluster.choose(kind)
    with replicated_loads(cluster, processes) as loads, ExitStack() as stack:
        for other in cluster.others(number):
            stack.enter_context(cut(cluster.from_brokers[other], [cluster[number].pid]))
        loads.await_numbers()


@pytest.mark.parametrize("leads", [True, False], ids=["leader", "follower"])
def test_a_full_disk_delays_writes_and_loses_nothing(cluster, processes, small_disk, leads, turn):
    cluster.place(FULL, first=leads)
    with replicated_loads(cluster, processes) as loads:
        mark = cluster[FULL].mark()
        small_disk.fill()
        try:
            if leads:
                cluster[FULL].wait_for_log("is full", mark)
            else:
                until(lambda: cluster.out_of_sync(), "the follower leaves the ISR")
                loads.await_numbers()
        finally:
            small_disk.free()
