"""Servers that are one cluster by a real ZooKeeper, as stock clients see them."""

import json
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from broker.cluster.documents import CLUSTER_ID
from coordination.port import Create
from coordination.zookeeper import ZooKeeperCoordinator
from flakelog.admin import Admin
from flakelog.cli import main
from tests.compat.cluster_servers import PARTITIONS, SETTINGS, Alone, Servers, values
from tests.compat.server_process import DidNotStart, ServerProcess
from tests.patience import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, zookeeper):
    with ExitStack() as stack:
        yield Servers(tmp_path_factory.mktemp("cluster"), f"{zookeeper.hosts}/cluster", stack)


def test_a_topics_partitions_lie_on_all_brokers_and_every_client_finds_them(cluster):
    cluster.create("flights")
    assert set(cluster.leaders("flights").values()) == {1, 2, 3}
    cluster.produce("flights", "first")
    assert cluster.consume("flights", 6) == values("first")
    cluster.produce("flights", "second")
    assert cluster.consume("flights", 6) == values("second"), "the group went on at its offsets"


def test_a_transaction_over_partitions_of_all_brokers_is_whole(cluster):
    cluster.create("payments")
    cluster.transact("payments", "aborted", commit=False)
    cluster.transact("payments", "committed", commit=True)
    assert cluster.consume("payments", 6, "payees") == values("committed")


def test_a_killed_broker_takes_only_its_own_partitions_away_until_it_is_back(cluster):
    cluster.create("orders")
    cluster.produce("orders", "before")
    led = [partition for partition, leader in cluster.leaders("orders").items() if leader == 3]
    cluster[3].kill()
    until(lambda: set(cluster.leaders("orders").values()) == {-1, 1, 2}, "the end of its session")
    assert_described(cluster, dead=3, offline=led)
    living = [partition for partition in PARTITIONS if partition not in led]
    cluster.produce("orders", "without", living)
    cluster[3].start()
    cluster.await_leaders("orders")
    cluster.produce("orders", "after")
    expected = values("before") + values("after") + [f"without-{partition}" for partition in living]
    assert cluster.consume("orders", len(expected), commit=False, group="audit") == sorted(expected)


def assert_described(cluster, dead, offline):
    """`flakelog cluster describe` names the broker that is not live and the partitions that are offline."""
    command = ["cluster", "describe", "--servers", cluster.bootstrap]
    described = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)
    assert [broker["id"] for broker in described["brokers"] if not broker["live"]] == [dead]
    assert {"topic": "orders", "partition": offline[0]} in described["offline"]
    led = sum(broker["leads"] for broker in described["brokers"])
    assert led + len(described["offline"]) == described["partitions"]
    lines = CliRunner().invoke(main, command).stdout.splitlines()
    assert f" {len(described['offline'])} offline" in lines[0]
    assert [line.split()[:4] for line in lines if line.split()[:1] == [str(dead)]] == [[str(dead), "-", "-", "no"]]
    assert [line for line in lines if line.startswith("offline: ")]


def test_all_records_are_there_after_a_clean_stop_of_all_and_a_start(cluster):
    cluster.create("kept")
    cluster.produce("kept", "kept")
    for number in (1, 2, 3):
        assert cluster[number].stop() == 0
    for server in cluster.servers.values():
        server.launch()
    for server in cluster.servers.values():
        server.await_ready()
    cluster.await_leaders("kept")
    assert cluster.consume("kept", 6, "keepers") == values("kept")
    assert not any("fault" in server.log for server in cluster.servers.values())


def test_a_directory_of_a_cluster_is_not_opened_alone(cluster):
    assert cluster[3].stop() == 0
    with pytest.raises(DidNotStart, match="belongs to the cluster of zookeeper .*: start it with zookeeper.connect"):
        ServerProcess(cluster[3].data_dir, {"broker.id": "3"}).start()
    cluster[3].start()


def test_a_directory_of_another_cluster_refuses_the_start_and_names_both(cluster, zookeeper):
    assert cluster[3].stop() == 0
    other = f"{zookeeper.hosts}/of-others"
    with ServerProcess(cluster[3].data_dir.parent / "other", SETTINGS | {"broker.id": "1", "zookeeper.connect": other}):
        server = ServerProcess(cluster[3].data_dir, SETTINGS | {"broker.id": "3", "zookeeper.connect": other})
        with pytest.raises(DidNotStart, match="start this broker with the zookeeper.connect of its own") as refused:
            server.start()
    error = refused.value.stderr
    assert f"The data directory {cluster[3].data_dir} belongs to cluster" in error
    assert f", ZooKeeper at {other} to cluster" in error
    cluster[3].start()


def test_an_id_that_another_broker_has_refuses_the_start(cluster, tmp_path):
    settings = SETTINGS | {"broker.id": "1", "zookeeper.connect": cluster.zookeeper}
    server, address = ServerProcess(tmp_path, settings), cluster[1].address
    with pytest.raises(DidNotStart, match=f"Another broker with id 1 is registered at {address}.*: give this one"):
        server.start()
    assert "perhaps by this broker's own last session: waiting 4000 ms" in server.log


def test_the_data_of_a_server_alone_is_brought_into_an_empty_coordinator(zookeeper, tmp_path):
    with ServerProcess(tmp_path / "alone") as alone:
        one = Alone(alone)
        one.create("old")
        one.produce("old", "old")
        assert one.consume("old", 6) == values("old")
        one.produce("old", "unread")
        assert alone.stop() == 0
        alone.settings |= SETTINGS | {"zookeeper.connect": f"{zookeeper.hosts}/adopted"}
        alone.start()
        one.await_leaders("old")
        assert one.consume("old", 6) == values("unread"), "offsets and groups are there too"
        with ServerProcess(tmp_path / "second", alone.settings | {"broker.id": "2"}), Admin(alone.address) as admin:
            assert until(lambda: len(admin.cluster().brokers) == 2, "the second broker")
            assert admin.placement().all_on_broker == 1, "what was there before stays where it is"
        with pytest.raises(DidNotStart, match="coordinator belongs to cluster") as refused:
            other = ServerProcess(tmp_path / "other", {"broker.id": "2"})
            with other:
                Alone(other).create("mine")
                assert other.stop() == 0
                other.settings |= SETTINGS | {"zookeeper.connect": f"{zookeeper.hosts}/adopted"}
                other.start()
        assert "Traceback" not in refused.value.stderr


def test_a_coordinator_whose_cluster_id_is_damaged_refuses_the_start_by_name(zookeeper, tmp_path):
    hosts = f"{zookeeper.hosts}/damaged"
    coordinator = ZooKeeperCoordinator(hosts)
    coordinator.execute(Create(CLUSTER_ID, b"{"))
    coordinator.close()
    with ServerProcess(tmp_path, {"broker.id": "2"}) as server:
        Alone(server).create("mine")
        assert server.stop() == 0
        server.settings |= SETTINGS | {"zookeeper.connect": hosts}
        with pytest.raises(DidNotStart, match="/cluster/id: b'{' is not JSON") as refused:
            server.start()
    assert "Traceback" not in refused.value.stderr
