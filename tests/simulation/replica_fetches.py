"""The fetches of the world of replicas (replica_world.py): a leader's view of its followers, copies and truncations."""

from typing import NamedTuple

from broker.log import leader_epochs, log_reader
from broker.log.copied_appender import IdsBelowFloor, append_copied
from broker.replication.fetcher import Copy, Truncate, decide
from broker.services.fetch_reading import _last_id_at_start
from broker.wire.errors import ApiError, ErrorCode
from broker.wire.fetch import FetchedPartition, IdRegion
from tests.simulation.replica_node import TOPIC
from tests.simulation.replica_oracle import headers_of


class Answer(NamedTuple):
    """A leader's answer to a fetch; its log's end, and the batches that the log has had from there on."""

    fetched: FetchedPartition
    end: int
    spans: list


class ReplicaFetches:
    """The steps of leaders and followers, for a world that knows which broker leads."""

    # --- the leader's view ---------------------------------------------------------------------------------------

    def move_watermark(self, node, partition):
        """Move a leader's high watermark to the least end of the ISR (R1)."""
        role = self.leads(node, partition)
        if role is None:
            return
        log, replica = role.log, node.replicas[partition.number]
        own = min(log.durability.end_offset, log.log_end_offset) if self.is_durable else log.log_end_offset
        ends = [role.ends.get(number, -1) for number in role.isr if number != node.number]
        end = min([own, *ends])
        if end > replica.watermark:
            partition.commit(log, replica, end)
            replica.watermark = end
            log.move_replicated_to(end)

    def fetched(self, role, partition, follower, offset):
        """Note a follower's end, and take the follower into the ISR if it has all committed records (R3)."""
        role.ends[follower.number] = offset
        leads = role is self.current_leader(partition)
        watermark = self.nodes[partition.leader].replicas[partition.number].watermark if leads else 0
        if leads and follower.number not in partition.isr and offset >= max(watermark, role.start):
            partition.isr.append(follower.number)
            partition.trusted.add(follower.number)
            role.isr = set(partition.isr)
            self.note(f"{follower.number} joins the ISR of {partition.number} at {offset}")

    # --- followers -----------------------------------------------------------------------------------------------

    def fetch(self, node, partition):
        """Send a fetch, and keep the leader's answer for `take_answer`."""
        role = self.role_of(node, partition)
        key = node.number, partition.number
        if role is None or role.leader == node.number or key in self.answers:
            return
        log, leader = role.log, self.nodes[role.leader]
        leading = self.leads(leader, partition)
        is_behind = self.is_durable and log.durability.end_offset < log.log_end_offset
        if leading is None or leading.epoch != role.epoch or is_behind or log.durability.mending:
            return
        self.answers[key] = role, self.answer(leading, partition, node, log.log_end_offset, self.last_epoch(log))

    def last_epoch(self, log):
        """Return the epoch that a follower names: the newest that it knows of, with or without a batch (T1)."""
        return log.epochs[-1][0] if log.epochs else -1

    def answer(self, role, partition, follower, offset, last_epoch):
        """Return what a leader answers: where to cut, or records and ids (KIP-595), with what the oracle needs."""
        log, replica = role.log, self.nodes[role.leader].replicas[partition.number]
        start, end = log.log_start_offset, log.log_end_offset
        answered = FetchedPartition(TOPIC, partition.number, 0, log.high_watermark, log_start_offset=start)
        if last_epoch >= 0 and offset >= start:
            answered.diverging = leader_epochs.divergence(log.epochs, last_epoch, offset, start, end)
        if not start <= offset <= end and answered.diverging is None or answered.diverging == (-1, -1):
            answered.diverging, answered.error_code = None, ErrorCode.OFFSET_OUT_OF_RANGE
        if answered.diverging is None and not answered.error_code:
            self.fetched(role, partition, follower, offset)
            size = self.random.choice((100, 700, 3000, 1 << 20))
            result = log_reader.read(log, offset, size, True, with_ids=True, upto=end)
            if result.records:
                entries = result.ids.entries
                answered.records = result.records.file.read(result.records.position, result.records.length)
                entry_bytes = entries.file.read(entries.position, entries.length)
                answered.ids = IdRegion(result.ids.base_offset, entry_bytes)
        if answered.error_code or answered.diverging is not None or start == end:
            answered.last_id = _last_id_at_start(log)
        return Answer(answered, end, [span for span in replica.spans if span[1] >= offset])

    def take_answer(self, node, partition):
        role, answer = self.answers.pop((node.number, partition.number), (None, None))
        if role is None or self.role_of(node, partition) is not role:
            return
        decision = decide(role.log, answer.fetched)
        if isinstance(decision, Truncate):
            self.truncate(node, partition, decision)
        elif isinstance(decision, Copy):
            self.copy(node, partition, decision, answer)

    def copy(self, node, partition, copied, answer):
        log, replica, cut = copied.log, node.replicas[partition.number], None
        if not self.is_quiet and not self.random.randrange(14):
            node.trouble([file.path for file in log.segments.active.files])
        try:
            append_copied(log, copied.records, copied.ids, node.now(self.ms))
        except IdsBelowFloor as refused:
            cut = Truncate(log, log.log_end_offset, is_anew=True, last_id=refused.last_id)
        except ApiError as error:
            self.note(f"{node.number} does not copy: {error}")
        finally:
            node.heal_disk()
            self.copied(replica, log.log_end_offset, answer.spans)
            replica.gaps_below = max(replica.gaps_below, copied.high_watermark)
            replica.gaps_end = max(replica.gaps_end, answer.end)
        if cut is not None:
            self.counts["ids below the floor"] += 1
            self.truncate(node, partition, cut)
            return
        if log.offline is not None:
            return
        if copied.last_id > log.last_id:
            log.know_last_id(copied.last_id)
        self.follow_offsets(node, partition, log, copied.log_start_offset, copied.high_watermark)
        node.manager.appended(log)
        node.take_jobs()

    def copied(self, replica, end, spans):
        """Note the batches that a follower has of these of its leader. The leader's cleaner may have left gaps."""
        before = replica.end
        for base, last, epoch in spans:
            if before <= last < end:
                self.counts["copied"] += 1
                replica.spans.append((base, last, epoch))
            elif last >= end:
                replica.unfinished.add((base, epoch))
        replica.end = end

    def follow_offsets(self, node, partition, log, leader_start, watermark):
        """Take over the leader's high watermark and log start."""
        replica = node.replicas[partition.number]
        replica.watermark = min(watermark, log.log_end_offset)
        log.move_replicated_to(replica.watermark)
        if leader_start > log.log_start_offset and leader_start <= log.high_watermark:
            self.delete_below(node, partition, log, leader_start)

    def truncate(self, node, partition, cut):
        replica, offset = node.replicas[partition.number], cut.offset
        self.counts["anew" if cut.is_anew else "truncations"] += 1
        kind = " anew" if cut.is_anew else ""
        self.note(f"{node.number} truncates {partition.number} to {offset}{kind}, from {replica.end}")
        self.check_truncation(partition, replica, offset)
        replica.cut = offset, cut.is_anew or offset < cut.log.log_start_offset
        self.roles[node.number][partition.number] = None
        key = TOPIC, partition.number
        node.manager.truncate({key: offset}, anew=cut.is_anew, last_ids={key: cut.last_id})
        node.take_jobs()
        self.order(node, partition)

    def check_truncation(self, partition, replica, offset):
        lost = {
            base: partition.committed[base]
            for base, last, epoch in replica.spans
            if last >= max(offset, partition.log_start) and partition.committed.get(base) == (last, epoch)
        }
        assert not lost, f"{replica.number} drops what is committed: {lost}"

    def take_truncated(self, node):
        for outcome in node.manager.take_truncated():
            partition, replica = self.partitions[outcome.partition], node.replicas[outcome.partition]
            if outcome.log is None:
                continue
            offset, is_anew = replica.cut
            replica.cut = None
            if is_anew or not headers_of(outcome.log):
                replica.begin_anew(outcome.log.log_end_offset)
            else:
                replica.keep_below(offset)
            replica.unfinished.clear()
            replica.watermark = min(replica.watermark, outcome.log.log_end_offset)
            replica.stored_watermark = min(replica.stored_watermark, outcome.log.log_end_offset)
            outcome.log.move_replicated_to(replica.watermark)
            self.note_starts()
            partition.check(outcome.log, replica)
