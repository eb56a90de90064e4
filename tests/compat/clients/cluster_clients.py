"""Six stock clients behind one interface, each of which knows one address of a cluster and finds the rest by itself.

    client.create(topic, partitions)
    client.produce(topic, values)               to all partitions of the topic
    client.transact(topic, values, commit)      the same, in a transaction
    client.read(topic, group, count)            committed records, as a member of a group, which then commits
    client.set_config(topic, name, value), client.config(topic, name)

The clients themselves are unchanged.
"""

import asyncio
from contextlib import suppress

import aiokafka
import confluent_kafka
import kafka
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioTopic
from aiokafka.admin.config_resource import ConfigResource as AioResource
from aiokafka.admin.config_resource import ConfigResourceType as AioResourceType
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType as PythonResourceType
from kafka.admin import NewTopic as PythonTopic

from broker.engine.api_table import APIS
from tests.compat.clients.stock_go import missing as missing_go
from tests.compat.clients.stock_go import stock_go
from tests.compat.clients.stock_node import missing as missing_node
from tests.compat.clients.stock_node import stock_node
from tests.compat.stock_clients import gather
from tests.compat.stock_java import StockJava
from tests.compat.stock_java import missing as missing_java
from tests.patience import SECONDS

POLL_MS = 100
JOIN_MS = 10_000  # see tests/compat/stock_clients.py, KafkaPython
HEARTBEAT_MS = 100
TRANSACTIONAL_ID = "payer"


def in_turn(values, partitions):
    return [(n % partitions, value.encode()) for n, value in enumerate(values)]


class Librdkafka:
    def __init__(self, address, partitions):
        self._config = {"bootstrap.servers": address}
        self._partitions = partitions

    def create(self, topic):
        admin = AdminClient(self._config)  # its future fails if it is collected
        admin.create_topics([NewTopic(topic, self._partitions)])[topic].result(SECONDS)

    def produce(self, topic, values):
        producer = confluent_kafka.Producer(self._config | {"enable.idempotence": True})
        self._send(producer, topic, values)

    def _send(self, producer, topic, values):
        errors = []
        for partition, value in in_turn(values, self._partitions):
            delivered = {"partition": partition, "on_delivery": lambda error, _: error and errors.append(error)}
            producer.produce(topic, value, **delivered)
        assert producer.flush(SECONDS) == 0 and not errors, errors

    def transact(self, topic, values, commit):
        producer = confluent_kafka.Producer(self._config | {"transactional.id": TRANSACTIONAL_ID})
        producer.init_transactions(SECONDS)
        producer.begin_transaction()
        self._send(producer, topic, values)
        producer.commit_transaction(SECONDS) if commit else producer.abort_transaction(SECONDS)

    def read(self, topic, group, count):
        own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = confluent_kafka.Consumer(self._config | own)
        consumer.subscribe([topic])

        def poll():
            return [record.value().decode() for record in consumer.consume(count, POLL_MS / 1000) if not record.error()]

        try:
            values = gather(poll, count)
            consumer.commit(asynchronous=False)
            return values
        finally:
            consumer.close()

    def set_config(self, topic, name, value):
        change = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        admin = AdminClient(self._config)
        admin.incremental_alter_configs([resource])[resource].result(SECONDS)

    def config(self, topic, name):
        resource = ConfigResource(ResourceType.TOPIC, topic)
        admin = AdminClient(self._config)
        return admin.describe_configs([resource])[resource].result(SECONDS)[name].value


