"""A cluster of real engines in a simulated world: each seed is one history, and `test_cluster.py` runs many.

    .venv/bin/python -m tests.simulation.cluster_world SEED...      prints the history of a seed, and its CPU time

Three to five brokers keep their files in memory and share one ensemble. Each operation, request, answer and job of a
thread takes a random time. Clients write, read, and change topics (cluster_clients.py), and the members of a group
share a partition and commit its offsets (cluster_group.py). Meanwhile brokers are killed, stopped, cut off and started
again, and disks run full or fail. Then everything is healed. When the world is quiet, the images of all brokers equal
the nodes, each partition is led and can be written, and the oracle compares what clients were answered with what is
there (cluster_oracle.py).
"""

from collections import Counter
from uuid import UUID

from broker import steps
from broker.cluster.documents import (
    CONTROLLER,
    DELETE_TOPICS,
    NO_LEADER,
    TopicPartition,
    config_path,
    decode_config,
)
from broker.now import Now
from broker.security.password_encoder import PlainPasswords
from tests.broker.cluster.model_broker import ImageRow
from tests.broker.cluster.timeline import Timeline
from tests.broker.cluster.watched_ensemble import WatchedEnsemble
from tests.broker.engine_client import (
    END_TXN,
    INIT_PRODUCER_ID,
    OFFSET_COMMIT,
    PRODUCE,
    SYNC_GROUP,
    WALL_MS,
    WRITE_TXN_MARKERS,
)
from tests.broker.engine_cluster import SESSION_MS
from tests.simulation.cluster_admin import Admin
from tests.simulation.cluster_checker import Checker
from tests.simulation.cluster_clients import Producer, Reader, Sleep, TransactionalProducer
from tests.simulation.cluster_group import Committer, GroupMember
from tests.simulation.cluster_oracle import Oracle
from tests.simulation.cluster_process import Machine, new_worker
from tests.simulation.cluster_sequences import SEEDS_OF_A_SEQUENCE, SEQUENCES
from tests.simulation.seeds import main

REQUEST_MS = 60_000
"""The longest time that a request may take on a broker that is neither stopped nor cut off."""
SETTINGS = {
    "transaction_state_log_num_partitions": 3,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
    "offsets_topic_num_partitions": 3,
    "offsets_topic_replication_factor": 1,
    "log_flush_offset_checkpoint_interval_ms": 20_000,
    "num_partitions": 2,
    "group_initial_rebalance_delay_ms": 300,
}

HAPPENINGS = {
    "kill": 8,
    "cut power": 5,
    "cut power at a promise": 6,
    "stop": 3,
    "bounce": 6,
    "kill the controller": 5,
    "stall": 6,
    "stall the controller": 6,
    "expire": 5,
    "lose answers": 6,
    "lose requests": 4,
    "cut from the coordinator": 5,
    "take the coordinator away": 3,
    "cut one way": 8,
    "step the clock": 3,
    "fill a disk": 6,
    "fail syncs": 2,
    "start": 14,
}

KINDS_OF_CLIENTS = (
    *(Producer, Producer, TransactionalProducer, TransactionalProducer, Committer, Reader, Admin),
    *(GroupMember, GroupMember, GroupMember),
)

PROMISES = (SYNC_GROUP, WRITE_TXN_MARKERS, END_TXN, OFFSET_COMMIT, PRODUCE, INIT_PRODUCER_ID)
"""The requests whose answers have to be on the disk when they are given, if acks are durable."""


