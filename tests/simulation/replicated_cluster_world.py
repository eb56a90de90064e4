"""A simulated cluster whose topics have several copies: each seed is one history (test_replicated_cluster.py).

    .venv/bin/python -m tests.simulation.replicated_cluster_world SEED...      prints the history of a seed, and its CPU

It is the world of cluster_world.py with replication. Most topics have three copies, of which two or one must be in
sync; a few have one copy. Some are compacted, or delete old records, or allow unclean elections. Producers ask for
acks=all. The power of one machine is cut, or of all. Besides single events there are sequences of events
(replicated_sequences.py). When the world is quiet, all replicas of a partition are in its ISR, and their logs have the
same records, offsets and ids (replicated_logs.py).
"""

from broker.cluster.documents import (
    LeaderAndIsr,
    Topic,
    TopicPartition,
    broker_path,
    config_path,
    decode_config,
    state_path,
    topic_path,
)
from broker.group.offset_records import partition_of
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from broker.stamping.id_stamper import AheadIds
from broker.wire.inter_broker import LeaderAndIsrRequest
from tests.broker.cluster.watched_ensemble import is_unclean
from tests.simulation.cluster_clients import Producer, Reader, TransactionalProducer
from tests.simulation.cluster_group import Committer, GroupMember
from tests.simulation.cluster_process import new_worker
from tests.simulation.cluster_world import HAPPENINGS, ClusterWorld
from tests.simulation.replicated_clients import Poller, ReplicatedAdmin
from tests.simulation.replicated_logs import check_copies, check_leaders
from tests.simulation.replicated_members import SafeMembers
from tests.simulation.replicated_oracle import ReplicatedOracle
from tests.simulation.replicated_sequences import SEQUENCES, leave_one
from tests.simulation.seeds import main

LAG_MS = 2_000
WITHOUT_ONE_MS = 15_000
"""Within this time the others have elected leaders."""
AHEAD_MS = 20_000
"""How far the ids of the second worker number may be ahead of the clock (`flakelog.ids.log.max.ahead.ms`)."""
MORE_HAPPENINGS = {
    "cut power of all": 3,
    "cut power of all at a promise": 3,
    "restart": 5,
    "slow a broker down": 4,
    "play a sequence": 60,
}
COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "1024", "min.cleanable.dirty.ratio": "0.01"}
RETAINED = {"retention.bytes": "1500", "segment.bytes": "1024", "file.delete.delay.ms": "1000"}


