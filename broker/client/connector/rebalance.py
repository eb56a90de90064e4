"""A consumer that agrees with the others of its group through ZooKeeper: the core, without I/O.

    no session --> registered --> reads the group and watches it --> releases and claims --> owns its part
                       ^                    ^                              |                     |
                       |                    +-- another still owns one <---+        a change, or a new topic
                       +---- the session ended, or the consumer's node is gone ----------<-------+

Each consumer computes the whole assignment, and takes its own part of it. It stops, commits and releases the partitions
that go to others. Then it claims those that it lacks. If another consumer still owns one, it releases all its
partitions, waits, and tries again. Two consumers that see the group differently cannot own one partition, because only
one of them creates the owner's node.

The consumer hands out records only while its session lives for certain by its own clock (belief.py), and only of
partitions that it owns and has not stopped: `may_deliver`, which is asked for each record. After a lapse it goes on as
soon as a write proves that the session lived through it; if it did not, everything is lost and claimed anew.

The shell carries out what `take` returns, and passes each outcome to `answered`, and each event of the coordinator to
`happened` before the answers that came after it. Times are in ms on a clock that runs while the machine sleeps.
"""

from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

from broker.client.connector.assignment import TopicView, assign
from broker.client.connector.belief import SessionBelief
from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.events import Closed, Committed, Event, LookAgain, MadeAgain, RebalanceFailed, Trouble
from broker.client.connector.group_view import GroupView, GroupViewReader
from broker.client.connector.offsets_topic import OffsetsTopicNode, SettledTopic
from broker.client.connector.ownership import Claim, Ownerships
from broker.client.connector.registration import Registration, RegistrationLost
from broker.client.connector.topic_filter import TopicStreams
from broker.client.registry.nodes import StreamId, owners_path
from broker.cluster.documents import DamagedDocument, TopicPartition
from broker.cluster.driver import Driver
from broker.cluster.procedure import Outcome, Procedure
from broker.now import Now
from coordination.port import (
    Changed,
    CoordinationError,
)
from coordination.port import Event as CoordinatorEvent
from coordination.port import Operation, SessionEnded, SessionEstablished, SessionLost

METADATA_LAG_MAX_MS = 1_000
"""A broker's Metadata is not older than this. So what it shows for longer is the later of two topics."""


class Phase(Enum):
    """The phases of a consumer."""

    OUTSIDE = "outside"
    REGISTERED = "registered"
    CLOSED = "closed"
    REFUSED = "refused"


