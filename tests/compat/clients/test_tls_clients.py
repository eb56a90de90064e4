"""Stock clients at a listener that speaks TLS: with the authority's certificate alone, and with one of their own."""

import asyncio

import confluent_kafka
import kafka
import pytest

from broker.client.blocking import Client
from broker.engine.api_table import APIS
from tests.compat.clients import stock_go, stock_node
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import aiokafka_round_trip, gather
from tests.compat.tls_files import TlsFiles
from tests.patience import SECONDS

TOPIC, GROUP = "flights", "readers"
VALUES = [f"value {number}" for number in range(100)]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return TlsFiles(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module", params=["none", "required"])
def auth(request):
    return request.param


@pytest.fixture(scope="module")
def server(files, auth, tmp_path_factory):
    settings = files.trusting() | {"ssl.client.auth": auth, "group.initial.rebalance.delay.ms": 0}
    with ServerProcess(tmp_path_factory.mktemp("data"), settings) as server:
        yield server


@pytest.fixture
def address(server):
    return "localhost:" + server.addresses["broker.SSL"].rpartition(":")[2]


@pytest.fixture
def identity(files, auth):
    """The file of the client's certificate, None where the broker asks for none."""
    return files.ada if auth == "required" else None


def test_librdkafka(address, files, identity, name):
    own = {} if identity is None else {"ssl.certificate.location": str(identity), "ssl.key.location": str(identity)}
    config = {"bootstrap.servers": address, "security.protocol": "SSL", "ssl.ca.location": str(files.ca)} | own
    producer = confluent_kafka.Producer(config)
    for value in VALUES:
        producer.produce(name, value)
    assert producer.flush(SECONDS) == 0
    consumer = confluent_kafka.Consumer(config | {"group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    records = gather(lambda: consumer.consume(100, 0.2), len(VALUES))
    consumer.close()
    assert sorted(record.value().decode() for record in records) == sorted(VALUES)


def test_kafka_python(address, files, identity, name):
    own = {} if identity is None else {"ssl_certfile": str(identity), "ssl_keyfile": str(identity)}
    config = {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_cafile": str(files.ca)} | own
    producer = kafka.KafkaProducer(**config)
    for value in VALUES:
        producer.send(name, value.encode())
    producer.flush(SECONDS)
    producer.close()
    consumer = kafka.KafkaConsumer(auto_offset_reset="earliest", **config)
    consumer.assign([kafka.TopicPartition(name, 0)])
    batches = gather(lambda: [record for some in consumer.poll(200).values() for record in some], len(VALUES))
    consumer.close()
    assert [record.value.decode() for record in batches] == VALUES


def test_aiokafka(address, files, identity, name):
    config = {"bootstrap_servers": address, "security_protocol": "SSL", "ssl_context": files.context(identity)}
    asyncio.run(aiokafka_round_trip(name, VALUES, **config))


def test_java(java, address, files, identity, name):
    """Java's clients, and its tools by a properties file, with PEM stores (KIP-651)."""
    config = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files.ca),
    }
    if identity is not None:
        config |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(identity)}
    properties = files.directory / "client.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    java.ask("produce", address=address, topic=name, values=VALUES, config=config)
    records = java.ask("read", address=address, topic=name, count=len(VALUES), config=config)
    assert sorted(record["value"] for record in records) == sorted(VALUES)
    tool = "org.apache.kafka.tools.TopicCommand"
    done = java.tool(tool, "--list", "--bootstrap-server", address, "--command-config", properties)
    assert name in done.stdout.split(), done.stderr


@pytest.mark.skipif(bool(stock_go.missing()), reason=stock_go.missing() or "")
def test_franz_go(address, files, identity, name, server):
    with Client(server.address) as client:
        client.create_topic(name)
    versions = {key: api.newest for key, api in APIS.items()}
    common = {"address": address, "versions": versions, "topic": name, "ca": files.ca.read_text()}
    if identity is not None:
        common["identity"] = identity.read_text()
    with stock_go.stock_go() as go:
        go.ask("produce", values=VALUES, **common)
        assert sorted(go.ask("read", group=name, count=len(VALUES), heartbeat=100, **common)) == sorted(VALUES)


@pytest.mark.skipif(bool(stock_node.missing()), reason=stock_node.missing() or "")
def test_kafkajs(address, files, identity, name):
    tls = {"ca": [files.ca.read_text()]}
    if identity is not None:
        tls |= {"cert": identity.read_text(), "key": identity.read_text()}
    with stock_node.stock_node() as node:
        node.ask("kafkajs.createTopic", address=address, topic=name, partitions=1, tls=tls)
        node.ask("kafkajs.produce", address=address, topic=name, values=VALUES, tls=tls)
        records = node.ask("kafkajs.read", address=address, topic=name, group=name, count=len(VALUES), tls=tls)
        assert [record[3] for record in records] == VALUES