class ReplicatedClusterWorld(ClusterWorld):
    """The world of a seed whose topics have several copies."""

    kind_of_oracle = ReplicatedOracle
    happenings = HAPPENINGS | MORE_HAPPENINGS
    faults = 10
    pauses_ms = (0, 20, 300, 1_000, 3_000)
    partitions_max = 3
    settle_ms, quiet_ms = 45_000, 15_000
    quiet_ticks = 400
    lag_ms = LAG_MS
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
        "log_retention_check_interval_ms": 3_000,
        "log_cleaner_backoff_ms": 2_000,
        "log_flush_offset_checkpoint_interval_ms": 8_000,
    }

    def __init__(self, seed, log_line=lambda line: None):
        super().__init__(seed, log_line)
        self.allows_unclean = seed % 4 == 1
        self.goes_ahead = seed % 5 == 1
        """True if a log whose last id is ahead of the clock goes on (rule I6)."""
        self._broker_epochs = {}
        """By broker: the epoch of its newest registration."""
        self._powerless = set()
        """The processes that a power cut has ended."""
        self._cuts_power_of_all = False
        self.late = None
        """The machine that is healed after the others; None if it is no time for that."""
        self.changed_min_isr = set()
        """The names of the topics whose min.insync.replicas is changed."""
        self._safe = SafeMembers(self._has_log)
        self.oracle.deleted = self.ensemble.to_delete
        self.ensemble.on_decision = self._decided
        self.ensemble.on_topic_deleted = self._safe.forget

    # --- what the machines ask for -------------------------------------------------------------------------------

    def opened(self, process):
        """Give a process a second worker number, for logs that are ahead of its clock."""
        if self.goes_ahead:
            self._workers += 1
            worker = new_worker(self._workers, process.now.wall_ms, AHEAD_MS)
            process.broker.services.id_stamper.ahead = AheadIds(lambda: worker, lambda time_ms: None)

    def registered(self, process, broker_epoch):
        self._broker_epochs[process.id] = broker_epoch
        self._safe.registered(process.id, self.ensemble.nodes[broker_path(process.id)])
        if process in self._powerless:
            self.ensemble.lose_power(process.id, broker_epoch)

    def ordered(self, process, order):
        if isinstance(order, LeaderAndIsrRequest) and process.storage.free_bytes is not None:
            for topic in order.topic_states:
                for state in topic.partition_states:
                    self._safe.ordered(process.id, TopicPartition(topic.topic_name, state.partition_index))

    def pumped(self, process):
        self.oracle.committed.check_leaders(process)

    def fetched(self, process):
        self.oracle.committed.check_followers(process)

    # --- the controller's decisions ------------------------------------------------------------------------------

    def _decided(self, partition, topic_id, earlier, state):
        """Note a decision. An unclean leader may lack what the others have.

        With durable acks the first of an ISR has all that is acknowledged, so that nothing is lost (rule W4).
        """
        if is_unclean(earlier, state):
            self.log(f"unclean election of {partition} in epoch {state.leader_epoch}")
            self.counts["unclean election"] += 1
            is_whole = self.is_durable and state.leader in earlier.isr
            note = self.oracle.note_power_cut_of_all if is_whole else self.oracle.note_loss
            note(topic_id, partition.partition, state.leader_epoch)
        is_fixed = partition.topic not in self.changed_min_isr
        min_isr = self.min_isr_of(partition.topic) if is_fixed else None
        self._safe.decided(partition, earlier, state, min_isr, is_unclean=is_unclean(earlier, state))

    def min_isr_of(self, topic):
        """Return a topic's min.insync.replicas, as the nodes have it now."""
        path = config_path(topic)
        node = self.ensemble.nodes.get(path)
        settings = {} if node is None else decode_config(path, node.data)
        return int(settings.get("min.insync.replicas", self.settings["min_insync_replicas"]))

    def safe_members(self, partition):
        """Return the replicas that left the ISR and may lead, with the lives in which they had all records."""
        members = self._safe.of(partition).items()
        return {member: life for member, life in members if (partition, member) not in self.ensemble.lost}

    def _has_log(self, broker_id, partition):
        directory = f"{partition.topic}-{partition.partition}/"
        return any(path.startswith(directory) for path in self.machines[broker_id].storage.files)

    # --- clients -------------------------------------------------------------------------------------------------

    def kinds_of_clients(self):
        """Return the clients that each seed has, and those of transactions or of a group."""
        transactional = TransactionalProducer, TransactionalProducer
        grouped = Committer, GroupMember, GroupMember
        return Producer, Producer, Reader, Poller, ReplicatedAdmin, *self.random.choice((transactional, grouped))

    def new_copies(self):
        factor = self.random.choice((3, 3, 3, 1)) if self.is_durable or self.seed % 2 else 3
        settings = {"min.insync.replicas": str(self.random.choice((2, 2, 1)))}
        if factor > 1:
            settings |= self.random.choice(({}, {}, COMPACTED, RETAINED))
            if self.allows_unclean and self.random.random() < 0.5:
                settings["unclean.leader.election.enable"] = "true"
        return factor, [{"name": name, "value": value} for name, value in settings.items()]

    def is_coordinator(self, broker_id, group):
        """Return True if the nodes name a broker as the leader of a group's partition."""
        number = partition_of(group, self.settings["offsets_topic_num_partitions"])
        return self.is_leader(broker_id, GROUP_OFFSETS_TOPIC, number)

    def is_leader(self, broker_id, topic, partition):
        """Return True if the nodes name a broker as the leader of a partition."""
        path = state_path(TopicPartition(topic, partition))
        node = self.ensemble.nodes.get(path)
        return node is not None and LeaderAndIsr.decode(path, node).leader == broker_id

    # --- what happens --------------------------------------------------------------------------------------------

    def _play_a_sequence(self):
        sequence = self.random.choice(SEQUENCES)
        self.log(f"sequence: {sequence.__name__}")
        has_come = sequence(self)
        self.counts[sequence.__name__ if has_come else f"{sequence.__name__} in vain"] += 1

    def run_until(self, is_reached, ms):
        """Let time pass until something is reached, or all of it has passed. Return True if it is reached."""
        end_ms = self.now_ms + ms
        while not is_reached():
            if self.now_ms >= end_ms:
                return False
            self.run(20)
        return True

    def cut_power_of(self, machine):
        """Cut a machine's power. Its copies are trusted no more, unless it was stopped cleanly before (rule W1)."""
        if not machine.is_clean:
            self.ensemble.lose_power(machine.id, self._broker_epochs.get(machine.id, -1))
            self._safe.distrust(machine.id)
            if machine.process is not None:
                self._powerless.add(machine.process)
            self._lose_only_copies(machine)
        machine.cut_power(at_once=self.random.random() < 0.5)

    def _lose_only_copies(self, machine):
        """Note that partitions of one copy may lack what they acknowledged; with durable acks, what readers saw."""
        note = self.oracle.note_power_cut_of_all if self.is_durable else self.oracle.note_loss
        for partition, replicas in self.ensemble.image_of_states().items():
            if replicas == (machine.id,):
                path, topic = state_path(partition), topic_path(partition.topic)
                epoch = LeaderAndIsr.decode(path, self.ensemble.nodes[path]).leader_epoch
                topic_id = Topic.decode(topic, self.ensemble.nodes[topic].data).topic_id
                note(topic_id, partition.partition, epoch + 1)

    def _cut_power_of_all(self):
        for machine in self.machines.values():
            self.cut_power_of(machine)

    def _cut_power_of_all_at_a_promise(self):
        """Cut the power of all machines as soon as the next answer of a kind has arrived."""
        self._cut_power_at_a_promise()
        self._cuts_power_of_all = True

    def lose_power_after(self, process):
        if self._cuts_power_of_all:
            self._cuts_power_of_all = False
            self._cut_power_of_all()
        else:
            super().lose_power_after(process)

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

    def _fail_syncs(self):
        """Let a disk fail, which is trusted no more."""
        super()._fail_syncs()
        for machine in self.machines.values():
            if machine.storage.failing_syncs:
                self._safe.distrust(machine.id)

    # --- the end -------------------------------------------------------------------------------------------------

    def _heal(self):
        """Heal all but one broker first, in some seeds: the others lead as soon as one of them is trusted."""
        self.late = self.random.choice((None, self.machine(), leave_one))
        if self.late is leave_one:
            self._start()
            self.run(3_000)
            self.is_healing = True
            self.late = leave_one(self)
        if self.late is not None:
            self.late.kill(at_once=True)
            super()._heal()
            self.run(WITHOUT_ONE_MS)
            self._check_leaders()
            self.late = None
            self.log("heal the last broker")
        super()._heal()

    def _check_leaders(self):
        """Check that partitions have leaders, although a broker is dead."""
        check_leaders(self.ensemble, self.safe_members)

    def _start(self):
        for machine in self.machines.values():
            if machine is not self.late:
                machine.start()

    def _check_quiet(self):
        super()._check_quiet()
        check_copies(self.ensemble.image(), self.processes(), self.oracle.unclean_epochs)


if __name__ == "__main__":
    main(ReplicatedClusterWorld)
