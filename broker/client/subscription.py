"""The subscription of a consumer: topics by name or by a pattern, and their partitions."""

from collections.abc import Iterable, Sequence
from re import Pattern
from typing import NamedTuple, cast

from broker.client.checked_arguments import INT64_MAX
from broker.client.core import TopicInfo
from broker.client.errors import InvalidTopics
from broker.client.group_protocol import Partition

GROUP_BYTES_MAX = (1 << 15) - 1
"""The protocol's limit on the name of a group."""
_SHOWN_CHARACTERS = 40
Topics = str | Iterable[str] | Pattern[str]


class Subscription(NamedTuple):
    """Topics by name, or all whose whole name matches `pattern`. Without a group, `partitions` may choose some."""

    names: tuple[str, ...]
    pattern: Pattern[str] | None
    partitions: tuple[int, ...] | None

    def topics_of(self, topics: Sequence[TopicInfo]) -> list[str]:
        """Return the names that are subscribed, of topics that exist; a pattern matches no internal topic."""
        if self.pattern is None:
            return list(self.names)
        return sorted(topic.name for topic in topics if not topic.is_internal and self.pattern.fullmatch(topic.name))

    def partitions_of(self, topics: Sequence[TopicInfo]) -> set[Partition]:
        """Return the partitions to read without a group. Raise InvalidTopics if a chosen one does not exist."""
        names = set(self.topics_of(topics))
        partitions = {
            (topic.name, number) for topic in topics if topic.name in names for number in range(topic.partitions)
        }
        if self.partitions is None:
            return partitions
        wanted = {(name, number) for name in names for number in self.partitions}
        for name, number in sorted(wanted - partitions):
            there = sum(key[0] == name for key in partitions)
            raise InvalidTopics(f"{name} has partitions 0 to {there - 1}, not {number}")
        return wanted


def check_offset(partition: Partition, offset: int) -> int:
    """Return an offset. Raise ValueError if it cannot be one, or the partition is no pair (topic, number)."""
    check_pair(partition)
    if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= INT64_MAX:
        raise ValueError(f"{partition[0]}-{partition[1]}: {offset!r} is no offset; give a number of at least 0")
    return offset


def check_pair(partition: object) -> None:
    """Raise ValueError unless `partition` is a pair (topic, number)."""
    match partition:
        case (str(), int()) if isinstance(partition, tuple):
            return
    raise ValueError(f"{partition!r} is no partition: give pairs, such as [('orders', 0)]")


def check_group(group: object) -> None:
    """Raise ValueError unless `group` is None or a group's name, of at most GROUP_BYTES_MAX bytes."""
    if group is None or (isinstance(group, str) and 0 < len(group.encode(errors="replace")) <= GROUP_BYTES_MAX):
        return
    shown = repr(group)
    shown = shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."
    raise ValueError(f"group={shown}: give a group's name, text of at most {GROUP_BYTES_MAX:,} bytes, or leave it out")


def subscription(topics: Topics, partitions: Iterable[int] | None, group: str | None) -> Subscription:
    """Check what a user gave, and return the subscription. Raise InvalidTopics."""
    check_group(group)
    if isinstance(partitions, (int, str)):
        raise InvalidTopics(f"partitions={partitions!r}: give numbers, such as [0, 1]")
    chosen = None if partitions is None else tuple(partitions)
    if chosen is not None and group is not None:
        raise InvalidTopics(f"partitions={list(chosen)} beside group={group!r}: a group shares out partitions itself")
    if isinstance(topics, Pattern):
        if isinstance(cast(object, topics.pattern), bytes):
            raise InvalidTopics(f"topics={topics!r}: a pattern of topics is of text, re.compile('...')")
        return Subscription((), topics, chosen)
    several = topics if isinstance(cast(object, topics), Iterable) else ()
    names = (topics,) if isinstance(topics, str) else tuple(several)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InvalidTopics(f"topics={topics!r}: give a topic's name, several names, or a pattern made by re.compile")
    return Subscription(tuple(sorted(set(names))), None, chosen)


def named(partitions: Iterable[Partition]) -> str:
    """Return the names of partitions for a message, such as "orders-0, orders-1"."""
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))
