"""A consumer of the simulated group: its core, its session with the ensemble, its connection, and its program.

Requests and answers travel in order, and take time. A cut connection loses requests, or their answers, or carries a
request out later, as `coordination.port` allows. Reads may be of an earlier state, and events come late. A paused
process does nothing, while the ensemble goes on.
"""

from collections import deque

from broker.client.connector.connector_config import ConnectorConfig
from broker.client.connector.events import Claimed, Closed, LookAgain, Lost, RebalanceFailed, Stopped
from broker.client.connector.rebalance import RegistryConsumer
from broker.now import Now
from coordination.port import (
    Changed,
    ConnectionLost,
    CoordinationError,
    SessionEnded,
    SessionEstablished,
    SessionLost,
    SessionSuspended,
)
from tests.simulation.rebalance_ensemble import GROUP, identity_of, is_read

SESSION_MS = 2_000
METADATA_MS = 400
CONFIG = ConnectorConfig(
    zookeeper_session_timeout_ms=SESSION_MS,
    rebalance_retries_max=6,
    rebalance_backoff_ms=500,
    rebalance_goes_on=True,
    auto_commit_interval_ms=300,
)


class Reading:
    """A partition that the program reads: the topic it was claimed of, and the next offset."""

    def __init__(self, claimed):
        self.identity = identity_of(claimed.topic)
        self.topic_id = claimed.topic.topic_id
        self.stream = claimed.stream
        self.offset = claimed.offset
        self.processed_offset = None


