"""Metadata through the wire (https://kafka.apache.org/protocol#The_Messages_Metadata)."""

from uuid import UUID

import pytest

from broker.metadata.image import RegisteredBroker
from broker.settings.config import BrokerConfig
from broker.wire.errors import ErrorCode
from tests.broker.engine_client import FIND_COORDINATOR, METADATA, EngineBroker

BAD_NAMES = ["", ".", "..", "a/b", "a b", "x" * 250]

MADE_MAX = BrokerConfig().auto_create_topics_max


@pytest.fixture
def broker():
    broker = EngineBroker(num_partitions=3)
    broker.create("flights", 2)
    return broker


def topics(broker, version, names, create=True):
    fields = {"topics": [{"name": name} for name in names], "allow_auto_topic_creation": create}
    response_topics = broker.connect().ask(METADATA, version, fields).topics
    return [(topic.name, topic.error_code, len(topic.partitions)) for topic in response_topics]


@pytest.mark.parametrize("version", [0, 1, 4, 13])
def test_a_topic_that_is_not_there_is_made_and_answered(broker, version):
    assert topics(broker, version, ["trains"]) == [("trains", 0, 3)]


@pytest.mark.parametrize("version", [4, 13])
def test_none_is_made_where_the_client_forbids_it(broker, version):
    assert topics(broker, version, ["trains"], create=False) == [("trains", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
    assert [topic.name for topic in broker.services.metadata.topics()] == ["flights"]


@pytest.mark.parametrize("create", [True, False])
def test_a_name_no_topic_can_have_is_said_to_be_one_and_made_by_nobody(broker, create):
    """The error is not UNKNOWN_TOPIC_OR_PARTITION, because clients retry that until they time out."""
    results = topics(broker, 12, [*BAD_NAMES, "flights"], create)
    assert results == [(name, ErrorCode.INVALID_TOPIC_EXCEPTION, 0) for name in BAD_NAMES] + [("flights", 0, 2)]
    assert [topic.name for topic in broker.services.metadata.topics()] == ["flights"]


def test_a_topic_named_twice_is_answered_once(broker):
    """Kafka removes duplicates too; otherwise a small request could ask for an answer of unbounded size."""
    assert topics(broker, 12, ["flights", "trains", "flights", "trains"]) == [("flights", 0, 2), ("trains", 0, 3)]


@pytest.mark.parametrize("version", [12, 13])
def test_since_v12_topics_are_asked_for_by_id(broker, version):
    flights_id = broker.services.metadata.topic("flights").id
    fields = {"topics": [{"name": None, "topic_id": topic_id} for topic_id in (flights_id, UUID(int=77))]}
    response_topics = broker.connect().ask(METADATA, version, fields).topics
    assert [(topic.name, topic.error_code) for topic in response_topics] == [
        ("flights", 0),
        (None, ErrorCode.UNKNOWN_TOPIC_ID),
    ]


@pytest.mark.parametrize("version", [12, 13])
def test_where_one_is_asked_for_by_id_names_are_passed_over(broker, version):
    """An unknown id is an error even if an existing topic's name is beside it, as in Kafka."""
    request_topics = [{"name": "flights", "topic_id": UUID(int=77)}, {"name": "flights", "topic_id": None}]
    (topic,) = broker.connect().ask(METADATA, version, {"topics": request_topics}).topics
    assert (topic.name, topic.topic_id, topic.error_code) == (None, UUID(int=77), ErrorCode.UNKNOWN_TOPIC_ID)


@pytest.mark.parametrize("version", [10, 11])
def test_before_v12_an_id_has_all_of_its_request_refused(broker, version):
    request_topics = [{"name": "flights", "topic_id": UUID(int=77)}, {"name": "flights", "topic_id": None}]
    response_topics = broker.connect().ask(METADATA, version, {"topics": request_topics}).topics
    assert [(topic.name, topic.error_code) for topic in response_topics] == [("flights", ErrorCode.INVALID_REQUEST)] * 2


@pytest.mark.parametrize("version", [10, 11])
@pytest.mark.parametrize("topic_id", [None, UUID(int=77)])
def test_before_v12_a_topic_without_a_name_is_refused(broker, version, topic_id):
    """The name may be null in the request but not in the answer."""
    request_topics = {"topics": [{"name": None, "topic_id": topic_id}]}
    (topic,) = broker.connect().ask(METADATA, version, request_topics).topics
    assert (topic.name, topic.error_code) == ("", ErrorCode.INVALID_REQUEST)


@pytest.mark.parametrize("version", [8, 10])
def test_who_asks_is_told_that_all_is_allowed(broker, version):
    """Kafka without an authorizer allows all too (KIP-430). Since v11 Metadata has none for the cluster (KIP-700)."""
    fields = {"topics": [{"name": "flights"}]}
    answer = broker.connect().ask(METADATA, version, fields)
    assert answer.cluster_authorized_operations == answer.topics[0].topic_authorized_operations == -(2**31)
    for_cluster, for_topics = "include_cluster_authorized_operations", "include_topic_authorized_operations"
    answer = broker.connect().ask(METADATA, version, fields | {for_cluster: True, for_topics: True})
    assert answer.cluster_authorized_operations == 8096 and answer.topics[0].topic_authorized_operations == 3576


@pytest.mark.parametrize("version", [11, 13])
def test_newer_versions_tell_of_topics_only(broker, version):
    fields = {"topics": [{"name": "flights"}], "include_topic_authorized_operations": True}
    assert broker.connect().ask(METADATA, version, fields).topics[0].topic_authorized_operations == 3576


def advertise(broker):
    addresses = {"PLAINTEXT": ("localhost", 9092), "INSIDE": ("broker.inside", 9094)}
    broker.services.metadata.register([RegisteredBroker(1, addresses)])


@pytest.mark.parametrize("version", [0, 13])
def test_nodes_have_the_address_that_is_advertised_for_the_listener_that_was_asked(broker, version):
    """A client stays on the listener that it connected to (KIP-103)."""
    advertise(broker)

    def nodes(listener):
        answer = broker.connect(listener=listener).ask(METADATA, version, {"topics": []})
        return [(node.node_id, node.host, node.port) for node in answer.brokers]

    assert nodes("INSIDE") == [(1, "broker.inside", 9094)]
    assert nodes("PLAINTEXT") == [(1, "localhost", 9092)]


def test_a_groups_coordinator_has_the_address_of_the_listener_too(broker):
    advertise(broker)
    fields = {"key_type": 0, "coordinator_keys": ["a"]}
    (coordinator,) = broker.connect(listener="INSIDE").ask(FIND_COORDINATOR, 4, fields).coordinators
    assert (coordinator.host, coordinator.port) == ("broker.inside", 9094)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_a_topic_of_the_brokers_own_is_made_as_it_is_for_its_coordinator(broker, name):
    """Kafka, too, gives this topic its special settings, whichever client asks first."""
    assert topics(broker, 12, [name]) == [(name, 0, 50)]
    assert broker.services.config_of(broker.services.metadata.topic(name)).compacts


def test_of_many_topics_that_are_made_by_asking_some_are_made_each_time():
    broker = EngineBroker()
    client = broker.connect()
    fields = {"topics": [{"name": f"t{n}"} for n in range(2 * MADE_MAX + 1)], "allow_auto_topic_creation": True}
    for made in (MADE_MAX, 2 * MADE_MAX, 2 * MADE_MAX + 1):
        codes = [topic.error_code for topic in client.ask(METADATA, 9, fields).topics]
        assert codes == [0] * made + [ErrorCode.LEADER_NOT_AVAILABLE] * (len(codes) - made)


# --- partitions that are offline -------------------------------------------------------------------------------------


def nodes(broker, version):
    """Return, for each partition of flights: (error, leader, epoch, replicas, replicas in sync, offline replicas)."""
    fields = {"topics": [{"name": "flights"}], "allow_auto_topic_creation": False}
    (topic,) = broker.connect().ask(METADATA, version, fields).topics
    assert topic.error_code == 0
    return [
        (
            partition.error_code,
            partition.leader_id,
            getattr(partition, "leader_epoch", 0) if version >= 7 else 0,
            partition.replica_nodes,
            partition.isr_nodes,
            partition.offline_replicas if version >= 5 else (),
        )
        for partition in topic.partitions
    ]


@pytest.mark.parametrize("version", [0, 4, 5, 7, 13])
def test_a_partition_that_is_offline_has_no_leader_and_names_its_replica(broker, version):
    """So Apache Kafka 4.3 answers for a partition whose only replica is in a failed log directory (KIP-112)."""
    broker.services.log_of("flights", 1).offline = "its disk is gone"
    offline = (1,) if version >= 5 else ()
    assert nodes(broker, version) == [
        (0, 1, 0, (1,), (1,), ()),
        (ErrorCode.LEADER_NOT_AVAILABLE, -1, 0, (1,), (), offline),
    ]


def test_a_partition_that_could_not_be_opened_at_the_start_has_no_leader_either(broker):
    broker.connect().produce("flights", b"a", partition=1)
    broker.services.logs.close()
    del broker.storage.files[f"flights-1/{0:020}.log"]
    states = [partition[:2] for partition in nodes(broker.restarted(), 12)]
    assert states == [(0, 1), (ErrorCode.LEADER_NOT_AVAILABLE, -1)]
