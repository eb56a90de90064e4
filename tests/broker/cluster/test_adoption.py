"""A data directory of a server alone brings all of its data into an empty coordinator, or nothing counts as brought."""

from uuid import UUID

import pytest

from broker.cluster.adoption import AdoptedData, AdoptedTopic, AdoptionRefused, adopt
from broker.cluster.adoption_marker import ADOPTION, POLL_MS, AdoptionIncomplete, AdoptionMarker
from broker.cluster.config_entity import (
    ScramCredential,
    broker_entity,
    client_entity,
    encode_scram,
    ip_entity,
    topic_entity,
    user_client_entity,
    user_entity,
)
from broker.cluster.documents import (
    CLUSTER_ID,
    PERSISTENT_PATHS,
    PRODUCER_ID_BLOCK,
    Assignment,
    DamagedDocument,
    LeaderAndIsr,
    ProducerIdBlock,
    Topic,
    TopicPartition,
    broker_path,
    encode_cluster_id,
    encode_config,
    state_path,
    topic_path,
)
from broker.cluster.entity_configs import read_configs
from broker.cluster.registration import await_cluster
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Create, Delete, Multi
from tests.broker.cluster.procedures import Crashed, FaultyCoordinator, Procedure, run
from tests.broker.cluster.test_registration import SESSION_MS, begin
from tests.broker.cluster.world import World

CREDENTIAL = ScramCredential(b"salt", b"stored", b"server", 4096)
DATA = AdoptedData(
    cluster_id="own",
    topics={
        "t": AdoptedTopic(UUID(int=1), (4, 0), {"retention.ms": "5"}),
        "__consumer_offsets": AdoptedTopic(UUID(int=2), (7,)),
    },
    configs={
        broker_entity(None): {"log.retention.ms": "6"},
        client_entity("c d"): {"producer_byte_rate": "7"},
        user_entity("u"): {"consumer_byte_rate": "8"},
        user_client_entity("v", "c"): {"consumer_byte_rate": "9"},
        ip_entity("::1"): {"connection_creation_rate": "3"},
    },
    credentials={"u": {"SCRAM-SHA-256": CREDENTIAL}},
    first_unused_producer_id=4_321,
)
CONFIGS = {
    topic_entity("t"): {"retention.ms": "5"},
    topic_entity("__consumer_offsets"): {},
    **DATA.configs,
    user_entity("u"): {"consumer_byte_rate": "8", "SCRAM-SHA-256": encode_scram(CREDENTIAL)},
    user_entity("v"): {},
}


def tree(ensemble):
    return {path: node.data for path, node in ensemble.nodes.items()}


def whole_tree(data=DATA):
    ensemble = Ensemble()
    assert run(MemoryCoordinator(ensemble), adopt(1, data))
    return tree(ensemble)


def check_whole(ensemble):
    assert tree(ensemble) == whole_tree()
    assert ADOPTION not in ensemble.nodes


def test_empty_coordinator_gets_all_the_data():
    ensemble = Ensemble()
    coordinator = MemoryCoordinator(ensemble)
    assert run(coordinator, adopt(1, DATA))
    assert ensemble.nodes[CLUSTER_ID].data == encode_cluster_id("own")
    assert ADOPTION not in ensemble.nodes
    assert all(path in ensemble.nodes for path in PERSISTENT_PATHS)
    assert run(coordinator, read_configs()) == (CONFIGS, {})
    assert ProducerIdBlock.decode(ensemble.nodes[PRODUCER_ID_BLOCK].data).last == 4_320
    topic = Topic.decode("/t", ensemble.nodes[topic_path("t")].data)
    assert topic == Topic(UUID(int=1), {0: Assignment((1,)), 1: Assignment((1,))})
    state = ensemble.nodes[state_path(TopicPartition("t", 0))].data
    assert state == b'{"controller_epoch":0,"leader":-1,"version":1,"leader_epoch":4,"isr":[1]}'


