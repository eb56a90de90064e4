"""Brokers with `flakelog.durable.acks` lose power, all at once or one: nothing that was acknowledged is lost.

Their disks forget unsynced writes. All partitions have leaders again, without an operator.
"""

import signal
from contextlib import ExitStack

import pytest

from tests.compat.faults.forgetful_disk import ForgetfulDisk
from tests.compat.faults.replicated_brokers import NUMBERS, ReplicatedServers
from tests.compat.faults.replicated_loads import replicated_loads
from tests.compat.faults.rounds import OUTAGES, rounds

LOST_POWER = "the machine of this broker stopped uncleanly"
LEADS_AGAIN = "are back from unclean stops"


@pytest.fixture(scope="module")
def disks(tmp_path_factory):
    directory = tmp_path_factory.mktemp("disks")
    with ExitStack() as stack:
        yield {number: stack.enter_context(ForgetfulDisk(directory / f"disk-{number}")) for number in NUMBERS}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper, disks):
    with ExitStack() as stack:
        directory, chroot = tmp_path_factory.mktemp("brokers"), f"{zookeeper.hosts}/replicated-power"
        yield ReplicatedServers(directory, chroot, stack, disks=disks, settings={"flakelog.durable.acks": "true"})


def cut_power(cluster, disks, numbers):
    """Cut the power of brokers at once, and start them again. Return what they log about it."""
    marks = {number: cluster[number].mark() for number in numbers}
    for number in numbers:
        cluster[number].send_signal(signal.SIGKILL)
    for number in numbers:
        cluster.kill(number)
        disks[number].cut_power()
    for number in numbers:
        cluster[number].launch()
    for number in numbers:
        cluster[number].await_ready()
    return {number: cluster[number].log_since(mark) for number, mark in marks.items()}


@pytest.mark.parametrize("turn", rounds(OUTAGES))
def test_a_power_cut_of_all_brokers_loses_nothing_that_was_acknowledged(cluster, disks, turn):
    cluster.place_evenly()
    with replicated_loads(cluster) as loads:
        marks = {number: cluster[number].mark() for number in NUMBERS}
        logs = cut_power(cluster, disks, NUMBERS)
        assert all(LOST_POWER in log for log in logs.values())
        loads.await_more()
        assert any(LEADS_AGAIN in cluster[number].log_since(marks[number]) for number in NUMBERS)


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(OUTAGES))
@pytest.mark.parametrize("kind", ["leader and controller", "leader", "follower"])
def test_a_broker_that_lost_power_copies_what_it_lacks(cluster, disks, kind, turn):
    number = cluster.choose(kind)
    with replicated_loads(cluster) as loads:
        logs = cut_power(cluster, disks, [number])
        assert LOST_POWER in logs[number]
        loads.await_more()
