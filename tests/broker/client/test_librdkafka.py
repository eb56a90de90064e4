"""Values converted for librdkafka, and the errors that its errors become."""

import pytest
from confluent_kafka import Consumer, KafkaError

from broker.client.errors import ClientError, MustAbort, ProducerFenced, TryAgain
from broker.client.group_requests import GroupIdentity
from broker.client.librdkafka import group_metadata, headers_of, transaction_error
from broker.wire.errors import ErrorCode


@pytest.mark.parametrize("instance", (None, "instance-1"))
def test_a_member_is_serialised_as_librdkafka_does_it(instance):
    """librdkafka has no constructor for a member outside its own consumer, so its serialised form is written here."""
    settings = {"bootstrap.servers": "127.0.0.1:1", "group.id": "readers", "log_level": 0}
    consumer = Consumer(settings | ({} if instance is None else {"group.instance.id": instance}))
    assert group_metadata(GroupIdentity("readers", -1, "", instance)) == consumer.consumer_group_metadata()
    consumer.close()


def test_headers_may_be_a_mapping_or_pairs_of_text_or_bytes():
    wanted = [("a", b"1"), ("b", b"\xff"), ("c", None)]
    assert headers_of({"a": "1", "b": b"\xff", "c": None}, False) == wanted
    assert headers_of([("a", "1"), ("b", b"\xff"), ("c", None)], True) == wanted
    assert headers_of(None, True) == []


def test_an_id_header_beside_stamped_ids_is_refused():
    with pytest.raises(ValueError, match="leave out one of them"):
        headers_of({"flakelog-id": b"7"}, True)


@pytest.mark.parametrize(
    "error, wanted",
    (
        (KafkaError(KafkaError._FENCED, "fenced", fatal=True), ProducerFenced),
        (KafkaError(KafkaError.INVALID_PRODUCER_EPOCH, "epoch"), ProducerFenced),
        (KafkaError(KafkaError.ILLEGAL_GENERATION, "gone", txn_requires_abort=True), MustAbort),
        (KafkaError(KafkaError._TIMED_OUT, "late", retriable=True), TryAgain),
        (KafkaError(KafkaError._STATE, "no transaction"), ClientError),
    ),
)
def test_an_error_of_a_transaction_says_what_to_do(error, wanted):
    translated = transaction_error(error, "transactional id t")
    assert type(translated) is wanted and str(translated).startswith("transactional id t: ")


def test_a_member_that_lost_its_partitions_is_known_from_the_error():
    error = KafkaError(KafkaError.ILLEGAL_GENERATION, "gone", txn_requires_abort=True)
    translated = transaction_error(error, "t")
    assert translated.member_fenced and translated.error.code is ErrorCode.ILLEGAL_GENERATION