def test_a_process_beside_the_first_one_waits_until_all_is_brought():
    """It reads the settings of the cluster next, and the adoption writes no change nodes that would tell it of more."""
    ensemble, waits = Ensemble(), []

    def wait_too(number):
        waits.append(Procedure(MemoryCoordinator(ensemble), await_cluster()))
        for wait in waits:
            wait.run(number * POLL_MS)
            assert wait.driver.is_running

    run(FaultyCoordinator(ensemble, before=wait_too), adopt(1, DATA))
    assert len(waits) > 10
    for wait in waits:
        wait.run((len(waits) + 1) * POLL_MS)
        assert not wait.driver.is_running and wait.error is None


def test_nodes_of_a_topic_are_those_that_kafka_creates():
    """The order is Kafka's too: settings, topic, partitions, a partition, its state."""
    paths = [path for path in whole_tree() if path.startswith(("/config/topics/t", "/brokers/topics/t"))]
    assert paths == [
        "/config/topics/t",
        "/brokers/topics/t",
        "/brokers/topics/t/partitions",
        "/brokers/topics/t/partitions/0",
        "/brokers/topics/t/partitions/0/state",
        "/brokers/topics/t/partitions/1",
        "/brokers/topics/t/partitions/1/state",
    ]


def test_first_controller_leads_with_epochs_above_those_of_the_directory():
    """The leader begins a new epoch, as after a death, because the records in its log are of earlier ones (rule E4)."""
    world = World()
    ensemble = Ensemble()
    run(MemoryCoordinator(ensemble), adopt(1, DATA))
    world.ensemble.nodes.update(ensemble.nodes)
    for path in ensemble.nodes:
        if path.endswith("/state"):
            world.ensemble.note_decision(path)
    for machine in world.machines.values():
        machine.cluster_id = "own"
        machine.start()
        world.run(500)
    world.run(2_000)
    world.check_quiet()
    leaders = {(p.topic, p.partition): (row.leader, row.leader_epoch) for p, row in world.ensemble.image().items()}
    assert leaders == {("t", 0): (1, 5), ("t", 1): (1, 1), ("__consumer_offsets", 0): (1, 8)}


def test_directory_without_topics_takes_the_coordinator_too():
    ensemble = Ensemble()
    assert run(MemoryCoordinator(ensemble), adopt(1, AdoptedData("own")))
    assert PRODUCER_ID_BLOCK in ensemble.nodes and ensemble.nodes[PRODUCER_ID_BLOCK].data == b""
    assert begin(MemoryCoordinator(ensemble), 1, "own", is_new_directory=False).run().cluster_id == "own"


def test_complete_adoption_is_not_repeated():
    """A crash after the end, before the directory knows of it; topics may have changed since."""
    ensemble = Ensemble()
    run(MemoryCoordinator(ensemble), adopt(1, DATA))
    MemoryCoordinator(ensemble).execute(Delete(topic_entity("t").path))
    coordinator = RefusingWrites(ensemble)
    assert run(coordinator, adopt(1, DATA)) is False


class RefusingWrites(MemoryCoordinator):
    def execute(self, operation):
        assert not isinstance(operation, Create | Delete | Multi), f"{operation} was not expected"
        return super().execute(operation)


OPERATIONS = 60
"""More than an adoption has that creates three nodes at once."""


def adopt_slowly():
    return adopt(1, DATA, creates_at_once=3)


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
@pytest.mark.parametrize("number", range(1, OPERATIONS))
def test_lost_answers_and_requests_are_repeated(fault, number):
    ensemble = Ensemble()
    coordinator = FaultyCoordinator(ensemble, number, fault)
    assert run(coordinator, adopt_slowly()) or number == coordinator.count - 1  # the end was read as complete
    check_whole(ensemble)


def test_faults_of_these_tests_reach_all_operations():
    coordinator = FaultyCoordinator(Ensemble())
    run(coordinator, adopt_slowly())
    assert coordinator.count < OPERATIONS