class KafkaPython:
    def __init__(self, address, partitions):
        self._address = address
        self._partitions = partitions

    def create(self, topic):
        with kafka.KafkaAdminClient(bootstrap_servers=self._address) as admin:
            admin.create_topics([PythonTopic(topic, self._partitions, -1)])

    def produce(self, topic, values):
        with kafka.KafkaProducer(bootstrap_servers=self._address) as producer:
            self._send(producer, topic, values)

    def _send(self, producer, topic, values):
        sent = [producer.send(topic, value, partition=p) for p, value in in_turn(values, self._partitions)]
        producer.flush(SECONDS)
        for future in sent:
            future.get(SECONDS)

    def transact(self, topic, values, commit):
        with kafka.KafkaProducer(bootstrap_servers=self._address, transactional_id=TRANSACTIONAL_ID) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            self._send(producer, topic, values)
            producer.commit_transaction() if commit else producer.abort_transaction()

    def read(self, topic, group, count):
        own = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        own["isolation_level"] = "read_committed"
        consumer = kafka.KafkaConsumer(topic, bootstrap_servers=self._address, **own)

        def poll():
            return [record.value.decode() for records in consumer.poll(JOIN_MS).values() for record in records]

        try:
            values = gather(poll, count)
            consumer.commit()
            return values
        finally:
            consumer.close()

    def set_config(self, topic, name, value):
        with kafka.KafkaAdminClient(bootstrap_servers=self._address) as admin:
            admin.alter_configs([PythonResource(PythonResourceType.TOPIC, topic, {name: value})])

    def config(self, topic, name):
        resources = [PythonResource(PythonResourceType.TOPIC, topic)]
        with kafka.KafkaAdminClient(bootstrap_servers=self._address) as admin:
            return admin.describe_configs(resources, config_filter="all")["topic"][topic][name]["value"]


class AioKafka:
    def __init__(self, address, partitions):
        self._address = address
        self._partitions = partitions

    @staticmethod
    def _run(coroutine):
        return asyncio.run(asyncio.wait_for(coroutine, SECONDS))

    async def _administer(self, work):
        admin = AIOKafkaAdminClient(bootstrap_servers=self._address)
        await admin.start()
        try:
            return await work(admin)
        finally:
            await admin.close()

    def create(self, topic):
        wanted = [AioTopic(topic, self._partitions, 1)]
        answer = self._run(self._administer(lambda admin: admin.create_topics(wanted)))
        assert [error for _, error, *_ in answer.topic_errors] == [0], answer

    def produce(self, topic, values):
        self._run(self._produce(topic, values))

    async def _produce(self, topic, values):
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self._address, enable_idempotence=True) as producer:
            await self._send(producer, topic, values)

    async def _send(self, producer, topic, values):
        sent = [await producer.send(topic, value, partition=p) for p, value in in_turn(values, self._partitions)]
        await asyncio.gather(*sent)

    def transact(self, topic, values, commit):
        self._run(self._transact(topic, values, commit))

    async def _transact(self, topic, values, commit):
        own = {"transactional_id": TRANSACTIONAL_ID}
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=self._address, **own) as producer:
            with suppress(_Abort):
                async with producer.transaction():
                    await self._send(producer, topic, values)
                    if not commit:
                        raise _Abort

    def read(self, topic, group, count):
        return self._run(self._read(topic, group, count))

    async def _read(self, topic, group, count):
        own = {"group_id": group, "auto_offset_reset": "earliest", "enable_auto_commit": False}
        own["isolation_level"] = "read_committed"
        values = []
        async with aiokafka.AIOKafkaConsumer(topic, bootstrap_servers=self._address, **own) as consumer:
            while len(values) < count:
                polled = await consumer.getmany(timeout_ms=POLL_MS)
                values += [record.value.decode() for records in polled.values() for record in records]
            await consumer.commit()
        return values

    def set_config(self, topic, name, value):
        resource = AioResource(AioResourceType.TOPIC, topic, {name: value})
        answers = self._run(self._administer(lambda admin: admin.alter_configs([resource])))
        assert [error for error, *_ in answers[0].resources] == [0], answers

    def config(self, topic, name):
        resource = AioResource(AioResourceType.TOPIC, topic)
        answers = self._run(self._administer(lambda admin: admin.describe_configs([resource])))
        ((_, _, _, _, entries),) = answers[0].resources
        return {key: value for key, value, *_ in entries}[name]


class _Abort(Exception):
    pass


