"""Flakelog's Python API against the real server: administration."""

import asyncio
import socket
from threading import Event, Thread

import pytest

from broker.client.consumer import Consumer
from broker.client.errors import BrokerError, ClientError, Unreachable
from broker.client.producer import Producer
from flakelog.admin import Admin
from flakelog.async_admin import CALLS_MAX, AsyncAdmin
from flakelog.operations.errors import NotPossible
from tests.compat.numbers_topic import QUICK, WAIT_MS
from tests.patience import SECONDS

# --- administration ------------------------------------------------------------------------------------------------


@pytest.fixture
def admin(group_broker):
    with Admin(group_broker.address) as made:
        yield made


def test_topics_and_their_settings_are_administered(admin, name):
    admin.create_topic(name, 1, {"retention.ms": "1000000"})
    admin.add_partitions(name, 3)
    assert admin.topic(name).partitions == 3 and name in {topic.name for topic in admin.topics()}
    admin.alter_topic_configs(name, {"retention.ms": None, "segment.bytes": "1048576"})
    configs = {config.name: config.value for config in admin.topic_configs(name, ["retention.ms", "segment.bytes"])}
    assert configs["segment.bytes"] == "1048576" and configs["retention.ms"] != "1000000"
    admin.delete_topic(name)
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        admin.topic(name)


def test_offsets_are_found_and_records_deleted(admin, group_broker, topic):
    both = [(topic, 0), (topic, 1)]
    assert admin.end_offsets(both) == admin.end_offsets(both, committed=True) == dict.fromkeys(both, 5)
    assert admin.offsets_at(1_003, both) == {(topic, 0): 2, (topic, 1): 1}
    with Consumer(group_broker.address, topic, partitions=[1], config=QUICK) as consumer:
        id = consumer.poll(WAIT_MS)[2].id
    assert admin.offsets_of_id(id, [(topic, 1)]) == {(topic, 1): 2}
    assert admin.delete_records({(topic, 0): 3}) == {(topic, 0): 3}
    assert admin.first_offsets(both) == {(topic, 0): 3, (topic, 1): 0}


def test_groups_are_described_reset_and_deleted(admin, group_broker, topic, name):
    with Consumer(group_broker.address, topic, group=name, config=QUICK) as consumer:
        consumer.poll(WAIT_MS)
        assert [len(member.partitions) for member in admin.group(name).members] == [2]
    admin.reset_offsets(name, {(topic, 0): 1, (topic, 1): 5})
    assert admin.committed(name) == {(topic, 0): 1, (topic, 1): 5}
    assert admin.lag(name) == {(topic, 0): 4, (topic, 1): 0}
    assert name in {group.group_id for group in admin.groups()}
    admin.create_topic(f"{name}-gone", 1)
    with pytest.raises(NotPossible, match=f"{name}-gone-0 has offsets 0 to 0, not 7"):
        admin.reset_offsets(name, {(f"{name}-gone", 0): 7})
    admin.reset_offsets(name, {(f"{name}-gone", 0): 0})
    admin.delete_topic(f"{name}-gone")
    assert admin.lag(name) == {(topic, 0): 4, (topic, 1): 0}
    admin.delete_group(name)
    assert admin.group(name).state == "Dead"


def test_the_cluster_its_disks_quotas_and_transactions_are_shown(admin, group_broker, topic, name):
    (broker,) = admin.cluster().brokers
    assert {partition.leader for partition in admin.replicas(topic).values()} == {broker.id}
    assert (topic, 0) in admin.log_dirs()[0].sizes
    assert admin.broker_configs(broker.id, ["log.dirs"])
    admin.alter_quotas({"client-id": name}, {"consumer_byte_rate": 1e9})
    assert admin.quotas({"client-id": name})[0].values == {"consumer_byte_rate": 1e9}
    admin.alter_quotas({"client-id": name}, {"consumer_byte_rate": None})
    assert admin.quotas({"client-id": name}) == []
    with Producer(group_broker.address, transactional_id=name) as producer, producer.transaction():
        producer.send(topic, "1", partition=0)
        producer.flush()
        assert admin.transaction(name).partitions == ((topic, 0),)
        assert name in {transaction.transactional_id for transaction in admin.transactions("Ongoing")}
        assert [state.first_offset for state in admin.producers(topic, 0) if state.first_offset is not None] == [5]


# --- under asyncio ---------------------------------------------------------------------------------------------------


def test_under_asyncio_calls_have_the_same_results(group_broker, name):
    async def administered():
        async with AsyncAdmin(group_broker.address) as admin:
            created = await admin.create_topic(name, partitions=3)
            topic, *others = await asyncio.gather(*(admin.topic(name) for _ in range(10)))
            assert others == [topic] * 9
            with pytest.raises(BrokerError, match="TOPIC_ALREADY_EXISTS"):
                await admin.create_topic(name)
            assert name in {listed.name for listed in await admin.topics()}
            await admin.delete_topic(name)
        with pytest.raises(ClientError, match="the admin was closed"):
            await admin.topics()
        await admin.close()
        return created, topic.partitions

    assert asyncio.run(administered()) == (None, 3)


def test_under_asyncio_the_loop_goes_on_while_a_broker_is_silent_and_a_close_ends_the_calls():
    async def closed_early(address):
        admin = AsyncAdmin(address)
        calls = [asyncio.ensure_future(admin.topics()) for _ in range(CALLS_MAX + 1)]
        await asyncio.to_thread(accepted.wait, SECONDS)
        await admin.close()
        return await asyncio.gather(*calls, return_exceptions=True)

    accepted = Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        connections = []

        def accept():
            connections.append(silent.accept()[0])
            connections[0].recv(1)  # the request has come
            accepted.set()

        thread = Thread(target=accept, daemon=True)
        thread.start()
        results = asyncio.run(closed_early(f"127.0.0.1:{silent.getsockname()[1]}"))
        thread.join(SECONDS)
        connections[0].close()
    assert any(isinstance(result, Unreachable) for result in results[:CALLS_MAX])
    assert all(isinstance(result, ClientError) for result in results)
    assert "the admin was closed" in str(results[CALLS_MAX])
