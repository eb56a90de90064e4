"""The rules of the cluster that the controller keeps: E1 to E4 (epochs and fencing), S4 (order), S6 (stop).

Each test names its rule. Worlds are quiet here: every step takes a millisecond, and faults happen where a test says so.
"""

from kio.schema.errors import ErrorCode as SchemaErrorCode

from broker.cluster.documents import (
    CONTROLLER,
    CONTROLLER_EPOCH,
    NO_LEADER,
    Assignment,
    LeaderAndIsr,
    Topic,
    TopicPartition,
    broker_path,
    config_path,
    encode_config,
    state_path,
    topic_path,
)
from broker.cluster.partition_writes import update_states
from broker.cluster.requests import (
    AllocateProducerIds,
    ControlledShutdown,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
)
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest
from coordination.port import Check, Create, Delete, Multi, Set
from tests.broker.cluster.world import SESSION_MS, World

T0 = TopicPartition("t", 0)


def started(brokers=3, **options):
    """Return a quiet world whose broker 1 is the controller."""
    world = World(brokers=brokers, **options)
    for machine in world.machines.values():
        machine.start()
        world.run(200)
    assert world.controller() is world.machines[1].process
    return world


def create(world, replicas, name="t"):
    """Create a topic with one partition for each row of replicas."""
    answers = world.request(CreateTopic(name, world.uuid(), {}, assignments=dict(enumerate(replicas))))
    world.run(200)
    assert answers[0].error_code == ErrorCode.NONE, answers
    return answers[0]


def answer_of(world, request, ms=500):
    answers = world.request(request)
    world.run(ms)
    assert len(answers) == 1
    return answers[0]


def state(world, partition=T0):
    path = state_path(partition)
    return LeaderAndIsr.decode(path, world.ensemble.nodes[path])


