"""A leader's view of one partition: its replicas, the ISR, and the high watermark (Kafka's Partition).

    fetched     a follower asks for an offset, so it has everything below it
    proposal    another ISR, which the controller has to grant (AlterPartition, KIP-497)

The leader's own appends and syncs need no call: the log computes its high watermark from its own end, and from the
offset up to which this view says that it is replicated.

The high watermark is the least end over the ISR and the members that are proposed to join it. A member that is proposed
to leave counts until that is granted. The high watermark moves only while the granted ISR has `min.insync.replicas`
members and the granted ELR is empty, because the controller may count on a member of the ELR (KIP-966). It never goes
back (rule R1).

Kafka notes every partition of a follower's session at each fetch. Here a fetch costs what changed. While a follower is
in the ISR and at the log's end, one more fetch from the same offset tells only that the follower is still there. So
such a follower rests: each fetch of its session (`used_ms`) counts as one of its own, and the leader skips it. These
wake it, and the time of the session's last fetch becomes its own:

    a change of the log, first of all an append      the session listens to its log
    another state of the partition                   `lead`, `granted`
    a fetch of another session, or of none           `fetched`

A resting follower is at the log's end, so it is never late. The append that leaves it behind wakes it in the same turn,
before the session fetches again. From then on each fetch of its session is noted, until the follower rests again. So
the leader knows what Kafka's would know.

A follower joins when its end has reached the high watermark and the start of the epoch. It leaves when it has not been
at the log's end for `replica.lag.time.max.ms` (rule R3). What a follower had in an earlier epoch is forgotten: it may
have been truncated since (rule E4).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from broker.log.partition_log import PartitionLog
from broker.metadata.topic import PartitionState
from broker.now import Now
from broker.record.records import LONG_MAX
from broker.wire.errors import ApiError, ErrorCode

UNKNOWN_OFFSET = -1
NO_BROKER_EPOCH = -1
RETRY_MS = 1_000
"""The pause before a proposal is asked again that the controller refused, or did not answer."""


class RepeatedFetch(Protocol):
    """A follower's session, whose fetches repeat what they do not name."""

    used_ms: int
    """When the session fetched last, on the leader's monotonic clock."""
    life: int
    """The broker epoch of the follower that fetches."""

    def woken(self, log: PartitionLog) -> None:
        """Look at a log whose follower rests no more."""
        ...


@dataclass(slots=True)
class Follower:
    """What a leader knows of a follower in its epoch."""

    noted_ms: int
    """When it was last at the leader's end, as far as that was noted."""
    end_offset: int = UNKNOWN_OFFSET
    log_start_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = NO_BROKER_EPOCH
    fetched_ms: int = 0
    leader_end_offset: int = LONG_MAX
    """The leader's end at the follower's last fetch."""
    rests_in: RepeatedFetch | None = None
    """The session whose fetches count for a follower that rests."""

    @property
    def caught_up_ms(self) -> int:
        """Return when it was last at the leader's end, on the leader's monotonic clock."""
        return self.noted_ms if self.rests_in is None else max(self.noted_ms, self.rests_in.used_ms)

    def wake(self, log: PartitionLog) -> None:
        """Write down when a follower that rests was last at the end of its leader's log."""
        session = self.rests_in
        if session is not None:
            self.rests_in = None
            self.noted_ms = self.fetched_ms = max(self.noted_ms, session.used_ms)
            session.woken(log)

    def fetched(
        self, offset: int, log_start_offset: int, broker_epoch: int, leader_end_offset: int, now_ms: int
    ) -> None:
        """Note a fetch from an offset. A follower that has reached the end of its last fetch was at the end then."""
        if offset >= leader_end_offset:
            self.noted_ms = now_ms
        elif offset >= self.leader_end_offset:
            self.noted_ms = max(self.noted_ms, self.fetched_ms)
        self.end_offset, self.log_start_offset, self.broker_epoch = offset, log_start_offset, broker_epoch
        self.leader_end_offset, self.fetched_ms = leader_end_offset, now_ms

    def is_late(self, leader_end_offset: int, lag_max_ms: int, now_ms: int) -> bool:
        return self.end_offset < leader_end_offset and now_ms - self.caught_up_ms > lag_max_ms


@dataclass(slots=True)
class IsrFigures:
    """What became of the ISRs that a broker proposed, since its start."""

    shrinks: int = 0
    expands: int = 0
    failed: int = 0
    """Requests that the controller refused or did not answer."""


class Proposal(NamedTuple):
    """An ISR that the controller is asked to grant, with the broker epoch of each member (KIP-903)."""

    isr: Mapping[int, int]
    """The broker epochs of the members by their ids; -1 for one that is not known."""
    leader_epoch: int
    partition_epoch: int
    min_isr: int
    """`min.insync.replicas` as the leader reads it (rule E6)."""


