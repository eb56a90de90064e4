"""`flakelog registry` with a real ZooKeeper, whose nodes a plain kazoo reads and writes, as any ZooKeeper tool may."""

import json

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient

from broker.client.blocking import Client
from broker.client.connector.consumer_connector import ConsumerConnector
from broker.client.producer import Producer
from broker.cluster.documents import Endpoint, Registration, broker_path
from coordination.port import Create
from coordination.zookeeper import ZooKeeperCoordinator
from flakelog.cli import REPORT, main
from flakelog.operations import groups
from tests.compat.cluster_servers import ONE_COPY
from tests.compat.server_process import ServerProcess
from tests.patience import until

CHROOT = "registry-commands"
CONSUMER = "host:uuid"


@pytest.fixture(scope="module")
def hosts(zookeeper):
    return f"{zookeeper.hosts}/{CHROOT}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, hosts):
    """Run a broker whose topic `orders` has two partitions with ten messages each."""
    settings = {"zookeeper.connect": hosts, "broker.id": "1", **ONE_COPY}
    with ServerProcess(tmp_path_factory.mktemp("registry") / "data", settings) as server:
        with Client(server.address) as client:
            client.create_topic("orders", 2)
        with Producer(server.address) as producer:
            for number in range(20):
                producer.send("orders", str(number), partition=number % 2)
        yield server


