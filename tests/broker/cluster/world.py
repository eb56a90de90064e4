"""A cluster in memory: machines with a controller core and a model broker each, one ensemble, and a slow network.

Each seed is one history. Everything takes a random time. Answers of the coordinator and of brokers get lost, sessions
expire, cut controllers go on as zombies, brokers die at any step and come back with their disks, at once or later. The
oracle watches each write of the ensemble and each order that a broker accepts, and compares everything at the end.
"""

from collections.abc import Callable
from itertools import count
from uuid import UUID

from broker.cluster.controller import Controller
from broker.cluster.documents import (
    CLUSTER_ID,
    CONTROLLER,
    DELETE_TOPICS,
    NO_LEADER,
    Assignment,
    Endpoint,
    Life,
    Registration,
    Topic,
    TopicPartition,
    config_path,
    decode_cluster_id,
    encode_config,
    topic_path,
)
from broker.cluster.driver import Driver
from broker.cluster.policy import Policy
from broker.cluster.registration import BrokerIdTaken, Registered, register
from broker.cluster.requests import Answer, ControlledShutdown, Request
from broker.now import Now
from broker.waiting.pending import Pending
from broker.wire.errors import ErrorCode
from broker.wire.inter_broker import LeaderAndIsrRequest
from coordination.memory import MemoryCoordinator
from coordination.port import CoordinationError, Create, Multi, NodeExists, NoNode, SessionEnded
from tests.broker.cluster.model_broker import ImageRow, ModelBroker
from tests.broker.cluster.timeline import Timeline
from tests.broker.cluster.watched_ensemble import WatchedEnsemble

SESSION_MS = 1_000
WALL_MS = 1_795_000_000_000


class Process:
    """A process of a broker, from its start to its death."""

    def __init__(self, world: "World", machine: "Machine") -> None:
        self.world, self.machine = world, machine
        self.coordinator = MemoryCoordinator(world.ensemble)
        self.coordinator.on_wake(self._wake)
        self.controller = Controller(machine.broker_id, Pending(), listener="PLAINTEXT", policy=world.policy)
        self.registration = Driver()
        self.is_alive = True
        self.is_registered = False
        self.is_stopping = False
        self._executes_ms = 0
        self._stalled_until_ms = 0
        self._registers_again = True
        self._ticks: set[int] = set()
        self.answers: dict[int, Callable[[Answer], None]] = {}

    def _wake(self) -> None:
        self.world.after(self.world.delay(), self.pump)

    def pump(self) -> None:
        """Move everything that can move between the cores and the world."""
        if not self.is_alive:
            return
        if self.world.now_ms < self._stalled_until_ms:
            self.world.at(self._stalled_until_ms + self.world.delay(), self.pump)
            return
        now = self.world.now
        for event in self.coordinator.take_events():
            self.controller.notified(event, now)
            if isinstance(event, SessionEnded):
                self.registration.cancel()
                self.is_registered, self._registers_again = False, True
        if self._registers_again and not self.is_stopping:
            self._registers_again = False
            self.registration.begin(self._register(), self._registered, now)
        for driver in (self.registration, self.controller):
            for operation in driver.take_operations():
                self._executes_ms = max(self._executes_ms, self.world.now_ms + self.world.delay())
                self.world.at(self._executes_ms, lambda d=driver, op=operation: self._execute(d, op))
        for call in self.controller.take_calls(now):
            self.world.deliver(self, call)
        for request, answer in self.controller.take_answers():
            self.answers.pop(id(request), lambda answer: None)(answer)
        for deadline_ms in (self.registration.next_deadline_ms(), self.controller.next_deadline_ms()):
            if deadline_ms is not None and deadline_ms not in self._ticks:
                self._ticks.add(deadline_ms)
                self.world.at(max(deadline_ms, self.world.now_ms), self._tick)

    def submit(self, request: Request, answered: Callable[[Answer], None]) -> None:
        self.answers[id(request)] = answered
        self.controller.submit(request, self.world.now)
        self.pump()

    def stall(self, ms: int) -> None:
        """Stop the process (SIGSTOP) for a time. It wakes with a new session, and sends first what it had prepared."""
        self._stalled_until_ms = self.world.now_ms + ms
        session_id = self.coordinator.session_id

        def expire() -> None:
            if self.is_alive and self.coordinator.session_id == session_id:
                self.coordinator.expire()

        if ms > SESSION_MS:
            self.world.after(SESSION_MS, expire)

    def _tick(self) -> None:
        if self.is_alive:
            self._ticks.discard(self.world.now_ms)
            self.registration.tick(self.world.now)
            self.controller.tick(self.world.now)
            self.pump()

    def _execute(self, driver, operation) -> None:
        """Carry out an operation. A process that died meanwhile had sent it, and hears no result."""
        if self.world.now_ms < self._stalled_until_ms:
            self.world.at(self._stalled_until_ms, lambda: self._execute(driver, operation))
            return
        if isinstance(operation, Multi) and self.world.random.random() < self.world.multi_loss:
            self.coordinator.lose_answers += 1
        try:
            outcome = self.coordinator.execute(operation)
        except CoordinationError as error:
            outcome = error
        self.world.after(self.world.delay(), lambda: self._complete(driver, operation, outcome))

    def _complete(self, driver, operation, outcome) -> None:
        if self.is_alive:
            driver.completed(operation, outcome, self.world.now)
            self.pump()

    def _register(self):
        machine = self.machine
        endpoint = Endpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 24020 + machine.broker_id)
        life = Life(machine.model.is_whole, machine.model.last_epoch) if self.world.has_lives else None
        return register(
            machine.broker_id,
            Registration((endpoint,), self.world.now.wall_ms, life=life),
            session_id=self.coordinator.session_id,
            session_timeout_ms=SESSION_MS,
            cluster_id=machine.cluster_id or f"random-{machine.broker_id}",
            is_new_directory=machine.cluster_id is None,
        )

    def _registered(self, registered: Registered | None, error: Exception | None, now: Now) -> None:
        if isinstance(error, BrokerIdTaken):
            self.world.after(SESSION_MS, lambda: self.machine.restart_after(self))
        elif isinstance(error, CoordinationError):
            pass  # SessionLost: the event follows
        elif error is not None:
            raise error
        else:
            assert registered is not None
            self.machine.cluster_id = registered.cluster_id
            self.machine.model.registered(registered.broker_epoch, registered.controller_epoch)
            self.is_registered = True
            self.controller.registered(now)


