"""A broker's view of all settings, quotas and credentials in the coordinator (Kafka's DynamicConfigManager).

At the start of each session the watch reads all entities. From then on it reads the entities that new nodes below
/config/changes name, in the order of their numbers (`broker.cluster.change_watch`), and topics on request, because a
new topic has no change node.

The server of this session may be behind the one that the controller writes to (ZooKeeper's servers lag). So a topic on
request is read once the server shows the topic itself, which was written after its settings or together with them.

    want_topic -> read the topic -> an update

The shell applies `take_updates`.
"""

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from broker.cluster.change_watch import ChangeWatch
from broker.cluster.config_entity import ConfigEntity, decode_entity_path, topic_entity
from broker.cluster.documents import CONFIG_CHANGES, DamagedDocument, Topic, decode_config_change, topic_path
from broker.cluster.entity_configs import Configs, Settings, read_configs, read_entities
from broker.cluster.procedure import Procedure, read
from broker.now import Now
from broker.waiting.pending import Pending
from coordination.port import CoordinationError, Get, Node, NoNode

LAG_MAX_MS = 10_000
"""How long the watch waits for a wanted topic that the coordinator does not show. It may have been deleted."""
LOOK_AGAIN_MS = 100


class _WantedTopic(NamedTuple):
    """A topic whose settings are read once the topic is there, or at `until_ms` in any case."""

    topic_id: UUID | None
    until_ms: int


class ConfigWatch(ChangeWatch[ConfigEntity]):
    """The settings of all entities, as this broker has read them."""

    what = "settings"
    change_paths = (CONFIG_CHANGES,)

    def __init__(self, pending: Pending) -> None:
        super().__init__(pending)
        self._settings: dict[ConfigEntity, Settings] = {}  # as the updates told them
        self._updates: list[tuple[ConfigEntity, Settings]] = []
        self._wanted: dict[ConfigEntity, _WantedTopic] = {}
        self._look_ms = 0  # when the wanted topics are read next
        self._topics_read: list[tuple[str, UUID | None]] = []

    @property
    def is_idle(self) -> bool:
        """Return True if no read is in progress or waits."""
        return super().is_idle and not (self._is_in_session and self._wanted)

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

    def next_deadline_ms(self) -> int | None:
        is_waiting = self._is_in_session and self._wanted and not self._driver.is_running
        return self._look_ms if is_waiting else super().next_deadline_ms()

    # --- the work ------------------------------------------------------------------------------------------------

    def _is_due(self, now: Now) -> bool:
        return self._must_read or (bool(self._wanted) and now.ms >= self._look_ms)

    def _read_due(self, now: Now) -> Procedure[None]:
        yield from super()._read_due(now) if self._must_read else self._read_wanted(now)

    def _decode_change(self, path: str, data: bytes) -> ConfigEntity:
        return decode_entity_path(path, decode_config_change(path, data))

    def _read_everything(self) -> Procedure[None]:
        configs = yield from read_configs()
        self.problems.clear()
        deleted = self._settings.keys() - configs.settings.keys() - configs.damaged.keys()
        self._take(Configs({entity: {} for entity in deleted}, {}), only_changes=True)
        self._take(configs, only_changes=self.has_read_all)
        for entity in deleted:
            del self._settings[entity]

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

    def _read(self, keys: Iterable[ConfigEntity]) -> Procedure[None]:
        self._take((yield from read_entities(keys, missing_is_empty=True)), only_changes=False)

    def _take(self, configs: Configs, *, only_changes: bool) -> None:
        for entity, settings in configs.settings.items():
            self.problems.pop(entity.path, None)
            if not only_changes or self._settings.get(entity) != settings:
                self._settings[entity] = settings
                self._updates.append((entity, dict(settings)))
        self.problems.update({entity.path: reason for entity, reason in configs.damaged.items()})


def _is_topic(path: str, node: Node | None, topic_id: UUID | None) -> bool:
    """Return True if the node is that of the topic with this id, of any topic if the id is None."""
    if node is None or topic_id is None:
        return node is not None
    try:
        return Topic.decode(path, node.data).topic_id == topic_id
    except DamagedDocument:
        return True  # the controller names the damage