class Partition:
    """The partition of `log`, which this broker leads.

    The owner calls `take_proposal` after each act, and passes the controller's answer to `granted`, `refused` or
    `ineligible`. Acts return True if the high watermark has risen, so that requests that wait for the log may be
    answered.
    """

    def __init__(self, log: PartitionLog, broker_id: int, figures: IsrFigures | None = None) -> None:
        self.log = log
        self.broker_id = broker_id
        self._figures = IsrFigures() if figures is None else figures
        self.state: PartitionState | None = None
        """What the controller decided, or granted since."""
        self.epoch_start_offset = log.log_end_offset
        """The log's end when the present epoch began. Until the high watermark is there, this leader does not know
        which of its records are committed (KIP-207)."""
        self.followers: dict[int, Follower] = {}
        self._others: tuple[int, ...] = ()
        """The other replicas that count, which `_counts_for` has found; none while the high watermark stands."""
        self._counts_for: tuple[object, object, object] | None = None
        """The state, the proposal and the settings that `_others` was found for."""
        self._told_high_watermark = log.high_watermark
        """The high watermark when an act last returned whether it has risen."""
        self._proposed: frozenset[int] | None = None
        """The members of an ISR that the controller may have granted."""
        self._proposed_lives: dict[int, int] = {}
        """The broker epochs of these members when they were proposed: a later life may lack what that one had."""
        self._proposed_min_isr = 0
        """`min_isr` when the proposal was made. The controller knows by it a proposal whose answer was lost."""
        self._ask_ms: int | None = None
        """When the proposal is to be asked; None while it is under way."""
        self._pause_ends_ms = 0
        """No member is proposed before, because the controller has just found one ineligible."""

    # --- the epoch -----------------------------------------------------------------------------------------------

    def lead(self, state: PartitionState, now: Now) -> bool:
        """Begin a leader epoch, or take what the controller decided in the present one.

        An order with epochs that are not above the present ones changes nothing: the controller may still grant a
        proposal that was made in them (rule E4).
        """
        if self.has_taken(state):
            return False
        before = self.state
        self._begin_state(state)
        if before is None or state.leader_epoch > before.leader_epoch:
            self.epoch_start_offset = self.log.log_end_offset
            self.followers = {member: Follower(now.ms) for member in state.replicas if member != self.broker_id}
        self._ask_for_empty_elr(now)
        return self._advance()

    def _begin_state(self, state: PartitionState) -> None:
        self.state = state
        self._proposed = None
        for follower in self.followers.values():
            follower.wake(self.log)

    def has_taken(self, state: PartitionState) -> bool:
        """Return True if an order is not above the present epochs, so that it changes nothing."""
        own = self.state
        epochs = state.leader_epoch, state.partition_epoch
        return own is not None and epochs <= (own.leader_epoch, own.partition_epoch)

    @property
    def isr(self) -> tuple[int, ...]:
        """Return the ISR that the controller has granted."""
        return () if self.state is None else self.state.isr

    @property
    def min_isr(self) -> int:
        """Return how many members the ISR needs: at most the replicas there are."""
        replicas = 1 if self.state is None else len(self.state.replicas)
        return min(self.log.config.min_insync_replicas, replicas)

    @property
    def has_min_isr(self) -> bool:
        """Return True if the ISR has enough members for acks=all: as many as the topic wants, or all replicas."""
        state = self.state  # not by the properties: each append asks
        if state is None:
            return self.min_isr <= 0
        in_sync = len(state.isr)
        return in_sync >= self.log.config.min_insync_replicas or in_sync >= len(state.replicas)

    @property
    def waits_for_controller(self) -> bool:
        """Return True while an ISR is proposed that the controller has not granted.

        It grants one in milliseconds. Otherwise this broker's life may have ended, and another broker may lead.
        """
        return self._proposed is not None

    @property
    def is_under_replicated(self) -> bool:
        """Return True if a replica is not in the ISR."""
        return len(self.isr) < len(self._replicas)

    @property
    def is_at_min_isr(self) -> bool:
        """Return True if one member fewer in the ISR would be too few for acks=all."""
        return len(self.isr) == self.min_isr

    def follower_lags(self) -> dict[int, int]:
        """Return how many offsets each follower is behind, without those that have not fetched in this epoch."""
        end_offset = self.log.log_end_offset
        return {
            member: max(end_offset - follower.end_offset, 0)
            for member, follower in self.followers.items()
            if follower.end_offset != UNKNOWN_OFFSET
        }

    @property
    def knows_high_watermark(self) -> bool:
        """Return True once the high watermark has reached the start of the epoch (KIP-207)."""
        return self.log.high_watermark >= self.epoch_start_offset

    # --- the high watermark --------------------------------------------------------------------------------------

    def configured(self, now: Now) -> bool:
        """Note that the topic's settings have changed: another `min.insync.replicas` may need an empty ELR."""
        self._ask_for_empty_elr(now)
        return self._advance()

    def _advance(self) -> bool:
        """Move the high watermark. Return True if it has risen since the act before, by the leader's own end too."""
        self._move_replicated_to()
        before, self._told_high_watermark = self._told_high_watermark, self.log.high_watermark
        return self._told_high_watermark > before

    def _move_replicated_to(self) -> None:
        log, basis = self.log, self._counts_for
        if (
            basis is None
            or basis[0] is not self.state
            or basis[1] is not self._proposed
            or basis[2] is not log.config
        ):
            self._find_others()
        if self._others:
            end, followers = LONG_MAX, self.followers
            for other in self._others:
                follower = followers.get(other)
                end_of_other = UNKNOWN_OFFSET if follower is None else follower.end_offset
                if end_of_other < end:
                    end = end_of_other
            if end > log.replicated_to:
                log.move_replicated_to(end)

    def _find_others(self) -> None:
        """Note which other replicas hold the high watermark, because state, proposal or settings have changed."""
        log, state = self.log, self.state
        self._others, self._counts_for = (), (state, self._proposed, log.config)
        if state is None or state.elr or not self.has_min_isr:
            self._stand()
            return
        others = {*state.isr, *(self._proposed or ())} - {self.broker_id}
        if not others:
            log.move_replicated_to(LONG_MAX)
            return
        if log.replicated_to == LONG_MAX:
            self._stand()
        self._others = tuple(others)

    def _stand(self) -> None:
        """Keep the high watermark where it is, whatever this broker appends or syncs."""
        self.log.move_replicated_to(self.log.high_watermark)

    # --- followers -----------------------------------------------------------------------------------------------

    def fetched(self, follower_id: int, offset: int, log_start_offset: int, broker_epoch: int, now: Now) -> bool:
        """Note that a follower has all records below an offset, because it asks for it.

        Raise ApiError as `follower` does.
        """
        follower, state = self.followers.get(follower_id), self.state
        if follower is None or broker_epoch < follower.broker_epoch:
            follower = self.follower(follower_id, broker_epoch)
        if follower.rests_in is not None:
            follower.wake(self.log)
        follower.fetched(offset, log_start_offset, broker_epoch, self.log.log_end_offset, now.ms)
        if state is None or follower_id not in state.isr:
            may_join = self._proposed is None and now.ms >= self._pause_ends_ms
            if may_join and self._is_in_sync(follower):
                self._propose({*self.isr, follower_id}, now)
        return self._advance()

    def fetched_again(self, follower_id: int, offset: int, broker_epoch: int, now_ms: int) -> bool:
        """Note that a follower repeats its last fetch. Return False if that may tell more: then call `fetched`.

        A member of the ISR that repeats the offset of its last fetch, in the same life, tells only that it is there.
        """
        follower, state = self.followers.get(follower_id), self.state
        if follower is None or state is None or follower_id not in state.isr:
            return False
        if follower.end_offset != offset or follower.broker_epoch != broker_epoch or follower.rests_in is not None:
            return False
        log = self.log
        if not log.log_start_offset <= offset <= log.log_end_offset:
            return False
        follower.fetched(offset, follower.log_start_offset, broker_epoch, log.log_end_offset, now_ms)
        return True

    def rest(self, follower_id: int, session: RepeatedFetch) -> Follower | None:
        """Let a follower rest in the session that it has just fetched in. Return None if each fetch must be noted.

        A follower outside of the ISR may join it at any fetch. A fetch in another life was not noted.
        """
        follower, state = self.followers.get(follower_id), self.state
        if follower is None or follower.broker_epoch != session.life or state is None or follower_id not in state.isr:
            return None
        if follower.end_offset != self.log.log_end_offset:
            return None
        follower.rests_in = session
        return follower

    def follower(self, follower_id: int, broker_epoch: int) -> Follower:
        """Return a follower, which fetches in a life of its.

        Raise ApiError UNKNOWN_LEADER_EPOCH if it is no replica that this broker knows of; it asks again. Raise
        STALE_BROKER_EPOCH if a later life of it has fetched already (rule E3). Kafka's brokers may name no life.
        """
        follower = self.followers.get(follower_id)
        if follower is None:
            reason = f"{self.log.name}: broker {follower_id} is none of its replicas {self._replicas}"
            raise ApiError(ErrorCode.UNKNOWN_LEADER_EPOCH, reason)
        if NO_BROKER_EPOCH != broker_epoch < follower.broker_epoch:
            reason = f"{self.log.name}: broker {follower_id} fetches in epoch {follower.broker_epoch} of its lives"
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"{reason}, {broker_epoch} is over")
        return follower

    @property
    def _replicas(self) -> tuple[int, ...]:
        return () if self.state is None else self.state.replicas

    def _is_in_sync(self, follower: Follower) -> bool:
        return follower.end_offset >= max(self.log.high_watermark, self.epoch_start_offset)

    def check_lag(self, lag_max_ms: int, now: Now) -> None:
        """Propose an ISR without the members that have not been at the log's end for `replica.lag.time.max.ms`."""
        if self._proposed is not None:
            return
        end_offset = self.log.log_end_offset
        late = {
            member
            for member, follower in self.followers.items()
            if member in self.isr and follower.is_late(end_offset, lag_max_ms, now.ms)
        }
        if late:
            self._propose(set(self.isr) - late, now)

    def start_offsets(self, broker_ids: Iterable[int]) -> list[int]:
        """Return the starts of these followers' logs; -1 for one that has not fetched in this epoch."""
        return [self.followers[member].log_start_offset for member in broker_ids if member in self.followers]

    # --- proposals -----------------------------------------------------------------------------------------------

    def _propose(self, members: set[int], now: Now) -> None:
        self._proposed, self._proposed_min_isr = frozenset(members), self.min_isr
        self._proposed_lives = {member: self._broker_epoch_of(member) for member in self._replicas if member in members}
        self._ask_ms = max(now.ms, self._pause_ends_ms)

    def _ask_for_empty_elr(self, now: Now) -> None:
        """Propose the present ISR again if the ELR alone keeps the high watermark from moving."""
        if self.state is not None and self.state.elr and self.has_min_isr and self._proposed is None:
            self._propose(set(self.isr), now)

    def take_proposal(self, broker_epoch: int, now: Now) -> Proposal | None:
        """Return the proposal to ask the controller for now, None without one. One is under way at a time.

        `broker_epoch` is that of this broker's life. A proposal that is asked again names the same lives of the others,
        because only these were in sync (rule E6).
        """
        if self.state is None or self._proposed is None or self._ask_ms is None or now.ms < self._ask_ms:
            return None
        self._ask_ms = None
        epochs = self._proposed_lives | {self.broker_id: broker_epoch}
        return Proposal(epochs, self.state.leader_epoch, self.state.partition_epoch, self._proposed_min_isr)

    def _broker_epoch_of(self, member: int) -> int:
        follower = self.followers.get(member)
        return NO_BROKER_EPOCH if follower is None else follower.broker_epoch

    def next_deadline_ms(self) -> int | None:
        """Return when `take_proposal` has a proposal."""
        return None if self._proposed is None else self._ask_ms

    def granted(
        self, leader_epoch: int, partition_epoch: int, isr: tuple[int, ...], elr: tuple[int, ...], now: Now
    ) -> bool:
        """Take the state that the controller answered to a proposal. An answer of an earlier epoch counts for nothing.
        """
        state = self.state
        if state is None or (leader_epoch, partition_epoch) < (state.leader_epoch, state.partition_epoch):
            return False
        if leader_epoch > state.leader_epoch:
            return False  # LeaderAndIsr will tell
        if partition_epoch == state.partition_epoch and self._proposed not in (None, frozenset(isr)):
            return False  # an earlier proposal's answer; the next one may be granted already
        before = set(state.isr)
        self._figures.shrinks += not before.issubset(isr)
        self._figures.expands += not before.issuperset(isr)
        self._begin_state(state._replace(partition_epoch=partition_epoch, isr=isr, elr=elr))
        self._ask_for_empty_elr(now)
        return self._advance()

    def refused(self, leader_epoch: int, now: Now) -> None:
        """Ask again later, because the controller refused or did not answer.

        The proposal still counts, because an earlier answer may have been lost (rule E6). A new epoch ends it.
        """
        if self._is_proposed_in(leader_epoch):
            self._figures.failed += 1
            self._ask_ms = now.ms + RETRY_MS

    def ineligible(self, leader_epoch: int, now: Now) -> bool:
        """Drop a proposal whose new member is dead or stops, for the life that it names (INELIGIBLE_REPLICA).

        No earlier request of this proposal can be granted later, because it names the same life. A member that fetches
        again is proposed again, after a pause.
        """
        if not self._is_proposed_in(leader_epoch):
            return False
        self._figures.failed += 1
        self._proposed, self._pause_ends_ms = None, now.ms + RETRY_MS
        self._ask_for_empty_elr(now)
        return self._advance()

    def _is_proposed_in(self, leader_epoch: int) -> bool:
        return self._proposed is not None and self.state is not None and self.state.leader_epoch == leader_epoch
