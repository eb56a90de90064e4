"""The topics a spout reads, the brokers and the store of its progress: checked when the spout is created.

Without the checks a mistake shows late and elsewhere. A string as the start position, for example, began at the end of
the log.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from broker.client.address import parse_addresses
from broker.client.group_config import GroupMemberConfig
from broker.client.offset_spec import OffsetSpec
from coordination.port import check_path
from idgen.settings import InvalidSetting
from partition_manager.config import SpoutConfig
from partition_manager.progress_metadata import RANGES_MAX

TopicChoice: TypeAlias = str | tuple[str, ...] | re.Pattern[str]
"""One topic, several, or all whose whole name matches a pattern."""

ZOOKEEPER = "zookeeper://"
KAFKA = "kafka"
TOPIC_CHARACTERS_MAX = 249  # Kafka's limit
_TOPIC = re.compile(rf"[a-zA-Z0-9._-]{{1,{TOPIC_CHARACTERS_MAX}}}")


class InvalidSource(ValueError):
    """A spout that could not read; the message has the argument, its value, and what would be right."""


@dataclass(frozen=True, slots=True)
class Source:
    """The topics a spout reads, the topology its progress is stored for, the start position and the settings.

    `stored_at` names the store and the node of the progress, for messages.
    """

    topics: TopicChoice
    topology_id: str
    topology_name: str
    start: OffsetSpec
    config: SpoutConfig
    stored_at: str = "the store"
    in_group: bool = False  # a consumer group assigns the partitions and keeps the progress

    @property
    def by_pattern(self) -> bool:
        """Return True if the topics are those that match a pattern."""
        return isinstance(self.topics, re.Pattern)

    @property
    def by_topic(self) -> bool:
        """Return True if the progress of each topic has its own node. 0.9.3 reads one topic and has no such node."""
        return not isinstance(self.topics, str)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the topics; empty for a pattern."""
        if isinstance(self.topics, str):
            return (self.topics,)
        return () if isinstance(self.topics, re.Pattern) else self.topics

    @property
    def described(self) -> str:
        """Return the names of the topics or the pattern, for messages."""
        return f"/{self.topics.pattern}/" if isinstance(self.topics, re.Pattern) else ", ".join(self.names)

    def choose(self, existing: Iterable[str]) -> list[str]:
        """Return the topics that match the pattern, by name.

        A pattern never matches internal topics, nor the dead-letter topics of this spout.
        """
        if not isinstance(self.topics, re.Pattern):
            return list(self.names)
        letters = dead_letter_pattern(self.config.spout_dead_letter_topic)
        return sorted(
            name
            for name in existing
            if self.topics.fullmatch(name) and not name.startswith("__") and not letters.fullmatch(name)
        )


def dead_letter_pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of all dead-letter topics that `template` can name."""
    return re.compile(".+".join(re.escape(part) for part in template.split("{topic}")))


def topics_of(topics: object, config: SpoutConfig) -> TopicChoice:
    """Return the topics of a spout. Raise InvalidSource if one has no valid name, or takes its own dead letters."""
    if isinstance(topics, re.Pattern):
        if not isinstance(topics.pattern, str):
            raise InvalidSource(f"topic={topics!r}: a pattern of topics is of text, re.compile('...')")
        if config.spout_dead_letter_topic == "{topic}":
            raise InvalidSource("flakelog.spout.dead.letter.topic={topic}: dead letters would go to their own topics")
        return topics
    if isinstance(topics, str):
        return _topic(topics, config)
    if isinstance(topics, (bytes, bytearray)) or not isinstance(topics, Sequence):
        wanted = "give a topic's name, a list of names, or a pattern made by re.compile"
        raise InvalidSource(f"topic={topics!r}: {wanted}")
    names = tuple(_topic(name, config) for name in topics)
    if not names:
        raise InvalidSource("topic=[]: give at least one topic")
    if len(set(names)) != len(names):
        raise InvalidSource(f"topic={list(topics)!r}: one topic is named twice")
    if len(names) > config.spout_max_topics:
        raise InvalidSource(f"{len(names)} topics, flakelog.spout.max.topics allows {config.spout_max_topics}")
    return names


def _topic(name: object, config: SpoutConfig) -> str:
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        wanted = f"a topic's name has 1 to {TOPIC_CHARACTERS_MAX} of the characters a-z, A-Z, 0-9, '.', '_' and '-'"
        raise InvalidSource(f"topic={name!r}: {wanted}")
    template = config.spout_dead_letter_topic
    if template and template.replace("{topic}", name) == name:
        wanted = "its dead letters would go to the topic itself, again and again; give them another"
        raise InvalidSource(f"flakelog.spout.dead.letter.topic={template} for topic {name!r}: {wanted}")
    return name


def servers_of(servers: object) -> str:
    """Return the addresses. Raise InvalidSource if they are not host:port, or several separated by commas."""
    if not isinstance(servers, str):
        raise InvalidSource(f"servers={servers!r}: give host:port as text, several separated by commas")
    try:
        parse_addresses(servers)
    except ValueError as error:
        raise InvalidSource(f"servers={servers!r}: {error}") from None
    return servers


def store_of(store: object) -> str:
    """Return the store of the progress. Raise InvalidSource if it is neither a directory, a ZooKeeper nor "kafka"."""
    wanted = f"give a directory, {ZOOKEEPER}host:port,host:port/chroot, or {KAFKA!r} for the group's offsets"
    if not isinstance(store, str):
        raise InvalidSource(f"store={store!r}: {wanted}, as text")
    if not store.strip() or "\0" in store:
        raise InvalidSource(f"store={store!r}: {wanted}")
    if not store.startswith(ZOOKEEPER):
        if "://" in store:
            raise InvalidSource(f"store={store!r}: {wanted}")
        return store
    hosts, slash, chroot = store.removeprefix(ZOOKEEPER).partition("/")
    try:
        parse_addresses(hosts)
        check_path(slash + chroot or "/")
    except ValueError as error:
        raise InvalidSource(f"store={store!r}: {error}") from None
    return store


def config_in_group(config: SpoutConfig, group: GroupMemberConfig) -> SpoutConfig:
    """Return the settings of a spout in a consumer group, whose progress has at most RANGES_MAX ranges.

    Raise InvalidSetting if the settings of spout and group do not fit together.
    """
    if config.spout_handover_ms >= group.max_poll_interval_ms:
        wanted = f"must be below max.poll.interval.ms ({group.max_poll_interval_ms}), the group's rebalance timeout"
        raise InvalidSetting("flakelog.spout.handover.ms", config.spout_handover_ms, wanted)
    if config.spout_ignore_stored:
        wanted = f"must be false with store={KAFKA!r}: each process would begin anew at each hand-over"
        raise InvalidSetting("flakelog.spout.ignore.stored", True, wanted)
    ranges = min(config.spout_max_settled_ranges, RANGES_MAX)
    return replace(config, spout_max_settled_ranges=ranges, spout_done_ranges_max=RANGES_MAX)


def id_of(id: object) -> str | None:
    """Return the name the progress is stored under, None for the default. Raise InvalidSource if it is no name."""
    if id is None:
        return None
    try:
        if not isinstance(id, str) or check_path(f"/{id}") == "/":
            raise ValueError("it is not a name")
    except ValueError as error:
        wanted = "give a name of printable characters that does not begin with '.', or none for <topology>.<component>"
        raise InvalidSource(f"id={id!r}: {error}; {wanted}") from None
    return id
