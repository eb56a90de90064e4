"""Fetch sessions through the wire (KIP-227): the client names its partitions once, and answers hold changes only."""

import pytest

from broker.wire.errors import ErrorCode
from broker.wire.fetch import FINAL_EPOCH, INITIAL_EPOCH, FetchPartition, FetchRequest
from tests.broker.engine_client import DELETE_TOPICS, FETCH, EngineBroker, values_of

OLDEST, BY_NAME, BY_ID = 7, 12, 18


@pytest.fixture
def broker():
    return EngineBroker()


@pytest.fixture
def client(broker):
    broker.create("flights", 4)
    return broker.connect()


class Session:
    """A client that fetches in a session, in one version."""

    def __init__(self, client, version, topic="flights"):
        self.client = client
        self.version = version
        topic_metadata = client.broker.services.metadata.topic(topic)
        self.topic = topic_metadata.id if version >= 13 else topic
        self.id, self.epoch = 0, INITIAL_EPOCH

    def request(self, offsets=(), forgets=(), **more):
        partitions = [FetchPartition(self.topic, index, offset, 1 << 20) for index, offset in dict(offsets).items()]
        forgotten = tuple((self.topic, index) for index in forgets)
        fields = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20} | more
        return FetchRequest(
            partitions=partitions, session_id=self.id, session_epoch=self.epoch, forgotten=forgotten, **fields
        )

    def ask(self, offsets=(), forgets=(), **more):
        answer = self.client.ask(FETCH, self.version, self.request(offsets, forgets, **more))
        if answer.error_code == 0:
            self.id, self.epoch = answer.session_id, self.epoch + 1
        return answer

    def partitions(self, *args, **more):
        """Fetch and return the indexes of the answered partitions, in order."""
        answer = self.ask(*args, **more)
        assert (answer.error_code, answer.session_id) == (0, self.id)
        return [partition.partition for partition in answer.partitions]


ALL = {0: 0, 1: 0, 2: 0, 3: 0}
versions = pytest.mark.parametrize("version", [OLDEST, BY_NAME, BY_ID])


@versions
def test_after_the_first_answer_only_what_changed_is_answered(client, version):
    session = Session(client, version)
    assert session.partitions(ALL) == [0, 1, 2, 3] and session.id > 0
    assert session.partitions() == []
    client.produce("flights", b"a", partition=2)
    assert session.partitions() == [2]
    assert session.partitions({2: 1}) == [], "its high watermark is known by now"


@versions
def test_records_that_were_not_asked_past_are_answered_again(client, version):
    session = Session(client, version)
    session.ask(ALL)
    client.produce("flights", b"a", partition=2)
    assert [values_of(session.ask()) for _ in range(2)] == [[b"a"], [b"a"]]


@versions
def test_a_rise_of_the_log_start_is_told(client, version):
    session = Session(client, version)
    client.produce("flights", b"a", partition=2)
    session.ask({2: 1})
    client.broker.services.log_of("flights", 2).log_start_offset = 1
    assert session.partitions() == [2]
    assert session.partitions() == []


@versions
def test_partitions_are_added_and_forgotten(client, version):
    session = Session(client, version)
    assert session.partitions({0: 0, 1: 0}) == [0, 1]
    assert session.partitions({3: 0}, forgets=[1]) == [3]
    for index in range(4):
        client.produce("flights", b"a", partition=index)
    assert sorted(session.partitions()) == [0, 3]


@versions
def test_when_all_partitions_are_forgotten_the_session_is_over(client, version):
    session = Session(client, version)
    session.ask({0: 0})
    assert session.client.ask(FETCH, version, session.request(forgets=[0])).session_id == 0
    session.epoch += 1
    assert session.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@versions
def test_partitions_with_records_go_behind_the_others(client, version):
    """No partition starves behind others that always have more records than an answer holds."""
    session = Session(client, version)
    for index in range(4):
        client.produce("flights", b"a" * 100, partition=index)
    session.ask(ALL, max_bytes=1)
    firsts = []
    for _ in range(4):
        answer = session.ask(max_bytes=1)
        firsts += [partition.partition for partition in answer.partitions if len(partition.records)]
    assert sorted(firsts) == [0, 1, 2, 3]


@versions
def test_an_error_is_told_each_time_and_that_it_is_over(client, version):
    session = Session(client, version)
    client.produce("flights", b"a")
    assert session.ask({0: 9, 1: 0}).partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert session.partitions() == [0]
    assert session.partitions({0: 1}) == [0], "no records, but no error any more"
    assert session.partitions() == []


@versions
def test_a_session_waits_for_what_it_remembers(client, version):
    session = Session(client, version)
    session.ask(ALL)
    sent = client.send(FETCH, version, session.request(max_wait_ms=1_000))
    assert client.replies() == []
    client.broker.connect().produce("flights", b"a", partition=3)
    ((answered, answer),) = client.replies()
    assert (answered, values_of(answer)) == (sent, [b"a"])