class RegistryConsumer:
    """A consumer of a group. With `sees_topics`, the caller passes the topics of Metadata to `topics_seen`.

    Otherwise the topics are those in ZooKeeper.
    """

    def __init__(
        self,
        group: str,
        consumer: str,
        streams: TopicStreams,
        config: ConnectorConfig,
        *,
        sees_topics: bool = False,
    ) -> None:
        self.phase = Phase.OUTSIDE
        self._group = group
        self._consumer = consumer
        self._config = config
        self._events: list[Event] = []
        self._registration = Registration(group, consumer, streams)
        self._reader = GroupViewReader(group, consumer, streams)
        self._belief = SessionBelief(config.zookeeper_session_timeout_ms)
        self._owners = Ownerships(group, self._registration, self._events.append)
        self._work = Driver()
        self._proof = Driver()
        self._session_id: int | None = None
        self._sees_topics = sees_topics
        self._seen: dict[str, TopicView] | None = None
        self._seen_ms = 0
        self._unsettled: dict[str, _Doubt] = {}
        """Topics that the last view shows with another id than the offsets have."""
        self._known: dict[str, TopicView] = {}
        self._is_closing = False
        self._rebalance_ms: int | None = None
        self._tries = 0
        self._try_ends_ms = 0
        self._commit_ms: int | None = None
        self._commits_asked = 0
        self._has_lapsed = False
        self._now_ms = 0

    # --- the program's side

    @property
    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self._owners.owned)

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.CLOSED, Phase.REFUSED)

    def may_deliver(self, partition: TopicPartition, now_ms: int) -> bool:
        """Return True if a record of the partition may be handed out at this moment."""
        return self._belief.lives(now_ms) and self._owners.delivers(partition)

    def deliver_until_ms(self, partition: TopicPartition) -> int:
        """Return until when `may_deliver` stays true, unless something happens before; 0 if it is false now."""
        until_ms = self._belief.until_ms
        return until_ms if until_ms is not None and self._owners.delivers(partition) else 0

    def placed(self, partition: TopicPartition, offset: int, now: Now) -> None:
        """Set where a partition begins that was claimed without an offset, or begins again out of range. It is
        committed soon, so that a later owner begins there too."""
        self._owners.move_to(partition, offset)
        self._commit_ms = now.ms
        self._run(now)

    def processed(self, partition: TopicPartition, offset: int) -> None:
        """Set the offset after the last record that the program has come back for."""
        self._owners.move_to(partition, offset)

    def commit(self, now: Now) -> int:
        """Commit all positions soon. Return the number of this commit; `Committed` with it or a later one follows."""
        self._commits_asked += 1
        self._commit_ms = now.ms
        self._run(now)
        return self._commits_asked

    def topics_seen(self, topics: Iterable[TopicView], now: Now) -> None:
        """Take the topics that Metadata shows now."""
        seen = {topic.name: topic for topic in topics}
        self._seen_ms = now.ms
        if seen != self._seen or self._unsettled:
            self._seen = seen
            self._must_rebalance(now)

    def close(self, now: Now) -> None:
        """Release everything and leave the group; `Closed` follows."""
        self._is_closing = True
        self._run(now)

    def take_events(self) -> list[Event]:
        events = self._events[:]
        self._events.clear()
        return events

    # --- the coordinator's side

    def take(self, now: Now) -> list[Operation]:
        """Return the operations to carry out now, each once."""
        operations = [*self._work.take_operations(), *self._proof.take_operations()]
        for operation in operations:
            self._belief.sent(operation, now.ms)
        return operations

    def answered(self, operation: Operation, outcome: Outcome, now: Now) -> None:
        """Take the result or the error of an operation, which is the same object that `take` returned."""
        self._now_ms = now.ms
        self._belief.answered(operation, outcome)
        self._work.completed(operation, outcome, now)
        self._proof.completed(operation, outcome, now)
        self._run(now)

    def happened(self, event: CoordinatorEvent, now: Now) -> None:
        """Take an event of the coordinator."""
        match event:
            case SessionEnded():
                self._end_session("its session with ZooKeeper has ended")
            case SessionEstablished(session_id, timeout_ms):
                self._grant(self._belief.timeout_ms if timeout_ms is None else timeout_ms)
                if self._session_id not in (None, session_id):
                    self._end_session("its session with ZooKeeper has ended")
                self._session_id = session_id
                self._rebalance_ms = now.ms
            case Changed(path) if self._reader.watches(path) or self._awaits(path):
                self._rebalance_ms = now.ms
        self._run(now)

    def _grant(self, timeout_ms: int) -> None:
        """Count with the session timeout that ZooKeeper grants."""
        if timeout_ms != self._belief.timeout_ms:
            asked_ms = self._config.zookeeper_session_timeout_ms
            self._events.append(Trouble(f"ZooKeeper grants sessions of {timeout_ms} ms, not of {asked_ms} ms"))
            self._belief.timeout_ms = timeout_ms

    def tick(self, now: Now) -> None:
        self._now_ms = now.ms
        self._work.tick(now)
        self._proof.tick(now)
        if self._owners.owned and not self._has_lapsed and not self._belief.lives(now.ms):
            self._has_lapsed = True
            timeout_ms = self._belief.timeout_ms
            self._events.append(Trouble(f"no answer of ZooKeeper for {timeout_ms} ms: nothing is delivered meanwhile"))
        self._run(now)

    def next_deadline_ms(self) -> int | None:
        """Return when to call `tick`, None if nothing is due."""
        if self.is_over:
            return None
        deadlines = [self._work.next_deadline_ms(), self._proof.next_deadline_ms()]
        if self._session_id is not None and not self._work.is_running and not self._waits_for_topics:
            deadlines.append(self._rebalance_ms)
        if self.phase is Phase.REGISTERED:
            if not self._proof.is_running:
                deadlines.append(self._belief.proof_due_ms)
            if not self._work.is_running:
                deadlines.append(self._commit_ms)
            if self._owners.owned and not self._has_lapsed:
                deadlines.append(self._belief.until_ms)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # --- what to do next

    def _run(self, now: Now) -> None:
        self._now_ms = now.ms
        if self._belief.lives(now.ms):
            self._has_lapsed = False
        if self._session_id is None and self._is_closing and not self.is_over:
            self._close()
        if self.is_over or self._session_id is None:
            return
        is_proof_due = self.phase is Phase.REGISTERED and self._is_due(self._belief.proof_due_ms, now)
        if is_proof_due and not self._proof.is_running:
            self._proof.begin(self._registration.prove(), self._proof_ended, now)
        while not self._work.is_running and not self.is_over and self._session_id is not None:
            procedure = self._next(now)
            if procedure is None:
                return
            self._work.begin(procedure, self._work_ended, now)

    def _next(self, now: Now) -> Procedure[Any] | None:
        if self.phase is Phase.OUTSIDE:
            if self._is_closing:
                self._close()
                return None
            return self._register(now) if self._is_due(self._rebalance_ms or 0, now) else None
        if self._is_closing:
            return self._leave()
        if self._is_due(self._rebalance_ms, now) and not self._waits_for_topics:
            self._rebalance_ms = None
            return self._rebalance()
        if self._is_due(self._commit_ms, now):
            interval_ms = self._config.auto_commit_interval_ms
            self._commit_ms = None if interval_ms is None else now.ms + interval_ms
            return self._commit()
        return None

    @property
    def _waits_for_topics(self) -> bool:
        return self._sees_topics and self._seen is None and self.phase is Phase.REGISTERED

    def _is_due(self, time_ms: int | None, now: Now) -> bool:
        return time_ms is not None and now.ms >= time_ms

    def _must_rebalance(self, now: Now) -> None:
        self._rebalance_ms = now.ms
        self._run(now)

    def _awaits(self, path: str) -> bool:
        """Return True for the node of an owner that has not let go."""
        return path.startswith(f"{owners_path(self._group)}/")

    # --- the work

    def _register(self, now: Now) -> Procedure[None]:
        assert self._session_id is not None
        yield from self._registration.register(self._session_id, now.wall_ms)
        self._owners.session_id = self._session_id
        yield from self._registration.prove()
        self.phase = Phase.REGISTERED
        self._tries = self._try_ends_ms = 0
        self._rebalance_ms = now.ms
        if self._commit_ms is None and self._config.auto_commit_interval_ms is not None:
            self._commit_ms = now.ms + self._config.auto_commit_interval_ms

    def _rebalance(self) -> Procedure[None]:
        seen_ms = self._seen_ms
        view = yield from self._reader.view(self._seen if self._sees_topics else None)
        for problem in view.problems:
            self._events.append(Trouble(problem))
        assignment = assign(view.topics.values(), view.consumers)
        own = {partition: stream for partition, stream in assignment.items() if stream.consumer == self._consumer}
        settled = yield from self._settle_topics(view, {partition.topic for partition in own}, seen_ms)
        own = {partition: stream for partition, stream in own.items() if settled[partition.topic].version is not None}
        topics = {
            name: (view.topics[name], state.version) for name, state in settled.items() if state.version is not None
        }
        for topic, version in topics.values():
            self._owners.keep(topic, version)
        yield from self._owners.release(self._to_release(own, settled))
        claims = yield from self._owners.claim(
            {partition: stream for partition, stream in own.items() if partition not in self._owners.owned}, topics
        )
        if Claim.CONFLICT in claims.values():
            yield from self._conflict([key for key, claim in claims.items() if claim is Claim.CONFLICT])
        elif Claim.AGAIN in claims.values() or len(topics) < len(settled):
            self._try_again()
        else:
            self._tries = self._try_ends_ms = 0

    def _settle_topics(
        self, view: GroupView, topics: Iterable[str], seen_ms: int
    ) -> Procedure[dict[str, SettledTopic]]:
        settled = {}
        for topic in sorted(topics):
            node = OffsetsTopicNode(self._group, topic, self._registration)
            doubt = self._unsettled.pop(topic, None)
            is_newer = doubt is not None and (not self._sees_topics or seen_ms >= doubt.since_ms + METADATA_LAG_MAX_MS)
            earlier_version = doubt.version if doubt is not None and is_newer else None
            state = yield from node.settle(view.topics[topic], earlier_version=earlier_version)
            if state.doubted_version is not None:
                if doubt is None or doubt.version != state.doubted_version:
                    doubt = _Doubt(state.doubted_version, self._now_ms)
                self._unsettled[topic] = doubt
                self._events.append(LookAgain(topic))
            settled[topic] = state
            if state.version is None:
                continue
            earlier = self._known.get(topic)
            self._known[topic] = view.topics[topic]
            if state.is_made_again or (earlier is not None and is_another(earlier, view.topics[topic])):
                self._events.append(MadeAgain(topic))
        return settled

    def _to_release(
        self, own: dict[TopicPartition, StreamId], settled: dict[str, SettledTopic]
    ) -> list[TopicPartition]:
        """Return the partitions that go to another stream or consumer, or were claimed of an earlier topic."""
        to_release = []
        for partition, ownership in self._owners.owned.items():
            state = settled.get(partition.topic)
            if state is not None and state.version is None:
                continue  # the topic is claimed once a newer view of it is there
            stays = own.get(partition) == ownership.stream and state is not None
            if not stays or (state is not None and ownership.topic_version != state.version):
                to_release.append(partition)
        return to_release

    def _conflict(self, partitions: list[TopicPartition]) -> Procedure[None]:
        """Release all, and wait for the other owners to let go, for a limited number of pauses.

        The owner's node is watched, so a try that comes within the pause does not count.
        """
        yield from self._owners.release(list(self._owners.owned))
        config = self._config
        if self._now_ms < self._try_ends_ms:
            self._rebalance_ms = self._try_ends_ms if self._rebalance_ms is None else self._rebalance_ms
            return
        names = ", ".join(map(str, sorted(partitions)[:10]))
        if self._tries >= config.rebalance_retries_max:
            error = (
                f"other consumers of {self._group} still own {names} after {self._tries + 1} tries; raise "
                f"rebalance.retries.max or rebalance.backoff.ms, or look for a consumer that hangs"
            )
            if not config.rebalance_goes_on:
                yield from self._registration.unregister()
                self._end(Phase.REFUSED, RebalanceFailed(error))
                return
            self._events.append(Trouble(error))
            self._tries = 0
        self._tries += 1
        self._try_ends_ms = self._now_ms + config.rebalance_backoff_ms
        self._try_again()

    def _try_again(self) -> None:
        """Rebalance after the pause, or at a change that is seen before."""
        if self._rebalance_ms is None:
            self._rebalance_ms = self._now_ms + self._config.rebalance_backoff_ms

    def _commit(self) -> Procedure[None]:
        number = self._commits_asked
        failed = yield from self._owners.commit(self._owners.uncommitted())
        if failed:
            self._rebalance_ms = self._rebalance_ms or 0
        self._events.append(Committed(number, tuple(failed)))

    def _leave(self) -> Procedure[None]:
        yield from self._owners.release(list(self._owners.owned))
        yield from self._registration.unregister()
        self._close()

    def _close(self) -> None:
        self._end(Phase.CLOSED, Closed())

    # --- ends

    def _work_ended(self, value: Any, error: Exception | None, now: Now) -> None:
        if error is None or self._lost_registration(error, now):
            return
        if not isinstance(error, CoordinationError | DamagedDocument):
            raise error
        self._events.append(Trouble(str(error) or type(error).__name__))
        self._rebalance_ms = now.ms + self._config.rebalance_backoff_ms

    def _proof_ended(self, value: Any, error: Exception | None, now: Now) -> None:
        if error is not None and not self._lost_registration(error, now):
            if not isinstance(error, CoordinationError):
                raise error
            self._events.append(Trouble(str(error) or type(error).__name__))

    def _lost_registration(self, error: Exception, now: Now) -> bool:
        if isinstance(error, SessionLost):
            self._end_session(str(error))
            return True
        if isinstance(error, RegistrationLost):
            session_id = self._session_id
            self._end_session(str(error))
            self._session_id = session_id
            return True
        return False

    def _end_session(self, why: str) -> None:
        """Give up everything that ended with the session; a new one follows."""
        self._session_id = self._rebalance_ms = None
        self._unsettled.clear()  # a new session may read from a server that lags behind
        self._work.cancel()
        self._proof.cancel()
        self._belief.end()
        self._owners.drop(list(self._owners.owned), why)
        if not self.is_over:
            self.phase = Phase.OUTSIDE

    def _end(self, phase: Phase, event: Event) -> None:
        self.phase = phase
        self._proof.cancel()
        self._belief.end()
        self._events.append(event)


class _Doubt(NamedTuple):
    """The version of a topic's node in the group that names another topic, and when that was seen first."""

    version: int
    since_ms: int


def is_another(earlier: TopicView, view: TopicView) -> bool:
    """Return True if two views of a name are of different topics."""
    if earlier.topic_id is not None and view.topic_id is not None:
        return earlier.topic_id != view.topic_id
    return None not in (earlier.czxid, view.czxid) and earlier.czxid != view.czxid
