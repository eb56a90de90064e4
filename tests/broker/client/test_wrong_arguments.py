"""Arguments that cannot work: each gets an error that names it, and what would be right, before anything is sent."""

import asyncio

import pytest

from broker.client.async_consumer import AsyncConsumer
from broker.client.async_producer import AsyncProducer
from broker.client.asyncio import AsyncClient
from broker.client.blocking import Client
from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from broker.client.errors import InvalidTopics, ProduceError
from broker.client.producer import Producer
from broker.client.topic_admin import create_topic
from tests.broker.client.engine_shell import EngineShell
from tests.broker.engine_client import EngineBroker

NOBODY = "127.0.0.1:1"


@pytest.fixture
def producer():
    return Producer(NOBODY, timeout_ms=100)


@pytest.fixture
def consumer():
    with Consumer(NOBODY, "t", group="g", config=ConsumerConfig(auto_commit_interval_ms=None)) as made:
        yield made


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"topic": b"t"}, r"topic=b't': give a topic's name as text"),
        ({"topic": ""}, "topic='': give a topic's name"),
        ({"topic": "a\0b"}, "give a topic's name"),
        ({"topic": "", "headers": {"a": "b"}}, "topic='': give a topic's name"),
        ({"topic": "", "timestamp_ms": 1}, "topic='': give a topic's name"),
        ({"partition": "1"}, r"partition='1': give a whole number from 0 to 2147483647"),
        ({"partition": -2}, "partition=-2: give a whole number from 0"),
        ({"partition": 1 << 31}, "partition=2147483648: give a whole number"),
        ({"partition": True}, "partition=True: give a whole number"),
        ({"timestamp_ms": 0}, "timestamp_ms=0: give a whole number of at least 1"),
        ({"timestamp_ms": 1 << 63}, "timestamp_ms=9223372036854775808: give a whole number"),
        ({"timestamp_ms": 1.5}, "timestamp_ms=1.5: give a whole number"),
        ({"value": 5}, "int is neither bytes nor text: give the Producer an encoder"),
        ({"key": 5}, "or a key_encoder for keys"),
        ({"callback": 5}, "callback=5: give a function"),
        ({"headers": {1: "x"}}, r"\(1, 'x'\) is no header: give pairs of a name, as text"),
        ({"headers": {"a": 5}}, r"\('a', 5\) is no header"),
        ({"headers": [("a",)]}, r"\('a',\) is no header"),
        ({"headers": "ab"}, "'a' is no header"),
    ],
)
def test_a_message_that_cannot_be_sent_is_refused(producer, message, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        producer.send(**({"topic": "t", "value": "v"} | message))
    assert producer.figures().sent == 0


@pytest.mark.parametrize(("arguments", "limit"), [({}, 1 << 20), ({"max_request_size": 5_000}, 5_000)])
def test_a_message_that_is_too_large_is_refused_with_the_limit(arguments, limit):
    producer = Producer(NOBODY, timeout_ms=100, **arguments)
    with pytest.raises(ProduceError, match=f"t: the message does not fit max_request_size={limit} bytes"):
        producer.send("t", bytes(limit))


@pytest.mark.parametrize("make", (Producer, AsyncProducer, lambda servers: Consumer(servers, "t"), Client, AsyncClient))
@pytest.mark.parametrize("servers", (["127.0.0.1:9092"], "", "host:many"))
def test_servers_are_addresses_as_text(make, servers):
    with pytest.raises(ValueError, match="host:port|host:9092,host:9093"):
        make(servers)


@pytest.mark.parametrize("make", (Producer, AsyncProducer))
@pytest.mark.parametrize(
    ("argument", "limits"),
    [
        ({"queue_time_ms": -1}, "from 0 to 900000"),
        ({"batch_size": 0}, "from 1 to 1000000"),
        ({"queue_size": 0}, "from 1 to 2147483647"),
        ({"enqueue_timeout_ms": -1}, "from 0 to"),
        ({"timeout_ms": 0}, "from 1 to 2147483647"),
        ({"timeout_ms": 1.5}, "from 1 to"),
        ({"transaction_timeout_ms": 999}, "from 1000 to"),
        ({"max_request_size": 999}, "from 1000 to 1000000000"),
        ({"transaction_timeout_ms": 10**12}, "from 1000 to"),
    ],
)
def test_the_numbers_of_a_producer_have_limits(make, argument, limits):
    ((name, number),) = argument.items()
    with pytest.raises(ValueError, match=f"{name}={number}: give a whole number {limits}"):
        make(NOBODY, **argument)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ({"encoder": None}, "encoder=None: give a function"),
        ({"key_encoder": "x"}, "key_encoder='x': give a function"),
        ({"partitioner": 5}, "partitioner=5: give a function"),
        ({"compression": None}, "compression=None: give one of none, gzip, snappy, lz4, zstd"),
        ({"compression": "brotli"}, "compression='brotli': give one of none"),
        ({"transactional_id": ""}, "transactional_id='': give text"),
        ({"transactional_id": b"x"}, "transactional_id=b'x': give text"),
        ({"security": 5}, "security=5: give properties, such as"),
    ],
)
def test_a_producer_that_cannot_work_is_refused_at_once(argument, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        Producer(NOBODY, **argument)


@pytest.mark.parametrize("topic", (None, "", b"t"))
def test_the_partitions_of_no_topic_are_refused(producer, topic):
    with pytest.raises((TypeError, ValueError), match="give a topic's name"):
        producer.partitions_of(topic)


@pytest.mark.parametrize("acks", (1, "-1", "leader", None))
def test_acks_are_one_of_three_texts(acks):
    with pytest.raises(ValueError, match="acks=.*: give 'all', '1' or '0'"):
        Producer(NOBODY, acks=acks)


def test_a_transaction_needs_the_acks_of_all():
    with pytest.raises(ValueError, match="transactions need acks='all'"):
        Producer(NOBODY, acks="1", transactional_id="x")


def test_a_message_outside_a_transaction_says_where_it_belongs():
    with pytest.raises(ProduceError, match="a message is sent between `begin` and `commit`"):
        Producer(NOBODY, transactional_id="x").send("t", "v")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda consumer: consumer.seek("t", 0, -1), "t-0: -1 is no offset; give a number of at least 0"),
        (lambda consumer: consumer.seek("t", "0", 1), r"\('t', '0'\) is no partition"),
        (lambda consumer: consumer.seek_to_time(-1), "time_ms=-1: give a whole number of at least 0"),
        (lambda consumer: consumer.seek_to_time(1.5), "time_ms=1.5"),
        (lambda consumer: consumer.seek_to_id(-1), "id=-1"),
        (lambda consumer: consumer.commit({("t", 0): -1}), "t-0: -1 is no offset"),
        (lambda consumer: consumer.commit({"t": 1}), "'t' is no partition: give pairs"),
        (lambda consumer: consumer.committed(("t", 0)), "'t' is no partition: give pairs"),
        (lambda consumer: consumer.poll(max_records=0), "max_records=0: give a whole number of at least 1"),
        (lambda consumer: consumer.poll(timeout_ms=-1), "timeout_ms=-1: give a whole number of at least 0"),
        (lambda consumer: consumer.poll(timeout_ms="5"), "timeout_ms='5': give a whole number"),
    ],
)
def test_a_place_that_cannot_be_is_refused(consumer, call, reason):
    with pytest.raises(ValueError, match=reason):
        call(consumer)


