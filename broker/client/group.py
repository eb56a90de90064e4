"""A member of a consumer group: Kafka's classic protocol with cooperative rebalances (KIP-429), without I/O.

    JOINING --- generation ---> SYNCING --- assignment ---> STABLE
       ^                           |                           |
       +---- the group rebalances, a partition was released ---+        any --> LEAVING --> LEFT, or REFUSED

The shell runs a loop:

    steps = member.take(now_ms)              an operation of a ClientCore, or None; one at a time
    member.answered(result or ClientError, now_ms)
    for event in member.take_events(): ...
    sleep until member.next_deadline_ms()

A member keeps its partitions while the group rebalances. After a rebalance it may have to revoke some: the event is
`Revoke`. Its program finishes and commits, and calls `released`. Then the member joins again, and the next rebalance
gives those partitions to others.

The member never owns a partition longer than the coordinator believes it alive. Its session ends by its own clock
`session.timeout.ms` after it sent the last heartbeat or join that restarted it, and the coordinator's clock starts
later. A SyncGroup restarts no session. Neither does a JoinGroup whose answer the coordinator only repeats, because the
first answer was lost: then the member sends a heartbeat before it takes its partitions.

No request waits longer than a third of the session. A JoinGroup or SyncGroup that waits longer for other members is
cut off. Then a heartbeat shows whether the coordinator is there, and the member asks again. The coordinator takes both
requests as one. So a join waits as long as in Kafka's clients (the rebalance timeout and 5 s) without trouble. One
request of that length would show nothing of the coordinator for minutes, while the member's session ends by its own
clock, so it would lose the partitions that it keeps in a cooperative rebalance.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

from broker.client.core import Address, ClientCore, Steps
from broker.client.errors import RETRIABLE, BadAnswer, BrokerError, ClientError, NoAnswer, Unreachable
from broker.client.group_config import GroupMemberConfig
from broker.client.group_protocol import NO_GENERATION, MemberSubscription, Partition
from broker.client.group_requests import (
    NO_MEMBER_ID,
    GroupIdentity,
    Joined,
    Synced,
    assign_and_sync,
    find_coordinator,
    heartbeat,
    join,
    leave,
    partition_counts,
    sync,
)
from broker.wire.errors import ErrorCode

_COORDINATOR_MOVED = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})

JOIN_GRACE_MS = 5_000
"""A coordinator answers a JoinGroup within the rebalance timeout; Kafka's clients wait so much longer."""

_ADVICE = {
    ErrorCode.FENCED_INSTANCE_ID: "another process has joined with the same group.instance.id; "
    "give each process its own",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "the group has members of another assignor; all must use cooperative-sticky",
    ErrorCode.INVALID_SESSION_TIMEOUT: "session.timeout.ms must lie between the broker's group.min.session.timeout.ms "
    "and group.max.session.timeout.ms",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "the group is full; the broker's group.max.size limits it",
}


class Phase(Enum):
    """The phases of a member."""

    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"
    LEAVING = "leaving"
    LEFT = "left"
    REFUSED = "refused"


class Assigned(NamedTuple):
    """These partitions belong to the member from now on, beside those it has already."""

    partitions: frozenset[Partition]


class Revoke(NamedTuple):
    """These partitions shall go to another member: finish, commit, then call `released`."""

    partitions: frozenset[Partition]


class Lost(NamedTuple):
    """These partitions may have another owner already: drop them, and commit nothing."""

    partitions: frozenset[Partition]
    why: str


class MemberRefused(NamedTuple):
    """The group does not take this member; no further request is sent. `error` says what would be right.

    With `is_fenced` another process has joined as the same static member (KIP-345).
    """

    error: str
    is_fenced: bool = False


class Unused(NamedTuple):
    """The group has no partition for this member, because it has more members than partitions."""


class Waits(NamedTuple):
    """The group has not answered a join or a sync for `seconds`, because it waits for other members."""

    seconds: int


