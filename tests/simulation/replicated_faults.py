"""Planted faults: each takes one rule of replication out, and the world of several copies has to notice.

test_cluster_faults.py plays seeds until one is noticed.

Rule S2 is not among them, that a leader's epoch is on the disk before its first batch. Recovery learns the epochs of
the batches that it keeps, and a log that has lost all batches of an epoch is a part of what the next leader has. Only
an epoch that recovery would take for damage needs the file, 1,000 ahead of those it knows, and no history comes so far.
tests/broker/log/test_epochs_begun.py has the tests that fail without it.
"""

from dataclasses import replace
from weakref import WeakSet

from broker.client.fetch_session import FetchSession
from broker.cluster import alter_partition, isr_members, leader_election, partition_machine
from broker.cluster.documents import Life
from broker.log import copied_appender, leader_epochs
from broker.log.copied_appender import CopyRefused
from broker.log.partition_log import PartitionLog
from broker.log.truncation import Truncations
from broker.membership.directory_life import DirectoryLife
from broker.membership.followed_partitions import FollowedPartitions
from broker.record.records import LONG_MAX
from broker.replication import fetcher
from broker.replication.fetcher import ReplicaFetcher, Truncate
from broker.replication.partition import UNKNOWN_OFFSET, Partition
from broker.replication.stored_end import StoredEnd
from broker.services import coordinator_topic
from broker.services.coordinator_partitions import CoordinatorPartitions, LoadState
from broker.services.fetch_session import WantedPartition
from broker.stamping.id_stamper import IdStamper


def _moves_by(patch, members_of, may_move):
    """Let a leader move its high watermark by other members than those of rule R1, or at other times."""

    def move(partition):
        log, state = partition.log, partition.state
        if state is None or not may_move(partition):
            partition._stand()
            return
        others = set(members_of(partition)) - {partition.broker_id}
        ends = [partition.followers[other].end_offset if other in partition.followers else -1 for other in others]
        end = min(ends, default=LONG_MAX)
        if log.replicated_to == LONG_MAX and others:
            partition._stand()
        if end > log.replicated_to:
            log.move_replicated_to(end)

    patch.setattr(Partition, "_move_replicated_to", move)


def _isr_and_proposed(partition):
    return {*partition.state.isr, *(partition._proposed or ())}


def _may_move(partition):
    return partition.has_min_isr and not partition.state.elr


def commits_by_an_ungranted_shrink(patch):
    """R1: a member that is proposed to leave the ISR no longer counts."""
    _moves_by(patch, lambda partition: partition._proposed or partition.state.isr, _may_move)


def commits_without_an_ungranted_member(patch):
    """R1: a member that is proposed to join the ISR does not count yet."""
    _moves_by(patch, lambda partition: partition.state.isr, _may_move)


def commits_below_min_isr(patch):
    """R1: the high watermark moves although the ISR is below min.insync.replicas."""
    _moves_by(patch, _isr_and_proposed, lambda partition: not partition.state.elr or not partition.has_min_isr)


def commits_while_the_elr_has_members(patch):
    """R1: the high watermark moves although the controller may elect a member of the ELR."""
    _moves_by(patch, _isr_and_proposed, lambda partition: partition.has_min_isr)


def answers_before_the_replicas_have_it(patch):
    """R2: an append with acks=all is answered when the leader has it."""

    def is_stored(end):
        return not end.on_disk or end.log.durability.end_offset >= end.end_offset

    patch.setattr(StoredEnd, "is_stored", property(is_stored))


def answers_of_another_opening(patch):
    """R2: an append is answered although another broker leads."""
    patch.setattr(StoredEnd, "lost_leadership", lambda end, leadership: None)


def lets_late_followers_join(patch):
    """R3: a follower joins the ISR before it has all committed records."""
    patch.setattr(Partition, "_is_in_sync", lambda partition, follower: follower.end_offset > UNKNOWN_OFFSET)


def keeps_ends_over_epochs(patch):
    """E4: a leader counts on what its followers had in an earlier epoch that it led, or a follower told another."""
    lead = Partition.lead

    def lead_with_ends(partition, state, now):
        before = dict(partition.followers)
        has_risen = lead(partition, state, now)
        partition.followers.update((member, before[member]) for member in before if member in state.replicas)
        return partition._advance() or has_risen

    patch.setattr(Partition, "lead", lead_with_ends)


