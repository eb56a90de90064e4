"""The controller writes and orders what Apache Kafka 3.9.1's controller wrote and ordered (tests/golden/controller).

Kafka writes one node in each multi, ours many: the nodes and their order are compared. Epochs and versions are equal
too, where the act begins with Kafka's nodes. Kafka iterates over hash maps, so partitions are compared sorted.
"""

import re
from uuid import UUID

from broker.cluster.documents import (
    CONTROLLER,
    Assignment,
    LeaderAndIsr,
    Topic,
    TopicPartition,
    decode_uuid,
    encode_controller,
    state_path,
    topic_path,
)
from broker.cluster.requests import AllocateProducerIds, ControlledShutdown, CreateTopic, DeleteTopic
from broker.wire.inter_broker import LeaderAndIsrRequest, StopReplicaRequest
from coordination.memory import Ensemble
from coordination.port import Create
from tests.broker.cluster.world import World
from tests.golden.controller_acts import Order, Write, orders, writes

T_ID = decode_uuid("kxjYfXUPR4uN2B0L89Kr3Q")
M_ID = decode_uuid("AUtKbSKPTie14sWouM8WaQ")


def started(*nodes):
    """Return a quiet world whose broker 1 is the controller, with nodes that were there when it became so."""
    world = World()
    ensemble = world.ensemble
    former = ensemble.begin_session()
    ensemble.apply(former, Create(CONTROLLER, encode_controller(9, 0), ephemeral=True), lambda event: None)
    for path, data, version in nodes:
        Ensemble.apply(ensemble, former, Create(path, data.encode()), lambda event: None)  # no writes of the controller
        ensemble.nodes[path] = ensemble.nodes[path]._replace(version=version)
        if path.endswith("/state"):
            ensemble.note_decision(path)
    for machine in world.machines.values():
        machine.start()
        world.run(500)
    ensemble.end_session(former)
    world.run(1_000)
    assert world.controller() is world.machines[1].process
    return world


def recorded(world, act):
    """Do something; return the writes of the sessions since, and the orders that the brokers received, in order."""
    world.ensemble.writes.clear()
    world.calls.clear()
    world.ensemble.is_recording = True
    act()
    world.run(1_500)
    writes_since = [
        Write(type(write).__name__.lower(), write.path, getattr(write, "data", b"").decode())
        for write in world.ensemble.writes
    ]
    return writes_since, sorted((order_of(*call) for call in world.calls), key=lambda order: order.broker_id)