class TestE1:
    """Winning is one multi; each write of a state checks the epoch; a lost answer is read before it is repeated."""

    def test_a_broker_wins_by_one_multi_that_raises_the_epoch(self):
        world = World(brokers=2)
        world.ensemble.is_recording = True
        world.machines[1].start()
        world.run(200)
        paths = [write.path for write in world.ensemble.writes]
        assert paths[paths.index(CONTROLLER) + 1] == CONTROLLER_EPOCH
        assert world.ensemble.nodes[CONTROLLER_EPOCH].data == b"1"
        world.machines[2].start()
        world.run(200)
        assert world.machines[2].process.controller.controller_id == 1

    def test_the_next_controller_has_the_next_epoch(self):
        world = started()
        world.machines[1].kill(at_once=True)
        world.run(300)
        assert world.controller() is not None
        assert world.ensemble.nodes[CONTROLLER_EPOCH].data == b"2"
        assert world.controller().controller.context.epoch == 2

    def test_an_election_whose_answer_was_lost_is_read(self):
        """/controller belongs to the session, so the broker has won, and no second multi raises the epoch."""
        world = World(brokers=1)
        world.machines[1].start()
        process = world.machines[1].process
        while CONTROLLER_EPOCH not in world.ensemble.nodes:
            world.run(1)
        world.run(4)  # the election's next operation is its multi
        process.coordinator.lose_answers = 1
        while CONTROLLER not in world.ensemble.nodes:
            world.run(1)
        world.run(1_000)
        assert process.controller.is_active
        assert world.ensemble.nodes[CONTROLLER_EPOCH].data == b"1"
        assert process.controller.context.epoch == 1

    def test_a_state_whose_answer_was_lost_is_read_and_not_written_again(self):
        world = started()
        create(world, [(2,), (2,), (3,)])
        lose_the_answer_of_the_next_multi(world)
        world.machines[2].kill(at_once=True)
        world.run(1_000)
        assert [state(world, TopicPartition("t", index)).leader for index in range(3)] == [-1, -1, 3]
        assert state(world).leader_epoch == state(world).partition_epoch == 1

    def test_a_state_whose_request_was_lost_is_written_again(self):
        world = started()
        create(world, [(2,)])
        lose_the_answer_of_the_next_multi(world, applied=False)
        world.machines[2].kill(at_once=True)
        world.run(1_000)
        assert (state(world).leader, state(world).leader_epoch) == (-1, 1)

    def test_each_write_of_a_state_checks_the_controller_epoch(self):
        world = started()
        create(world, [(1,)])
        operations = record_operations(world)
        answer_of(world, CreatePartitions("t", 2, ((2,),)))
        answer_of(world, DeleteTopic("t"))
        states = [op for op in operations if "/state" in str(op) and isinstance(op, Multi)]
        assert len(states) >= 2
        assert all(op.operations[0] == Check(CONTROLLER_EPOCH, 1) for op in states)

    def test_a_controller_whose_epoch_was_raised_resigns(self):
        """Its write fails the check; the request that it served is answered NOT_CONTROLLER."""
        world = started()
        other = world.ensemble.begin_session()
        world.ensemble.apply(other, Set(CONTROLLER_EPOCH, b"9", 1), lambda event: None)
        answer = answer_of(world, CreateTopic("t", world.uuid(), {}))
        assert answer.error_code == ErrorCode.NOT_CONTROLLER
        assert topic_path("t") not in world.ensemble.nodes

    def test_a_controller_whose_node_belongs_to_another_resigns(self):
        world = started()
        former = world.controller()
        former.coordinator.cut()
        world.ensemble.end_session(former.coordinator.session_id)
        world.run(300)
        assert world.controller() not in (None, former)
        assert former.controller.is_active  # a zombie, until it hears
        answers = world.request(CreateTopic("t", world.uuid(), {}), former)
        former.coordinator.heal()
        world.run(500)
        assert not former.controller.is_active
        assert answers[0].error_code == ErrorCode.NOT_CONTROLLER
        assert topic_path("t") not in world.ensemble.nodes

    def test_many_states_are_few_multis(self):
        """At most a hundred in each, so that a thousand elections are ten writes, which a disk may sync together."""
        world = started()
        create(world, [(2,)] * 250)
        operations = record_operations(world)
        world.machines[2].kill(at_once=True)
        world.run(1_000)
        sizes = [len(op.operations) - 1 for op in operations if isinstance(op, Multi)]
        assert sizes == [100, 100, 50]
        context = world.controller().controller.context
        assert len(next(update_states(context, dict(context.leadership)))) == 3, "they are under way at the same time"

    def test_a_deletion_whose_answer_was_lost_leaves_a_new_topic_alone(self):
        """The topic's id is read before the multi is repeated: a broker has created the topic again meanwhile."""
        world = started()
        create(world, [(2,)], "__consumer_offsets")
        process = world.machines[1].process
        execute = process.coordinator.execute

        def lose_the_deletion(operation):
            if isinstance(operation, Multi) and Delete(topic_path("__consumer_offsets")) in operation.operations:
                process.coordinator.execute = execute
                process.coordinator.lose_answers = 1
                try:
                    return execute(operation)
                finally:
                    world.create_as_broker(world.machines[3].process, "__consumer_offsets", (3,))
            return execute(operation)

        world.request(DeleteTopic("__consumer_offsets"))
        world.run(2)
        process.coordinator.execute = lose_the_deletion
        world.run(2_000)
        assert state(world, TopicPartition("__consumer_offsets", 0)).leader == 3
        world.check_quiet()


