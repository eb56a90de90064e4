"""Subscriptions and assignments, against the classes that kio generates from Kafka's definitions."""

import io
from importlib import import_module

import pytest
from kio.serial import entity_writer

from broker.client.group_protocol import (
    MemberSubscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from broker.wire.errors import WireError


def by_kafka(name, version, **fields):
    """Encode a message by Kafka's definition, with its version in front."""
    module = import_module(f"kio.schema.consumer_protocol_{name.lower()}.v{version}.data")
    cls = getattr(module, f"ConsumerProtocol{name}")
    partitions = {
        key: tuple(module.TopicPartition(topic=topic, partitions=tuple(n)) for topic, n in fields[key])
        for key in ("owned_partitions", "assigned_partitions")
        if key in fields
    }
    out = io.BytesIO()
    entity_writer(cls)(out, cls(**fields | partitions))
    return version.to_bytes(2, "big") + out.getvalue()


GENERATION_7 = (7).to_bytes(4, "big")
OWNED = (("a", 0), ("a", 2), ("b", 1))
OWNED_BY_TOPIC = [("a", [0, 2]), ("b", [1])]


def test_a_subscription_is_encoded_as_kafka_defines_it():
    expected = by_kafka(
        "Subscription",
        3,
        topics=("a", "b"),
        user_data=GENERATION_7,
        owned_partitions=OWNED_BY_TOPIC,
        generation_id=7,
        rack_id=None,
    )
    assert encode_subscription(MemberSubscription(("a", "b"), OWNED, 7)) == expected


@pytest.mark.parametrize(
    "version, fields, subscription",
    [
        (0, {}, MemberSubscription(("a",))),
        (1, {"owned_partitions": OWNED_BY_TOPIC}, MemberSubscription(("a",), OWNED)),
        (1, {"owned_partitions": OWNED_BY_TOPIC, "user_data": GENERATION_7}, MemberSubscription(("a",), OWNED, 7)),
        (1, {"owned_partitions": [], "user_data": b"another assignor's"}, MemberSubscription(("a",))),
        (2, {"owned_partitions": OWNED_BY_TOPIC, "generation_id": 8}, MemberSubscription(("a",), OWNED, 8)),
        (3, {"owned_partitions": [], "generation_id": 8, "rack_id": "r"}, MemberSubscription(("a",), (), 8)),
    ],
)
def test_a_subscription_of_every_version_is_read(version, fields, subscription):
    """In v1 the generation is in the user data, where Kafka's Java client puts it."""
    assert decode_subscription(by_kafka("Subscription", version, topics=("a",), **fields)) == subscription


def test_an_assignment_is_encoded_and_read_as_kafka_defines_it():
    encoded = by_kafka("Assignment", 1, assigned_partitions=OWNED_BY_TOPIC, user_data=b"")
    assert encode_assignment(OWNED) == encoded
    assert decode_assignment(encoded) == OWNED
    assert decode_assignment(b"") == ()


def test_a_message_cut_at_any_byte_is_an_error_or_a_shorter_message_never_another_failure():
    whole = encode_subscription(MemberSubscription(("a", "b"), OWNED, 7))
    for end in range(len(whole) - 2):  # the rack, the last two bytes, is not read
        with pytest.raises(WireError):
            decode_subscription(whole[:end])
    whole = encode_assignment(OWNED)
    for end in range(1, len(whole) - 4):  # neither is the user data of an assignment
        with pytest.raises(WireError):
            decode_assignment(whole[:end])


def test_a_count_beyond_the_message_is_refused_before_anything_is_allocated():
    with pytest.raises(WireError, match="more than the bytes that follow"):
        decode_assignment(b"\0\1" + b"\x7f\xff\xff\xff")
