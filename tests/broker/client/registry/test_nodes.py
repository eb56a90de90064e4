"""The nodes under /consumers: Kafka 0.8's layout, and errors that name the damaged node."""

import json

import pytest

from broker.client.registry.nodes import (
    BLACK_LIST,
    STATIC,
    WHITE_LIST,
    ConsumerId,
    ConsumerRegistration,
    OffsetsTopic,
    StreamId,
    consumer_path,
    decode_offset,
    decode_owner,
    encode_offset,
    encode_owner,
    offset_path,
    offsets_topic_path,
    owner_path,
    partition_number,
)
from broker.cluster.documents import DamagedDocument, TopicPartition

CONSUMER = ConsumerId("host", "1b2c")


def test_paths_are_those_of_kafka_0_8():
    partition = TopicPartition("orders", 3)
    assert consumer_path("g", str(CONSUMER)) == "/consumers/g/ids/host:1b2c"
    assert owner_path("g", partition) == "/consumers/g/owners/orders/3"
    assert offset_path("g", partition) == "/consumers/g/offsets/orders/3"
    assert offsets_topic_path("g", "orders") == "/consumers/g/offsets/orders"


@pytest.mark.parametrize("name", ["", ".", "a/b", "x" * 250])
def test_a_group_has_a_name_that_a_node_can_have(name):
    with pytest.raises(ValueError, match="is no node's"):
        owner_path(name, TopicPartition("orders", 0))


def test_a_registration_is_the_json_that_kafka_0_8_writes():
    registration = ConsumerRegistration({"orders": 2}, STATIC, 1795472848648)
    assert registration.encode() == (
        b'{"version":1,"subscription":{"orders":2},"pattern":"static","timestamp":"1795472848648"}'
    )
    assert ConsumerRegistration.decode("/x", registration.encode()) == registration


def test_a_filter_is_a_regular_expression_and_the_number_of_its_streams():
    for pattern in (WHITE_LIST, BLACK_LIST):
        registration = ConsumerRegistration({'web-"a".*': 3}, pattern, 5)
        assert ConsumerRegistration.decode("/x", registration.encode()) == registration


def test_a_registration_of_an_early_client_may_lack_pattern_and_time():
    document = b'{"version":1,"subscription":{"t":1}}'
    assert ConsumerRegistration.decode("/x", document) == ConsumerRegistration({"t": 1})


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"host", "is not JSON"),
        (b"[1]", "is no JSON object"),
        (b"{}", "'subscription' is None, not a JSON dict"),
        (b'{"subscription":{"t":"two"}}', "'t' is 'two', not a number"),
        (b'{"subscription":{"t":0}}', "0 streams for 't'; it is 1 to 1000"),
        (b'{"subscription":{"t":1},"pattern":"regex"}', "'pattern' is 'regex', not static, white_list, black_list"),
        (b'{"subscription":{"a":1,"b":1},"pattern":"white_list"}', "of 2 regular expressions; it has one"),
        (b'{"subscription":{"t":1},"timestamp":"noon"}', "'timestamp' is 'noon', not a number"),
    ],
)
def test_a_damaged_registration_is_refused_by_path_and_reason(document, reason):
    with pytest.raises(DamagedDocument) as raised:
        ConsumerRegistration.decode("/consumers/g/ids/c", document)
    assert str(raised.value).startswith("/consumers/g/ids/c: ")
    assert reason in str(raised.value)


def test_an_owner_is_a_consumer_and_the_number_of_its_stream():
    stream = StreamId(str(CONSUMER), 12)
    assert encode_owner(stream) == b"host:1b2c-12"
    assert decode_owner("/x", b"host:1b2c-12") == stream
    assert decode_owner("/x", b"g_my-host-1795472848648-1b2c-0") == StreamId("g_my-host-1795472848648-1b2c", 0)


@pytest.mark.parametrize("data", [b"", b"host:1b2c", b"-0", b"host-x", b"\xff-0"])
def test_a_damaged_owner_is_refused_by_path(data):
    with pytest.raises(DamagedDocument, match="^/consumers/g/owners/t/0: "):
        decode_owner("/consumers/g/owners/t/0", data)


def test_an_offset_is_decimal_text():
    assert encode_offset(0) == b"0"
    assert decode_offset("/x", b"12345678901\n") == 12345678901
    for data in (b"", b"-2", b"1.5", b"9223372036854775808", b"\xff"):
        with pytest.raises(DamagedDocument, match="^/x: .* is no offset; it is a number from 0 to 9223372036854775807"):
            decode_offset("/x", data)


def test_a_group_may_have_no_offset_yet():
    """Kafka 0.8 takes -1 for an offset out of range, and begins at smallest or largest."""
    assert encode_offset(None) == b"-1"
    assert decode_offset("/x", b"-1") is None


@pytest.mark.parametrize(
    "topic", [OffsetsTopic("abcdefghijklmnopqrstuw"), OffsetsTopic("id", 7, is_clearing=True), OffsetsTopic(czxid=7)]
)
def test_offsets_name_the_topic_that_they_belong_to(topic):
    assert json.loads(topic.encode())["version"] == 1
    assert OffsetsTopic.decode("/x", topic.encode()) == topic


def test_offsets_of_kafka_0_8_name_no_topic():
    assert OffsetsTopic.decode("/x", b"") == OffsetsTopic()
    assert OffsetsTopic().encode() == b""


def test_a_consumers_name_has_a_host_and_a_uuid():
    assert ConsumerId.parse("host:1b2c") == CONSUMER
    assert ConsumerId.parse("::1:1b2c") == ConsumerId("::1", "1b2c")
    with pytest.raises(ValueError, match="'host' is no consumer: its name is HOST:UUID"):
        ConsumerId.parse("host")


def test_a_node_below_owners_or_offsets_is_a_number():
    assert partition_number("/x", "12") == 12
    with pytest.raises(DamagedDocument, match="^/x/lock: 'lock' is no number of a partition"):
        partition_number("/x", "lock")
