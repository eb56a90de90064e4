"""The transactional producer's core on real brokers: Flakelog and Apache Kafka."""

from uuid import uuid4

import pytest

from broker.client.blocking import Client
from broker.client.core import EARLIEST
from broker.client.errors import MustAbort, ProducerFenced, TryAgain
from broker.client.group_requests import CommittedOffset, GroupIdentity
from broker.client.transaction import TransactionalProducer
from broker.record.records import BatchRecord
from flakelog.operations import groups
from tests.patience import until


@pytest.fixture(params=["flakelog", "kafka"])
def address(request):
    if request.param == "kafka":
        return request.getfixturevalue("kafka")
    return request.getfixturevalue("broker").address


@pytest.fixture
def client(address):
    with Client(address) as client:
        yield client


@pytest.fixture
def topic(client):
    name = f"out-{uuid4().hex[:8]}"
    client.create_topic(name, 2)
    return name


def persist(client, operation):
    """Carry out an operation until it stops asking to be called again."""

    def done():
        try:
            client.run(operation())
        except TryAgain:
            return False
        return True

    until(done, operation.__name__)


def add(producer, topic, *values, partition=0):
    producer.add(topic, partition, [BatchRecord(n, 0, None, value) for n, value in enumerate(values)], 1_000)


def read(client, topic, partition=0):
    """Return what a read_committed reader sees."""
    offset = client.find_offset(topic, partition, EARLIEST)
    values = []
    while True:
        records, following = client.fetch(topic, partition, offset, max_wait_ms=100, committed=True)
        if following == offset:
            return values
        values += [record.value for record in records]
        offset = following


def test_records_and_offsets_are_committed_together_and_aborted_ones_are_not_seen(client, topic):
    producer = TransactionalProducer(client.core, f"t-{topic}")
    persist(client, producer.begin)
    add(producer, topic, b"a", b"b")
    add(producer, topic, b"c", partition=1)
    producer.add_offsets(GroupIdentity(f"g-{topic}"), {(topic, 0): CommittedOffset(1, metadata="here")})
    persist(client, producer.commit)
    persist(client, producer.begin)
    add(producer, topic, b"aborted")
    producer.add_offsets(GroupIdentity(f"g-{topic}"), {(topic, 0): CommittedOffset(2)})
    persist(client, producer.flush)
    persist(client, producer.abort)
    persist(client, producer.begin)
    add(producer, topic, b"d")
    persist(client, producer.commit)
    assert (read(client, topic), read(client, topic, 1)) == ([b"a", b"b", b"d"], [b"c"])
    assert groups.committed(client, f"g-{topic}") == {(topic, 0): 1}


def test_a_successor_fences_its_predecessor(client, topic):
    former, latter = (TransactionalProducer(client.core, f"t-{topic}") for _ in range(2))
    persist(client, former.begin)
    add(former, topic, b"zombie")
    persist(client, former.flush)
    persist(client, latter.begin)
    add(latter, topic, b"a")
    persist(client, latter.commit)
    with pytest.raises(ProducerFenced):
        persist(client, former.commit)
    assert read(client, topic) == [b"a"]


def test_offsets_of_a_membership_that_has_ended_abort_the_transaction(client, topic):
    producer = TransactionalProducer(client.core, f"t-{topic}")
    persist(client, producer.begin)
    add(producer, topic, b"a")
    producer.add_offsets(GroupIdentity(f"g-{topic}", 7, "gone"), {(topic, 0): CommittedOffset(1)})
    with pytest.raises(MustAbort) as stop:
        persist(client, producer.commit)
    assert stop.value.member_fenced
    persist(client, producer.abort)
    assert read(client, topic) == []