class TestE2:
    """A broker begins with the controller epoch that it read; a controller that meets a higher one resigns."""

    def test_a_registration_reads_the_controller_epoch(self):
        world = started()
        assert [machine.model.controller_epoch for machine in world.machines.values()] == [1, 1, 1]
        world.machines[1].kill(at_once=True)
        world.run(300)
        world.machines[1].start()
        world.run(300)
        assert world.machines[1].model.controller_epoch == 2

    def test_a_late_deletion_of_a_replaced_controller_is_refused(self):
        """StopReplica with `delete` passes the check of the leader epoch: the controller epoch protects a new topic."""
        world = started()
        create(world, [(2,)])
        answer_of(world, DeleteTopic("t"))
        late = next(r for b, r in world.calls if isinstance(r, StopReplicaRequest) and is_deletion(r) and b == 2)
        world.machines[1].kill(at_once=True)
        world.run(300)
        world.machines[2].kill(at_once=True)
        world.machines[2].start()
        world.run(500)
        response = world.machines[2].model.handle(late)
        assert response.error_code == SchemaErrorCode.stale_controller_epoch

    def test_a_controller_that_is_refused_resigns(self):
        """It hears of the higher epoch by the answer to an order, before it hears of it by a watch."""
        world = started()
        former = world.controller()
        world.machines[2].process.is_registered = False  # it answers nothing, so the order is repeated
        create(world, [(2,)])
        former.coordinator.take_events = list  # no watch reaches it
        other = world.ensemble.begin_session()
        world.ensemble.apply(other, Delete(CONTROLLER), lambda event: None)
        world.run(300)
        assert world.controller() not in (None, former)
        assert former.controller.is_active
        world.machines[2].model.controller_epoch = 2  # it heard of the new controller first
        world.machines[2].process.is_registered = True
        world.run(500)
        assert not former.controller.is_active


class TestE3:
    """Orders name the life that they are for, which the controller has processed."""

    def test_orders_name_the_broker_epoch(self):
        world = started()
        create(world, [(2,), (3,)])
        for broker_id, request in world.calls:
            assert request.broker_epoch == world.ensemble.nodes[broker_path(broker_id)].czxid

    def test_a_bounced_broker_is_a_death_then_a_birth(self):
        """The controller sees one change: the leader epoch rises twice, and the new life gets all partitions first."""
        world = started()
        create(world, [(2,), (3,)])
        world.calls.clear()
        world.machines[2].kill(at_once=True)
        world.machines[2].start()
        world.run(500)
        assert (state(world).leader, state(world).leader_epoch) == (2, 2)
        to_it = [request for broker_id, request in world.calls if broker_id == 2]
        assert all(request.broker_epoch == world.ensemble.nodes[broker_path(2)].czxid for request in to_it)
        assert isinstance(to_it[0], UpdateMetadataRequest)
        assert [len(topic.partition_states) for topic in to_it[0].topic_states] == [2]
        world.check_quiet()

    def test_no_order_goes_to_a_life_that_the_controller_has_not_processed(self):
        world = started()
        create(world, [(2,)])
        controller = world.controller()
        world.calls.clear()
        take_events, held = controller.coordinator.take_events, []
        controller.coordinator.take_events = lambda: held.extend(take_events()) or []
        world.machines[2].kill(at_once=True)
        world.machines[2].start()
        world.run(500)
        answer_of(world, CreateTopic("u", world.uuid(), {}, assignments={0: (2,)}))
        assert not [request for b, request in world.calls if b == 2 and is_for_this_life(world, request)]
        controller.coordinator.take_events = lambda: [held.pop(0)] if held else take_events()
        for _ in range(20):
            controller.pump()
        world.run(500)
        world.check_quiet()

    def test_requests_of_another_life_are_refused(self):
        world = started()
        for request in (ControlledShutdown(2, 1), AllocateProducerIds(2, 1)):
            assert answer_of(world, request).error_code == ErrorCode.STALE_BROKER_EPOCH
        for request in (ControlledShutdown(9, 1), AllocateProducerIds(9, 1)):
            assert answer_of(world, request).error_code == ErrorCode.BROKER_ID_NOT_REGISTERED

    def test_an_order_is_repeated_until_the_life_is_over(self):
        """A broker registers before it listens (fact 5)."""
        world = started()
        world.machines[2].process.is_registered = False  # it answers nothing
        create(world, [(2,)])
        assert T0 not in world.machines[2].model.replicas
        assert not world.controller().controller.is_idle
        world.machines[2].process.is_registered = True
        world.run(500)
        assert world.machines[2].model.replicas[T0].leader == 2
        world.machines[2].process.is_registered = False
        answer_of(world, CreatePartitions("t", 2, ((2,),)))
        world.machines[2].kill(at_once=True)
        world.run(500)
        assert world.controller().controller.is_idle


