"""The directory of a single server as a cluster: what it keeps, which starts it takes, and which are refused."""

import shutil

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from broker.client.blocking import Client
from broker.client.errors import BrokerError
from flakelog.operations.configs import alter_configs, broker_resource, describe_configs, topic_resource
from flakelog.operations.partitions import read_records
from flakelog.operations.quotas import alter_quotas, list_quotas
from flakelog.operations.topics import list_topics
from flakelog.operations.transactions import list_transactions
from tests.compat.cluster_servers import ONE_COPY, Alone, values
from tests.compat.server_process import DidNotStart
from tests.compat.several_processes import SeveralProcesses
from tests.patience import SECONDS, until

ENDS = (3, 2, 2, 2, 2, 2)
"""The ends of the partitions: records of two kinds, and one in a transaction."""
QUOTA = (("client-id", "slow"),)


def _begin_transaction(address, name):
    """Commit a transaction, so that its producer has an id."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": name})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("old", "in a transaction", partition=0)
    producer.commit_transaction(SECONDS)


def _administer(address):
    """Give a setting of a topic and of all brokers, a quota and a credential."""
    with Client(address) as client:
        alter_configs(client, topic_resource("old"), {"retention.ms": "123456789"})
        alter_configs(client, broker_resource(None), {"log.segment.bytes": "7654321"})
        alter_quotas(client, QUOTA, {"producer_byte_rate": 1e6})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    changes = [UserScramCredentialUpsertion("ann", info, b"secret")]
    admin = AdminClient({"bootstrap.servers": address})  # its future fails if it is collected
    admin.alter_user_scram_credentials(changes)["ann"].result(SECONDS)


def _facts(address):
    """Return what a cluster is told to keep, as its clients see it."""
    admin = AdminClient({"bootstrap.servers": address})
    with Client(address) as client:
        configs = [describe_configs(client, topic_resource("old"), ["retention.ms"])[0].value]
        configs += [describe_configs(client, broker_resource(1), ["log.segment.bytes"])[0].value]
        return {
            "cluster": admin.list_topics(timeout=SECONDS).cluster_id,
            "topics": {topic.name: topic.id for topic in list_topics(client, with_internal=True)},
            "records": [list(read_records(client, ("old", partition), 0, end)) for partition, end in enumerate(ENDS)],
            "configs": configs,
            "quotas": list_quotas(client, QUOTA),
            "users": sorted(admin.describe_user_scram_credentials().result(SECONDS)),
        }


class _Shows:
    """A condition for `until`: a cluster shows these facts. Its text is what the last look found instead."""

    def __init__(self, server, address, facts):
        self._server, self._address, self._facts = server, address, facts
        self._found = ["nothing was looked at"]

    def __call__(self):
        """Look at the cluster. It may refuse while a broker does not yet lead what it is to lead."""
        try:
            shown = _facts(self._address)
        except BrokerError as error:
            self._found = [f"it answers {error!r}"]
            return False
        self._found = [
            f"{name}: {value!r} is not {self._facts[name]!r}"
            for name, value in shown.items()
            if value != self._facts[name]
        ]
        return not self._found

    def __str__(self):
        differences = "\n".join(self._found)
        return f"what the directory had, at {self._address}:\n{differences}\n{self._server.log[-8000:]}\nThis"


def _producer_ids(address):
    with Client(address) as client:
        return {one.transactional_id: one.producer_id for one in list_transactions(client)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """Return a directory that a single server has filled, its facts, and its producer ids. Tests work on copies."""
    with SeveralProcesses(tmp_path_factory.mktemp("filled") / "data").alone() as server:
        one = Alone(server)
        one.create("old")
        one.produce("old", "old")
        assert one.consume("old", 6) == values("old")
        one.produce("old", "unread")
        _begin_transaction(server.address, "first")
        _administer(server.address)
        facts, producer_ids = _facts(server.address), _producer_ids(server.address)
        assert server.stop() == 0
        return server.data_dir, facts, producer_ids


@pytest.fixture
def alone(filled, tmp_path):
    """Return a server of one process that is not started, with a directory that it has filled, and the facts."""
    directory, facts, producer_ids = filled
    server = SeveralProcesses(shutil.copytree(directory, tmp_path / "data")).alone()
    server.facts, server.producer_ids = facts, producer_ids
    yield server
    server.kill()


def test_the_directory_of_a_single_server_opens_as_a_cluster_with_all_it_had(alone):
    with SeveralProcesses(alone.data_dir, 2) as server:
        address = server.address.split(",")[1]  # the other broker
        server.cluster.await_leaders("old")
        assert "the data of this directory is in the cluster of directory " in server.log
        shows = _Shows(server, address, alone.facts)
        until(shows, shows)
        assert set(server.cluster.leaders("old").values()) == {1}
        unread = [*values("unread"), "in a transaction"]
        assert server.cluster.consume("old", len(unread)) == sorted(unread), "the group went on at its offsets"
        _begin_transaction(server.address, "second")
        assert _producer_ids(server.address)["second"] > max(alone.producer_ids.values())
        server.cluster.create("new")
        assert set(server.cluster.leaders("new").values()) == {1, 2}
        facts = _facts(address)
        assert server.stop() == 0
        server.start()
        server.cluster.await_leaders("old")
        server.cluster.await_leaders("new")
        shows = _Shows(server, server.address.split(",")[0], facts)
        until(shows, shows)


def test_one_process_goes_on_with_the_cluster_that_it_was_made(alone):
    with SeveralProcesses(alone.data_dir, 2) as server:
        server.cluster.await_leaders("old")
        server.stop()
    alone.start()
    cluster = Alone(alone)
    cluster.await_leaders("old")
    assert list(cluster.brokers) == [1]
    assert _facts(alone.address) == alone.facts
    cluster.create("new")
    cluster.produce("new", "new")
    assert cluster.consume("new", 6) == values("new")
    assert alone.stop() == 0
    with SeveralProcesses(alone.data_dir, 2) as server:
        server.cluster.await_leaders("new")
        assert server.cluster.consume("new", 6, "others") == values("new")


def test_a_directory_whose_nodes_are_gone_is_refused(alone):
    with SeveralProcesses(alone.data_dir) as server:
        server.stop()
    (alone.data_dir / "cluster").rename(alone.data_dir / "moved")
    for again in (alone, SeveralProcesses(alone.data_dir)):
        with pytest.raises(DidNotStart, match="had the topics of .*, is not there: put it back"):
            again.start()


def test_a_directory_of_several_processes_is_not_opened_with_a_zookeeper(alone):
    with SeveralProcesses(alone.data_dir) as server:
        server.stop()
    alone.settings["zookeeper.connect"] = "127.0.0.1:1"
    with pytest.raises(DidNotStart, match="belongs to the cluster of its own processes: start it without zookeeper"):
        alone.start()


def test_several_processes_join_a_zookeeper_if_it_is_given(zookeeper, tmp_path):
    settings = {"zookeeper.connect": f"{zookeeper.hosts}/several", "zookeeper.session.timeout.ms": "4000", **ONE_COPY}
    with SeveralProcesses(tmp_path / "data", 2, settings) as server:
        server.cluster.create("flights")
        assert set(server.cluster.leaders("flights").values()) == {1, 2}
        server.cluster.produce("flights", "flight")
        assert server.cluster.consume("flights", 6) == values("flight")
        assert server.stop() == 0
        assert not (tmp_path / "data" / "cluster" / "nodes").exists()
    with pytest.raises(DidNotStart, match="belongs to the cluster of zookeeper .*: start it with zookeeper.connect"):
        SeveralProcesses(tmp_path / "data", 2).start()


def test_another_id_of_the_first_broker_is_refused_because_its_partitions_are_in_the_directory(tmp_path):
    settings = {"broker.id": "2"}
    with SeveralProcesses(tmp_path / "data", 2, settings) as server:
        server.cluster.create("flights")
        assert server.stop() == 0
    lower = SeveralProcesses(tmp_path / "data", 3, {"broker.id": "1"})
    with pytest.raises(DidNotStart, match="has the partitions of broker 2, and node.id is 1: start it with node.id=2"):
        lower.start()
    higher = SeveralProcesses(tmp_path / "data", 2, {"broker.id": "3"})
    with pytest.raises(DidNotStart, match=r"broker 2 \(flights\); start it with node.id=2$"):
        higher.start()
    with SeveralProcesses(tmp_path / "data", 2, settings) as server:
        server.cluster.await_leaders("flights")