def test_asyncio_consumers_refuse_the_same():
    async def ask():
        async with AsyncConsumer(NOBODY, "t") as consumer:
            with pytest.raises(ValueError, match="t-0: -1 is no offset"):
                await consumer.seek("t", 0, -1)
            with pytest.raises(ValueError, match="max_records=-1"):
                await consumer.poll(max_records=-1)

    asyncio.run(ask())


@pytest.mark.parametrize("config", ({"auto.offset.reset": "earliest"}, {}))
def test_a_config_of_another_kind_is_refused(config):
    with pytest.raises(TypeError, match=r"give a ConsumerConfig\(\.\.\.\)"):
        Consumer(NOBODY, "t", config=config)


@pytest.mark.parametrize("make", (Consumer, AsyncConsumer))
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"topics": None}, "topics=None: give a topic's name, several names, or a pattern"),
        ({"topics": 5}, "topics=5: give a topic's name"),
        ({"group": b"g"}, "group=b'g': give a group's name, text of at most 32,767 bytes"),
        ({"group": ""}, "group='': give a group's name"),
        ({"group": "g" * 40_000}, "group='g{39}[.]{3}: give a group's name"),
        ({"timeout_ms": -1}, "timeout_ms=-1: give a whole number of at least 0"),
        ({"security": 5}, "security=5: give properties, such as"),
    ],
)
def test_a_consumer_that_cannot_work_is_refused_at_once(make, arguments, reason):
    with pytest.raises((TypeError, ValueError), match=reason):
        make(**({"servers": NOBODY, "topics": "t"} | arguments))


