"""The partitions that this broker follows: it fetches them from their leaders, and appends what these have.

    follow -> take_calls: a fetch for each leader -> called -> copy: append, then fetch on
                                                            -> truncate: a new opening of the log, which is followed
                                                            -> an error: asked for again, or the partition stops

The decisions of an answer, one a partition, are carried out in slices, so that a large answer does not hold back other
requests. An order of a new leader epoch drops the decision for its partition, because a follower takes an answer only
in the epoch of the request (rule E5).
"""

from traceback import format_exc

from broker.log.copied_appender import CopyRefused, IdsBelowFloor, append_copied
from broker.log.partition_log import PartitionLog
from broker.membership.calls import FetchCall
from broker.membership.replica_ports import ReplicaPorts
from broker.metadata.topic import PartitionState
from broker.now import Now
from broker.replication.fetcher import Copy, Decision, FetchLimits, ReplicaFetcher, Truncate
from broker.replication.stored_end import ACKS_ALL
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError
from broker.wire.fetch import FetchResponse

SLICE_BYTES = 1 << 20
"""So much is appended at once; the rest follows after the requests that came meanwhile."""

REPORTED_MAX = 10
"""The logs of one turn whose uncommitted ends are reported when they are cut."""

Key = tuple[str, int]


class FollowedPartitions:
    """See the module."""

    def __init__(self, ports: ReplicaPorts) -> None:
        self._ports = ports
        config = ports.config()
        self._limits = FetchLimits(
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_response_max_bytes,
            config.replica_fetch_max_bytes,
            config.replica_fetch_backoff_ms,
            config.replica_fetch_min_bytes,
        )
        self._fetchers: dict[int, ReplicaFetcher] = {}
        """By the id of the leader."""
        self._followed: dict[Key, tuple[PartitionLog, int, int]] = {}
        """The log, the leader and the leader epoch of each followed partition."""
        self.decisions: dict[Key, tuple[ReplicaFetcher, Decision]] = {}
        """The decisions that are still to be carried out, in this order: a part of a large answer."""
        self._truncated_from: dict[Key, int] = {}
        """The high watermarks of the logs that are being truncated."""

    # --- orders --------------------------------------------------------------------------------------------------

    def follow(self, log: PartitionLog, state: PartitionState, now: Now) -> None:
        """Take an order of the controller: follow a partition's leader from now on."""
        key = log.topic, log.partition
        followed = log, state.leader, state.leader_epoch
        before = self._followed.get(key)
        if before == followed:
            return
        if before is not None:
            self.unfollow(key)
        self._followed[key] = followed
        fetcher = self._fetchers.get(state.leader)
        if fetcher is None:
            fetcher = self._fetchers[state.leader] = self._new_fetcher()
        waits = _waits_for_disk(log)
        fetcher.follow(log, log.topic_id, state.leader_epoch, now, waits=waits)
        if waits:
            self._go_on_once_on_disk(fetcher, log, now)

    def _new_fetcher(self) -> ReplicaFetcher:
        return ReplicaFetcher(self._ports.broker_id, self._limits, self._ports.peer_calls.pending)

    def follows(self, key: Key) -> bool:
        """Return True while a partition is followed."""
        return key in self._followed

    def unfollow(self, key: Key) -> None:
        """Follow a partition no more. A fetch or a decision for it counts for nothing."""
        followed = self._followed.pop(key, None)
        self.decisions.pop(key, None)
        if followed is not None:
            self._fetchers[followed[1]].unfollow(*key)

    def forget(self, key: Key) -> None:
        """Forget a partition that is deleted, also if it is being truncated."""
        self.unfollow(key)
        self._truncated_from.pop(key, None)

    def is_truncating(self, key: Key) -> bool:
        """Return True while a partition's log is being opened anew."""
        return key in self._truncated_from

    @property
    def failed(self) -> dict[str, str]:
        """Return why partitions have stopped, by their names: their records failed a check again and again."""
        return {name: reason for fetcher in self._fetchers.values() for name, reason in fetcher.failed.items()}

    @property
    def stalled(self) -> dict[str, str]:
        """Return why the records of partitions cannot be written now, by their names: the disk is full, for example."""
        return {name: reason for fetcher in self._fetchers.values() for name, reason in fetcher.stalled.items()}

    def lags(self) -> dict[Key, int | None]:
        """Return how many committed offsets of its leader each log lacks; None if the leader does not tell now."""
        return {key: lag for fetcher in self._fetchers.values() for key, lag in fetcher.lags().items()}

    def __len__(self) -> int:
        return len(self._followed)

    # --- fetches -------------------------------------------------------------------------------------------------

    def take_calls(self, now: Now) -> list[FetchCall]:
        """Return the fetches to send now, at most one under way to each leader."""
        epoch = self._ports.broker_epoch()
        calls = []
        for leader, fetcher in self._fetchers.items():
            request = fetcher.request(epoch, now)
            if request is not None:
                calls.append(FetchCall(leader, request, is_anew=fetcher.take_distrust()))
        return calls

    def called(self, call: FetchCall, response: FetchResponse | None, now: Now) -> None:
        """Take the response of a fetch, None if the leader was not reached or did not answer."""
        fetcher = self._fetchers[call.broker_id]
        for decision in fetcher.answered(response, now):
            self.decisions[decision.log.topic, decision.log.partition] = fetcher, decision
        self._carry_out(now)

    def _carry_out(self, now: Now) -> None:
        """Carry out decisions, up to a slice of records."""
        size = 0
        cuts: dict[bool, dict[Key, Truncate]] = {False: {}, True: {}}
        while self.decisions and size < SLICE_BYTES:
            key = next(iter(self.decisions))
            fetcher, decision = self.decisions.pop(key)
            if isinstance(decision, Copy):
                size += len(decision.records)
                try:
                    cut = self._copy(key, fetcher, decision, now)
                except Exception as fault:  # of the broker's own: this partition alone has it
                    self._ports.report(f"a fault of the broker's own, copying {decision.log.name}:\n{format_exc()}")
                    self._refused(fetcher, decision.log, f"a fault of the broker's own: {fault!r}", now)
                    continue
            else:
                cut = decision
            if cut is not None:
                self._note_cut(key, cut)
                cuts[cut.is_anew][key] = cut
        self._report_uncommitted([cut for group in cuts.values() for cut in group.values()])
        for is_anew, group in cuts.items():
            if group:
                self._truncate(group, is_anew=is_anew, now=now)

    # --- copies --------------------------------------------------------------------------------------------------

    def _copy(self, key: Key, fetcher: ReplicaFetcher, copy: Copy, now: Now) -> Truncate | None:
        """Append records. Return how the log begins anew if it has none, and knows a later id than its leader's."""
        log = copy.log
        try:
            number = append_copied(log, copy.records, copy.ids, now)
        except IdsBelowFloor as refused:
            return Truncate(log, log.log_end_offset, is_anew=True, last_id=refused.last_id)
        except CopyRefused as refused:
            self._refused(fetcher, log, str(refused), now)
            return None
        except ApiError as error:
            if log.offline is not None:
                self.unfollow(key)
            else:
                fetcher.try_later(log, str(error), now)  # the disk is full, or a failed write is being undone
            return None
        if number:
            self._ports.logs.appended(log)
        if copy.last_id > log.last_id:
            log.know_last_id(copy.last_id)
        self._follow_offsets(log, copy, now)
        if log.waiting_acks and _waits_for_disk(log):
            self._go_on_once_on_disk(fetcher, log, now)
        else:
            fetcher.go_on(log, now)
        return None

    def _refused(self, fetcher: ReplicaFetcher, log: PartitionLog, reason: str, now: Now) -> None:
        """Ask again for records that are not taken, or stop."""
        if not fetcher.failed_check(log, reason, now):
            self._ports.report(f"{log.name} is followed no more until it has another leader: {reason}")

    def _follow_offsets(self, log: PartitionLog, copy: Copy, now: Now) -> None:
        """Take over the leader's high watermark (rule R4) and the start of its log, as far as this log goes."""
        end = min(copy.high_watermark, log.log_end_offset)
        if end > log.replicated_to:
            log.move_replicated_to(end)
        if copy.log_start_offset > log.log_start_offset:
            start = min(copy.log_start_offset, log.high_watermark)
            if start > log.log_start_offset:
                self._ports.logs.delete_records(log, start, now)

    def _go_on_once_on_disk(self, fetcher: ReplicaFetcher, log: PartitionLog, now: Now) -> None:
        """Ask for more when the disk has all records, because asking confirms them (rule S3)."""
        end = log.log_end_offset

        def try_complete(at: Now) -> Now | None:
            return at if log.durability.end_offset >= end or log.offline is not None else None

        waiting: Delayed[Now] = Delayed([log.durability.key], None, try_complete, lambda at: at)
        self._ports.purgatory.watch(waiting, lambda at: fetcher.go_on(log, at), now, limited=False)

    # --- truncations ---------------------------------------------------------------------------------------------

    def _note_cut(self, key: Key, cut: Truncate) -> None:
        self._truncated_from[key] = cut.log.high_watermark
        if cut.committed:
            reason = f"it was elected without them, and at least {cut.committed} of them were committed"
            self._ports.report(f"{_dropped(cut)}: {reason}")

    def _report_uncommitted(self, cuts: list[Truncate]) -> None:
        """Report what the cuts of one turn drop that is not known to be committed: a change of leaders cuts many logs.
        """
        dropping = [cut for cut in cuts if cut.dropped and not cut.committed]
        for cut in dropping[:REPORTED_MAX]:
            self._ports.report(f"{_dropped(cut)}: none of them is known to be committed")
        more = len(dropping) - REPORTED_MAX
        if more > 0:
            self._ports.report(f"{more} other partitions drop records too that are not known to be committed")

    def _truncate(self, cuts: dict[Key, Truncate], *, is_anew: bool, now: Now) -> None:
        """Begin a new opening of these logs. Each is followed no more until it is there."""
        logs = [log for key in cuts if (log := self._ports.logs.find(*key)) is not None]
        for key in cuts:
            self.unfollow(key)
        offsets = {key: cut.offset for key, cut in cuts.items()}
        last_ids = {key: cut.last_id for key, cut in cuts.items()}
        try:
            self._ports.logs.truncate(offsets, anew=is_anew, last_ids=last_ids)
        except ApiError as error:  # a log has gone offline meanwhile
            if len(cuts) > 1:
                for key, cut in cuts.items():
                    self._truncate({key: cut}, is_anew=is_anew, now=now)
                return
            for key in cuts:
                del self._truncated_from[key]
            self._ports.report(f"a log is not truncated: {error}")
            return
        for log in logs:
            self._ports.metrics.reopened(log)

    def take_truncated(self) -> list[Key]:
        """Return the partitions whose truncation has ended, with their new logs or offline."""
        ended = []
        for outcome in self._ports.logs.take_truncated():
            key = outcome.topic, outcome.partition
            high_watermark = self._truncated_from.pop(key, 0)
            if outcome.log is not None:
                outcome.log.move_replicated_to(min(high_watermark, outcome.log.log_end_offset))
            ended.append(key)
        return ended

    # --- turns and time ------------------------------------------------------------------------------------------

    def resume(self, now: Now) -> None:
        """Carry out the next slice of a large answer."""
        if self.decisions:
            self._carry_out(now)

    def next_deadline_ms(self) -> int | None:
        """Return when `take_calls` is due; None without a deadline."""
        deadlines = [fetcher.next_deadline_ms() for fetcher in self._fetchers.values()]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)


def _waits_for_disk(log: PartitionLog) -> bool:
    """Return True if a log has records that its disk must have before they count as copied (rule S3)."""
    return ACKS_ALL in log.waiting_acks and log.durability.end_offset < log.log_end_offset


def _dropped(cut: Truncate) -> str:
    """Return which records of a log go, for people."""
    first, last = cut.dropped[0], cut.dropped[-1]
    if first == last:
        return f"{cut.log.name} drops the record at offset {first}, which its leader does not have"
    many = len(cut.dropped)
    return f"{cut.log.name} drops {many} records, at offsets {first} to {last}, which its leader does not have"