@pytest.mark.parametrize("fault", ["crash_before", "crash_after"])
@pytest.mark.parametrize("number", range(1, OPERATIONS))
def test_crash_at_each_operation_is_mended_by_the_next_start(fault, number):
    """A coordinator that has a part of the data is never whole: no other broker registers in between."""
    ensemble = Ensemble()
    for crash in (number, 25):
        try:
            run(FaultyCoordinator(ensemble, crash, fault), adopt_slowly())
        except Crashed:
            check_others_are_kept_out(ensemble)
    run(MemoryCoordinator(ensemble), adopt_slowly())
    check_whole(ensemble)


def check_others_are_kept_out(ensemble):
    """No broker registers with the part of the data that is there, and no other directory is brought into it."""
    if CLUSTER_ID not in ensemble.nodes:
        assert not any(path.startswith(("/config/", "/brokers/topics/")) for path in ensemble.nodes)
        return
    if ADOPTION not in ensemble.nodes:
        return check_whole(ensemble)
    before = tree(ensemble)
    for cluster_id, is_new_directory in (("random", True), ("own", False)):
        other = begin(MemoryCoordinator(ensemble), 2, cluster_id, is_new_directory=is_new_directory)
        assert other.run() is None and "broker 1 brings its data directory" in other.driver.waiting_for
        for now_ms in range(0, SESSION_MS + 1, 200):
            other.run(now_ms)
        assert isinstance(other.error, AdoptionIncomplete) and "start that broker again" in str(other.error)
    with pytest.raises(AdoptionRefused, match="belongs to cluster own"):
        run(MemoryCoordinator(ensemble), adopt(2, AdoptedData("other")))
    with pytest.raises(AdoptionIncomplete, match="Broker 1 has not finished"):
        run(MemoryCoordinator(ensemble), adopt(2, DATA))
    after = tree(ensemble)
    assert broker_path(2) not in after and {path: after[path] for path in before} == before
    assert after.keys() - before.keys() <= {"/", "/brokers", "/config", "/admin", *PERSISTENT_PATHS}


def test_broker_that_registers_waits_for_the_end():
    ensemble = Ensemble()
    with pytest.raises(Crashed):
        run(FaultyCoordinator(ensemble, 45, "crash_after"), adopt_slowly())
    other = begin(MemoryCoordinator(ensemble), 2, "random")
    assert other.run() is None
    run(MemoryCoordinator(ensemble), adopt(1, DATA))
    assert other.run(200).cluster_id == "own"


@pytest.mark.parametrize("number", range(1, OPERATIONS))
def test_another_broker_registers_before_or_after_but_not_in_between(number):
    """Whichever is first takes the coordinator: the adoption, or a broker that brings a random cluster id."""
    ensemble = Ensemble()
    registering = []

    def register(count):
        if count == number:
            registering.append(begin(MemoryCoordinator(ensemble), 2, "random"))
            registering[0].run()

    try:
        run(FaultyCoordinator(ensemble, before=register), adopt_slowly())
    except AdoptionRefused as error:
        assert "belongs to cluster random" in str(error)
        assert registering[0].value is not None
        assert ADOPTION not in ensemble.nodes and topic_path("t") not in ensemble.nodes
    else:
        assert tree(ensemble).items() >= whole_tree().items()
        if registering:
            assert registering[0].run(200).cluster_id == "own"


@pytest.mark.parametrize("number", range(1, OPERATIONS))
def test_earlier_life_that_goes_on_changes_nothing(number):
    """A process is stopped before any operation and wakes when its successor is done, and a topic was deleted since."""
    ensemble = Ensemble()
    after = {}

    def succeed(count):
        if count == number:
            successor = MemoryCoordinator(ensemble)
            run(successor, adopt_slowly())
            for name in ("1/state", "1", "0/state", "0"):
                successor.execute(Delete(f"/brokers/topics/t/partitions/{name}"))
            for path in ("/brokers/topics/t/partitions", topic_path("t"), topic_entity("t").path):
                successor.execute(Delete(path))
            after.update(tree(ensemble))

    try:
        run(FaultyCoordinator(ensemble, before=succeed), adopt_slowly())
    except AdoptionRefused as error:
        assert "Another process" in str(error) or "topics already" in str(error)
    assert not after or tree(ensemble) == after


