"""A simulated cluster whose topics have several copies: each seed is one history (test_replicated_cluster.py).

    .venv/bin/python -m tests.simulation.replicated_cluster_world SEED...      prints the history of a seed, and its CPU

It is the world of cluster_world.py with replication. Most topics have three copies, of which two or one must be in
sync; a few have one copy, where acks are durable. Producers ask for acks=all. The power of one machine is cut, or of
all. When the world is quiet, all replicas of a partition are in its ISR, and their logs have the same records, offsets
and ids (replicated_logs.py).
"""

from broker.cluster.documents import LeaderAndIsr, TopicPartition, state_path
from broker.group.offset_records import partition_of
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from tests.simulation.cluster_clients import Producer, Reader, TransactionalProducer
from tests.simulation.cluster_group import Committer, GroupMember
from tests.simulation.cluster_world import HAPPENINGS, ClusterWorld
from tests.simulation.replicated_clients import Poller, ReplicatedAdmin
from tests.simulation.replicated_logs import check_copies, check_high_watermarks, check_leaders
from tests.simulation.replicated_oracle import ReplicatedOracle
from tests.simulation.seeds import main

LAG_MS = 3_000
WITHOUT_ONE_MS = 15_000
"""Within this time the others have elected leaders."""
MORE_HAPPENINGS = {
    "cut power of all": 3,
    "restart": 5,
    "slow a broker down": 4,
}


class ReplicatedClusterWorld(ClusterWorld):
    """The world of a seed whose topics have several copies."""

    kind_of_oracle = ReplicatedOracle
    happenings = HAPPENINGS | MORE_HAPPENINGS
    faults = 16
    pauses_ms = (0, 20, 300, 1_000, 3_000)
    partitions_max = 3
    settle_ms, quiet_ms = 45_000, 15_000
    quiet_ticks = 400
    broker_settings = {
        "replication_enable": True,
        "default_replication_factor": 3,
        "replica_lag_time_max_ms": LAG_MS,
        "replica_fetch_wait_max_ms": 1_000,
        "replica_high_watermark_checkpoint_interval_ms": 3_000,
        "offsets_topic_replication_factor": 3,
        "offsets_topic_num_partitions": 2,
        "transaction_state_log_replication_factor": 3,
        "transaction_state_log_num_partitions": 2,
        "transaction_state_log_min_isr": 2,
        "min_insync_replicas": 2,
    }

    def __init__(self, seed, log_line=lambda line: None):
        super().__init__(seed, log_line)
        self.high_watermarks = {}
        """By process, partition and leader epoch: the highest that its leader has shown."""
        self._broker_epochs = {}
        """By broker: the epoch of its newest registration."""
        self._powerless = set()
        """The processes that a power cut has ended."""
        self.late = None
        """The machine that is healed after the others; None if it is no time for that."""
        self.ensemble.on_unclean_election = self._elected_uncleanly

    def _elected_uncleanly(self, topic_id, partition, epoch):
        """Take note that a leader may lack what the others have.

        With durable acks the first of an ISR has all that is acknowledged, so that nothing is lost (rule W4).
        """
        self.log(f"unclean election of {topic_id}-{partition} in epoch {epoch}")
        self.counts["unclean election"] += 1
        if not self.is_durable:
            self.oracle.note_unclean_election(topic_id, partition, epoch)

    def kinds_of_clients(self):
        """Return the clients that each seed has, and those of transactions or of a group."""
        transactional = TransactionalProducer, TransactionalProducer
        grouped = Committer, GroupMember, GroupMember
        return Producer, Producer, Reader, Poller, ReplicatedAdmin, *self.random.choice((transactional, grouped))

    def new_copies(self):
        factor = self.random.choice((3, 3, 3, 1)) if self.is_durable else 3
        return factor, [{"name": "min.insync.replicas", "value": str(self.random.choice((2, 2, 1)))}]

    def is_coordinator(self, broker_id, group):
        """Return True if the nodes name a broker as the leader of a group's partition."""
        number = partition_of(group, self.settings["offsets_topic_num_partitions"])
        path = state_path(TopicPartition(GROUP_OFFSETS_TOPIC, number))
        node = self.ensemble.nodes.get(path)
        return node is not None and LeaderAndIsr.decode(path, node).leader == broker_id

    def registered(self, process, broker_epoch):
        self._broker_epochs[process.id] = broker_epoch
        if process in self._powerless:
            self.ensemble.lose_power(process.id, broker_epoch)

    def _cut_power_of(self, machine):
        """Cut a machine's power. Its copies are trusted no more, unless it was stopped cleanly before (rule W1)."""
        if not machine.is_clean:
            self.ensemble.lose_power(machine.id, self._broker_epochs.get(machine.id, -1))
            if machine.process is not None:
                self._powerless.add(machine.process)
        machine.cut_power(at_once=self.random.random() < 0.5)

    def _cut_power_of_all(self):
        for machine in self.machines.values():
            self._cut_power_of(machine)

    def _restart(self):
        """Restart a broker whose earlier session has not ended."""
        process = self.process()
        if process is not None:
            process.machine.kill(at_once=False)
            process.machine.start()

    def _slow_a_broker_down(self):
        """Let all requests from and to a broker take longer, so that it follows late."""
        broker_id = self.machine().id
        self.slowness_ms[broker_id] = self.random.choice((300, 1_000, 3_000))
        self.after(self.random.choice((3_000, 10_000)), lambda: self.slowness_ms.pop(broker_id, None))

    def _heal(self):
        """Heal all but one broker first, in some seeds: the others lead as soon as one of them is trusted."""
        self.late = self.random.choice((None, self.machine()))
        if self.late is not None:
            self.late.kill(at_once=True)
            super()._heal()
            self.run(WITHOUT_ONE_MS)
            check_leaders(self.ensemble)
            self.late = None
            self.log("heal the last broker")
        super()._heal()

    def _start(self):
        for machine in self.machines.values():
            if machine is not self.late:
                machine.start()

    def pumped(self, process):
        check_high_watermarks(process, self.high_watermarks)

    def _check_quiet(self):
        super()._check_quiet()
        check_copies(self.ensemble.image(), self.processes())


if __name__ == "__main__":
    main(ReplicatedClusterWorld)
