"""The list of topics, and one topic: its partitions, its settings, and the groups that read it.

The pages show the broker of this process: its logs in memory have what no request tells, such as segments, last ids and
reasons of being offline. flakelog/operations has the partitions of any cluster.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from broker.log.partition_log import PartitionLog
from broker.metadata.topic import Topic
from broker.security.authorization.acl import Operation, ResourceType
from broker.services.config_resources import sources_of
from broker.services.context import BrokerServices
from broker.settings.config_entries import ConfigSource, topic_entries
from flakelog.console.access import Access
from flakelog.operations.configs import SOURCES
from flakelog.operations.partitions import is_internal

PAGE_ROWS = 100
SUFFIX = ".dead-letters"  # of the topic of a spout's dead letters, unless its configuration names another
SORTS = ("name", "messages", "bytes", "partitions")


class Pages(NamedTuple):
    """A page of a long list: its number from 0, how many pages there are, and how many rows in all."""

    number: int
    last: int
    rows: int

    @property
    def start(self) -> int:
        return self.number * PAGE_ROWS

    @property
    def end(self) -> int:
        return min(self.start + PAGE_ROWS, self.rows)


def pages_of(rows: int, wanted: int) -> Pages:
    """Return the page wanted, or the last one if there are fewer."""
    last = max((rows - 1) // PAGE_ROWS, 0)
    return Pages(min(max(wanted, 0), last), last, rows)


class TopicRow(NamedTuple):
    """A topic in the list. `offline` counts its partitions that are offline."""

    name: str
    partitions: int
    messages: int
    bytes: int
    policy: str
    offline: int


class TopicList(NamedTuple):
    """A page of the topics whose names contain `search`."""

    rows: Sequence[TopicRow]
    pages: Pages
    search: str
    sort: str
    with_internal: bool
    topics: int


class PartitionRow(NamedTuple):
    """A partition of a topic. `offline` says why it is, empty if it is not.

    One that was offline already at the start has no offsets, because its log could not be opened.
    """

    partition: int
    leader_epoch: int
    start: int | None
    end: int | None
    stable: int | None
    bytes: int | None
    segments: int | None
    last_id: int | None
    offline: str


class ConfigRow(NamedTuple):
    """A setting of a topic. `is_own` says that it is set for this topic."""

    name: str
    value: str | None
    source: str
    is_own: bool
    documentation: str


class TopicPage(NamedTuple):
    """A topic. `rows` are one page of its partitions."""

    name: str
    id: str
    is_internal: bool
    partitions: int
    messages: int
    bytes: int
    rows: Sequence[PartitionRow]
    pages: Pages
    configs: Sequence[ConfigRow]
    groups: Sequence[str]
    has_letters: bool


def topic_list(
    services: BrokerServices,
    access: Access,
    search: str = "",
    sort: str = "name",
    page: int = 0,
    with_internal: bool = False,
) -> TopicList:
    """Return a page of the topics that may be seen, by name, or by a figure with the largest first.

    An unknown `sort` is by name.
    """
    needle = search.strip().lower()
    topics = [topic for topic in services.metadata.topics() if access.sees_topic(topic.name)]
    matching = [
        topic
        for topic in topics
        if needle in topic.name.lower() and (with_internal or needle or not is_internal(topic.name))
    ]
    pages = pages_of(len(matching), page)
    if sort not in SORTS[1:]:
        sort = "name"
        matching.sort(key=lambda topic: topic.name)
        rows = [_row(services, topic) for topic in matching[pages.start : pages.end]]
    else:
        rows = sorted((_row(services, topic) for topic in matching), key=lambda row: (-getattr(row, sort), row.name))
        rows = rows[pages.start : pages.end]
    return TopicList(rows, pages, search.strip(), sort, with_internal, len(topics))


def topic_page(services: BrokerServices, access: Access, name: str, page: int = 0) -> TopicPage | None:
    """Return a topic, with its settings and its groups as far as they may be seen; None if there is no such topic."""
    topic = services.metadata.topic(name)
    if topic is None:
        return None
    messages, size = totals_of(_logs(services, topic, range(len(topic.partitions))))
    pages = pages_of(len(topic.partitions), page)
    return TopicPage(
        name=topic.name,
        id=str(topic.id),
        is_internal=is_internal(topic.name),
        partitions=len(topic.partitions),
        messages=messages,
        bytes=size,
        rows=_partitions(services, topic, range(pages.start, pages.end)),
        pages=pages,
        configs=config_rows(services, access, topic),
        groups=[group for group in services.coordinators.groups.readers(topic.name) if access.sees_group(group)],
        has_letters=access.sees_topic(topic.name + SUFFIX)
        and services.metadata.topic(topic.name + SUFFIX) is not None,
    )


def config_rows(services: BrokerServices, access: Access, topic: Topic) -> list[ConfigRow]:
    """Return the settings of a topic, its own first; none without the right to see them."""
    if not access.sees(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return []
    entries = topic_entries(services.config_of(topic), topic.properties, sources_of(services))
    rows = [
        ConfigRow(
            entry.name,
            entry.value,
            SOURCES[entry.shown_source],
            entry.shown_source == ConfigSource.TOPIC,
            entry.documentation,
        )
        for entry in entries
    ]
    return sorted(rows, key=lambda row: (not row.is_own, row.name))


def totals_of(logs: Iterable[PartitionLog]) -> tuple[int, int]:
    """Return the number of messages and of bytes in these logs."""
    messages = size = 0
    for log in logs:
        messages += log.log_end_offset - log.log_start_offset
        size += log.segments.size
    return messages, size


def _row(services: BrokerServices, topic: Topic) -> TopicRow:
    messages, size = totals_of(_logs(services, topic, range(len(topic.partitions))))
    offline = sum(services.logs.is_offline(topic.name, number) for number in range(len(topic.partitions)))
    config = services.config_of(topic) if topic.properties else services.config.topic_defaults
    policy = config.cleanup_policy
    return TopicRow(topic.name, len(topic.partitions), messages, size, policy, offline)


def _logs(services: BrokerServices, topic: Topic, partitions: Iterable[int]) -> Iterable[PartitionLog]:
    logs = services.logs
    return (log for number in partitions if (log := logs.find(topic.name, number)) is not None)


def _partitions(services: BrokerServices, topic: Topic, numbers: Iterable[int]) -> list[PartitionRow]:
    """Return the partitions that have a log here, or whose log cannot be opened."""
    logs = {log.partition: log for log in _logs(services, topic, numbers)}
    offline = services.logs.offline
    rows = []
    for number in numbers:
        why = offline.get(f"{topic.name}-{number}", "")
        if number in logs:
            rows.append(_partition(logs[number], why))
        elif why:
            epoch = topic.partitions[number].leader_epoch
            rows.append(PartitionRow(number, epoch, None, None, None, None, None, None, why))
    return rows


def _partition(log: PartitionLog, offline: str) -> PartitionRow:
    return PartitionRow(
        log.partition,
        log.leader_epoch,
        log.log_start_offset,
        log.log_end_offset,
        log.last_stable_offset,
        log.segments.size,
        len(log.segments.all),
        log.last_id if log.last_id > 0 else None,
        offline,
    )
