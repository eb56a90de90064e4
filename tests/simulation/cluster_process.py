"""The processes of a simulated cluster: real engines whose every step takes a time, and machines that outlive them."""

from kio.schema.types import BrokerId
from kio.static.primitive import i64

from broker.cluster.documents import CONTROLLER_EPOCH, NO_LEADER, TopicPartition, broker_path
from broker.membership.calls import Link as LinkKind
from broker.membership.calls import link_of
from broker.now import Now
from broker.wire.inter_broker import ControlledShutdownRequest
from coordination.port import CoordinationError, Get, Multi, Node, SessionEnded
from idgen.layout import Layout
from idgen.worker import IdWorker
from tests.broker.engine_client import DAY_MS, WALL_MS
from tests.broker.engine_cluster import SESSION_MS, ClusterNode, check_idle
from tests.simulation.cluster_network import CALL_MS, ClientLink, Link
from tests.simulation.disks import new_disk, power_cut

MAX_AHEAD_MS = 500


class Process(ClusterNode):
    """A broker's process, from its start to its death."""

    def __init__(self, world, machine):
        super().__init__(world, machine.id, machine.storage, f"boot {machine.boots}")
        self.world, self.machine = world, machine
        self.connections = []
        self.listens = False
        """True from its first registration on, because a broker opens its listeners then."""
        self._was_registered = False
        self._czxid = self._controller_epoch_read = 0
        self.ticks = 0
        self._stalled_until_ms = 0
        self._executes_ms = self._jobs_ms = 0
        self._tick_ms = None
        self._read_reports = 0
        self._epochs = {}
        """By (topic, partition) and topic id: the leader epoch that is hosted."""
        self._hosted_generation = -1
        self._least_controller_epoch = 0
        self._refusal_of_order = self.member.refusal_of_order
        self.member.refusal_of_order = self._check_order
        self.coordinator.on_wake(lambda: world.after(world.delay(), lambda: self.do(self._take_events)))
        self.do(self._take_events)

    @property
    def now(self):
        return Now(self.world.now_ms, WALL_MS + self.world.now_ms + self.machine.wall_step_ms)

    @property
    def core(self):
        """Return the engine, or the member before the logs are open: both have the verbs of a member."""
        return self.member if self.broker is None else self.broker.engine

    def do(self, act):
        """Let the process act, when it is not stopped, and move what can move then. A dead process does nothing."""
        if not self.is_alive:
            return
        if self.world.now_ms < self._stalled_until_ms:
            self.world.at(self._stalled_until_ms, lambda: self.do(act))
            return
        if self.broker is not None:
            self.broker.now_ms, self.broker.wall_step_ms = self.world.now_ms, self.machine.wall_step_ms
        act()
        self.pump()

    def pump(self):
        """Move everything that can move between the engine and the world."""
        if self.broker is None and self.member.is_ready:
            self.open()
        while True:
            if self.broker is not None:
                self.broker.pump()
            operations = self.core.take_operations()
            for operation in operations:
                self._executes_ms = max(self._executes_ms, self.world.now_ms + self.world.delay())
                self.world.at(self._executes_ms, lambda op=operation: self._execute(op))
            calls = [] if self.broker is None else self.core.take_calls(self.now)
            for addressed in calls:
                self._send(addressed.call)
            if not (operations or calls):
                break
        check_idle(self.member, self.now)
        self._check_reports()
        if self.member.problem is not None:
            self.world.log(f"{self.id} ends: {self.member.problem}")
            self.machine.kill(at_once=True)
            self.world.after(SESSION_MS, self.machine.start)
            return
        self._note_registration()
        if self.broker is not None:
            self._check_hosted()
            self.world.pumped(self)
            self._begin_jobs()
            for connection in list(self.connections):
                connection.pumped()
        self._plan_tick()

    def open(self):
        super().open()
        self.machine.is_clean = False
        self.broker.after_pump = lambda: None
        self.broker.now_ms, self.broker.wall_step_ms = self.world.now_ms, self.machine.wall_step_ms
        self.broker.hold_syncs()
        self.broker.worker = self.world.new_worker(self)
        self.world.opened(self)
        self.world.log(f"{self.id} is open")

    def _check_reports(self):
        for line in self.reported[self._read_reports :]:
            assert "Traceback" not in line, f"broker {self.id}: {line}"
            self.world.log(f"{self.id} reports: {line}")
        self._read_reports = len(self.reported)

    # --- orders --------------------------------------------------------------------------------------------------

    def _note_registration(self):
        """Note below which controller epoch orders are to be refused: its registration ends with a read of that one."""
        if self.member.is_registered and not self._was_registered:
            self.listens = True
            self._least_controller_epoch = max(self._least_controller_epoch, self._controller_epoch_read)
        self._was_registered = self.member.is_registered

    @property
    def has_node(self):
        """True once the node of this life was made."""
        return self._czxid != 0

    def _note_creation(self):
        """Tell the world when this life's node is made."""
        node = self.world.ensemble.nodes.get(broker_path(self.id))
        if node is not None and node.owner == self.coordinator.session_id and node.czxid != self._czxid:
            self._czxid = node.czxid
            self.world.registered(self, node.czxid)

    def _check_order(self, order, now):
        """Check that an order which is taken is of no earlier controller than others were, and for this life."""
        epoch, broker_epoch = self.member.controller_epoch, self.member.broker_epoch
        error = self._refusal_of_order(order, now)
        if not error:
            least = max(epoch, self._least_controller_epoch)
            assert order.controller_epoch >= least, f"E2: {self.id} takes an order of a controller before {least}"
            assert order.broker_epoch >= broker_epoch, f"E3: {self.id} takes an order for an earlier life"
            self.world.ordered(self, order)
        return error

    def _check_hosted(self):
        """Check that leaders are as the nodes had them before (S4), and that no leader epoch falls (E4)."""
        hosted = self.broker.services.hosted
        if hosted.generation == self._hosted_generation:
            return
        self._hosted_generation = hosted.generation
        for topic in hosted.topics():
            for number in topic.copies_on(self.id):
                state, partition = topic.partitions[number], TopicPartition(topic.name, number)
                decision = partition, topic.id, state.leader, state.leader_epoch
                is_decided = state.leader == NO_LEADER or decision in self.world.ensemble.decided
                assert is_decided, f"S4: {self.id} hosts {decision}, which was never written"
                epoch = self._epochs.get((partition, topic.id), -1)
                assert state.leader_epoch >= epoch, f"E4: {self.id} goes from epoch {epoch} to {decision}"
                self._epochs[partition, topic.id] = state.leader_epoch

    # --- jobs in threads -----------------------------------------------------------------------------------------

    def _begin_jobs(self):
        jobs, self.broker.held[:] = list(self.broker.held), []
        for job in jobs:
            takes_ms = self.world.random.randint(1, self.machine.job_ms)
            self.world.after(takes_ms, lambda job=job: self.do(lambda: self.broker.run(job)))

    # --- the coordinator -----------------------------------------------------------------------------------------

    def _take_events(self):
        for event in self.coordinator.take_events():
            if isinstance(event, SessionEnded):
                self.world.log(f"{self.id} loses its session")
            self.core.notified(event, self.now)

    def _execute(self, operation):
        """Carry out an operation. A process that died meanwhile had sent it, and hears no result."""
        if self.world.now_ms < self._stalled_until_ms:
            self.world.at(self._stalled_until_ms, lambda: self._execute(operation))
            return
        if isinstance(operation, Multi) and self.world.random.random() < self.world.multi_loss:
            self.coordinator.lose_answers += 1
        try:
            outcome = self.coordinator.execute(operation)
        except CoordinationError as error:
            outcome = error
        if isinstance(operation, Get) and operation.path == CONTROLLER_EPOCH and isinstance(outcome, Node):
            self._controller_epoch_read = int(outcome.data)
        self._note_creation()
        self.world.after(
            self.world.delay(), lambda: self.do(lambda: self.core.completed(operation, outcome, self.now))
        )

    # --- other brokers -------------------------------------------------------------------------------------------

    def _send(self, call):
        kind = link_of(call)
        key = call.broker_id, kind
        link = self.links.get(key)
        if link is None or not link.is_open:
            process = self.world.machines[call.broker_id].process
            if process is None or not process.listens:  # refused
                self.world.after(self.world.delay(), lambda: self.do(lambda: self.called(call, None)))
                return
            link = self.links[key] = Link(self, process, kind)
        link.call(call)

    def called(self, call, response):
        self.core.called(call, response, self.now)
        if response is not None and link_of(call) is LinkKind.FETCHES and response.partitions:
            self.world.fetched(self)

    # --- time ----------------------------------------------------------------------------------------------------

    def _plan_tick(self):
        due_ms = self.member.next_deadline_ms() if self.broker is None else self.core.next_deadline(self.now)
        if due_ms is None:
            return
        due_ms = max(due_ms, self.world.now_ms + 1)
        if self._tick_ms is None or due_ms < self._tick_ms:
            self._tick_ms = due_ms
            self.world.at(due_ms, lambda: self._tick(due_ms))

    def _tick(self, due_ms):
        if self._tick_ms == due_ms:
            self.do(self._ticked)

    def _ticked(self):
        self._tick_ms = None
        self.ticks += 1
        self.core.tick(self.now)

    # --- lives ---------------------------------------------------------------------------------------------------

    def stall(self, ms):
        """Stop the process (SIGSTOP) for a time. It wakes with a new session, and sends first what it had prepared."""
        self._stalled_until_ms = max(self._stalled_until_ms, self.world.now_ms + ms)
        session_id = self.coordinator.session_id

        def expire():
            if self.is_alive and self.coordinator.session_id == session_id:
                self.coordinator.expire()

        if ms > SESSION_MS:
            self.world.after(SESSION_MS, expire)

    def shut_down(self):
        """Ask the controller to move what this broker leads, as a stop does, and stop when it has answered."""

        def answered(response, at):
            error = "no answer" if response is None else response.error_code
            self.world.log(f"{self.id} stops: {error}")
            self.world.after(0, lambda: self.machine.stopped(self))

        if not self.member.is_registered:
            answered(None, self.now)
            return
        self.member.leave()
        request = ControlledShutdownRequest(broker_id=BrokerId(self.id), broker_epoch=i64(self.member.broker_epoch))
        self.member.peers.ask(self.member.image.controller_id, request, answered, self.now, timeout_ms=CALL_MS)

    def die(self):
        self.is_alive = False
        for link in self.links.values():
            link.end()
        for connection in list(self.connections):
            connection.end()


