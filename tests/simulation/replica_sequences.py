"""Sequences of steps that the world of replicas (replica_world.py) hardly ever makes at random."""

from broker.log.cut_log import CutLog

ROUNDS_MAX = 200
KILLS_IN_CUTS_EVERY = 8
"""One seed in so many kills brokers in the middle of truncations, and then cuts their power."""


class ReplicaSequences:
    """Sequences of steps. `lead_a_log_begun_anew` wants a world whose logs are equal, and whose brokers all run."""

    def kill_in_a_cut(self, node):
        """Kill a broker while it cuts a log, and cut its power after the next start. Return False if it cuts none.

        The kill leaves the cut half done, and what it did is on no disk yet (rule S5).
        """
        cuts = [job for job in node.jobs if isinstance(job, CutLog)]
        if self.is_quiet or self.seed % KILLS_IN_CUTS_EVERY or not cuts:
            return False
        if not node.is_interrupted(cuts[0].run):
            node.jobs.remove(cuts[0])
            node.manager.synced(cuts[0])
            return True
        self.counts["kills in cuts"] += 1
        for power in (False, True):
            self.die(node, power=power)
            self.start(node)
        return True

    def lead_a_log_begun_anew(self, partition):
        """All records are deleted while a follower is away; it begins anew, and leads before it has copied a record.

        Its first fetch after that lets it join the ISR, so that it knows no id but that of the answer before (I7).
        """
        leader = self.nodes[partition.leader]
        follower = self.random.choice([node for node in self.nodes if node is not leader])
        self.is_quiet = True
        self.die(follower, power=False)
        self.write_and_commit(leader, partition)
        role = self.leads(leader, partition)
        self.delete_below(leader, partition, role.log, role.log.high_watermark)
        self.start(follower)
        follower.skew_ms = 0  # no clock is behind it
        if self.joins_at_once(follower, partition):
            self.counts["leads anew"] += 1
            for node in sorted(self.nodes, key=lambda node: node is leader):
                if node is not follower:
                    self.die(node, power=False)
        self.is_quiet = False

    def write_and_commit(self, leader, partition):
        for round in range(ROUNDS_MAX):
            self.quiet_round()
            role = self.leads(leader, partition)
            if role is None or role is not self.current_leader(partition):
                continue
            end = role.log.log_end_offset
            if round and role.log.high_watermark == end > role.start:
                return
        raise AssertionError(f"after {round} rounds, {leader.number} has committed nothing in epoch {partition.epoch}")

    def joins_at_once(self, follower, partition):
        """Let a follower fetch until a fetch lets it join, and leave that one without an answer."""
        for _ in range(ROUNDS_MAX):
            for _ in range(len(self.orders)):
                self.deliver()
            for node in self.nodes:
                while node.run_job(is_sound=True):
                    pass
            self.after()
            self.fetch(follower, partition)
            if follower.number in partition.isr:
                role = self.role_of(follower, partition)
                return role is not None and role.log.log_start_offset == role.log.log_end_offset
            self.take_answer(follower, partition)
        raise AssertionError(f"{follower.number} does not join the ISR of {partition.number}")
