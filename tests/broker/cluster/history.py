"""Random histories of a cluster, one for each seed: `python -m tests.broker.cluster.history SEED...` replays it."""

import sys
from collections import Counter
from collections.abc import Iterator

from broker.cluster.assignment import Spread
from broker.cluster.documents import DELETE_TOPICS, TOPICS, TopicPartition
from broker.cluster.policy import Policy, Rebalance
from broker.cluster.requests import (
    AllocateProducerIds,
    AlterPartition,
    Answer,
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    IsrMember,
    IsrProposal,
)
from broker.wire.errors import ErrorCode
from tests.broker.cluster.world import SESSION_MS, World

ACTS = 70
SETTLE_MS = 20_000
NAMES = ("t", "u", "__consumer_offsets")

HAPPENINGS = {
    "create": 14,
    "create as a broker": 5,
    "grow": 7,
    "delete": 9,
    "elect": 2,
    "alter": 12,
    "producer ids": 6,
    "lose answers": 9,
    "lose requests": 5,
    "expire": 4,
    "cut": 5,
    "stall": 6,
    "kill": 6,
    "kill the controller": 5,
    "bounce": 5,
    "lose power": 4,
    "lose all power": 1,
    "stop": 4,
    "start": 12,
    "wait": 4,
}


class History:
    """The acts of one seed, and how many of each came to something."""

    def __init__(self, seed: int) -> None:
        policy = Policy(min_isr=lambda topic: 2, rebalance=Rebalance(3_000))
        self.world = World(seed, 3 + seed % 3, delay_ms=(1, 30), has_lives=seed % 4 != 0, policy=policy)
        self.random = self.world.random
        self.world.loss, self.world.multi_loss = 0.1, 0.1
        self.world.ensemble.on_topic_deleted = self._topic_deleted
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        world = self.world
        for machine in world.machines.values():
            machine.start()
        world.run(2_000)
        kinds, weights = list(HAPPENINGS), list(HAPPENINGS.values())
        for kind in self.random.choices(kinds, weights, k=ACTS):
            getattr(self, "_" + kind.replace(" ", "_"))()
            world.run(self.random.choice((0, 1, 5, 20, 60, 150, 400)))
        self._heal()
        world.run(SETTLE_MS)
        world.check_quiet()

    def _heal(self) -> None:
        world = self.world
        world.loss = world.multi_loss = 0.0
        world.ensemble.on_topic_deleted = lambda name: None
        for machine in world.machines.values():
            process = machine.process
            if process is not None:
                process.coordinator.lose_answers = process.coordinator.lose_requests = 0
            if process is not None and process.is_stopping:
                machine.kill(at_once=True)
            machine.start()
        world.run(2 * SESSION_MS)
        for machine in world.machines.values():
            machine.start()

    def _submit(self, request) -> None:
        target = self.world.controller() if self.random.random() < 0.8 else None
        if target is None and self.world.processes():
            target = self.random.choice(self.world.processes())
        if target is not None:
            target.submit(request, lambda answer: self._answered(request, answer))

    def _answered(self, request, answer: Answer) -> None:
        self.counts[f"{type(request).__name__} {answer.error_code.name}"] += 1
        self.world.take_producer_ids(answer)
        if isinstance(request, CreateTopic) and answer.error_code == ErrorCode.TOPIC_ALREADY_EXISTS:
            assert request.topic_id not in self.world.ensemble.topic_ids, "E1: a creation's lost answer was not read"

    def _create(self) -> None:
        brokers = len(self.world.machines)
        spread = Spread(self.random.randrange(brokers), self.random.randrange(brokers))
        partitions, replicas = self.random.randint(1, 4), self.random.choice((1, 1, 1, 2, 3))
        name = self.random.choice(NAMES)
        self._submit(CreateTopic(name, self.world.uuid(), {}, partitions, replicas, spread))

    def _create_as_a_broker(self) -> None:
        processes = [process for process in self.world.processes() if process.is_registered]
        if processes:
            process = self.random.choice(processes)
            live = sorted(process.machine.model.live)
            if live:
                self.world.create_as_broker(process, "__consumer_offsets", (self.random.choice(live),))

    def _grow(self) -> None:
        self._submit(CreatePartitions(self.random.choice(NAMES), self.random.randint(2, 6)))

    def _delete(self) -> None:
        self._submit(DeleteTopic(self.random.choice(NAMES)))

    def _elect(self) -> None:
        partitions = (TopicPartition(self.random.choice(NAMES), 0),)
        kind = self.random.choice(("preferred", "unclean"))
        self._submit(ElectLeaders(kind, self.random.choice((None, partitions))))

    def _alter(self) -> None:
        """Let leaders ask for other ISRs: followers join, or leave because they are slow."""
        for machine in self.world.machines.values():
            if machine.process is None:
                continue
            proposals = tuple(self._proposals(machine))
            if proposals:
                self._submit(AlterPartition(machine.broker_id, machine.model.broker_epoch, proposals))

    def _proposals(self, machine) -> Iterator[IsrProposal]:
        machines = self.world.machines
        for partition, row in machine.model.image.items():
            held = machine.model.replicas.get(partition)
            if held is None or held.leader != machine.broker_id or held.leader_epoch != row.leader_epoch:
                continue
            followers = [b for b in row.replicas if b != machine.broker_id and machines[b].process is not None]
            chosen = [machine.broker_id, *(b for b in followers if self.random.random() < 0.7)]
            isr = tuple(IsrMember(b, machines[b].model.broker_epoch) for b in chosen)
            yield IsrProposal(
                held.topic_id, partition.partition, held.leader_epoch, row.partition_epoch, isr, min_isr=2
            )

    def _producer_ids(self) -> None:
        machine = self.random.choice(list(self.world.machines.values()))
        self._submit(AllocateProducerIds(machine.broker_id, machine.model.broker_epoch))

    def _process(self):
        processes = self.world.processes()
        controller = self.world.controller()
        if controller is not None and self.random.random() < 0.5:
            return controller
        return self.random.choice(processes) if processes else None

    def _lose_answers(self) -> None:
        process = self._process()
        if process is not None:
            process.coordinator.lose_answers += self.random.randint(1, 3)

    def _lose_requests(self) -> None:
        process = self._process()
        if process is not None:
            process.coordinator.lose_requests += self.random.randint(1, 3)

    def _expire(self) -> None:
        process = self._process()
        if process is not None:
            process.coordinator.expire()

    def _cut(self) -> None:
        """Cut a process off; it comes back before or after the end of its session, as a zombie for that time."""
        process = self._process()
        if process is None:
            return
        coordinator = process.coordinator
        coordinator.cut()
        session_id = coordinator.session_id

        def expire() -> None:
            if coordinator.session_id == session_id:
                coordinator.expire()

        if self.random.random() < 0.7:
            self.world.after(SESSION_MS, expire)
        self.world.after(self.random.choice((50, 500, SESSION_MS + 200, 3 * SESSION_MS)), coordinator.heal)

    def _stall(self) -> None:
        """Stop the controller in the middle of a change."""
        process = self.world.controller()
        if process is not None:
            self.random.choice((self._create, self._grow, self._delete, self._bounce_another))()
            self.world.run(self.random.randint(0, 200))
            process.stall(self.random.choice((300, SESSION_MS + 300, 2 * SESSION_MS, 2 * SESSION_MS)))

    def _bounce_another(self) -> None:
        followers = [process for process in self.world.processes() if not process.controller.is_active]
        if followers:
            self.random.choice(followers).machine.kill(at_once=True)

    def _topic_deleted(self, name: str) -> None:
        """Create an internal topic again at once, as brokers do whose clients need it."""
        if name.startswith("__"):
            self.world.after(self.world.delay(), self._create_as_a_broker)

    def _kill(self) -> None:
        process = self._process()
        if process is not None:
            process.machine.kill(at_once=self.random.random() < 0.5)

    def _kill_the_controller(self) -> None:
        controller = self.world.controller()
        if controller is not None:
            controller.machine.kill(at_once=self.random.random() < 0.7)

    def _lose_power(self) -> None:
        """Cut the power of a process; it may be back at once."""
        process = self._process()
        if process is not None:
            process.machine.lose_power(at_once=self.random.random() < 0.7)
            if self.random.random() < 0.5:
                process.machine.start()

    def _lose_all_power(self) -> None:
        for process in self.world.processes():
            process.machine.lose_power(at_once=False)

    def _bounce(self) -> None:
        """Kill a process and start it again at once, so that its death and its birth are one change of /brokers/ids."""
        process = self._process()
        if process is not None:
            process.machine.kill(at_once=True)
            process.machine.start()

    def _stop(self) -> None:
        self.world.stop_cleanly(self.random.choice(list(self.world.machines.values())))

    def _start(self) -> None:
        for machine in self.world.machines.values():
            machine.start()

    def _wait(self) -> None:
        self.world.run(self.random.choice((1_000, 3_000)))


def main() -> None:
    for seed in map(int, sys.argv[1:]):
        history = History(seed)
        history.run()
        world = history.world
        topics = sorted(world.ensemble.names(TOPICS))
        print(seed, f"{world.now_ms} ms", dict(history.counts), topics, list(world.ensemble.names(DELETE_TOPICS)))


if __name__ == "__main__":
    main()