@pytest.mark.parametrize("make", (Consumer, AsyncConsumer))
@pytest.mark.parametrize(
    ("start", "right"),
    [
        ("earliest", r"start='earliest' is no position: give Earliest\(\)"),
        ("latest", r"give Latest\(\)"),
        (17, r"give AtOffset\(17\), AtId\(17\) or AtTime\(17\)"),
        (None, r"give Earliest\(\), Latest\(\), AtOffset\(n\), AtId\(n\), Last\(n\) or AtTime"),
    ],
)
def test_a_start_that_is_no_position_is_a_type_error_that_names_the_new_spelling(make, start, right):
    with pytest.raises(TypeError, match=right):
        make(NOBODY, "t", start=start)


@pytest.mark.parametrize("partitions", (0, "0"))
def test_partitions_are_numbers(partitions):
    with pytest.raises(InvalidTopics, match=r"give numbers, such as \[0, 1\]"):
        Consumer(NOBODY, "t", partitions=partitions)


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        (lambda core: create_topic(core, "t", 1 << 31), "CreateTopics cannot be sent .*2147483648"),
        (lambda core: create_topic(core, "t", "1"), "CreateTopics cannot be sent .* not an integer"),
        (lambda core: create_topic(core, b"t", 1), "CreateTopics cannot be sent .*'bytes'"),
        (lambda core: create_topic(core, "\ud800", 1), "CreateTopics cannot be sent .* surrogates"),
        (lambda core: create_topic(core, None, 1), "CreateTopics cannot be sent .* name is None"),
    ],
)
def test_a_request_that_cannot_be_encoded_is_named_with_the_reason(operation, message):
    shell = EngineShell(EngineBroker())
    with pytest.raises(ValueError, match=message):
        shell.run(operation(shell.core))
    assert shell.run(shell.core.metadata()) == []


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (lambda _: Client(NOBODY, timeout=30.0), r"Client\(\) takes no `timeout` any more: give timeout_ms="),
        (lambda _: Client(NOBODY, 30.0), r"Client\(\) takes no `timeout` any more: give timeout_ms=, in milliseconds"),
        (lambda _: Client(NOBODY, connect_timeout=4.0), "give connect_timeout_ms="),
        (lambda _: AsyncClient(NOBODY, timeout=30.0), r"AsyncClient\(\) .* give timeout_ms="),
        (lambda _: AsyncClient(NOBODY, 30.0), r"AsyncClient\(\) .* give timeout_ms="),
        (lambda _: Client(NOBODY).retry(list, within=30.0), r"Client\.retry\(\) .*`within`.* give timeout_ms="),
        (lambda _: Client(NOBODY).retry(list, 30.0), r"Client\.retry\(\) .*`within`.* give timeout_ms="),
        (lambda _: Producer(NOBODY, sync=True), r"Producer\(\) .*`sync`.* give .* send_and_wait"),
        (lambda producer: producer.poll(0.1), r"Producer\.poll\(\) .*`seconds`.* give timeout_ms="),
        (lambda producer: producer.poll(seconds=1), r"Producer\.poll\(\) .*`seconds`.* give timeout_ms="),
    ],
)
def test_an_old_spelling_is_a_type_error_that_names_the_new_one(producer, call, right):
    with pytest.raises(TypeError, match=right):
        call(producer)


def test_an_attribute_with_its_old_name_is_a_type_error_that_names_the_new_one(consumer):
    for member in (consumer, AsyncConsumer(NOBODY, "t")):
        with pytest.raises(TypeError, match=rf"{type(member).__name__}\.positions has a new name: uncommitted"):
            member.positions
        assert not hasattr(member, "positions") and member.uncommitted == {}
