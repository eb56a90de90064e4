"""Topics that any broker creates come to be once, with the nodes of Apache Kafka 3.9.1 (fact 17)."""

from itertools import count
from uuid import UUID

import pytest

from broker.cluster.documents import (
    Assignment,
    Topic,
    config_path,
    decode_config,
    decode_uuid,
    encode_config,
    topic_path,
)
from broker.cluster.topic_creation import AlreadyThere, Created, create_topic_as_broker
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import ANY_VERSION, Create, Delete, NoNode, Set
from tests.broker.cluster.procedures import Crashed, FaultyCoordinator, run
from tests.broker.cluster.test_entity_configs import RecordingCoordinator, started
from tests.golden.controller_acts import writes

OTHER = Topic(UUID(int=99), {0: Assignment((3,))})


def creation(name="t", settings=None, first_id=1, replicas=(1,)):
    ids = count(first_id)
    return create_topic_as_broker(name, {0: replicas}, settings or {}, lambda: UUID(int=next(ids)))


def create_other(ensemble, settings):
    admin = MemoryCoordinator(ensemble)
    admin.execute(Create(config_path("t"), encode_config(settings)))
    admin.execute(Create(topic_path("t"), OTHER.encode()))


def settings_of(ensemble, topic="t"):
    return decode_config("/c", ensemble.nodes[config_path(topic)].data)


def test_nodes_equal_kafkas():
    golden = writes(137, 138)
    topic = Topic.decode("/t", golden[1].data.encode())
    coordinator = RecordingCoordinator(started())
    created = run(
        coordinator,
        create_topic_as_broker(
            "__transaction_state",
            {index: row.replicas for index, row in topic.assignments.items()},
            decode_config("/c", golden[0].data.encode()),
            lambda: topic.topic_id,
        ),
    )
    assert coordinator.writes == golden
    assert created == Created(topic) and topic.topic_id == decode_uuid(golden[1].data.split('"topic_id":"')[1][:22])


def test_topic_that_exists_is_success_and_keeps_its_settings():
    ensemble = started()
    create_other(ensemble, {"theirs": "1"})
    assert run(MemoryCoordinator(ensemble), creation(settings={"ours": "2"})) == AlreadyThere(OTHER)
    assert settings_of(ensemble) == {"theirs": "1"}


def test_topic_without_settings_that_exists_gets_none():
    ensemble = started()
    MemoryCoordinator(ensemble).execute(Create(topic_path("t"), OTHER.encode()))
    assert run(MemoryCoordinator(ensemble), creation(settings={"ours": "2"})) == AlreadyThere(OTHER)
    assert config_path("t") not in ensemble.nodes


def test_settings_that_were_left_behind_are_replaced():
    """A Kafka broker that died between its two writes, or a deletion, leaves settings without a topic."""
    ensemble = started()
    MemoryCoordinator(ensemble).execute(Create(config_path("t"), encode_config({"old": "1"})))
    assert isinstance(run(MemoryCoordinator(ensemble), creation(settings={"new": "2"})), Created)
    assert settings_of(ensemble) == {"new": "2"}


@pytest.mark.parametrize("has_old_settings", [True, False])
@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests", "crash_before", "crash_after"])
@pytest.mark.parametrize("number", range(1, 6))
def test_topic_is_whole_or_absent_whichever_operation_is_lost(fault, number, has_old_settings):
    ensemble = started()
    if has_old_settings:
        MemoryCoordinator(ensemble).execute(Create(config_path("t"), encode_config({"old": "1"})))
    try:
        created = run(FaultyCoordinator(ensemble, number, fault), creation(settings={"new": "2"}))
    except Crashed:
        has_topic = topic_path("t") in ensemble.nodes
        assert (config_path("t") in ensemble.nodes and settings_of(ensemble) == {"new": "2"}) == has_topic
        created = run(MemoryCoordinator(ensemble), creation(settings={"new": "2"}, first_id=10))
        assert isinstance(created, AlreadyThere if has_topic else Created)
    else:
        assert isinstance(created, Created)
    assert Topic.decode("/t", ensemble.nodes[topic_path("t")].data) == created.topic
    assert settings_of(ensemble) == {"new": "2"}


@pytest.mark.parametrize("has_old_settings", [True, False])
@pytest.mark.parametrize("number", range(1, 6))
def test_two_brokers_that_create_one_topic_make_one(number, has_old_settings):
    """Another broker creates the topic, and an admin configures it, before any of this one's operations."""
    ensemble = started()
    if has_old_settings:
        MemoryCoordinator(ensemble).execute(Create(config_path("t"), encode_config({"old": "1"})))
    results = []

    def interfere(count):
        if count == number:
            other = MemoryCoordinator(ensemble)
            results.append(run(other, creation(settings={"new": "2"}, first_id=100)))
            other.execute(Set(config_path("t"), encode_config({"changed": "3"}), ANY_VERSION))

    results.append(run(FaultyCoordinator(ensemble, before=interfere), creation(settings={"new": "2"})))
    assert len({result.topic.topic_id for result in results}) == 1
    assert sum(isinstance(result, Created) for result in results) == 1
    assert settings_of(ensemble) == ({"changed": "3"} if len(results) == 2 else {"new": "2"})


def test_topic_that_is_deleted_after_a_lost_answer_does_not_come_back_with_its_id():
    """A replica of the deleted topic could otherwise be taken for one of the new topic."""
    ensemble = started()

    def interfere(count):
        if count == 2:
            admin = MemoryCoordinator(ensemble)
            admin.execute(Delete(topic_path("t")))
            admin.execute(Delete(config_path("t")))

    created = run(FaultyCoordinator(ensemble, 1, "lose_answers", interfere), creation())
    assert created == Created(Topic(UUID(int=2), {0: Assignment((1,))}))


def test_names_that_no_node_can_have_are_refused_before_any_operation():
    coordinator = FaultyCoordinator(started())
    with pytest.raises(ValueError, match="node's path"):
        run(coordinator, creation("t" * 250))
    assert coordinator.count == 0


def test_broker_that_has_not_registered_creates_nothing():
    ensemble = Ensemble()
    with pytest.raises(NoNode):
        run(MemoryCoordinator(ensemble), creation())
    assert list(ensemble.nodes) == ["/"]
