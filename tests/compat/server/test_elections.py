"""`flakelog cluster elect` and `Admin.elect_leaders` at three servers: leaders go where an administrator wants them."""

import json
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from broker.client.errors import BrokerError
from broker.wire.errors import ErrorCode
from flakelog import Admin
from flakelog.cli import main
from tests.compat.faults.replicated_brokers import ReplicatedServers
from tests.patience import until

SETTINGS = {"auto.leader.rebalance.enable": "false", "min.insync.replicas": "1"}
LEADER, FOLLOWER = 1, 2


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("elections")
        servers = ReplicatedServers(directory, f"{zookeeper.hosts}/elections", stack, settings=SETTINGS)
        servers.order, servers.one_leads = (LEADER, FOLLOWER), True
        servers.create("flights", 2)
        yield servers


def run(cluster, *words, **more):
    return CliRunner().invoke(main, ["cluster", *words, "--servers", cluster.bootstrap], **more)


def elect(cluster, *options, **more):
    return run(cluster, "elect", *options, **more)


def partitions(cluster):
    with Admin(cluster.bootstrap) as admin:
        return admin.replicas("flights")


def leaders(cluster):
    return {nodes.leader for nodes in partitions(cluster).values()}


def in_sync(cluster):
    return {tuple(sorted(nodes.in_sync)) for nodes in partitions(cluster).values()}


def test_a_broker_that_is_back_leads_by_a_preferred_election(cluster):
    cluster.kill(LEADER)
    until(lambda: leaders(cluster) == {FOLLOWER}, "the end of the session")
    refused = elect(cluster, "--preferred", "--topic", "flights")
    assert refused.exit_code == 1 and "flights-0: PREFERRED_LEADER_NOT_AVAILABLE" in refused.stdout
    assert refused.stderr == "Error: 2 partitions of 2 got no leader by this election\n"
    cluster.start(LEADER)
    until(lambda: in_sync(cluster) == {(LEADER, FOLLOWER)}, "both in sync")
    first = elect(cluster, "--preferred", "--topic", "flights", "--partition", "0", "--json")
    (row,) = [json.loads(line) for line in first.stdout.splitlines()]
    assert row == {"topic": "flights", "partition": 0, "election": "preferred", "elected": True, "error": None}
    with Admin(cluster.bootstrap) as admin:
        assert admin.elect_leaders("preferred")["flights", 1] is None
        error = admin.elect_leaders("preferred", [("flights", 1)])["flights", 1]
        with pytest.raises(ValueError, match="'best' is no kind of election; it is 'preferred' or 'unclean'"):
            admin.elect_leaders("best", [("flights", 1)])
    assert isinstance(error, BrokerError) and error.code is ErrorCode.ELECTION_NOT_NEEDED
    until(lambda: leaders(cluster) == {LEADER}, "the preferred leader")
    none = elect(cluster, "--preferred", "--topic", "flights")
    assert none.exit_code == 0 and none.stderr == "no partition needs a preferred election\n"


def test_an_unclean_election_asks_first_and_lets_a_live_copy_lead(cluster):
    cluster.kill(FOLLOWER)
    until(lambda: in_sync(cluster) == {(LEADER,)}, "the end of the follower's session")
    cluster.produce("flights", "only the leader has it", range(2))
    cluster.kill(LEADER)
    cluster.start(FOLLOWER)
    until(lambda: leaders(cluster) == {-1}, "the end of the leader's session")
    described = run(cluster, "describe", "--offline")
    assert "flights" in described.stdout
    assert "`flakelog cluster elect --unclean --topic TOPIC` lets a live copy lead" in described.stderr
    asked = elect(cluster, "--unclean", "--topic", "flights", input="n\n")
    assert asked.exit_code == 1 and leaders(cluster) == {-1}
    question = "let a live copy lead flights-0, flights-1, and lose for good the acknowledged messages that it lacks?"
    assert question in asked.stderr
    done = elect(cluster, "--unclean", "--topic", "flights", "--yes")
    assert (done.exit_code, done.stdout) == (0, "flights-0: elected\nflights-1: elected\n")
    until(lambda: leaders(cluster) == {FOLLOWER}, "the new leader")
    none = elect(cluster, "--unclean", "--topic", "flights", "--yes")
    assert none.exit_code == 0 and none.stderr == "no partition needs an unclean election\n"
    cluster.start(LEADER)
    cluster[LEADER].wait_for_log("flights-0 drops the record at offset 0, which its leader does not have")
