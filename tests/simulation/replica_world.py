"""A world of replicas: brokers whose logs follow each other, and which die at any step.

Each broker has a log manager over `MemoryStorage`, and nothing else: no network, no engine. The world is the
controller; replica_clients.py has the clients and replica_fetches.py the fetchers. A leader begins an epoch, stamps
batches and moves the high watermark by rule R1. Its followers fetch by KIP-595, truncate, and copy. Orders come late,
so a leader that was replaced goes on for a while.

    .venv/bin/python -m tests.simulation.replica_world 123       the history of a seed
"""

import sys
from collections import Counter
from random import Random

from broker.settings.config import LONG_MAX, BrokerConfig, TopicConfig
from idgen.layout import Layout
from tests.broker.log.truncation_world import StoppingStorage
from tests.simulation.disks import new_disk
from tests.simulation.replica_clients import ReplicaClients
from tests.simulation.replica_fetches import ReplicaFetches
from tests.simulation.replica_node import Node
from tests.simulation.replica_oracle import Partition
from tests.simulation.replica_sequences import ReplicaSequences
from tests.simulation.stamp import Stamp

HEALING_ROUNDS_MAX = 200
LAYOUTS = Layout(), Layout(48, 0, 10, 5)
"""The default; and 32 ids a millisecond, so that a batch spans several."""


class Role:
    """The part of one broker in one partition, by the last order that it took."""

    def __init__(self, log, epoch, leader, isr):
        self.log = log
        self.epoch = epoch
        self.leader = leader
        self.isr = set(isr)
        self.write = None
        """A leader's write of the epoch, which begins once that is done."""
        self.ends = {}
        """How far each follower has the log, as a leader knows."""
        self.start = None
        """The end of a leader's log when the epoch began."""