class TestE4:
    """The leader epoch rises with each state that the controller decides."""

    def test_death_and_return_of_the_only_copy(self):
        world = started()
        create(world, [(2,)])
        world.machines[2].kill(at_once=True)
        world.run(500)
        assert state(world) == LeaderAndIsr(-1, (2,), 1, 1, 1)
        world.machines[2].start()
        world.run(500)
        assert state(world) == LeaderAndIsr(2, (2,), 2, 2, 1)
        world.check_quiet()

    def test_a_dead_follower_raises_it_too(self):
        """A broker ignores an order with the leader epoch that it knows, so the smaller ISR would not reach it."""
        world = started()
        create(world, [(1, 2, 3)])
        world.machines[3].kill(at_once=True)
        world.run(500)
        assert state(world) == LeaderAndIsr(1, (1, 2), 1, 1, 1)
        assert world.machines[1].model.replicas[T0].leader_epoch == 1

    def test_preferred_and_unclean_elections(self):
        world = started()
        create(world, [(2, 3)])
        create(world, [(3,)], "u")
        world.machines[2].kill(at_once=True)
        world.run(300)
        assert state(world) == LeaderAndIsr(3, (3,), 1, 1, 1)
        world.machines[2].start()
        world.run(300)
        elections = answer_of(world, ElectLeaders("preferred", None)).elections
        assert elections[T0][0] == ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE  # not in the ISR
        assert elections[TopicPartition("u", 0)][0] == ErrorCode.ELECTION_NOT_NEEDED
        world.machines[3].kill(at_once=True)
        world.run(300)
        assert state(world).leader == -1
        partitions = (T0, TopicPartition("u", 0), TopicPartition("v", 0))
        elections = answer_of(world, ElectLeaders("unclean", partitions)).elections
        assert [elections[partition][0] for partition in partitions] == [
            ErrorCode.NONE, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]  # fmt: skip
        assert (state(world).leader, state(world).leader_epoch, state(world).recovery_state) == (2, 3, 1)


class TestS4:
    """ZooKeeper is written first, then LeaderAndIsr leaves, then the directories follow."""

    def test_an_order_leaves_after_its_state_was_written(self):
        """The world checks each order that a broker accepts against the states that were written."""
        world = started()
        create(world, [(2,)])
        assert (T0, world.ensemble.image()[T0].topic_id, 2, 0) in world.ensemble.decided
        kinds = [type(request) for broker_id, request in world.calls if broker_id == 2][-2:]
        assert kinds == [LeaderAndIsrRequest, UpdateMetadataRequest]

    def test_no_order_leaves_while_the_write_is_unanswered(self):
        world = started()
        create(world, [(2, 3)])
        world.calls.clear()
        world.controller().coordinator.cut()
        world.machines[2].kill(at_once=True)
        world.run(SESSION_MS - 200)
        assert world.calls == []

    def test_a_topic_is_forgotten_after_its_replicas_were_deleted(self):
        world = started()
        create(world, [(2,), (3,)])
        world.machines[3].kill(at_once=True)
        world.run(300)
        answer_of(world, DeleteTopic("t"))
        assert world.machines[2].model.logs == {}
        assert topic_path("t") in world.ensemble.nodes  # it waits for broker 3, which has a log
        refused = answer_of(world, CreateTopic("t", world.uuid(), {}))
        assert refused.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
        assert refused.message == "Topic 't' is marked for deletion."  # as Kafka 3.9
        world.machines[3].start()
        world.run(500)
        assert topic_path("t") not in world.ensemble.nodes
        world.check_quiet()