def order_of(broker_id, request):
    if isinstance(request, StopReplicaRequest):
        stops = [
            (topic.topic_name, state.partition_index, state.leader_epoch, state.delete_partition)
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        return Order(broker_id, "StopReplica", tuple(sorted(stops)), ())
    is_leader_and_isr = isinstance(request, LeaderAndIsrRequest)
    rows = []
    for topic in request.topic_states:
        for state in topic.partition_states:
            version = state.partition_epoch if is_leader_and_isr else state.zk_version
            is_new, offline = (state.is_new, ()) if is_leader_and_isr else (False, state.offline_replicas)
            rows.append(
                (
                    topic.topic_name, state.partition_index, state.leader, state.leader_epoch, state.isr, version,
                    state.replicas, is_new, offline,
                )  # fmt: skip
            )
    live = [b.broker_id for b in request.live_leaders] if is_leader_and_isr else [b.id_ for b in request.live_brokers]
    kind = "LeaderAndIsr" if is_leader_and_isr else "UpdateMetadata"
    return Order(broker_id, kind, tuple(sorted(rows)), tuple(sorted(live)))


def without_times(written):
    return [write._replace(data=re.sub(r'"timestamp":"\d+"', '"timestamp":""', write.data)) for write in written]


def t_created(world):
    world.request(CreateTopic("t", T_ID, {}, assignments={0: (1, 2, 3), 1: (2, 3, 1)}))


def test_start_of_the_first_broker_and_its_election():
    world = World()
    written, _ = recorded(world, world.machines[1].start)
    paths = [write.path for write in written]
    begin = paths.index("/brokers/ids/1")
    golden = [write for write in writes(56, 59)]
    assert without_times(written[begin:]) == without_times(golden)


def test_create():
    world = started()
    written, received = recorded(world, lambda: t_created(world))
    assert written == writes(64, 70)
    assert received == orders(6.3, 7)


def test_create_on_two_of_three_brokers():
    world = started()
    create = CreateTopic("m", M_ID, {}, assignments={0: (2, 1)})
    written, received = recorded(world, lambda: world.request(create))
    assert written == writes(107, 111)
    assert received == orders(28.02, 28.08)


def test_topic_that_a_broker_creates():
    """The controller hears of it by its watch on /brokers/topics (fact 17)."""
    world = started()
    session_id = world.machines[3].process.coordinator.session_id

    def create():
        for write in writes(137, 138):
            world.ensemble.apply(session_id, Create(write.path, write.data.encode()), lambda event: None)

    written, received = recorded(world, create)
    assert written == writes(137, 143)
    assert received == orders(43.29, 43.5)


def test_kill_of_a_broker():
    """Elections come first, then the ISRs without it; the leader epoch rises there too (fact 28)."""
    world = started()
    t_created(world)
    world.run(500)
    written, received = recorded(world, lambda: world.machines[2].kill(at_once=True))
    assert written == writes(83, 84)
    assert received == orders(16.4, 16.7)


def test_return_of_a_broker():
    """Its first UpdateMetadata has all partitions, the others hear of it first (fact 23); nothing is written."""
    world = started()
    t_created(world)
    world.run(500)
    world.machines[2].kill(at_once=True)
    world.run(1_000)
    world.machines[2].start()
    written, received = recorded(world, lambda: None)
    assert not [write for write in written if write.path.endswith("/state")]
    assert received == orders(23, 24.5)


def test_block_of_producer_ids():
    world = started()
    broker = world.machines[2].model
    written, _ = recorded(world, lambda: world.request(AllocateProducerIds(2, broker.broker_epoch)))
    assert written == writes(144, 144)


def test_delete():
    """Kafka writes a leader and epochs of 0 into the UpdateMetadata of a deletion, with leader -2 (fact 29)."""
    world = started(
        ("/config/topics/m", '{"version":1,"config":{}}', 0),
        ("/brokers/topics/m", writes(108, 108)[0].data.replace("[2,1]", "[3,2]"), 2),
        (state_path(TopicPartition("m", 0)), LeaderAndIsr(2, (2, 3), 3, 4, controller_epoch=1).encode().decode(), 4),
    )
    written, received = recorded(world, lambda: world.request(DeleteTopic("m")))
    assert written == [Write("create", "/admin/delete_topics/m", ""), *writes(172, 179)]
    assert received == orders(58.9, 59)


STATES_BEFORE_SHUTDOWN = {
    ("t", 0): (1, 3, 5, (1, 2, 3), (2, 3, 1)),
    ("t", 1): (2, 3, 5, (1, 2, 3), (2, 3, 1)),
    ("d", 0): (1, 1, 2, (1, 2, 3), (1, 3, 2)),
    ("d", 1): (2, 1, 2, (2, 1, 3), (2, 1, 3)),
    ("d", 2): (2, 1, 2, (2, 1, 3), (3, 2, 1)),
    ("d", 3): (1, 1, 2, (1, 2, 3), (1, 2, 3)),
    ("__transaction_state", 0): (2, 1, 2, (2, 1, 3), (2, 3, 1)),
    ("__transaction_state", 1): (1, 1, 2, (1, 2, 3), (3, 1, 2)),
}
"""Leader, leader epoch, version, ISR and replicas of each partition before broker 1 stops."""


def nodes_before_shutdown():
    nodes = []
    for topic in ("t", "d", "__transaction_state"):
        rows = {index: row for (name, index), row in STATES_BEFORE_SHUTDOWN.items() if name == topic}
        document = Topic(UUID(int=1), {index: Assignment(replicas) for index, (*_, replicas) in rows.items()})
        nodes.append((topic_path(topic), document.encode().decode(), 0))
        for index, (leader, epoch, version, isr, _) in rows.items():
            state = LeaderAndIsr(leader, isr, epoch, version, controller_epoch=1)
            nodes.append((state_path(TopicPartition(topic, index)), state.encode().decode(), version))
    return nodes


def test_controlled_shutdown():
    """Leaders move, followers stop, the rest of the ISRs shrink, nothing remains (fact 27)."""
    world = started(*nodes_before_shutdown())
    answers = []
    request = ControlledShutdown(1, world.machines[1].model.broker_epoch)
    written, received = recorded(world, lambda: answers.append(world.request(request)))
    golden = writes(211, 218)
    assert sorted(written[:4]) == sorted(golden[:4])  # the elections
    assert sorted(written[4:]) == sorted(golden[4:])  # the ISRs
    assert answers[0][0].remaining == ()
    for broker_id in (1, 2, 3):
        golden_orders = [order for order in orders(83.7, 84) if order.broker_id == broker_id]
        own_orders = [order for order in received if order.broker_id == broker_id]
        # Kafka's broker 1, which is the controller, stopped before the last orders had left.
        assert golden_orders and own_orders[: len(golden_orders)] == golden_orders