class Machine:
    """A broker's machine: its disk outlives its processes."""

    def __init__(self, world: "World", broker_id: int) -> None:
        self.world, self.broker_id = world, broker_id
        self.cluster_id: str | None = None
        self.model = ModelBroker(broker_id)
        self.process: Process | None = None

    def start(self) -> None:
        if self.process is None:
            self.process = Process(self.world, self)
            self.process.pump()

    def kill(self, *, at_once: bool) -> None:
        """Kill the process; its session ends at once, as with a clean stop, or after the session's time."""
        process, self.process = self.process, None
        if process is not None:
            process.is_alive = False
            self.model.die()
            session_id = process.coordinator.session_id
            self.world.after(0 if at_once else SESSION_MS, lambda: self.world.ensemble.end_session(session_id))

    def lose_power(self, *, at_once: bool = True) -> None:
        """End the process, and the records that its disk did not keep."""
        self.model.is_whole = False
        self.world.ensemble.lose_power(self.broker_id, self.model.last_epoch)
        self.kill(at_once=at_once)

    def restart_after(self, process: Process) -> None:
        if self.process is process:
            self.kill(at_once=True)
            self.start()


class World(Timeline):
    """The network, the machines, and the oracle."""

    def __init__(
        self,
        seed: int = 0,
        brokers: int = 3,
        *,
        delay_ms: tuple[int, int] = (1, 1),
        has_lives: bool = False,
        policy: Policy | None = None,
    ) -> None:
        super().__init__(seed, delay_ms)
        self.has_lives = has_lives  # brokers register as ours; else as Kafka's
        self.policy = policy
        self.ensemble = WatchedEnsemble()
        self.ensemble.knows_losses = has_lives
        self.loss = 0.0  # the chance that a call or its answer gets lost
        self.multi_loss = 0.0  # the chance that the answer of a Multi gets lost
        self.led: dict[tuple[TopicPartition, UUID | None, int], int] = {}
        self.producer_ids: list[tuple[int, int]] = []
        self.calls: list[object] = []
        self._uuids = count(1)
        self.machines = {broker_id: Machine(self, broker_id) for broker_id in range(1, brokers + 1)}

    @property
    def now(self) -> Now:
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def processes(self) -> list[Process]:
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def controller(self) -> Process | None:
        """Return the process whose controller owns /controller."""
        node = self.ensemble.nodes.get(CONTROLLER)
        active = [process for process in self.processes() if process.controller.is_active]
        return next((p for p in active if node is not None and p.coordinator.session_id == node.owner), None)

    def uuid(self) -> UUID:
        return UUID(int=next(self._uuids))

    # The network between controllers and brokers

    def deliver(self, sender: Process, call) -> None:
        is_lost, is_unanswered = self.random.random() < self.loss, self.random.random() < self.loss
        if is_lost:
            self.after(self.delay(), lambda: self._answer(sender, call, None))
        else:
            self.after(self.delay(), lambda: self._arrive(sender, call, is_unanswered))

    def _arrive(self, sender: Process, call, is_unanswered: bool) -> None:
        machine = self.machines[call.broker_id]
        response = None
        if machine.process is not None and machine.process.is_registered:
            model = machine.model
            before = len(model.accepted)
            response = model.handle(call.request)
            self.calls.append((call.broker_id, call.request))
            if len(model.accepted) > before:
                self._check_order(model, call.request)
        self.after(self.delay(), lambda: self._answer(sender, call, None if is_unanswered else response))

    def _answer(self, sender: Process, call, response) -> None:
        if sender.is_alive:
            sender.controller.called(call, response, self.now)
            sender.pump()

    def _check_order(self, model: ModelBroker, request) -> None:
        if not isinstance(request, LeaderAndIsrRequest):
            return
        for topic in request.topic_states:
            for state in topic.partition_states:
                partition = TopicPartition(topic.topic_name, state.partition_index)
                decision = (partition, topic.topic_id, state.leader, state.leader_epoch)
                assert decision in self.ensemble.decided, f"S4: {decision} was ordered before it was written"
                held = model.replicas.get(partition)
                if held is not None and held.leader == model.broker_id:
                    leader = self.led.setdefault((partition, held.topic_id, held.leader_epoch), model.broker_id)
                    assert leader == model.broker_id, f"two leaders of {partition} in epoch {held.leader_epoch}"

    # Acts of clients and brokers

    def request(self, request: Request, process: Process | None = None) -> list[Answer]:
        """Submit a request to the controller; its answer is appended to the returned list."""
        answers: list[Answer] = []
        target = process or self.controller()
        if target is not None:
            target.submit(request, answers.append)
        return answers

    def create_as_broker(self, process: Process, topic: str, replicas: tuple[int, ...]) -> None:
        """Create a topic as a broker does that needs it: plain writes, and NodeExists is success."""
        document = Topic(self.uuid(), {0: Assignment(replicas)})
        for create in (Create(config_path(topic), encode_config({})), Create(topic_path(topic), document.encode())):
            try:
                process.coordinator.execute(create)
            except NodeExists:
                continue
            except (CoordinationError, NoNode):
                return

    def stop_cleanly(self, machine: Machine) -> None:
        """Ask for a controlled shutdown, then end the process and its session (rule S6)."""
        process = machine.process
        if process is None or not process.is_registered:
            return
        process.is_stopping = True
        self.request(ControlledShutdown(machine.broker_id, machine.model.broker_epoch))
        self.after(300, lambda: machine.kill(at_once=True) if machine.process is process else None)

    # The oracle at the end

    def images(self) -> dict[int, dict[TopicPartition, ImageRow]]:
        return {m.broker_id: m.model.image for m in self.machines.values() if m.process is not None}

    def check_quiet(self) -> None:
        """Check a world that was healed and then left alone."""
        active = [process for process in self.processes() if process.controller.is_active]
        assert len(active) == 1, f"{len(active)} controllers"
        assert active[0].controller.is_idle, "the controller still works"
        assert not list(self.ensemble.names(DELETE_TOPICS)), "a deletion does not end"
        expected = self.ensemble.image()
        assert all(row.leader != NO_LEADER for row in expected.values()), f"a partition has no leader: {expected}"
        for broker_id, image in self.images().items():
            assert image == expected, f"the image of broker {broker_id} differs from the nodes"
            model = self.machines[broker_id].model
            assert model.live == frozenset(self.machines), f"broker {broker_id} does not know all live brokers"
            assigned = {p: row for p, row in expected.items() if broker_id in row.replicas}
            assert model.logs == {p: row.topic_id for p, row in assigned.items()}, "logs of deleted topics, or none"
            held = {p: (r.leader, r.leader_epoch) for p, r in model.replicas.items()}
            assert held == {p: (row.leader, row.leader_epoch) for p, row in assigned.items()}, "a replica was not told"
        assert {decode_cluster_id(self.ensemble.nodes[CLUSTER_ID].data)} == {
            machine.cluster_id for machine in self.machines.values()
        }
        blocks = sorted(self.producer_ids)
        assert all(first[1] < second[0] for first, second in zip(blocks, blocks[1:])), "producer ids given twice"

    def take_producer_ids(self, answer: Answer) -> None:
        if answer.error_code == ErrorCode.NONE and answer.producer_ids is not None:
            self.producer_ids.append((answer.producer_ids.first, answer.producer_ids.last))