class Machine:
    """A broker's machine: its disk and its clock outlive its processes."""

    def __init__(self, world, broker_id):
        self.world, self.id = world, broker_id
        self.storage = new_disk(f"{world.seed} {broker_id}")
        self.boots = 1
        self.wall_step_ms = 0
        self.job_ms = world.random.choice((30, 30, 500))
        """The longest time that a job of a thread takes: some disks are slow."""
        self.process = None
        self.is_clean = True
        """Whether the last process that opened its logs was stopped cleanly. All that it confirmed is on the disk."""

    def start(self):
        if self.process is None:
            self.world.log(f"{self.id} starts")
            self.process = Process(self.world, self)

    def kill(self, *, at_once):
        """Kill the process (kill -9); its session ends at once, as its parent tells, or after its time."""
        process, self.process = self.process, None
        if process is not None:
            process.die()
            session_id = process.coordinator.session_id
            self.world.after(0 if at_once else SESSION_MS, lambda: self.world.ensemble.end_session(session_id))

    def cut_power(self, *, at_once=False):
        self.kill(at_once=at_once)
        self.storage = power_cut(self.storage, self.world.random.randrange)
        self.boots += 1

    def stop(self):
        """Stop the process cleanly, once the controller has moved its leaders."""
        if self.process is not None and self.process.broker is not None:
            self.process.do(self.process.shut_down)

    def stopped(self, process):
        """End a process that was stopped: its logs are closed. A disk that fails lets no stop be clean."""
        if self.process is process:
            process.broker.services.close()
            self.kill(at_once=True)
            self.is_clean = not self.storage.failing_syncs

    def heal_disk(self):
        """Make room on the disk. Its broker starts again if the disk failed, which takes logs offline."""
        self.storage.free_bytes = None
        has_failed = bool(self.storage.failing_syncs)
        self.storage.failing_syncs.clear()
        if has_failed:
            self.restart()

    def restart(self):
        """Kill the process, if there is one, and start another."""
        if self.process is not None:
            self.kill(at_once=True)
            self.start()

    def connect(self, name):
        """Return a client's connection, None if no process listens."""
        process = self.process
        return None if process is None or not process.listens else ClientLink(self.world, process, name)


def new_worker(number, start_ms, max_ahead_ms=MAX_AHEAD_MS):
    """Return an id worker that has a number for itself."""
    return IdWorker(
        Layout(), number, start_ms=start_ms, limit_ms=start_ms + 365 * DAY_MS, max_ahead_ms=max_ahead_ms
    )