@pytest.fixture
def kazoo(hosts):
    """Return a client of another program: an early consumer, or an operator with ZooKeeper's own tools."""
    client = KazooClient(hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def group(name, kazoo, server):
    """Write the offsets 4 and 6 of a stopped group, as Kafka 0.8 does, and return its name."""
    for partition, offset in ((0, 4), (1, 6)):
        kazoo.create(f"/consumers/{name}/offsets/orders/{partition}", b"%d" % offset, makepath=True)
    yield name
    if kazoo.exists(f"/consumers/{name}"):
        kazoo.delete(f"/consumers/{name}", recursive=True)


def offsets(kazoo, group):
    path = f"/consumers/{group}/offsets/orders"
    return {int(name): int(kazoo.get(f"{path}/{name}")[0]) for name in kazoo.get_children(path)}


def begin(kazoo, group):
    """Register a consumer that owns partition 0."""
    document = {"version": 1, "subscription": {"orders": 1}, "pattern": "static", "timestamp": "1"}
    kazoo.create(f"/consumers/{group}/ids/{CONSUMER}", json.dumps(document).encode(), ephemeral=True, makepath=True)
    owner = f"/consumers/{group}/owners/orders/0"
    kazoo.create(owner, f"{CONSUMER}-0".encode(), ephemeral=True, makepath=True)


@pytest.fixture
def registry(hosts):
    """Return a function that runs a command: (exit code, stdout, stderr)."""

    def run(command):
        result = CliRunner().invoke(main, ["registry", *command.split(), "--zookeeper", hosts])
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert REPORT not in result.stderr, result.stderr
        return result.exit_code, result.stdout, result.stderr

    return run


def objects(output):
    return [json.loads(line) for line in output.splitlines()]


def table(output):
    return [line.split() for line in output.splitlines()]


def test_the_brokers_topics_and_groups_are_shown(registry, server, kazoo, group):
    begin(kazoo, group)
    code, out, _ = registry("show")
    lines = table(out)
    assert code == 0
    assert ["1", server.address] in lines and ["orders", "2"] in lines
    assert [group, "1", "2", "1", "10"] in [line[:5] for line in lines]
    documents = objects(registry("show --json")[1])
    assert {"broker": 1, "address": server.address} in documents
    assert {"topic": "orders", "partitions": 2} in documents
    assert group in [document.get("group") for document in documents]


def test_a_group_is_shown_with_its_owners_offsets_and_lag(registry, server, kazoo, group):
    begin(kazoo, group)
    code, out, _ = registry(f"describe {group}")
    assert code == 0 and out.startswith(f"{group}: 1 consumer, lag 10, touched 20")
    assert [CONSUMER, "static", "orders", "1"] in table(out)
    assert ["orders", "0", "4", "10", "6", f"{CONSUMER}-0"] in table(out)
    assert ["orders", "1", "6", "10", "4", "-"] in table(out)
    (document,) = objects(registry(f"describe {group} --json")[1])
    assert document["partitions"][0] == {
        "topic": "orders", "partition": 0, "offset": 4, "end": 10, "owner": f"{CONSUMER}-0", "lag": 6,
    }  # fmt: skip
    assert document["consumers"] == [{"consumer": CONSUMER, "pattern": "static", "subscription": {"orders": 1}}]


def test_the_brokers_may_be_named(registry, server, group):
    assert registry(f"describe {group} --servers {server.address}")[0] == 0


def test_a_group_that_there_is_not_is_named_beside_those_there_are(registry, server, group):
    code, _, errors = registry("describe nothing")
    assert code == 1 and "there is no group nothing in ZooKeeper; there are: " in errors and group in errors
    assert "has a slash" in registry("describe a/b")[2]


def test_a_move_is_shown_before_it_is_made(registry, kazoo, group):
    code, out, errors = registry(f"move {group} --to earliest")
    assert code == 0 and table(out)[1:] == [["orders", "0", "4", "0"], ["orders", "1", "6", "0"]]
    assert errors == "nothing is changed yet; --execute does it\n"
    assert offsets(kazoo, group) == {0: 4, 1: 6}
    assert registry(f"move {group} --to earliest --execute")[::2] == (0, "2 offsets moved\n")
    assert offsets(kazoo, group) == {0: 0, 1: 0}


def test_a_move_takes_the_words_of_group_reset_offsets(registry, kazoo, group):
    registry(f"move {group} --to -3 --partition 1 --execute")
    assert offsets(kazoo, group) == {0: 4, 1: 7}
    assert "has offsets 0 to 10, not 11" in registry(f"move {group} --to 11 --execute")[2]
    assert "no message is so new" in registry(f"move {group} --to @2100-01-01")[2]
    assert offsets(kazoo, group) == {0: 4, 1: 7}


def test_a_group_begins_with_a_move(registry, kazoo, server):
    assert "name a topic it is to begin with" in registry("move new-group --to latest")[2]
    assert registry("move new-group --to latest --topic orders --execute")[0] == 0
    assert offsets(kazoo, "new-group") == {0: 10, 1: 10}
    assert kazoo.get_children("/consumers/new-group/ids") == []


def test_a_group_with_a_consumer_is_not_moved(registry, kazoo, group):
    begin(kazoo, group)
    code, out, errors = registry(f"move {group} --to earliest --json")
    assert code == 0 and len(objects(out)) == 2 and "stop its 1 consumer first" in errors
    code, out, errors = registry(f"move {group} --to earliest --execute")
    assert code == 1 and f"group {group} has consumers in ZooKeeper that live; stop them first" in errors
    assert offsets(kazoo, group) == {0: 4, 1: 6}


def test_offsets_are_copied_to_kafka(registry, server, group):
    code, out, errors = registry(f"copy {group} --to kafka --plan")
    assert code == 0 and table(out)[1:] == [["orders", "0", "-", "4"], ["orders", "1", "-", "6"]]
    assert "nothing is changed yet" in errors
    with Client(server.address) as client:
        assert groups.committed(client, group) == {}
        assert registry(f"copy {group} --to kafka --yes")[::2] == (0, "2 offsets copied to kafka\n")
        assert groups.committed(client, group) == {("orders", 0): 4, ("orders", 1): 6}


def test_offsets_are_copied_from_kafka_under_another_name(registry, server, kazoo, group):
    with Client(server.address) as client:
        groups.commit(client, "of-kafka", {("orders", 0): 9})
    code, out, errors = registry(f"copy of-kafka --to zookeeper --as {group} --yes --json")
    assert code == 0 and errors == "1 offset copied to zookeeper\n"
    assert objects(out) == [{"topic": "orders", "partition": 0, "before": 4, "after": 9}]
    assert offsets(kazoo, group) == {0: 9, 1: 6}


def test_offsets_of_topics_that_the_brokers_lack_are_not_copied(registry, server, kazoo, group):
    kazoo.create(f"/consumers/{group}/offsets/gone/0", b"1", makepath=True)
    assert len(objects(registry(f"copy {group} --to kafka --plan --json")[1])) == 2


@pytest.mark.parametrize("goal", ["kafka", "zookeeper"])
def test_a_group_with_a_consumer_is_not_copied(registry, server, kazoo, group, goal):
    with Client(server.address) as client:
        groups.commit(client, group, {("orders", 0): 1})
        begin(kazoo, group)
        code, _, errors = registry(f"copy {group} --to {goal} --yes")
        assert code == 1 and "consumers in ZooKeeper that live" in errors
        assert groups.committed(client, group) == {("orders", 0): 1}
    assert offsets(kazoo, group) == {0: 4, 1: 6}


def test_a_copy_without_anything_to_copy_is_refused(registry, server, group):
    assert "has committed no offsets in Kafka" in registry("copy no-group --to zookeeper --yes")[2]
    assert "there is no group no-group in ZooKeeper" in registry("copy no-group --to kafka --yes")[2]


def test_groups_that_nobody_touches_are_removed(registry, kazoo, group):
    assert "no group without consumers has been untouched" in registry(f"remove {group} --untouched-for 3600")[2]
    code, out, _ = registry(f"remove {group} --untouched-for 0 --plan")
    assert code == 0 and out.startswith(f"would remove {group}: 2 offsets, touched 20")
    assert kazoo.exists(f"/consumers/{group}")
    code, out, _ = registry(f"remove {group} --untouched-for 0 --yes --json")
    assert code == 0 and objects(out)[0]["removed"] is True
    assert not kazoo.exists(f"/consumers/{group}")


def test_a_group_with_a_consumer_is_not_removed(registry, kazoo, group):
    begin(kazoo, group)
    assert "no group without consumers" in registry(f"remove {group} --untouched-for 0 --yes")[2]
    assert offsets(kazoo, group) == {0: 4, 1: 6}


@pytest.mark.parametrize(
    "command",
    [
        "registry show --zookeeper {}",
        "registry describe readers --zookeeper {}",
        "registry move readers --to earliest --execute --zookeeper {}",
        "registry copy readers --to zookeeper --yes --zookeeper {}",
        "registry remove --untouched-for 0 --yes --zookeeper {}",
        "id workers --zookeeper {}",
        "spout progress show --store zookeeper://{}",
        "spout progress export --store zookeeper://{}",
    ],
)
def test_a_chroot_that_is_not_there_is_named_and_not_created(zookeeper, command):
    kazoo = KazooClient(zookeeper.hosts)
    kazoo.start()
    try:
        result = CliRunner().invoke(main, command.format(f"{zookeeper.hosts}/no-such/chroot").split())
        assert result.exit_code == 1
        wanted = f"there is no /no-such/chroot in ZooKeeper at {zookeeper.hosts}; check the name of the chroot"
        assert result.stderr == f"Error: {wanted}\n"
        assert not kazoo.exists("/no-such")
    finally:
        kazoo.stop()
        kazoo.close()


def test_a_registry_without_brokers_asks_for_their_addresses(zookeeper):
    empty = f"{zookeeper.hosts}/registry-without-brokers"
    ZooKeeperCoordinator(empty).close()
    result = CliRunner().invoke(main, ["registry", "show", "--zookeeper", empty])
    assert result.exit_code == 1
    wanted = "ZooKeeper names no broker to ask: there is no /brokers/ids: no broker has been in this chroot"
    assert wanted in result.stderr


def test_brokers_without_a_plain_listener_ask_for_the_protocol_by_name(zookeeper):
    chroot = f"{zookeeper.hosts}/registry-of-tls"
    register(chroot, Endpoint("SASL_SSL", "SASL_SSL", "localhost", 9093))
    result = CliRunner().invoke(main, ["registry", "show", "--zookeeper", chroot])
    assert result.exit_code == 1
    assert "broker 1 has no listener with the protocol PLAINTEXT, but with SASL_SSL" in result.stderr
    assert "give security.protocol by --command-config, or name the brokers by --servers" in result.stderr


def test_a_connector_without_security_names_the_protocol_of_the_brokers(zookeeper, caplog):
    chroot = f"{zookeeper.hosts}/connector-of-tls"
    topic = b'{"version":1,"partitions":{"0":[1]}}'
    stored = {"/brokers/topics/orders": topic, "/consumers/readers/offsets/orders/0": b"4"}
    register(chroot, Endpoint("SASL_SSL", "SASL_SSL", "localhost", 9093), stored)
    with ConsumerConnector(chroot, "readers") as connector:
        connector.streams({"orders": 1})
        wanted = "the brokers in ZooKeeper: broker 1 has no listener with the protocol PLAINTEXT, but with SASL_SSL"
        until(lambda: f"orders-0: {wanted}" in caplog.text, "the reason why no message comes")
    assert "no broker answers at" not in caplog.text


def register(chroot, endpoint, nodes=()):
    """Register broker 1 with one listener, as a broker does; make `nodes` too, data by path."""
    session = ZooKeeperCoordinator(chroot)
    try:
        session.execute(Create("/brokers/ids"))
        session.execute(Create(broker_path(1), Registration((endpoint,), timestamp_ms=0).encode()))
        for path, data in dict(nodes).items():
            session.execute(Create(path, data))
    finally:
        session.close()