@versions
def test_a_session_with_nothing_new_is_answered_empty_in_time(client, version):
    session = Session(client, version)
    session.ask(ALL)
    client.send(FETCH, version, session.request(max_wait_ms=1_000))
    client.broker.at(2_000)
    ((_, answer),) = client.replies()
    assert (answer.error_code, answer.session_id, answer.partitions) == (0, session.id, [])


@versions
def test_a_session_that_does_not_exist_is_refused(client, version):
    session = Session(client, version)
    session.id, session.epoch = 77, 5
    answer = session.ask()
    assert (answer.error_code, answer.session_id, answer.partitions) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0, [])


@versions
@pytest.mark.parametrize("epoch", [2, 3, 2**31 - 1])
def test_an_epoch_that_is_not_the_next_is_refused(client, version, epoch):
    """A request was lost or arrived twice, so the client's view of the session may be wrong."""
    session = Session(client, version)
    session.ask(ALL)
    session.epoch = epoch
    assert session.ask().error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


@versions
def test_a_request_that_another_of_its_session_overtook_is_refused(client, version):
    session = Session(client, version)
    session.ask(ALL)
    client.send(FETCH, version, session.request(max_wait_ms=1_000))
    session.epoch += 1
    other = client.broker.connect()
    other.send(FETCH, version, session.request(max_wait_ms=1_000))
    client.broker.connect().produce("flights", b"a", partition=1)
    ((_, first),), ((_, second),) = client.replies(), other.replies()
    assert (first.error_code, first.partitions) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])
    assert values_of(second) == [b"a"]


@pytest.mark.parametrize("made, used", [(BY_NAME, BY_ID), (BY_ID, BY_NAME)])
def test_a_session_goes_on_as_it_began_by_names_or_by_ids(client, made, used):
    """The error is FETCH_SESSION_TOPIC_ID_ERROR (KIP-516)."""
    session = Session(client, made)
    session.ask(ALL)
    assert client.ask(FETCH, used, session.request()).error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@versions
@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_a_full_request_closes_the_session_it_names(client, version, epoch):
    session = Session(client, version)
    session.ask(ALL)
    former = session.id
    session.epoch = epoch
    answer = client.ask(FETCH, version, session.request(ALL))
    assert len(answer.partitions) == 4
    assert (answer.session_id > 0) == (epoch == INITIAL_EPOCH)
    session.id, session.epoch = former, 1
    assert session.ask().error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@versions
def test_a_full_cache_gives_no_session_and_all_answers(version):
    """The limit is max.incremental.fetch.session.cache.slots."""
    broker = EngineBroker(max_incremental_fetch_session_cache_slots=1)
    broker.create("flights", 4)
    first, second = (Session(broker.connect(), version) for _ in range(2))
    assert first.ask(ALL).session_id > 0
    answer = second.ask(ALL)
    assert (answer.session_id, len(answer.partitions)) == (0, 4)


@versions
def test_a_session_belongs_to_no_connection(client, version):
    session = Session(client, version)
    session.ask(ALL)
    client.broker.engine.closed(client.conn)
    session.client = client.broker.connect()
    session.client.produce("flights", b"a", partition=1)
    assert session.partitions() == [1]


def test_a_topic_deleted_and_made_again_is_another_one_by_id(broker, client):
    """The consumer must not continue in the new topic with the old topic's offsets (KIP-516)."""
    session = Session(client, BY_ID)
    session.ask({0: 0})
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1_000})
    assert session.ask().partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create("flights", 4)
    assert session.ask().partitions[0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID


@pytest.mark.parametrize("version", [OLDEST, BY_NAME])
def test_a_topic_deleted_and_made_again_is_the_same_by_name(broker, client, version):
    session = Session(client, version)
    session.ask({0: 0})
    client.ask(DELETE_TOPICS, 6, {"topics": [{"name": "flights"}], "timeout": 1_000})
    assert session.ask().partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create("flights", 4)
    client.produce("flights", b"anew")
    assert values_of(session.ask()) == [b"anew"]


def test_a_topic_nobody_knew_is_found_once_it_is_there(broker, client):
    session = Session(client, BY_NAME)
    session.topic = "trains"
    assert session.ask({0: 0}).partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    broker.create("trains")
    client.produce("trains", b"a")
    assert values_of(session.ask()) == [b"a"]


@pytest.mark.parametrize("version", [BY_NAME, BY_ID])
def test_ids_come_in_sessions_too(client, version):
    """Each request asks for its ids (broker.wire.tags)."""
    session = Session(client, version)
    session.ask(ALL)
    client.produce("flights", b"a")
    (partition,) = session.ask(wants_ids=True).partitions
    assert partition.ids.base_offset == 0 and len(partition.ids.entries)


def test_a_partition_named_twice_is_answered_once(client):
    """The later entry counts, as in Kafka."""
    client.produce("flights", b"a", b"b")
    client.produce("flights", b"c")
    twice = [FetchPartition("flights", 0, offset, 1 << 20) for offset in (0, 2)]
    assert values_of(client.ask(FETCH, 12, FetchRequest(0, 1, 1 << 20, twice))) == [b"c"]
