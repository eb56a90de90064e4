"""A simulated cluster whose topics have several copies: each seed is one history (test_replicated_cluster.py).

    .venv/bin/python -m tests.simulation.replicated_cluster_world SEED...      prints the history of a seed, and its CPU

It is the world of cluster_world.py with replication. Most topics have three copies, of which two or one must be in
sync; a few have one copy. Producers ask for acks=all. When the world is quiet, all replicas of a partition are in its
ISR, and their logs have the same records, offsets and ids (replicated_logs.py).
"""

from tests.simulation.cluster_clients import Producer, Reader, TransactionalProducer
from tests.simulation.cluster_group import Committer, GroupMember
from tests.simulation.cluster_world import HAPPENINGS, ClusterWorld, main
from tests.simulation.replicated_clients import Poller, ReplicatedAdmin
from tests.simulation.replicated_logs import check_copies, check_high_watermarks
from tests.simulation.replicated_oracle import ReplicatedOracle

LAG_MS = 3_000
WITHOUT_POWER_CUTS = {name: weight for name, weight in HAPPENINGS.items() if "power" not in name}


class ReplicatedClusterWorld(ClusterWorld):
    """The world of a seed whose topics have several copies."""

    kind_of_oracle = ReplicatedOracle
    happenings = WITHOUT_POWER_CUTS
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
        """By partition and leader epoch: the highest that its leader has shown."""

    def kinds_of_clients(self):
        """Return the clients that each seed has, and those of transactions or of a group."""
        transactional = TransactionalProducer, TransactionalProducer
        grouped = Committer, GroupMember, GroupMember
        return Producer, Producer, Reader, Poller, ReplicatedAdmin, *self.random.choice((transactional, grouped))

    def new_copies(self):
        factor = self.random.choice((3, 3, 3, 1))
        return factor, [{"name": "min.insync.replicas", "value": str(self.random.choice((2, 2, 1)))}]

    def pumped(self, process):
        check_high_watermarks(process, self.high_watermarks)

    def _check_quiet(self):
        super()._check_quiet()
        check_copies(self.ensemble.image(), self.processes())


if __name__ == "__main__":
    main(ReplicatedClusterWorld)
