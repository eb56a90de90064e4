"""A broker's view of all settings, quotas and credentials in the coordinator (Kafka's DynamicConfigManager).

At the start of each session the watch reads all entities. From then on it reads the entities that new nodes below
/config/changes name, in the order of their numbers, and topics on request, because a new topic has no change node. A
change node says only that an entity changed; the settings are those of the entity's node when it is read.

The server of this session may be behind the one that the controller writes to (ZooKeeper's servers lag). So a topic on
request is read once the server shows the topic itself, which was written after its settings or together with them.

    begin -> read change nodes (watched), read all -> updates
             /config/changes changed -> read new change nodes (watched), read their entities -> updates
             want_topic -> read the topic -> an update

A shell carries out `take_operations` and passes the results to `completed`, passes the coordinator's events to
`notified`, calls `tick` at `next_deadline_ms`, and applies `take_updates`.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple
from uuid import UUID

from broker.cluster.config_entity import ConfigEntity, decode_entity_path, topic_entity
from broker.cluster.documents import CONFIG_CHANGES, DamagedDocument, Topic, decode_config_change, topic_path
from broker.cluster.driver import Driver
from broker.cluster.entity_configs import Configs, Settings, read_configs, read_entities
from broker.cluster.procedure import Pause, Procedure, read, read_children
from broker.now import Now
from coordination.port import (
    Changed,
    CoordinationError,
    Delete,
    Event,
    Get,
    Node,
    NoNode,
    Operation,
    Result,
    SessionEnded,
    SessionLost,
)

CHANGE_EXPIRATION_MS = 15 * 60 * 1_000
"""The age at which a change node is deleted (Kafka's change.expiration).

Each broker has read the node by then: a session without any answer ends within minutes, and a new session reads all.
"""

PAUSE_AFTER_ERROR_MS = 1_000

LAG_MAX_MS = 10_000
"""How long the watch waits for a wanted topic that the coordinator does not show. It may have been deleted."""
LOOK_AGAIN_MS = 100


class _WantedTopic(NamedTuple):
    """A topic whose settings are read once the topic is there, or at `until_ms` in any case."""

    topic_id: UUID | None
    until_ms: int


class ConfigWatch:
    """The settings of all entities, as this broker has read them.

    `has_read_all` is True once the first read of all entities is complete. `problems` says which nodes are damaged, by
    path; their entities keep the settings that were read last.
    """

    def __init__(self) -> None:
        self.has_read_all = False
        self.problems: dict[str, str] = {}
        self._driver = Driver()
        self._settings: dict[ConfigEntity, Settings] = {}  # as the updates told them
        self._updates: list[tuple[ConfigEntity, Settings]] = []
        self._changes_seen: dict[str, int] = {}  # change nodes, with the time of the first look at each
        self._wanted: dict[ConfigEntity, _WantedTopic] = {}
        self._look_ms = 0  # when the wanted topics are read next
        self._topics_read: list[tuple[str, UUID | None]] = []
        self._is_in_session = False
        self._must_read_all = False
        self._must_read_changes = False
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Return the error that ended the last read of settings; None if the read went well."""
        return self._failure

    @property
    def problem(self) -> str | None:
        """Return the error of the last read, or the reason of a damaged node; None if all is well."""
        return self._failure or next(iter(self.problems.values()), None)

    @property
    def is_idle(self) -> bool:
        """Return True if no read is in progress or waits."""
        return not self._driver.is_running and not (self._is_in_session and (self._must_read or self._wanted))

    def begin(self, now: Now) -> None:
        """Read all entities, because a session has begun. The nodes that each broker expects must exist: a node that
        does not exist takes no watch."""
        self._driver.cancel()
        self._is_in_session = True
        self._must_read_all = True
        self._run(now)

    def stop(self) -> None:
        """Read nothing more until `begin`."""
        self._is_in_session = False
        self._driver.cancel()

    def want_topic(self, topic: str, topic_id: UUID | None, now: Now) -> None:
        """Read a topic's settings from now on. An update follows, without settings if the topic has none, and
        `take_topics_read` names the topic with the id. Both wait for a topic of this id, of any id if it is None.

        No update follows if the topic's node is damaged.
        """
        self._wanted[topic_entity(topic)] = _WantedTopic(topic_id, now.ms + LAG_MAX_MS)
        self._look_ms = now.ms
        self._run(now)

    def take_topics_read(self) -> list[tuple[str, UUID | None]]:
        """Return the topics whose settings were read after they were wanted, with the ids they were wanted for."""
        topics, self._topics_read = self._topics_read, []
        return topics

    def forget_topic(self, topic: str) -> None:
        """Forget the settings of a topic that was deleted."""
        self._settings.pop(topic_entity(topic), None)
        self._wanted.pop(topic_entity(topic), None)

    def take_updates(self) -> list[tuple[ConfigEntity, Settings]]:
        """Return the entities whose settings were read, in order; one without settings has an empty dict."""
        updates, self._updates = self._updates, []
        return updates

    # The coordinator

    def take_operations(self) -> list[Operation]:
        return self._driver.take_operations()

    def completed(self, operation: Operation, outcome: Result | CoordinationError, now: Now) -> None:
        """Take the result or the error of an operation, which is the same object that `take_operations` returned."""
        self._driver.completed(operation, outcome, now)

    def notified(self, event: Event, now: Now) -> None:
        match event:
            case SessionEnded():
                self.stop()
            case Changed(path) if path == CONFIG_CHANGES:
                self._must_read_changes = True
                self._run(now)

    def tick(self, now: Now) -> None:
        self._driver.tick(now)
        self._run(now)

    def next_deadline_ms(self) -> int | None:
        is_waiting = self._is_in_session and self._wanted and not self._driver.is_running
        return self._look_ms if is_waiting else self._driver.next_deadline_ms()

    # The work

    @property
    def _must_read(self) -> bool:
        return self._must_read_all or self._must_read_changes

    def _run(self, now: Now) -> None:
        is_due = self._must_read or (self._wanted and now.ms >= self._look_ms)
        if is_due and self._is_in_session and not self._driver.is_running:
            self._driver.begin(self._work(now), self._ended, now)

    def _work(self, now: Now) -> Procedure[None]:
        """Do one thing that waits. A flag is cleared before the read, so a later event causes another read."""
        if self._failure is not None:
            yield Pause(PAUSE_AFTER_ERROR_MS, f"the last read of settings failed: {self._failure}")
        if self._must_read_all:
            yield from self._read_all(now)
        elif self._must_read_changes:
            yield from self._read_changes(now)
        else:
            yield from self._read_wanted(now)
        self._failure = None

    def _ended(self, value: Any, error: Exception | None, now: Now) -> None:
        if isinstance(error, SessionLost):
            self._is_in_session = False  # `begin` follows
            return
        if error is not None:
            if not isinstance(error, CoordinationError):
                raise error
            self._failure = str(error) or type(error).__name__
            self._must_read_all = True
        self._run(now)

    def _read_all(self, now: Now) -> Procedure[None]:
        """Read the change nodes first, so that a change during the reads of the entities is read again."""
        names = yield from read_children(CONFIG_CHANGES, watch=True)
        configs = yield from read_configs()
        self.problems.clear()
        deleted = self._settings.keys() - configs.settings.keys() - configs.damaged.keys()
        self._take(Configs({entity: {} for entity in deleted}, {}), only_changes=True)
        self._take(configs, only_changes=self.has_read_all)
        for entity in deleted:
            del self._settings[entity]
        self._note_changes(names, now)
        self._must_read_all = False
        self.has_read_all = True
        yield from self._delete_expired(now)

    def _read_changes(self, now: Now) -> Procedure[None]:
        self._must_read_changes = False
        names = yield from read_children(CONFIG_CHANGES, watch=True)
        new = [name for name in names if name not in self._changes_seen]
        outcomes = yield from read([Get(f"{CONFIG_CHANGES}/{name}") for name in new])
        entities: dict[ConfigEntity, None] = {}
        for name, outcome in zip(new, outcomes, strict=True):
            if isinstance(outcome, NoNode):  # deleted before it was read: any entity may have changed
                self._must_read_all = True
                return
            if isinstance(outcome, CoordinationError):
                raise outcome
            assert isinstance(outcome, Node)
            entity = self._decode_change(f"{CONFIG_CHANGES}/{name}", outcome.data)
            if entity is not None:
                entities[entity] = None
        yield from self._read(entities)
        self._note_changes(names, now)
        yield from self._delete_expired(now)

    def _decode_change(self, path: str, data: bytes) -> ConfigEntity | None:
        try:
            return decode_entity_path(path, decode_config_change(path, data))
        except DamagedDocument as error:
            self.problems[path] = str(error)
            return None

    def _read_wanted(self, now: Now) -> Procedure[None]:
        """Read the topics that are wanted now. A topic that is wanted again meanwhile is read again."""
        wanted, self._wanted = self._wanted, {}
        to_read_again = wanted  # after an error, or the end of the session
        try:
            late = yield from self._late_topics(wanted, now)
            topics = {entity: topic for entity, topic in wanted.items() if entity not in late}
            yield from self._read(topics)
            self._topics_read += [(str(entity.names[0]), topic.topic_id) for entity, topic in topics.items()]
            to_read_again = late
            if late and not self._wanted:
                self._look_ms = now.ms + LOOK_AGAIN_MS
        finally:
            self._wanted = {**to_read_again, **self._wanted}

    def _late_topics(
        self, wanted: dict[ConfigEntity, _WantedTopic], now: Now
    ) -> Procedure[dict[ConfigEntity, _WantedTopic]]:
        """Return the topics that the coordinator does not show yet.

        This read ends before the settings are read, because reads of one batch come in any order.
        """
        paths = [topic_path(str(entity.names[0])) for entity in wanted]
        outcomes = yield from read([Get(path) for path in paths])
        late = {}
        for (entity, topic), path, outcome in zip(wanted.items(), paths, outcomes, strict=True):
            if isinstance(outcome, CoordinationError) and not isinstance(outcome, NoNode):
                raise outcome
            node = outcome if isinstance(outcome, Node) else None
            if now.ms < topic.until_ms and not _is_topic(path, node, topic.topic_id):
                late[entity] = topic
        return late

    def _read(self, entities: Iterable[ConfigEntity]) -> Procedure[None]:
        self._take((yield from read_entities(entities, missing_is_empty=True)), only_changes=False)

    def _take(self, configs: Configs, *, only_changes: bool) -> None:
        for entity, settings in configs.settings.items():
            self.problems.pop(entity.path, None)
            if not only_changes or self._settings.get(entity) != settings:
                self._settings[entity] = settings
                self._updates.append((entity, dict(settings)))
        self.problems.update({entity.path: reason for entity, reason in configs.damaged.items()})

    # Change nodes

    def _note_changes(self, names: list[str], now: Now) -> None:
        self._changes_seen = {name: self._changes_seen.get(name, now.ms) for name in names}
        paths = {f"{CONFIG_CHANGES}/{name}" for name in names}
        for path in [path for path in self.problems if path.startswith(f"{CONFIG_CHANGES}/") and path not in paths]:
            del self.problems[path]

    def _delete_expired(self, now: Now) -> Procedure[None]:
        """Delete the change nodes that this broker saw long ago. A node that cannot be deleted now is tried again."""
        expired = [name for name, seen_ms in self._changes_seen.items() if seen_ms <= now.ms - CHANGE_EXPIRATION_MS]
        yield tuple(Delete(f"{CONFIG_CHANGES}/{name}") for name in expired)


def _is_topic(path: str, node: Node | None, topic_id: UUID | None) -> bool:
    """Return True if the node is that of the topic with this id, of any topic if the id is None."""
    if node is None or topic_id is None:
        return node is not None
    try:
        return Topic.decode(path, node.data).topic_id == topic_id
    except DamagedDocument:
        return True  # the controller names the damage
