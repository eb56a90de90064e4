"""Three brokers at three ZooKeepers: a ZooKeeper that dies takes nothing away, and the others go on."""

from contextlib import ExitStack

import pytest

from tests.compat.cluster_servers import Servers
from tests.compat.faults.cluster_loads import NAMES, loads_of
from tests.compat.faults.zookeeper_ensemble import NUMBERS, ZooKeeperEnsemble

ROUNDS = 20


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory):
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, ensemble):
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("brokers"), f"{ensemble.hosts}/cluster", stack)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_topics_are_made_and_records_taken_while_any_zookeeper_of_three_is_dead(cluster, ensemble, number):
    with loads_of(cluster) as (load, transactions):
        dead = ensemble.leader if number % 2 == 0 else NUMBERS[number % len(NUMBERS)]
        ensemble.kill(dead)
        load.await_more()
        transactions.await_more()
        cluster.create(f"made-without-{dead}-{next(NAMES)}")
        ensemble.start(dead)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(ROUNDS))
def test_a_controller_and_the_leader_of_zookeeper_die_together(cluster, ensemble, number):
    with loads_of(cluster) as (load, _):
        killed, dead = cluster.controller, ensemble.leader
        _, others = load.led_by(killed)
        cluster[killed].kill()
        ensemble.kill(dead)
        load.await_more(others)
        cluster[killed].start()
        ensemble.start(dead)