class TestS6:
    """Stop: leaders move first, the session ends last."""

    def test_leaders_move_before_the_broker_stops(self):
        world = started()
        create(world, [(2, 3), (3, 2)])
        epoch = world.machines[2].model.broker_epoch
        answer = answer_of(world, ControlledShutdown(2, epoch))
        assert (answer.error_code, answer.remaining) == (ErrorCode.NONE, ())
        assert [state(world, TopicPartition("t", index)).leader for index in (0, 1)] == [3, 3]
        assert [state(world, TopicPartition("t", index)).isr for index in (0, 1)] == [(3,), (3,)]

    def test_the_only_copy_has_a_leader_until_the_session_ends_and_when_it_is_back(self):
        """Kafka's answer does not name it either, because the broker would repeat its request in vain."""
        world = started()
        create(world, [(2,)])
        answer = answer_of(world, ControlledShutdown(2, world.machines[2].model.broker_epoch))
        assert (answer.error_code, answer.remaining) == (ErrorCode.NONE, ())
        assert state(world).leader == 2
        world.machines[2].kill(at_once=True)
        world.run(300)
        assert state(world).leader == -1
        world.machines[2].start()
        world.run(300)
        assert state(world).leader == 2

    def test_the_answer_names_what_is_still_led(self):
        world = started()
        create(world, [(2, 3)])
        world.machines[3].kill(at_once=True)
        world.run(300)
        answer = answer_of(world, ControlledShutdown(2, world.machines[2].model.broker_epoch))
        assert answer.remaining == (T0,)

    def test_a_controller_that_stops_lets_another_win(self):
        world = started()
        process = world.machines[1].process
        process.controller.stop(world.now)
        answers = world.request(CreateTopic("t", world.uuid(), {}), process)
        assert answers[0].error_code == ErrorCode.NOT_CONTROLLER
        world.machines[1].kill(at_once=True)
        world.run(300)
        assert world.controller() is not None


def is_deletion(request):
    return any(state.delete_partition for topic in request.topic_states for state in topic.partition_states)


def is_for_this_life(world, request):
    return request.broker_epoch == world.ensemble.nodes[broker_path(2)].czxid


def record_operations(world):
    """Return a list that receives the operations of the controller from now on."""
    coordinator, operations = world.controller().coordinator, []
    execute = coordinator.execute

    def recorded(operation):
        operations.append(operation)
        return execute(operation)

    coordinator.execute = recorded
    return operations


def lose_the_answer_of_the_next_multi(world, *, applied=True):
    coordinator = world.controller().coordinator
    execute = coordinator.execute

    def lossy(operation):
        if isinstance(operation, Multi):
            coordinator.execute = execute
            coordinator.lose_answers, coordinator.lose_requests = (1, 0) if applied else (0, 1)
        return execute(operation)

    coordinator.execute = lossy


def with_a_partition_of_a_dead_broker():
    """Return a world of three brokers, where broker 3 has not started, and a topic with a partition on each."""
    world = World(brokers=3)
    for broker_id in (1, 2):
        world.machines[broker_id].start()
    world.run(2_000)
    document = Topic(world.uuid(), {0: Assignment((1,)), 1: Assignment((2,)), 2: Assignment((3,))})
    coordinator = world.machines[1].process.coordinator
    coordinator.execute(Create(config_path("t"), encode_config({})))
    coordinator.execute(Create(topic_path("t"), document.encode()))
    world.run(2_000)
    return world


def test_brokers_hear_of_all_partitions_of_a_topic_although_one_has_no_live_replica():
    """They look a group up by the number of the partitions of its topic."""
    world = with_a_partition_of_a_dead_broker()
    image = world.machines[1].model.image
    assert [(p.partition, row.leader, row.replicas) for p, row in sorted(image.items())] == [
        (0, 1, (1,)), (1, 2, (2,)), (2, NO_LEADER, (3,))
    ]  # fmt: skip
    world.machines[3].start()
    world.run(2_000)
    world.check_quiet()


def test_brokers_forget_all_partitions_of_a_deleted_topic_although_one_never_had_a_leader():
    world = with_a_partition_of_a_dead_broker()
    answer_of(world, DeleteTopic("t"))
    world.run(2_000)
    assert world.machines[1].model.image == world.machines[2].model.image == {}