def test_coordinator_of_another_cluster_is_refused_by_name():
    ensemble = Ensemble()
    begin(MemoryCoordinator(ensemble), 2, "random").run()
    before = tree(ensemble)
    with pytest.raises(AdoptionRefused, match="belongs to cluster own .* belongs to cluster random: start this broker"):
        run(MemoryCoordinator(ensemble), adopt(1, DATA))
    assert tree(ensemble) == before


def test_coordinator_with_topics_is_refused_by_name():
    ensemble = Ensemble()
    for topic in "abcd":
        MemoryCoordinator(ensemble).execute(Create(topic_path(topic)))
    before = tree(ensemble)
    with pytest.raises(AdoptionRefused, match=r"has 4 topics already \(a, b, c, ...\).*: use an empty path"):
        run(MemoryCoordinator(ensemble), adopt(1, DATA))
    assert tree(ensemble) == before


@pytest.mark.parametrize("path", [user_entity("u").path, topic_entity("t").path])
def test_settings_of_the_same_owner_are_refused_before_anything_is_written(path):
    """An admin may have written credentials into an empty ZooKeeper."""
    ensemble = Ensemble()
    MemoryCoordinator(ensemble).execute(Create(path, encode_config({"foreign": "1"})))
    before = tree(ensemble)
    with pytest.raises(AdoptionRefused, match=f"has {path} already"):
        run(MemoryCoordinator(ensemble), adopt(1, DATA))
    assert tree(ensemble) == before


def test_node_of_another_writer_in_the_middle_is_refused_and_the_marker_stays():
    ensemble = Ensemble()

    def interfere(count):
        if count == 45:
            MemoryCoordinator(ensemble).execute(Create(topic_path("t"), b"{}"))

    with pytest.raises(AdoptionRefused, match="has /brokers/topics/t already"):
        run(FaultyCoordinator(ensemble, before=interfere), adopt_slowly())
    assert AdoptionMarker.decode(ensemble.nodes[ADOPTION].data) == AdoptionMarker(1, "own")
    check_others_are_kept_out(ensemble)


def test_data_that_no_coordinator_can_keep_is_refused_before_anything_is_written():
    coordinator = FaultyCoordinator(Ensemble())
    for data in (
        AdoptedData("own", topics={"t" * 250: AdoptedTopic(UUID(int=1), (0,))}),
        AdoptedData("own", topics={"t": AdoptedTopic(UUID(int=1), (0,), {"a": "x" * 1_000_001})}),
        AdoptedData("own", configs={client_entity("c" * 250): {}}),
    ):
        with pytest.raises(AdoptionRefused, match="cannot keep '/"):
            run(coordinator, adopt(1, data))
    assert coordinator.count == 0


def test_many_topics_and_large_topics_are_brought_in_several_operations():
    topics = {f"t{number}": AdoptedTopic(UUID(int=number), (1,) * 40) for number in range(1, 31)}
    topics["large"] = AdoptedTopic(UUID(int=99), tuple(range(1_500)))
    data = AdoptedData("own", topics=topics)
    ensemble = Ensemble()
    for number in (75, 24):  # the second start meets nodes that are there
        with pytest.raises(Crashed):
            run(FaultyCoordinator(ensemble, number, "crash_after"), adopt(1, data))
        assert ADOPTION in ensemble.nodes
    assert run(MemoryCoordinator(ensemble), adopt(1, data))
    assert tree(ensemble) == whole_tree(data)
    state = LeaderAndIsr.decode("/s", ensemble.nodes[state_path(TopicPartition("large", 1_499))])
    assert state == LeaderAndIsr(-1, (1,), 1_499)


def test_marker_without_a_cluster_id_is_refused():
    ensemble = Ensemble()
    MemoryCoordinator(ensemble).execute(Create(ADOPTION, AdoptionMarker(1, "own").encode()))
    with pytest.raises(AdoptionRefused, match="no /cluster/id"):
        run(MemoryCoordinator(ensemble), adopt(1, DATA))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"broker":"x","cluster_id":"c"}'])
def test_damaged_marker_is_an_error_by_name(data):
    with pytest.raises(DamagedDocument, match=ADOPTION):
        AdoptionMarker.decode(data)