class ReplicaWorld(ReplicaClients, ReplicaFetches, ReplicaSequences):
    def __init__(self, seed, generations=4):
        self.seed = seed
        self.random = random = Random(seed)
        self.generations = generations
        self.counts = Counter()
        self.lines = []
        self.ms = 0
        self.is_quiet = False
        self.workers = 0
        self.number = 0
        self.is_durable = bool(random.randrange(2))
        self.compacts = not random.randrange(3)
        nodes, partitions = random.choice((2, 2, 3)), random.choice((1, 1, 2))
        stamp = Stamp(random.choice(LAYOUTS))
        self.nodes = [
            Node(number, random, stamp.beside(), self.some_config(), self.some_topic(), partitions, self.disk(number))
            for number in range(nodes)
        ]
        self.partitions = [Partition(n, nodes, compacts=self.compacts) for n in range(partitions)]
        self.roles = [[None] * partitions for _ in range(nodes)]
        self.orders = {}
        self.answers = {}
        for node in self.nodes:
            self.start(node)
        for partition in self.partitions:
            partition.isr = list(range(nodes))
            partition.trusted = set(partition.isr)
            self.decide(partition, random.randrange(nodes))

    def disk(self, number):
        return new_disk(f"{self.seed} {number}", StoppingStorage)

    def some_config(self):
        return BrokerConfig(
            journal_max_bytes=self.random.choice((1 << 16, 1 << 24)),
            background_sync_bytes=1 << 16,
            log_cleaner_backoff_ms=1000,
            log_retention_check_interval_ms=5000,
        )

    def some_topic(self):
        """Return settings that differ between the brokers, but for those that decide what is lost."""
        random = self.random
        fields = {"cleanup_policy": "compact,delete", "retention_ms": -1, "min_cleanable_dirty_ratio": 0.0}
        fields = fields | {"delete_retention_ms": 10**12} if self.compacts else {"retention_ms": -1}
        return TopicConfig(
            segment_bytes=random.choice((1024, 4096, 20_000)),
            index_interval_bytes=random.choice((0, 100, 4096)),
            flush_messages=random.choice((1, 5, LONG_MAX)),
            durable_acks=self.is_durable,
            file_delete_delay_ms=0,
            **fields | {"retention_bytes": random.choice((-1, -1, -1, 12_000))},
        )

    # --- a life --------------------------------------------------------------------------------------------------

    def history(self):
        for _ in range(self.generations):
            for _ in range(self.random.randrange(50, 250)):
                self.step()
            if not self.random.randrange(3):
                self.heal()
        self.heal()
        self.lead_a_log_begun_anew(self.random.choice(self.partitions))
        self.heal()

    def step(self):
        random = self.random
        node, partition = random.choice(self.nodes), random.choice(self.partitions)
        kind = random.randrange(100)
        if kind < 26:
            self.touch(node, lambda: self.append(self.writer(partition) or node, partition))
        elif kind < 56:
            self.fetch(node, partition)
            if random.randrange(4):
                self.touch(node, lambda: self.take_answer(node, partition))
        elif kind < 68:
            self.deliver()
        elif kind < 86:
            self.run_jobs(node, random.choice((1, 1, 2, 5, 20)))
        elif kind < 89:
            self.checkpoint(node)
        elif kind < 92:
            self.tick(node)
        elif kind < 93:
            self.delete_records(partition)
        elif kind < 95:
            self.change_leader(partition)
        elif kind < 96:
            self.change_isr(partition)
        elif kind < 97:
            self.crash(node)
        elif kind < 99:
            self.restart_dead()
        elif not random.randrange(8):
            self.crash_all()
        self.after()

    def after(self):
        """Let the brokers restart that have an offline log, and leaders see what their followers have."""
        for node in self.nodes:
            if not node.is_up:
                continue
            self.take_truncated(node)
            if node.manager.offline:
                self.note(f"{node.number} has offline logs: {node.manager.offline}")
                self.die(node, power=False)
                self.start(node)
        for partition in self.partitions:
            for node in self.nodes:
                self.move_watermark(node, partition)
                self.consume(node, partition)

    def note(self, line):
        self.lines.append(line)

    # --- the brokers ---------------------------------------------------------------------------------------------

    def start(self, node):
        """Start a broker, and check what it finds. The controller sees its birth."""
        node.start(self.workers, self.ms)
        self.workers += 1
        for partition, replica in zip(self.partitions, node.replicas, strict=True):
            log = node.log(partition.number)
            self.note(f"{node.number} starts: {log.name} ends at {log.log_end_offset}, epochs {log.epochs}")
            partition.check_start(log, replica, power=node.lost_power)
            replica.watermark = min(replica.stored_watermark, log.log_end_offset)
            log.move_replicated_to(replica.watermark)
            if node.number in partition.trusted:
                partition.check_committed(log, replica)
            self.order(node, partition)
        self.control()

    def die(self, node, *, power):
        """Stop a broker. The controller sees its death."""
        self.counts["power cuts" if power else "kills"] += 1
        ends = [replica.end for replica in node.replicas]
        self.note(f"{node.number} {'loses power' if power else 'is killed'}, its logs end at {ends}")
        node.stop(power=power)
        self.died(node, is_trusted=self.is_durable or not power)

    def close(self, node):
        self.counts["stops"] += 1
        self.note(f"{node.number} stops")
        node.close()
        self.died(node, is_trusted=True)

    def died(self, node, *, is_trusted):
        self.roles[node.number] = [None] * len(self.partitions)
        for waiting in (self.orders, self.answers):
            for key in [key for key in waiting if key[0] == node.number]:
                del waiting[key]
        for partition in self.partitions:
            if not is_trusted:
                partition.trusted.discard(node.number)
            for roles in self.roles:
                role = roles[partition.number]
                if role is not None:
                    role.ends.pop(node.number, None)
        self.control()

    def crash(self, node):
        if not node.is_up:
            return
        power = bool(self.random.randrange(2))
        if node.jobs and self.random.randrange(2):
            node.half_run()
        elif not self.random.randrange(6):
            self.close(node)
            return
        self.die(node, power=power)
        if self.random.randrange(4):
            self.start(node)

    def crash_all(self):
        for node in self.nodes:
            if node.is_up:
                self.die(node, power=True)
        for node in self.random.sample(self.nodes, len(self.nodes)):
            self.start(node)

    def restart_dead(self):
        for node in self.nodes:
            if not node.is_up:
                self.start(node)

    def touch(self, node, step):
        """Do a step of a broker, which may die in the middle of it."""
        if self.random.randrange(15) or not node.is_up:
            step()
        elif node.is_interrupted(step):
            self.counts["interrupted"] += 1
            self.die(node, power=bool(self.random.randrange(2)))
            self.start(node)

    def run_jobs(self, node, number):
        for _ in range(number):
            if node.is_up and not self.kill_in_a_cut(node):
                self.touch(node, node.run_job)

    def checkpoint(self, node):
        if node.is_up:
            node.manager.syncs.start_round()
            node.take_jobs()
            for replica in node.replicas:
                replica.stored_watermark = replica.watermark

    def tick(self, node):
        self.ms += self.random.choice((0, 300, 1000, 6000))
        if node.is_up:
            self.touch(node, lambda: node.tick(self.ms))
            self.note_starts()

    def note_starts(self):
        for node in self.nodes:
            for partition in self.partitions:
                log = node.log(partition.number)
                if log is not None:
                    partition.log_start = max(partition.log_start, log.log_start_offset)

    # --- the controller ------------------------------------------------------------------------------------------

    def control(self):
        """Take the dead and the untrusted out of the ISR if a trusted member lives (W3), and elect leaders."""
        for partition in self.partitions:
            live = [number for number in partition.isr if number in partition.trusted and self.nodes[number].is_up]
            if live and set(live) != set(partition.isr):
                partition.isr, partition.trusted = live, set(live)
                leader = partition.leader if partition.leader in live else None
                self.decide(partition, self.random.choice(live) if leader is None else leader)
            elif live and partition.leader is None:
                self.decide(partition, self.random.choice(live))
            elif not live:
                partition.leader = None
                if not partition.trusted & set(partition.isr) and all(self.nodes[n].is_up for n in partition.isr):
                    self.lead_untrusted(partition)

    def lead_untrusted(self, partition):
        """Let the first of the ISR lead, because a power cut took all of it (W4)."""
        leader = partition.isr[0]
        log = self.nodes[leader].log(partition.number)
        if log is None:
            return
        self.counts["W4"] += 1
        partition.lost_by_a_power_cut_of_all(log, self.nodes[leader].replicas[partition.number])
        partition.isr = [leader]
        partition.trusted = {leader}
        self.decide(partition, leader)

    def decide(self, partition, leader):
        """Begin an epoch, and send an order to each live broker."""
        partition.epoch += 1
        partition.leader = leader
        self.note(f"epoch {partition.epoch} of {partition.number}: {leader} leads, ISR {partition.isr}")
        for node in self.nodes:
            if node.is_up:
                self.order(node, partition)

    def order(self, node, partition):
        if partition.epoch:
            self.orders[node.number, partition.number] = partition.epoch, partition.leader, tuple(partition.isr)

    def change_leader(self, partition):
        live = [number for number in partition.isr if number in partition.trusted and self.nodes[number].is_up]
        if partition.leader is not None and live:
            self.counts["elections"] += 1
            self.decide(partition, self.random.choice(live))

    def change_isr(self, partition):
        """Take a follower out of the ISR, as its leader asks (R3)."""
        role = self.current_leader(partition)
        others = [number for number in partition.isr if number != partition.leader]
        if role is not None and others:
            number = self.random.choice(others)
            partition.isr.remove(number)
            partition.trusted.discard(number)
            role.isr = set(partition.isr)

    def current_leader(self, partition):
        """Return the role of the leader, None if it has not taken the order for the newest epoch."""
        role = None if partition.leader is None else self.roles[partition.leader][partition.number]
        return role if role is not None and role.epoch == partition.epoch else None

    # --- orders --------------------------------------------------------------------------------------------------

    def deliver(self):
        if not self.orders:
            return
        number, partition = key = self.random.choice(sorted(self.orders))
        node, log = self.nodes[number], self.nodes[number].log(partition)
        if log is None:
            return
        epoch, leader, isr = self.orders.pop(key)
        if epoch < 1 or leader is None:
            return
        self.answers.pop(key, None)
        role = self.roles[number][partition] = Role(log, epoch, leader, isr)
        if leader == number:
            role.write = node.manager.begin_epochs({log: epoch})
            node.take_jobs()
        else:
            log.follow(epoch)

    def role_of(self, node, partition):
        """Return a broker's role, None if it has none or its log is not there."""
        role = self.roles[node.number][partition.number]
        log = node.log(partition.number)
        return role if role is not None and log is not None and role.log is log else None

    def leads(self, node, partition):
        """Return a broker's role if it leads, by the last order that it took, and its epoch is on the disk."""
        role = self.role_of(node, partition)
        if role is None or role.leader != node.number:
            return None
        if role.write.error is not None:
            role.write = node.manager.begin_epochs({role.log: role.epoch})
        if not role.write.is_done:
            return None
        if role.start is None:
            role.log.start_leader_epoch(role.epoch)
            role.start = role.log.log_end_offset
        return role

    # --- the end -------------------------------------------------------------------------------------------------

    def heal(self):
        """Let all faults end: after a bounded number of rounds, all logs are equal."""
        self.note("heals")
        self.is_quiet = True
        self.restart_dead()
        for round in range(HEALING_ROUNDS_MAX):
            self.quiet_round()
            if all(self.is_level(partition) for partition in self.partitions):
                break
        else:
            ends = [[replica.end for replica in node.replicas] for node in self.nodes]
            raise AssertionError(f"after {round} rounds, the logs end at {ends}")
        for partition in self.partitions:
            self.check_level(partition)
        self.is_quiet = False

    def quiet_round(self):
        for _ in range(len(self.orders)):
            self.deliver()
        for node in self.nodes:
            while node.is_up and node.run_job(is_sound=True):
                pass
        self.after()
        for partition in self.partitions:
            for node in self.nodes:
                role = self.leads(node, partition)
                leads = role is not None and role is self.current_leader(partition)
                if leads and role.start == role.log.log_end_offset:
                    batch = self.some_batch(role.log)
                    if not role.log.durability.mending:
                        self.put(node, partition, role, [batch])
                        node.manager.appended(role.log)
                        node.take_jobs()
                self.fetch(node, partition)
                self.take_answer(node, partition)
        self.after()

    def is_level(self, partition):
        role = self.current_leader(partition)
        if role is None or role.start == role.log.log_end_offset:
            return False
        roles = [self.role_of(node, partition) for node in self.nodes]
        end = role.log.log_end_offset
        return all(
            role is not None and role.log.log_end_offset == end == role.log.high_watermark for role in roles
        )

    def check_level(self, partition):
        leader = self.nodes[partition.leader]
        logs = [node.log(partition.number) for node in self.nodes]
        replicas = [node.replicas[partition.number] for node in self.nodes]
        for log, replica in zip(logs, replicas, strict=True):
            partition.check(log, replica)
            partition.check_committed(log, replica)
            own = logs[leader.number], log
            partition.check_equal(*own, (replicas[leader.number], replica))


def main():
    world = ReplicaWorld(int(sys.argv[1]))
    try:
        world.history()
    finally:
        print("\n".join(world.lines))
        print(world.counts)


if __name__ == "__main__":
    main()
