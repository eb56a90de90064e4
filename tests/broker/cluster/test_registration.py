import pytest

from broker.cluster.documents import (
    CLUSTER_ID,
    PERSISTENT_PATHS,
    PRODUCER_ID_BLOCK,
    Endpoint,
    ProducerIdBlock,
    Registration,
    broker_path,
)
from broker.cluster.producer_id_blocks import skip_used_ids
from broker.cluster.registration import TICK_MS, BrokerIdTaken, OtherCluster, register
from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Create
from tests.broker.cluster.procedures import Procedure

REGISTRATION = Registration((Endpoint("PLAINTEXT", "PLAINTEXT", "h", 9092),), 1_000)
SESSION_MS = 6_000


def begin(coordinator, broker_id=1, cluster_id="random", is_new_directory=True):
    return Procedure(
        coordinator,
        register(
            broker_id,
            REGISTRATION,
            session_id=coordinator.session_id,
            session_timeout_ms=SESSION_MS,
            cluster_id=cluster_id,
            is_new_directory=is_new_directory,
        ),
    )


def test_first_broker_creates_the_nodes_and_the_cluster_id():
    ensemble = Ensemble()
    registered = begin(MemoryCoordinator(ensemble)).run()
    node = ensemble.nodes[broker_path(1)]
    assert registered == (node.czxid, 0, "random")
    assert (node.version, node.data) == (1, REGISTRATION.encode())  # version 1 as Kafka's (fact 4)
    assert ensemble.nodes[CLUSTER_ID].data == b'{"version":"1","id":"random"}'
    assert all(path in ensemble.nodes for path in PERSISTENT_PATHS)


def test_another_broker_joins_the_cluster():
    ensemble = Ensemble()
    begin(MemoryCoordinator(ensemble), 1, "a").run()
    assert begin(MemoryCoordinator(ensemble), 2, "b").run().cluster_id == "a"


def test_directory_of_another_cluster_is_refused_by_name():
    ensemble = Ensemble()
    begin(MemoryCoordinator(ensemble), 1, "a").run()
    other = begin(MemoryCoordinator(ensemble), 2, "b", is_new_directory=False)
    other.run()
    assert isinstance(other.error, OtherCluster) and "cluster b" in str(other.error) and "cluster a" in str(other.error)
    assert broker_path(2) not in ensemble.nodes


def test_own_id_of_a_session_that_ends_is_waited_for():
    """After a kill the broker's own old session still lives: it waits for one session time, and says so."""
    ensemble = Ensemble()
    former = MemoryCoordinator(ensemble)
    former_epoch = begin(former).run().broker_epoch
    restarted = begin(MemoryCoordinator(ensemble))
    assert restarted.run() is None
    assert "waiting 6000 ms" in restarted.driver.waiting_for
    assert restarted.driver.next_deadline_ms() == SESSION_MS
    former.close()
    assert restarted.run(SESSION_MS - 1) is None
    assert restarted.run(SESSION_MS).broker_epoch > former_epoch


def test_own_session_may_end_a_tick_after_its_time():
    """ZooKeeper looks for sessions to end at each tick; a start that was refused then would name another broker."""
    ensemble = Ensemble()
    former = MemoryCoordinator(ensemble)
    former_epoch = begin(former).run().broker_epoch
    restarted = begin(MemoryCoordinator(ensemble))
    restarted.run()
    assert restarted.run(SESSION_MS) is None and restarted.error is None
    former.close()
    assert restarted.run(SESSION_MS + TICK_MS).broker_epoch > former_epoch


def test_id_of_another_live_broker_is_refused_by_name():
    ensemble = Ensemble()
    begin(MemoryCoordinator(ensemble)).run()
    second = begin(MemoryCoordinator(ensemble))
    second.run()
    second.run(SESSION_MS)
    second.run(SESSION_MS + TICK_MS)
    assert isinstance(second.error, BrokerIdTaken)
    assert str(second.error).startswith("Another broker with id 1 is registered at h:9092: give this one another")


def test_id_of_a_broker_whose_registration_cannot_be_read_is_refused_too():
    ensemble = Ensemble()
    ensemble.apply(ensemble.begin_session(), Create(broker_path(1), b"{", ephemeral=True), lambda event: None)
    second = begin(MemoryCoordinator(ensemble))
    for now_ms in (0, SESSION_MS, SESSION_MS + TICK_MS):
        second.run(now_ms)
    assert isinstance(second.error, BrokerIdTaken) and "id 1 is registered: give" in str(second.error)


def test_ended_session_registers_again_with_another_epoch():
    ensemble = Ensemble()
    coordinator = MemoryCoordinator(ensemble)
    first = begin(coordinator).run()
    coordinator.expire()
    assert begin(coordinator, cluster_id="random", is_new_directory=False).run().broker_epoch > first.broker_epoch


@pytest.mark.parametrize("fault", ["lose_answers", "lose_requests"])
@pytest.mark.parametrize("number", range(1, 45))
def test_lost_answers_and_requests_are_repeated(fault, number):
    """Whichever operation is lost, the broker is registered once."""
    ensemble = Ensemble()
    coordinator = MemoryCoordinator(ensemble)
    execute, count = coordinator.execute, 0

    def lossy(operation):
        nonlocal count
        count += 1
        if count == number:
            setattr(coordinator, fault, 1)
        return execute(operation)

    coordinator.execute = lossy
    procedure = begin(coordinator)
    for now_ms in (0, 100, 200):
        procedure.run(now_ms)
    assert procedure.value is not None
    assert procedure.value.broker_epoch == ensemble.nodes[broker_path(1)].czxid


def test_first_block_begins_above_the_ids_that_a_directory_gave_away():
    """A repeated producer id would be taken for a duplicate, which is loss."""
    ensemble = Ensemble()
    coordinator = MemoryCoordinator(ensemble)
    coordinator.lose_answers = 2
    procedure = Procedure(coordinator, skip_used_ids(1, 4_321))
    for now_ms in (0, 100, 200, 300):
        procedure.run(now_ms)
    assert ProducerIdBlock.decode(ensemble.nodes[PRODUCER_ID_BLOCK].data) == ProducerIdBlock(1, 0, 4_320)
    Procedure(coordinator, skip_used_ids(2, 4_000)).run()
    Procedure(coordinator, skip_used_ids(2, 0)).run()
    assert ProducerIdBlock.decode(ensemble.nodes[PRODUCER_ID_BLOCK].data).last == 4_320