class _InAProcess:
    """A client of another language, which runs in a StockProcess."""

    def __init__(self, process, address, partitions):
        self._process = process
        self._address = address
        self._partitions = partitions

    def _ask(self, call, **arguments):
        return self._process.ask(call, address=self._address, **arguments)


class Java(_InAProcess):
    missing = staticmethod(missing_java)
    process = StockJava

    def create(self, topic):
        self._ask("createTopic", topic=topic, partitions=self._partitions)

    def produce(self, topic, values):
        self._ask("produce", topic=topic, values=values)

    def transact(self, topic, values, commit):
        own = {"transactional.id": TRANSACTIONAL_ID}
        self._ask("transaction", topic=topic, values=values, commit=commit, config=own)

    def read(self, topic, group, count):
        own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        own["isolation.level"] = "read_committed"
        self._ask("join", name=group, topic=topic, config=own)
        records = self._ask("take", names=[group], count=count)
        self._ask("leave", name=group)
        return [record["value"] for record in records]

    def set_config(self, topic, name, value):
        self._ask("alterConfigs", type="TOPIC", name=topic, changes=[["SET", name, value]])

    def config(self, topic, name):
        return self._ask("describeConfigs", type="TOPIC", name=topic)[name]["value"]


class FranzGo(_InAProcess):
    missing = staticmethod(missing_go)
    process = staticmethod(stock_go)
    _VERSIONS = {key: api.newest for key, api in APIS.items()}
    _KEYS = {api.name: key for key, api in APIS.items()}

    def _ask(self, call, **arguments):
        return super()._ask(call, versions=self._VERSIONS, **arguments)

    def _route(self, api, **fields):
        return self._ask("route", key=self._KEYS[api], fields=fields)

    def create(self, topic):
        wanted = {"Topic": topic, "NumPartitions": self._partitions, "ReplicationFactor": -1}
        (created,) = self._route("CreateTopics", Topics=[wanted], TimeoutMillis=SECONDS * 1000)["Topics"]
        assert created["ErrorCode"] == 0, created

    def produce(self, topic, values):
        self._ask("produce", topic=topic, values=values, spread=self._partitions)

    def transact(self, topic, values, commit):
        end = "commit" if commit else "abort"
        self._ask("transact", id=TRANSACTIONAL_ID, topic=topic, values=values, spread=self._partitions, end=end)

    def read(self, topic, group, count):
        return self._ask("read", topic=topic, group=group, count=count, heartbeat=HEARTBEAT_MS, committed=True)

    def set_config(self, topic, name, value):
        change = {"Name": name, "Op": "SET", "Value": value}
        resource = {"ResourceType": "TOPIC", "ResourceName": topic, "Configs": [change]}
        (altered,) = self._route("IncrementalAlterConfigs", Resources=[resource])["Resources"]
        assert altered["ErrorCode"] == 0, altered

    def config(self, topic, name):
        resource = {"ResourceType": "TOPIC", "ResourceName": topic}
        (described,) = self._route("DescribeConfigs", Resources=[resource])["Resources"]
        return {entry["Name"]: entry["Value"] for entry in described["Configs"]}[name]


class Kafkajs(_InAProcess):
    missing = staticmethod(missing_node)
    process = staticmethod(stock_node)

    def _ask(self, call, **arguments):
        return super()._ask(f"kafkajs.{call}", **arguments)

    def create(self, topic):
        self._ask("createTopic", topic=topic, partitions=self._partitions)

    def produce(self, topic, values):
        self._ask("produce", topic=topic, values=values, idempotent=True)

    def transact(self, topic, values, commit):
        self._ask("transaction", id=TRANSACTIONAL_ID, topic=topic, values=values, abort=not commit)

    def read(self, topic, group, count):
        records = self._ask("read", topic=topic, group=group, count=count, committed=True)
        return [value for _, _, _, value, *_ in records]

    def set_config(self, topic, name, value):
        self._ask("setTopicConfig", topic=topic, name=name, value=value)

    def config(self, topic, name):
        return self._ask("topicConfig", topic=topic)[name]