def grants_isrs_of_earlier_epochs(patch):
    """E6: the controller grants a proposal whatever leader epoch and partition epoch it names."""
    decide = alter_partition._decide

    def decide_anyway(context, broker_id, partition, proposal):
        current = context.leadership.get(partition)
        if current is not None:
            epochs = {"leader_epoch": current.leader_epoch, "partition_epoch": current.partition_epoch}
            proposal = proposal._replace(**epochs)
        return decide(context, broker_id, partition, proposal)

    patch.setattr(alter_partition, "_decide", decide_anyway)


def elects_any_live_replica(patch):
    """An offline partition gets a leader that is not in its ISR, although its topic forbids that."""

    def elect_any(context, partition, current):
        return leader_election._elect_any(context, partition, current, "there is no other")

    patch.setattr(leader_election, "_elect_returned", elect_any)
    patch.setattr(leader_election, "RECOVERING", 0)


def forgets_the_elr(patch):
    """R3: a member that leaves an ISR below min.insync.replicas does not go to the ELR, and may not lead."""
    for module in (isr_members, leader_election, alter_partition):
        patch.setattr(module, "elr_after", lambda *more: ())


def truncates_to_the_high_watermark(patch):
    """KIP-101: a follower truncates its log to its high watermark before it fetches from a new leader."""
    fresh, decide, follow = WeakSet(), fetcher.decide, ReplicaFetcher.follow

    def follow_anew(replica_fetcher, log, *more, **others):
        fresh.add(log)
        follow(replica_fetcher, log, *more, **others)

    def decide_by_high_watermark(log, result):
        if log in fresh and not result.error_code:
            fresh.discard(log)
            if log.high_watermark < log.log_end_offset:
                return Truncate(log, log.high_watermark)
        return decide(log, result)

    patch.setattr(ReplicaFetcher, "follow", follow_anew)
    patch.setattr(fetcher, "decide", decide_by_high_watermark)


def truncates_nothing(patch):
    """KIP-595: a follower keeps what its leader does not have."""
    decide = fetcher.decide

    def decide_without_cuts(log, result):
        result.diverging = None
        return decide(log, result)

    patch.setattr(fetcher, "decide", decide_without_cuts)


def keeps_the_newest_epoch_at_a_cut(patch):
    """T1: a truncation cuts the epochs as recovery does, which keeps the newest one."""
    patch.setattr(leader_epochs, "truncated", leader_epochs.cut)


def takes_the_leaders_high_watermark(patch):
    """R4: a follower's high watermark is its leader's, even past its own end."""

    def follow_offsets(followed, log, copy, now):
        if copy.high_watermark > log.replicated_to:
            log.move_replicated_to(copy.high_watermark)

    patch.setattr(FollowedPartitions, "_follow_offsets", follow_offsets)


def tells_no_high_watermark_after_a_cut(patch):
    """R4: a leader counts the high watermark of an answer that cuts a log as told."""

    def is_news(partition, result):
        before = partition.high_watermark, partition.log_start_offset
        failed = bool(result.error_code)
        partition.high_watermark = -1 if failed else result.high_watermark
        partition.log_start_offset = result.log_start_offset
        is_known = before == (result.high_watermark, result.log_start_offset)
        return failed or not is_known or result.diverging is not None or result.size > 0

    patch.setattr(WantedPartition, "is_news", is_news)


def demands_equal_starts(patch):
    """I2: a follower refuses a batch that begins past its log's end, where its leader's cleaner has left a gap."""
    checked = copied_appender._checked

    def check(log, view):
        answer = checked(log, view)
        if len(answer.spans) > 1 or answer.spans[0][0] != log.log_end_offset:
            raise CopyRefused(f"{log.name}: offset {answer.spans[0][0]} stands where {log.log_end_offset} belongs")
        return answer

    patch.setattr(copied_appender, "_checked", check)


def counts_fetches_of_earlier_epochs(patch):
    """E5: a leader serves a fetch of an earlier epoch, and counts it."""
    check = PartitionLog.check_leader_epoch

    def check_later(log, epoch):
        if epoch >= log.leader_epoch:
            check(log, epoch)

    patch.setattr(PartitionLog, "check_leader_epoch", check_later)


def takes_answers_of_earlier_epochs(patch):
    """E5: a follower takes an answer to a fetch of an earlier epoch, and one of an earlier leader."""

    def is_asked_so(session, key, ask):
        asked_partition, known_partition = session._asked(key), session._known.get(key)
        is_known = known_partition is not None and asked_partition is not None
        return is_known and asked_partition[:3] == known_partition[:3]

    patch.setattr(FetchSession, "_is_asked_so", is_asked_so)
    patch.setattr(ReplicaFetcher, "unfollow", lambda replica_fetcher, topic, partition: None)


