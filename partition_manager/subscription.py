"""The topics that a task reads and their partitions, looked up at the start and at each refresh."""

from collections.abc import Callable
from typing import Protocol

from partition_manager.asks import Asks
from partition_manager.notes import Notes
from partition_manager.ports import Answer, ListPartitions, ListTopics, Partitions, Topics
from partition_manager.source import Source


class Subscriber(Protocol):
    """The receiver of what a look at the topics found."""

    def partitions_found(self, topic: str, partitions: Partitions, now_ms: int) -> None: ...

    def topic_removed(self, topic: str, now_ms: int) -> None: ...


class SourceSubscription:
    """The topics of `source`.

    It calls `partitions_found` for each topic, and `topic_removed` for one that the pattern no longer matches.
    Each topic has its own request, so a topic that does not exist delays no other.
    """

    def __init__(self, source: Source, asks: Asks, notes: Notes, subscriber: Subscriber) -> None:
        self.refresh_at_ms = 0
        self._source = source
        self._asks = asks
        self._notes = notes
        self._subscriber = subscriber
        self._topics: list[str] = [] if source.by_pattern else list(source.names)
        self._asking: set[str] = set()  # topics looked up now; a request is asked again until it succeeds
        self._listing = False

    def refresh(self, now_ms: int) -> None:
        """Look up the topics and their partitions, unless an earlier request is outstanding."""
        self.refresh_at_ms = now_ms + self._source.config.spout_refresh_interval_ms
        if not self._source.by_pattern:
            self._list_partitions(now_ms)
        elif not self._listing:
            self._listing = True
            self._asks.ask(self, ListTopics(), self._listed, now_ms)

    def stop(self) -> None:
        """Forget all requests."""
        self._asks.forget(self)
        self._asking.clear()
        self._listing = False

    def _listed(self, answer: Answer, now_ms: int) -> None:
        self._listing = False
        if not isinstance(answer, Topics):
            return
        topics = self._source.choose(answer.names)
        limit = self._source.config.spout_max_topics
        if len(topics) > limit:
            text = f"{self._source.described} matches {len(topics)} topics: only the first {limit} by name are read"
            self._notes.error(f"{text} (flakelog.spout.max.topics)")
            topics = topics[:limit]
        if topics != self._topics or not topics:
            self._notes.info(f"{self._source.described} matches: {', '.join(topics) or 'no topic yet'}")
        before, self._topics = self._topics, topics
        for topic in sorted(set(before) - set(topics)):
            self._subscriber.topic_removed(topic, now_ms)
        self._list_partitions(now_ms)

    def _list_partitions(self, now_ms: int) -> None:
        for topic in self._topics:
            if topic not in self._asking:
                self._asking.add(topic)
                self._asks.ask(self, ListPartitions(topic), self._on_partitions(topic), now_ms)

    def _on_partitions(self, topic: str) -> Callable[[Answer, int], None]:
        def listed(answer: Answer, now_ms: int) -> None:
            self._asking.discard(topic)
            if isinstance(answer, Partitions) and topic in self._topics:
                self._subscriber.partitions_found(topic, answer, now_ms)

        return listed