class Trouble(NamedTuple):
    """The first of several failures in a row. The member keeps trying."""

    error: str


Event = Assigned | Revoke | Lost | MemberRefused | Unused | Waits | Trouble


class GroupMember:
    """A member of group `group_id`, subscribed to `topics`. `now_ms` is any monotonic clock."""

    def __init__(
        self, core: ClientCore, group_id: str, topics: Iterable[str], config: GroupMemberConfig, now_ms: int
    ) -> None:
        self.phase = Phase.JOINING
        self.owned: frozenset[Partition] = frozenset()  # the revoked ones included, until they are released
        self.revoking: frozenset[Partition] = frozenset()
        self.coordinator: Address | None = None
        self._core = core
        self._config = config
        self._group_id = group_id
        self._topics = tuple(sorted(set(topics)))
        self._member_id = NO_MEMBER_ID
        self._generation = NO_GENERATION
        self._assigned: frozenset[Partition] = frozenset()
        self._claimed: frozenset[Partition] = frozenset()  # owned when the last join was sent
        self._members: dict[str, MemberSubscription] = {}  # of the whole group, if this member leads it
        self._is_assigning = self._is_leading = False
        self._counts: dict[str, int] = {}
        self._must_join_again = False
        self._is_unsure = False  # until the answer to a heartbeat shows that the membership holds
        self._on_answer: Callable[[Any, int], None] | None = None
        self._sent_ms = self._contact_ms = self._heartbeat_ms = self._counts_ms = self._retry_ms = now_ms
        self._asked_ms: int | None = None  # when the first of several equal joins or syncs in a row was sent
        self._waits_since_ms: int | None = None
        self._polled_ms = now_ms
        self._is_idle = False  # left because its program did not work on
        self._is_unused = False
        self._may_be_reinstated = config.group_instance_id is not None
        self._failures = 0
        self._events: list[Event] = []
        self._ended = self.identity

    # --- state

    @property
    def identity(self) -> GroupIdentity:
        """Return the member as its requests name it."""
        return GroupIdentity(self._group_id, self._generation, self._member_id, self._config.group_instance_id)

    @property
    def committing(self) -> GroupIdentity:
        """Return the member as its program's commits name it.

        While the program does not know yet that its partitions were lost, this is the membership that has ended. So the
        coordinator refuses progress of partitions that another member may have had meanwhile.
        """
        return self._ended if self._has_lost else self.identity

    def may_commit(self, partition: Partition) -> bool:
        """Return True if the partition is owned, and the program knows of everything that was lost before."""
        return partition in self.owned and not self._has_lost

    @property
    def _has_lost(self) -> bool:
        return any(isinstance(event, Lost) for event in self._events)

    @property
    def is_over(self) -> bool:
        """Return True if the member sends no more requests, because it has left or was refused."""
        return self.phase is Phase.REFUSED or (self.phase is Phase.LEFT and not self._is_idle)

    @property
    def waits_since_ms(self) -> int | None:
        """Return when the member began to join; None if it is stable, or if its requests fail."""
        is_waiting = self.phase in (Phase.JOINING, Phase.SYNCING) and not self._failures
        return self._waits_since_ms if is_waiting else None

    @property
    def has_events(self) -> bool:
        return bool(self._events)

    def take_events(self) -> list[Event]:
        """Return and clear the events since the last call, in order."""
        events, self._events = self._events, []
        return events

    def next_deadline_ms(self) -> int | None:
        """Return the time of the next call of `take`, or None if only an answer or a call changes anything."""
        if self.phase in (Phase.LEFT, Phase.REFUSED):
            return None
        times = [self._polled_ms + self._config.max_poll_interval_ms]
        if self._generation != NO_GENERATION:
            times.append(self._contact_ms + self._config.session_timeout_ms)
        if self._on_answer is None:
            due_ms = self._due_ms() if self.phase is Phase.STABLE and self._is_settled else self._retry_ms
            times.append(max(due_ms, self._retry_ms))
        return min(times)

    @property
    def _is_settled(self) -> bool:
        return self.coordinator is not None and not self._is_unsure

    def _due_ms(self) -> int:
        heartbeat_ms = self._heartbeat_ms + self._config.heartbeat_interval_ms
        if not self._is_leading:
            return heartbeat_ms
        return min(heartbeat_ms, self._counts_ms + self._config.metadata_max_age_ms)

    # --- calls of the program

    def polled(self, now_ms: int) -> None:
        """Say that the program works on. A member that left because it did not joins again."""
        self._polled_ms = now_ms
        if self._is_idle and self.phase is Phase.LEFT:
            self._is_idle = False
            self.phase = Phase.JOINING

    def released(self, partitions: Iterable[Partition]) -> None:
        """Give up revoked partitions. The caller has committed their progress and no longer processes them."""
        gone = frozenset(partitions) & self.revoking
        if not gone:
            return
        self.revoking -= gone
        self.owned -= gone
        returned = gone & self._assigned
        if returned:  # a rebalance gave them back while they were being released
            self.owned |= returned
            self._events.append(Assigned(returned))
        if gone - returned:
            self._must_join_again = True
        self._join_again_if_released()

    def subscribe(self, topics: Iterable[str]) -> None:
        """Change the topics. The member joins again with them."""
        wanted = tuple(sorted(set(topics)))
        if wanted != self._topics:
            self._topics = wanted
            self._must_join_again = True
            self._join_again_if_released()

    def leave(self, now_ms: int) -> None:
        """Leave the group. Partitions still owned are given up, so release or commit them first.

        A static member sends nothing, as in Kafka's clients: its partitions wait for it until its session expires.
        """
        if self.phase in (Phase.LEFT, Phase.REFUSED):
            return
        self._give_up()
        if self._member_id == NO_MEMBER_ID or self._config.group_instance_id is not None:
            self.phase = Phase.LEFT
        else:
            self.phase = Phase.LEAVING
        self._retry_ms = now_ms

    # --- requests and answers

    def take(self, now_ms: int) -> Steps[Any] | None:
        """Return the next operation to carry out, or None if an operation is under way or none is due."""
        self.tick(now_ms)
        if self._on_answer is not None or now_ms < self._retry_ms or self.phase in (Phase.LEFT, Phase.REFUSED):
            return None
        instruction = self._next(now_ms)
        if instruction is None:
            return None
        steps, self._on_answer = instruction
        self._sent_ms = now_ms
        return steps

    def answered(self, answer: Any, now_ms: int) -> None:
        """Process the result of the operation that `take` returned, or the ClientError it raised."""
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is None:
            return
        if on_answer in (self._joined, self._synced):
            if isinstance(answer, NoAnswer) and self._may_wait(now_ms):
                self._is_unsure = True
                self.coordinator = None
                return
            self._asked_ms = None
        if isinstance(answer, ClientError):
            self._failed(answer, now_ms)
        else:
            on_answer(answer, now_ms)

    def tick(self, now_ms: int) -> None:
        """Expire the session, or the time within which the program had to call `polled`."""
        if self.phase in (Phase.LEFT, Phase.REFUSED):
            return
        if self._generation != NO_GENERATION and now_ms >= self._contact_ms + self._config.session_timeout_ms:
            self._lose(f"no answer of the coordinator for {self._config.session_timeout_ms} ms (session.timeout.ms)")
            if self.phase is not Phase.LEAVING:
                self.phase = Phase.JOINING
        poll_ms = self._config.max_poll_interval_ms
        if now_ms >= self._polled_ms + poll_ms and self.phase is not Phase.LEAVING:
            self._lose(f"the program did not work on for {poll_ms} ms (max.poll.interval.ms)")
            self._is_idle = True
            self.leave(now_ms)

    def _may_wait(self, now_ms: int) -> bool:
        """Return True while a join or sync without an answer is no failure, because the group waits for others."""
        longest_ms = self._config.max_poll_interval_ms + JOIN_GRACE_MS
        is_waiting = self.phase is Phase.JOINING or (self.phase is Phase.SYNCING and not self._is_assigning)
        return is_waiting and self._asked_ms is not None and now_ms < self._asked_ms + longest_ms

    def _asks(self, now_ms: int) -> None:
        """Note that a join or a sync is sent. If it is repeated, a broker has answered since it was cut off."""
        if self._asked_ms is None:
            self._asked_ms = now_ms
        else:
            self._events.append(Waits((now_ms - self._asked_ms) // 1000))

    def _next(self, now_ms: int) -> tuple[Steps[Any], Callable[[Any, int], None]] | None:
        core, config, at = self._core, self._config, self.coordinator
        if at is None:
            return find_coordinator(core, self._group_id), self._coordinator_found
        if self.phase is Phase.LEAVING:
            return leave(core, at, self.identity), self._left
        if self._is_unsure and self._generation != NO_GENERATION:
            return heartbeat(core, at, self.identity), self._beaten
        if self.phase is Phase.JOINING:
            self._must_join_again = False
            self._asks(now_ms)
            if self._waits_since_ms is None:
                self._waits_since_ms = now_ms
            self._claimed = self.owned
            subscription = MemberSubscription(self._topics, tuple(sorted(self.owned)), self._generation)
            return join(core, at, self.identity, subscription, config), self._joined
        if self.phase is Phase.SYNCING:
            self._asks(now_ms)
            if self._is_assigning:
                return assign_and_sync(core, at, self.identity, self._members), self._synced
            return sync(core, at, self.identity), self._synced
        if now_ms >= self._heartbeat_ms + config.heartbeat_interval_ms:
            self._heartbeat_ms = now_ms
            return heartbeat(core, at, self.identity), self._beaten
        if self._is_leading and now_ms >= self._counts_ms + config.metadata_max_age_ms:
            self._counts_ms = now_ms
            return partition_counts(core, sorted(self._group_topics())), self._counted
        return None

    def _coordinator_found(self, address: Address, now_ms: int) -> None:
        self.coordinator = address

    def _joined(self, answer: Joined, now_ms: int) -> None:
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return
        if answer.error:
            self._failed(self._error(answer.error), now_ms)
            return
        self._failures = 0
        if not self._is_unsure or not self.owned:  # if it is unsure and owns nothing, the heartbeat follows
            self._contact_ms = self._sent_ms
        if self.phase is not Phase.JOINING:  # it leaves meanwhile
            self._member_id = answer.member_id
            return
        self._member_id, self._generation = answer.member_id, answer.generation
        self._members = dict(answer.members)
        self._is_leading = bool(answer.members)
        self._is_assigning = self._is_leading and not answer.skip_assignment
        self.phase = Phase.SYNCING

    def _synced(self, answer: Synced, now_ms: int) -> None:
        if answer.error:
            self._failed(self._error(answer.error), now_ms)
            return
        if self.phase is not Phase.SYNCING:
            return
        self._failures = 0
        self._waits_since_ms = None
        self.phase = Phase.STABLE
        self._heartbeat_ms, self._counts_ms = self._contact_ms, now_ms
        self._counts = dict(answer.counts) if answer.counts is not None else {}
        self._assigned = frozenset(answer.partitions)
        if self._may_be_reinstated:  # a coordinator gives a static member that came back what it had, whatever topics
            self._may_be_reinstated = False
            self._must_join_again |= {topic for topic, _ in self._assigned} != set(self._topics)
            self._assigned = frozenset(key for key in self._assigned if key[0] in self._topics)
        if self._claimed - self.owned - self._assigned:  # given up meanwhile; the leader held them back for this member
            self._must_join_again = True
        added = self._assigned - self.owned
        revoked = self.owned - self._assigned - self.revoking
        self.owned |= added
        self.revoking |= revoked
        if added:
            self._events.append(Assigned(added))
        if revoked:
            self._events.append(Revoke(revoked))
        if not self._assigned and not self._must_join_again and not self._is_unused:
            self._events.append(Unused())
        self._is_unused = not self._assigned
        self._join_again_if_released()

    def _beaten(self, error: int, now_ms: int) -> None:
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._contact_ms = self._sent_ms
            self._is_unsure = False
            self._failures = 0
        if error:
            self._failed(self._error(error), now_ms)

    def _counted(self, counts: dict[str, int], now_ms: int) -> None:
        self._failures = 0
        if self.phase is Phase.STABLE and counts != self._counts:
            self.phase = Phase.JOINING

    def _left(self, error: int, now_ms: int) -> None:
        if error in RETRIABLE and self.phase is Phase.LEAVING:
            self._leaving_failed(self._error(error), now_ms)
        elif self.phase is Phase.LEAVING:
            self.phase = Phase.LEFT
            self._member_id = NO_MEMBER_ID

    # --- failures

    def _error(self, code: int) -> BrokerError:
        error = BrokerError(code, f"group {self._group_id}")
        return BrokerError(code, f"group {self._group_id}", _ADVICE.get(error.code))

    def _failed(self, error: ClientError, now_ms: int) -> None:
        code = error.code if isinstance(error, BrokerError) else None
        if self.phase is Phase.LEAVING:
            self._leaving_failed(error, now_ms)
        elif code is ErrorCode.REBALANCE_IN_PROGRESS:
            self._failures = 0
            self.phase = Phase.JOINING
        elif code is ErrorCode.UNKNOWN_MEMBER_ID or code is ErrorCode.ILLEGAL_GENERATION:
            if code is ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = NO_MEMBER_ID
            self._lose(f"the coordinator answers {code.name}")
            self.phase = Phase.JOINING
        elif isinstance(error, (Unreachable, BadAnswer)):
            self._is_unsure = True
            self.coordinator = None
            self._back_off(error, now_ms)
        elif isinstance(error, BrokerError) and error.retriable:
            if code in _COORDINATOR_MOVED:
                self.coordinator = None
            self._back_off(error, now_ms)
        else:
            self._lose(str(error))
            self.phase = Phase.REFUSED
            self._events.append(MemberRefused(str(error), code is ErrorCode.FENCED_INSTANCE_ID))

    def _leaving_failed(self, error: ClientError, now_ms: int) -> None:
        """Look up the coordinator and try again if it moved or did not answer, twice at most."""
        self.coordinator = None
        self._back_off(error, now_ms)
        is_temporary = isinstance(error, Unreachable) or (isinstance(error, BrokerError) and error.retriable)
        if self._failures > 2 or not is_temporary:
            self.phase = Phase.LEFT

    def _back_off(self, error: ClientError, now_ms: int) -> None:
        if not self._failures and self.phase is not Phase.LEAVING:
            self._events.append(Trouble(str(error)))
        pause_ms = min(self._config.retry_backoff_ms << min(self._failures, 16), self._config.retry_backoff_max_ms)
        self._failures += 1
        self._waits_since_ms = None
        self._retry_ms = now_ms + pause_ms

    # --- internals

    def _group_topics(self) -> set[str]:
        return {topic for subscription in self._members.values() for topic in subscription.topics}

    def _join_again_if_released(self) -> None:
        if self.phase is Phase.STABLE and self._must_join_again and not self.revoking:
            self.phase = Phase.JOINING

    def _lose(self, why: str) -> None:
        if self.owned:
            if not self._has_lost:
                self._ended = self.identity
            self._events.append(Lost(self.owned, why))
        self._give_up()
        self._is_unsure = True

    def _give_up(self) -> None:
        self.owned = self.revoking = self._assigned = frozenset()
        self._generation = NO_GENERATION
        self._must_join_again = self._is_leading = False