def forgets_copied_producers(patch):
    """A follower does not note the sequences of the producers whose batches it copies."""

    def append(log, answer, *more):
        return append_noted(log, answer._replace(has_producers=False), *more)

    append_noted = copied_appender._append
    patch.setattr(copied_appender, "_append", append)


def serves_what_is_not_committed(patch):
    """R4: a coordinator serves when it has loaded its log, before that is committed."""

    def load_no_later(partitions, led, log, offset, now):
        led.state = LoadState.ACTIVE
        led.loaded(now)

    patch.setattr(CoordinatorPartitions, "_load_later", load_no_later)


def coordinates_before_the_replicas_have_it(patch):
    """A coordinator answers before its record is on the replicas in sync."""
    patch.setattr(coordinator_topic, "unstored_end", lambda log: None)


def stamps_without_a_floor(patch):
    """I1: a new leader gives ids by its clock, whatever the last id of its log is."""
    next_ids = IdStamper.next_ids

    def next_without_floor(stamper, n, now_ms, floor=-1):
        return next_ids(stamper, n, now_ms)

    patch.setattr(IdStamper, "next_ids", next_without_floor)


def knows_no_last_id_of_an_empty_log(patch):
    """I7: a follower does not take over the last id of its leader's empty log, nor that before the leader's start."""
    patch.setattr(PartitionLog, "know_last_id", lambda log, id: None)
    begin = Truncations.begin
    patch.setattr(Truncations, "begin", lambda cuts, offsets, last_ids, *, anew: begin(cuts, offsets, {}, anew=anew))


def tells_no_power_cut(patch):
    """W1: a broker says that its data is whole although its machine has lost power."""
    patch.setattr(DirectoryLife, "life", property(lambda lives: Life(whole=True, last=lives._present.broker_epoch)))


def tells_a_power_cut_once(patch):
    """W1: a broker that is killed before the controller has heard of a power cut says that its data is whole."""
    begin = DirectoryLife.__init__

    def begin_without_mark(lives, before, **facts):
        begin(lives, before and replace(before, is_whole=True), **facts)

    patch.setattr(DirectoryLife, "__init__", begin_without_mark)


def keeps_no_lives(patch):
    """W2: a member is trusted if its last stop was clean, whatever it missed in lives before."""

    def is_trusted(context, partition, leadership, broker_id):
        life = context.brokers[broker_id].life
        return life.whole or leadership.lives.get(broker_id) == context.broker_epochs[broker_id]

    for module in (isr_members, leader_election):
        patch.setattr(module, "is_trusted", is_trusted)


def keeps_untrusted_members(patch):
    """W3: a member that is not trusted stays in the ISR, although others are."""
    patch.setattr(partition_machine, "exclude_untrusted", lambda context, partition, current: None)


def trusts_all_members(patch):
    """W2: any member of the ISR may lead."""
    for module in (isr_members, leader_election):
        patch.setattr(module, "is_trusted", lambda *more: True)


def checks_no_broker_epochs(patch):
    """E6: the controller lets a member join in a life that is over (KIP-903)."""

    def is_eligible(context, partition, member):
        return context.is_online(partition, member.broker_id)

    patch.setattr(alter_partition, "_is_eligible", is_eligible)


def confirms_before_the_disk(patch):
    """S3: a follower of durable acks asks for more before its disk has the records."""

    def go_on(followed, replica_fetcher, log, now):
        replica_fetcher.go_on(log, now)

    patch.setattr(FollowedPartitions, "_go_on_once_on_disk", go_on)


FAULTS = (
    commits_by_an_ungranted_shrink,
    commits_without_an_ungranted_member,
    commits_below_min_isr,
    commits_while_the_elr_has_members,
    answers_before_the_replicas_have_it,
    answers_of_another_opening,
    lets_late_followers_join,
    keeps_ends_over_epochs,
    grants_isrs_of_earlier_epochs,
    elects_any_live_replica,
    forgets_the_elr,
    truncates_to_the_high_watermark,
    truncates_nothing,
    keeps_the_newest_epoch_at_a_cut,
    takes_the_leaders_high_watermark,
    tells_no_high_watermark_after_a_cut,
    demands_equal_starts,
    counts_fetches_of_earlier_epochs,
    takes_answers_of_earlier_epochs,
    forgets_copied_producers,
    serves_what_is_not_committed,
    coordinates_before_the_replicas_have_it,
    stamps_without_a_floor,
    knows_no_last_id_of_an_empty_log,
    tells_no_power_cut,
    tells_a_power_cut_once,
    keeps_no_lives,
    keeps_untrusted_members,
    trusts_all_members,
    checks_no_broker_epochs,
    confirms_before_the_disk,
)
