"""Three brokers and a ZooKeeper under load: what dies, hangs or fills up takes nothing away that was acknowledged."""

import json
import signal
from contextlib import ExitStack

import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException

from flakelog.cli import main
from tests.compat.cluster_servers import PARTITIONS, Alone, Servers
from tests.compat.faults.cluster_loads import NAMES, loads_of
from tests.patience import until

FULL = 2
"""The broker whose disk is small."""
CUT = 3
"""The broker whose network is cut."""
ROUNDS = 20
"""How often the soak makes each fault."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, mortal_zookeeper, mounted_disk):
    directory, chroot = tmp_path_factory.mktemp("brokers"), f"{mortal_zookeeper.hosts}/cluster"
    with ExitStack() as stack:
        yield Servers(directory, chroot, stack, disks={FULL: mounted_disk}, proxied=(CUT,))


@pytest.fixture(params=[0, *(pytest.param(number, marks=pytest.mark.soak) for number in range(1, ROUNDS))])
def loads(cluster):
    with loads_of(cluster) as loads:
        yield loads


def test_the_controller_is_killed_and_another_takes_its_place(cluster, loads):
    load, _ = loads
    killed = cluster.controller
    own, others = load.led_by(killed)
    assert own and others
    cluster[killed].kill()
    load.await_more(others)
    until(lambda: cluster.controller not in (-1, killed), "another controller")
    until(lambda: set(cluster.leaders(load.topic)[partition] for partition in own) == {-1}, "the death is seen")
    load.await_more(others)
    made = f"made-without-{killed}-{next(NAMES)}"
    cluster.create(made, 2)
    assert killed not in cluster.leaders(made).values()
    cluster[killed].start()


def test_zookeeper_is_killed_and_reads_and_writes_go_on(cluster, loads, mortal_zookeeper):
    load, transactions = loads
    mortal_zookeeper.kill()
    load.await_more(number=200)
    transactions.await_more()
    made = f"made-later-{next(NAMES)}"
    with pytest.raises(KafkaException):
        cluster.ask_for(made, 2, timeout_s=2)
    load.await_more()
    mortal_zookeeper.start()
    until(lambda: len(cluster.brokers) == 3, "all brokers")
    until(lambda: _is_made(cluster, made), "a topic can be created again")


def test_zookeeper_hangs_and_the_cluster_says_since_when_and_what_stands_still(cluster, loads, mortal_zookeeper):
    load, _ = loads
    with mortal_zookeeper.paused():
        until(lambda: len(_described(cluster).get("problems", {})) == 3, "all brokers name ZooKeeper")
        load.await_more()
        for broker, (problem, *_) in _described(cluster)["problems"].items():
            assert f"ZooKeeper at {mortal_zookeeper.hosts}/cluster" in problem or int(broker) == CUT
            assert " does not answer since " in problem and "no other leaders" in problem
            assert problem in cluster[int(broker)].log
    until(lambda: "problems" not in _described(cluster) and len(cluster.brokers) == 3, "ZooKeeper answers again")


def _described(cluster):
    command = ["cluster", "describe", "--servers", cluster.bootstrap, "--json"]
    return json.loads(CliRunner().invoke(main, command).stdout)


def _is_made(cluster, topic):
    """Create a topic unless it is there; the request that timed out may have created it."""
    try:
        cluster.ask_for(topic, 2, timeout_s=10)
    except KafkaException as error:
        return error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    return True


def test_a_broker_that_slept_past_its_session_takes_part_again(cluster, loads):
    load, _ = loads
    number = next(number for number in cluster.servers if number != cluster.controller)
    own, others = load.led_by(number)
    cluster[number].send_signal(signal.SIGSTOP)
    until(lambda: {cluster.leaders(load.topic)[partition] for partition in own} == {-1}, "the end of its session")
    load.await_more(others)
    cluster[number].send_signal(signal.SIGCONT)
    until(lambda: {cluster.leaders(load.topic)[partition] for partition in own} == {number}, "it leads again")


def test_a_controller_that_slept_past_its_session_changes_nothing(cluster, loads):
    load, _ = loads
    slept = cluster.controller
    _, others = load.led_by(slept)
    cluster[slept].send_signal(signal.SIGSTOP)
    load.await_more(others)
    until(lambda: cluster.controller not in (-1, slept), "another controller")
    cluster[slept].send_signal(signal.SIGCONT)
    until(lambda: cluster.controller not in (-1, slept), "the old controller knows the new one")


def test_a_broker_cut_from_zookeeper_past_its_session_serves_on_and_takes_part_again(cluster, loads):
    load, _ = loads
    own, _ = load.led_by(CUT)
    cluster.to_zookeeper[CUT].cut()
    other = Alone(cluster[1])
    until(lambda: {other.leaders(load.topic)[partition] for partition in own} == {-1}, "the end of its session")
    load.await_more()  # of its partitions too, as rule E7 says
    cluster.to_zookeeper[CUT].heal()
    until(lambda: {other.leaders(load.topic)[partition] for partition in own} == {CUT}, "it leads again")


def test_a_broker_that_the_others_cannot_reach_serves_on_and_hears_of_changes_later(cluster, loads):
    load, transactions = loads
    cluster.from_brokers[CUT].cut()
    load.await_more(number=200)
    made = f"made-beside-a-cut-{next(NAMES)}"
    cluster.ask_for(made, len(PARTITIONS))
    reached = [number for number in cluster.servers if number != CUT]
    until(lambda: made in Alone(cluster[reached[0]]).topics, "the topic on the others")
    cluster.from_brokers[CUT].heal()
    cluster.await_leaders(made)
    until(lambda: made in Alone(cluster[CUT]).topics, "the topic on the broker that was cut off")
    cluster.produce(made, "after")


def test_a_full_disk_of_one_broker_stops_only_its_own_partitions(cluster, loads, small_disk):
    load, _ = loads
    own, others = load.led_by(FULL)
    small_disk.fill()
    load.await_more(others, number=200)
    small_disk.free()
    load.await_more(own)