class ClusterWorld(Timeline):
    """Time, the network, the machines and the clients of one seed. `log_line` receives each line of the history."""

    broker_settings = {}
    """More settings of all brokers."""
    passwords = PlainPasswords()
    happenings = HAPPENINGS
    kind_of_oracle = Oracle
    faults = 30
    pauses_ms = (0, 20, 300, 1_000, 3_000, 8_000)
    """The times between two of them."""
    partitions_max = 5
    settle_ms = quiet_ms = 60_000
    """The time in which a healed cluster must become quiet, and the time of the watch that follows."""
    quiet_ticks = 600
    """The number of times that an idle broker may wake up in that time."""

    def __init__(self, seed, log_line=lambda line: None):
        super().__init__(seed, (1, 30))
        self.seed = seed
        self.lines = []
        self._log_line = log_line
        self.ensemble = WatchedEnsemble()
        self.cluster_id = "cluster"
        self.is_durable = seed % 3 != 0
        self.settings = SETTINGS | {"durable_acks": self.is_durable} | self.broker_settings
        self.oracle = self.kind_of_oracle()
        self.served = {}
        """By client: the (topic id, partition) that its last answer came from."""
        self.counts = Counter()
        self.loss, self.multi_loss = 0.01, 0.05
        self.is_healing = self.is_checked = False
        self._cuts = set()
        self.slowness_ms = {}
        """By broker: how much longer its requests and answers take."""
        self._awaited_promise = None
        self._uuids = self._workers = self._names = 0
        self._links, self._clients = {}, {}
        self.machines = {broker_id: Machine(self, broker_id) for broker_id in range(1, 4 + seed % 3)}

    # --- what the machines ask for -------------------------------------------------------------------------------

    @property
    def now(self):
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def settle(self):
        """Everything takes its time here."""

    def log(self, line):
        self.lines.append(f"{self.now_ms:>7} {line}")
        self._log_line(self.lines[-1])

    def new_uuid(self):
        self._uuids += 1
        return UUID(int=self._uuids << 64)

    def new_worker(self, process):
        self._workers += 1
        return new_worker(self._workers, process.now.wall_ms)

    def new_name(self, kind):
        """Return a name for a client."""
        self._names += 1
        return f"{kind}{self._names}"

    def is_lost(self):
        return self.random.random() < self.loss

    def is_cut(self, source, target, kind=None):
        """Return True if no bytes go from one broker to another, or none over the connections of a kind."""
        return bool(self._cuts) and ((source, target) in self._cuts or (source, target, kind) in self._cuts)

    # --- clients -------------------------------------------------------------------------------------------------

    def kinds_of_clients(self):
        """Return the class of each client."""
        return KINDS_OF_CLIENTS

    def is_coordinator(self, broker_id, group):
        """Return True if no other broker coordinates a group, although this one answers for it."""
        return True

    def is_leader(self, broker_id, topic, partition):
        """Return True if no other broker leads a partition, although this one answers for it."""
        return True

    def new_copies(self):
        """Return the replication factor of a new topic, and settings that go with it."""
        return 1, []

    def registered(self, process, broker_epoch):
        """Take note of a registration, whose process may have died since it asked for it."""

    def ordered(self, process, order):
        """Take note of an order that a process takes."""

    def opened(self, process):
        """Take note that a process has opened its logs."""

    def pumped(self, process):
        """Check a process that has moved everything it could."""

    def fetched(self, process):
        """Check a process whose followers have taken what a leader has answered."""

    def begin(self, client):
        steps = client.run()
        self._clients[client.name] = steps
        self._step(client.name, steps, None)

    def _step(self, name, steps, answer):
        try:
            wish = steps.send(answer)
        except StopIteration:
            del self._clients[name]
            return
        if isinstance(wish, Sleep):
            self.after(wish.ms, lambda: self._step(name, steps, None))
            return
        link = self._links.get((name, wish.broker_id))
        if link is None or not link.is_open:
            link = self._links[name, wish.broker_id] = self.machines[wish.broker_id].connect(name)
        if link is None:
            self.after(self.delay(), lambda: self._step(name, steps, None))
        else:
            link.ask(wish, lambda answer: self._step(name, steps, answer))

    # --- the history ---------------------------------------------------------------------------------------------

    def history(self):
        """Run the seed. Coordinators load a record at a time, so that loads take a while."""
        items_at_once, steps.ITEMS_AT_ONCE = steps.ITEMS_AT_ONCE, 1
        try:
            self._history()
        finally:
            steps.ITEMS_AT_ONCE = items_at_once

    def _history(self):
        for machine in self.machines.values():
            machine.start()
        self.run(2_000)
        for number, kind in enumerate(self.kinds_of_clients()):
            self.begin(kind(self, f"{kind.__name__.lower()}{number}"))
        kinds, weights = list(self.happenings), list(self.happenings.values())
        for number, kind in enumerate(self.random.choices(kinds, weights, k=self.faults)):
            if number == self.faults // 2 and self.seed % SEEDS_OF_A_SEQUENCE in SEQUENCES:
                SEQUENCES[self.seed % SEEDS_OF_A_SEQUENCE](self)
            self.run(self.random.choice(self.pauses_ms))
            self.log(kind)
            getattr(self, "_" + kind.replace(" ", "_"))()
        self.run(self.random.choice((0, 3_000, 10_000)))
        self._heal()
        self.run(self.settle_ms)
        self._check_quiet()
        self.begin(Checker(self))
        self.run(30_000)
        assert self.is_checked, "a request of the checker was not answered"

    def _heal(self):
        self.log("heal")
        self.is_healing = True
        self._awaited_promise = None
        self.loss = self.multi_loss = 0.0
        self.slowness_ms.clear()
        self._heal_cuts(set(self._cuts))
        for process in self.processes():
            process.coordinator.lose_answers = process.coordinator.lose_requests = 0
        self._heal_disks()
        self._start()
        self.run(2 * SESSION_MS)
        self._heal_disks()  # a job of a thread was under way
        self._start()

    def _heal_disks(self):
        for machine in self.machines.values():
            machine.heal_disk()

    def processes(self):
        return [machine.process for machine in self.machines.values() if machine.process is not None]

    def process(self):
        """Return a process, often the controller; None if all are dead."""
        node = self.ensemble.nodes.get(CONTROLLER)
        for process in self.processes():
            if node is not None and process.coordinator.session_id == node.owner and self.random.random() < 0.4:
                return process
        return self.random.choice(self.processes()) if self.processes() else None

    def active_controller(self):
        """Return a process that holds itself for the controller; None if there is none."""
        return next((process for process in self.processes() if process.member.controller.is_active), None)

    def machine(self):
        return self.random.choice(list(self.machines.values()))

    def _kill(self):
        process = self.process()
        if process is not None:
            process.machine.kill(at_once=self.random.random() < 0.5)

    def _cut_power(self):
        self.cut_power_of(self.machine())

    def _cut_power_at_a_promise(self):
        """Cut the power of the next machine that gives an answer of a kind, as soon as the answer has arrived."""
        self._awaited_promise = self.random.choice(PROMISES)

    def promised(self, api_key, process):
        """Take note that the answer of a process has arrived."""
        if api_key == self._awaited_promise:
            self._awaited_promise = None
            self.log(f"{process.id} loses power after an answer to {api_key}")
            self.after(0, lambda: self.lose_power_after(process) if process.is_alive else None)

    def lose_power_after(self, process):
        """Cut the power of a process that has given the awaited answer."""
        self.cut_power_of(process.machine)

    def cut_power_of(self, machine):
        if not self.is_durable:
            self.oracle.note_power_cut(machine.id)
        machine.cut_power(at_once=self.random.random() < 0.5)

    def _stop(self):
        self.machine().stop()

    def _bounce(self):
        """Start a broker again before its death was seen."""
        process = self.process()
        if process is not None:
            process.machine.kill(at_once=True)
            process.machine.start()

    def _kill_the_controller(self):
        """Kill the controller in the middle of an act."""
        process = self.active_controller()
        if process is not None:
            others = [other for other in self.processes() if other is not process]
            if others and self.random.random() < 0.5:
                self.random.choice(others).machine.kill(at_once=True)
            self.run(self.random.randint(0, 200))
            process.machine.kill(at_once=self.random.random() < 0.7)

    def _stall(self):
        process = self.process()
        if process is not None:
            process.stall(self.random.choice((500, SESSION_MS - 500, SESSION_MS + 500, 2 * SESSION_MS)))

    def _stall_the_controller(self):
        """Stop the controller in the middle of a change. It wakes as a zombie, with orders that it had prepared."""
        process = self.active_controller()
        others = [other for other in self.processes() if other is not process]
        if process is not None and others:
            bounced = self.random.choice(others).machine
            bounced.kill(at_once=True)
            bounced.start()
            self.run(self.random.randint(0, 400))
            process.stall(self.random.choice((SESSION_MS + 500, 2 * SESSION_MS)))

    def _expire(self):
        process = self.process()
        if process is not None:
            process.coordinator.expire()

    def _lose_answers(self):
        process = self.process()
        if process is not None:
            process.coordinator.lose_answers += self.random.randint(1, 3)

    def _lose_requests(self):
        process = self.process()
        if process is not None:
            process.coordinator.lose_requests += self.random.randint(1, 3)

    def _cut_from_the_coordinator(self):
        """Cut a process off; it comes back before or after the end of its session, as a zombie for that time."""
        process = self.process()
        if process is None:
            return
        coordinator = process.coordinator
        session_id = coordinator.session_id
        coordinator.cut()

        def expire():
            if coordinator.session_id == session_id:
                coordinator.expire()

        ms = self.random.choice((300, SESSION_MS - 500, SESSION_MS + 500, 3 * SESSION_MS))
        if ms > SESSION_MS:
            self.after(SESSION_MS, expire)
        self.after(ms, coordinator.heal)

    def _take_the_coordinator_away(self):
        """Cut all processes off. No session expires, because the ensemble does not run either."""
        cut = [process.coordinator for process in self.processes()]
        for coordinator in cut:
            coordinator.cut()
        ms = self.random.choice((500, 3_000, 20_000))
        for coordinator in cut:
            self.after(ms + self.delay(), coordinator.heal)

    def _cut_one_way(self):
        cut = tuple(self.random.sample(list(self.machines), 2))
        self._cuts.add(cut)
        self.after(self.random.choice((300, 3_000, 8_000, 20_000)), lambda: self._heal_cuts({cut}))

    def cut(self, source, target, kind):
        """Let no bytes go from one broker to another over the connections of a kind (`LinkKind`)."""
        self._cuts.add((source, target, kind))

    def heal_cut(self, source, target, kind):
        self._heal_cuts({(source, target, kind)})

    def heal_cuts_of(self, kind):
        self._heal_cuts({cut for cut in self._cuts if cut[2:] == (kind,)})

    def _heal_cuts(self, cuts):
        self._cuts -= cuts
        for process in self.processes():
            for connection in list(process.connections):
                connection.healed()

    def _step_the_clock(self):
        self.machine().wall_step_ms += self.random.choice((-2_000, -300, 300, 2_000))

    def _fill_a_disk(self):
        """Leave a disk little room or none. Appends, new logs and files of the broker fail until there is room."""
        machine = self.machine()
        machine.storage.free_bytes = self.random.choice((0, 100, 2_000))
        self.after(self.random.choice((500, 3_000, 15_000)), machine.heal_disk)

    def _fail_syncs(self):
        """Let a disk fail. The broker takes its logs offline, until someone mends the disk and starts it again."""
        machine = self.machine()
        machine.storage.failing_syncs.update(machine.storage.files)
        self.after(self.random.choice((500, 3_000, 15_000)), machine.heal_disk)

    def _start(self):
        for machine in self.machines.values():
            machine.start()

    # --- the quiet world -----------------------------------------------------------------------------------------

    def _check_quiet(self):
        waiting = {name: self.now_ms - link.sent_ms for (name, _), link in self._links.items() if link and link.sent_ms}
        assert not self._clients, f"requests that are not answered after so many ms: {waiting}"
        active = [process for process in self.processes() if process.member.controller.is_active]
        assert len(active) == 1, f"{len(active)} controllers"
        assert active[0].member.controller.is_idle, f"the controller still works: {active[0].member.controller.problem}"
        assert not list(self.ensemble.names(DELETE_TOPICS)), "a deletion does not end"
        expected = self.ensemble.image()
        led = [partition for partition, row in expected.items() if row.leader == NO_LEADER]
        assert not led, f"partitions without leader: {led}"
        for process in self.processes():
            self._check_broker(process, expected)
        before = {process.id: process.ticks for process in self.processes()}
        self.run(self.quiet_ms)
        ticks = {process.id: process.ticks - before[process.id] for process in self.processes()}
        self.log(f"ticks in {self.quiet_ms} ms: {ticks}")
        assert max(ticks.values()) <= self.quiet_ticks, f"a broker keeps waking up: {ticks}"

    def _check_broker(self, process, expected):
        name, services = f"broker {process.id}", process.broker.services
        image = {}
        for topic in services.metadata.topics():
            config = decode_config(config_path(topic.name), self.ensemble.nodes[config_path(topic.name)].data)
            assert dict(topic.properties) == config, f"{name} has other settings of {topic.name} than {config}"
            for number, state in enumerate(topic.partitions):
                image[TopicPartition(topic.name, number)] = ImageRow(
                    topic.id, state.leader, state.leader_epoch, state.isr, state.partition_epoch, state.replicas
                )
        assert image == expected, f"the image of {name} differs from the nodes: {image} {expected}"
        assert services.metadata.live_ids == frozenset(self.machines), f"{name} does not know all live brokers"
        hosted, logs = {}, {}
        for topic in services.hosted.topics():
            for number in topic.copies_on(process.id):
                state = topic.partitions[number]
                hosted[topic.name, number] = topic.id, state.leader, state.leader_epoch
                config = services.config_of(services.metadata.topic(topic.name))
                log = services.logs.get(topic.name, number)
                assert log.config == config, f"{log.name} has other settings"
        for log in services.logs.all():
            logs[log.topic, log.partition] = log.topic_id
        assigned = {(p.topic, p.partition): row for p, row in expected.items() if process.id in row.replicas}
        rows = {key: (row.topic_id, row.leader, row.leader_epoch) for key, row in assigned.items()}
        assert hosted == rows, f"{name} hosts {hosted}, not {rows}"
        assert logs == {key: row.topic_id for key, row in assigned.items()}, f"{name} has other logs: {logs}"


if __name__ == "__main__":
    main(ClusterWorld)