class Client:
    def __init__(self, world, name, streams, sees_topics):
        self.world = world
        self.random = world.random
        self.name = name
        self.streams = streams
        self.sees_topics = sees_topics
        self.core = RegistryConsumer(GROUP, name, streams, CONFIG, sees_topics=sees_topics)
        self.outbox = deque()
        self.inbox = deque()
        self.late = []
        """Operations whose answers got lost, and which are carried out later."""
        self.readings = {}
        self.taken = {}
        """The record that the program of a stream works on: its reading, partition and offset."""
        self.is_cut = False
        self.is_dead = False
        self.paused_until_ms = 0
        self.touched_ms = world.now_ms
        self.seen_change = 0
        self.look_ms = 0
        self.session_id = None
        self._begin_session()

    # --- the session

    def _begin_session(self):
        self.session_id = self.world.ensemble.begin_session()
        self.world.ensemble.names_of_sessions[self.session_id] = self.name
        self.late.clear()
        self.touched_ms = self.world.now_ms
        self._receive("event", SessionEstablished(self.session_id))

    @property
    def is_alive_at_server(self):
        return self.session_id in self.world.ensemble.sessions

    def cut(self):
        """Break the connection. Each request under way is lost in one of three ways."""
        if self.is_cut:
            return
        self.is_cut = True
        self._receive("event", SessionSuspended())
        pending, self.outbox = self.outbox, deque()
        for _, operation in pending:
            self._lose(operation)

    def _lose(self, operation):
        kind = self.random.randrange(3)
        if kind == 0 and not is_read(operation):
            self._apply(operation)
        elif kind == 1 and not is_read(operation):
            self.late.append(operation)
        self._receive("answer", operation, ConnectionLost("the connection is cut"))

    def heal(self):
        if not self.is_cut:
            return
        self.is_cut = False
        if self.is_alive_at_server:
            self.touched_ms = self.world.now_ms
            self._receive("event", SessionEstablished(self.session_id))
        else:
            self._receive("event", SessionEnded())
            self._begin_session()

    def expire(self):
        """End the session, as the ensemble does after a silence."""
        self.world.note(f"{self.name}: session {self.session_id} expires")
        self.world.ensemble.end_session(self.session_id)
        self.late.clear()
        self.cut()

    def kill(self):
        self.is_dead = True
        self.outbox.clear()
        self.inbox.clear()

    # --- the ensemble's side of the connection

    def serve(self):
        """Let the ensemble carry out the requests that have arrived."""
        now_ms = self.world.now_ms
        if self.late and self.is_alive_at_server and not self.random.randrange(4):
            self._apply(self.late.pop(0))
        if self.is_cut or self.is_dead:
            return
        if now_ms >= self.paused_until_ms:
            self.touched_ms = now_ms  # the client's library pings
        while self.outbox and self.outbox[0][0] <= now_ms:
            _, operation = self.outbox.popleft()
            self.touched_ms = now_ms
            if not self.is_alive_at_server:
                self._receive("answer", operation, SessionLost("the session is over"))
            elif not self.random.randrange(150) and self.world.is_rough:
                self._lose(operation)
            elif is_read(operation):
                self._receive("answer", operation, self._read(operation))
            else:
                self._receive("answer", operation, self._apply(operation))

    def _apply(self, operation):
        if not self.is_alive_at_server:
            return SessionLost("the session is over")
        try:
            return self.world.ensemble.apply(self.session_id, operation, lambda event: None)
        except CoordinationError as error:
            return error
        finally:
            self.seen_change = self.world.ensemble.changes

    def _read(self, operation):
        """Read the present state, or an earlier one that is not older than what this session has seen."""
        ensemble = self.world.ensemble
        state = ensemble.changes
        if self.world.is_rough and not self.random.randrange(6):
            state = self.random.randrange(self.seen_change, state + 1)
        self.seen_change = max(self.seen_change, state)
        outcome = ensemble.read_of_state(operation, state)
        if operation.watch and not isinstance(outcome, CoordinationError):
            session_id = self.session_id
            if self._now(operation) != outcome:
                self._notify(session_id, Changed(operation.path))
            else:
                ensemble.apply(session_id, operation, lambda event: self._notify(session_id, event))
        return outcome

    def _now(self, operation):
        return self.world.ensemble.read_of_state(operation, self.world.ensemble.changes)

    def _notify(self, session_id, event):
        if session_id == self.session_id:
            self._receive("event", event, delay_ms=self.random.choice((0, 5, 50)))

    def _receive(self, *item, delay_ms=0):
        """Send an answer or an event; they arrive in the order of sending."""
        due_ms = self.world.now_ms + self.random.randrange(10) + delay_ms
        if self.inbox:
            due_ms = max(due_ms, self.inbox[-1][0])
        self.inbox.append((due_ms, item))

    # --- the process

    def work(self):
        """Let the process take its answers and events, look at its clock, and send its requests."""
        now_ms = self.world.now_ms
        if self.is_dead or now_ms < self.paused_until_ms:
            return
        now = Now(now_ms, now_ms)
        while self.inbox and self.inbox[0][0] <= now_ms:
            _, item = self.inbox.popleft()
            if item[0] == "answer":
                self.core.answered(item[1], item[2], now)
            elif not isinstance(item[1], Changed) or not self.is_cut:
                self.core.happened(item[1], now)
            self._take_events(now)
        if self.sees_topics and now_ms >= self.look_ms:
            self.look_ms = now_ms + METADATA_MS
            self.core.topics_seen(self.world.metadata(), now)
        deadline_ms = self.core.next_deadline_ms()
        if deadline_ms is not None and deadline_ms <= now_ms:
            self.core.tick(now)
        self._take_events(now)
        for operation in self.core.take(now):
            if self.is_cut and self.random.randrange(3):
                self._receive("answer", operation, ConnectionLost("the connection is cut"), delay_ms=100)
            else:
                self.outbox.append((now_ms + self.random.randrange(10), operation))

    def _take_events(self, now):
        for event in self.core.take_events():
            self.world.note(f"{self.name}: {event}")
            match event:
                case Claimed(partition, _, offset, _):
                    self.readings[partition] = reading = Reading(event)
                    if offset is None:
                        reading.offset = 0
                        self.core.placed(partition, 0, now)
                        self._take_events(now)
                case Stopped(partition):
                    reading = self.readings.pop(partition, None)
                    if reading is not None and reading.processed_offset is not None:
                        processed = reading.identity, reading.processed_offset
                        self.world.ensemble.last_processed[self.name, partition] = processed
                case Lost(partition, _):
                    self.readings.pop(partition, None)
                    self.world.ensemble.last_processed.pop((self.name, partition), None)
                case LookAgain():
                    self.look_ms = min(self.look_ms, now.ms + 1_100)
                case RebalanceFailed() | Closed():
                    self.kill()
                    self.world.ensemble.end_session(self.session_id)

    # --- the program

    def deliver(self):
        """Let a stream's program come back for the next record, and take it."""
        if self.is_dead or self.world.now_ms < self.paused_until_ms or not self.readings:
            return
        partition = self.random.choice(sorted(self.readings))
        stream = self.readings[partition].stream
        if stream in self.taken:
            self._come_back(*self.taken.pop(stream))
        reading = self.readings[partition]
        if reading.offset < self.world.end(partition, reading.identity):
            if self.core.may_deliver(partition, self.world.now_ms):
                self.world.delivered(self, partition, reading)
                self.taken[stream] = reading, partition, reading.offset
                reading.offset += 1

    def _come_back(self, reading, partition, offset):
        self.world.ensemble.done.setdefault((reading.identity, partition), set()).add(offset)
        if self.readings.get(partition) is reading:
            self.tell(reading, partition, offset + 1)

    def tell(self, reading, partition, offset):
        """Tell the core what the program is done with."""
        reading.processed_offset = offset
        self.core.processed(partition, offset)
