"""The topics that a consumer reads: by name, or by a regular expression, in the registry's words of Kafka 0.8."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from broker.client.errors import InvalidTopics
from broker.client.registry.nodes import BLACK_LIST, STATIC, STREAMS_MAX, WHITE_LIST, ConsumerRegistration
from broker.metadata.topic import INTERNAL_TOPICS, check_name
from broker.wire.errors import ApiError


@dataclass(frozen=True)
class TopicFilter:
    """All topics whose whole name matches `regex`, or all others with `is_black_list`. Internal topics are left out.

    As in Kafka 0.8, a comma stands for `|`, and spaces and quotes around the expression are ignored. Raise
    InvalidTopics for text that is no regular expression.
    """

    regex: str
    is_black_list: bool = False

    def __post_init__(self) -> None:
        if not isinstance(cast(object, self.regex), str):
            raise InvalidTopics(f"TopicFilter({self.regex!r}): give a regular expression as text, such as 'web-.*'")
        try:
            re.compile(self.expression)
        except re.error as error:
            raise InvalidTopics(f"TopicFilter({self.regex!r}): it is no regular expression: {error}") from error

    @property
    def expression(self) -> str:
        """The regular expression that names are matched with."""
        return self.regex.replace(",", "|").replace(" ", "").strip("\"'")

    @property
    def pattern(self) -> str:
        """The word for this kind of filter in the registry."""
        return BLACK_LIST if self.is_black_list else WHITE_LIST

    def allows(self, topic: str) -> bool:
        """Return True if a consumer with this filter reads the topic."""
        matches = re.fullmatch(self.expression, topic) is not None
        return matches is not self.is_black_list and topic not in INTERNAL_TOPICS


@dataclass(frozen=True)
class TopicStreams:
    """The topics of a consumer: streams for each one in `counts`, or `streams` for each that a filter allows."""

    counts: Mapping[str, int]
    topic_filter: TopicFilter | None = None
    streams: int = 1

    def __post_init__(self) -> None:
        if self.topic_filter is None and not self.counts:
            raise InvalidTopics("a consumer without topics: give {'orders': 2}, topics with streams, or a TopicFilter")
        counts = self.counts if self.topic_filter is None else {self.topic_filter.regex: self.streams}
        for topic, count in counts.items():
            if not isinstance(count, int) or not 1 <= count <= STREAMS_MAX:
                raise InvalidTopics(f"{count!r} streams for {topic!r}: give a number from 1 to {STREAMS_MAX}")

    @classmethod
    def wanted(cls, topics: object, count: int) -> "TopicStreams":
        """Return the streams that a program asks for: {"orders": 2}, or `count` for a TopicFilter. Raise InvalidTopics.
        """
        if isinstance(topics, TopicFilter):
            return cls({}, topics, count)
        if not isinstance(topics, Mapping):
            raise InvalidTopics(f"topics={topics!r}: give {{'orders': 2}}, topics with streams, or a TopicFilter")
        if count != 1:
            raise InvalidTopics(f"count={count!r} is for a TopicFilter: give each topic its streams, {{'orders': 2}}")
        for topic in topics:
            if not isinstance(topic, str):
                raise InvalidTopics(f"{topic!r} is no topic: give its name as text")
            try:
                check_name(topic)
            except ApiError as error:
                raise InvalidTopics(str(error)) from error
        return cls(dict(topics))

    def streams_of(self, topic: str) -> int:
        """Return the number of streams that read a topic."""
        if self.topic_filter is None:
            return self.counts.get(topic, 0)
        return self.streams if self.topic_filter.allows(topic) else 0

    def registration(self, timestamp_ms: int) -> ConsumerRegistration:
        """Return what the registry says of a consumer with these streams."""
        if self.topic_filter is None:
            return ConsumerRegistration(self.counts, STATIC, timestamp_ms)
        return ConsumerRegistration(
            {self.topic_filter.expression: self.streams}, self.topic_filter.pattern, timestamp_ms
        )

    @classmethod
    def registered(cls, registration: ConsumerRegistration) -> "TopicStreams":
        """Return the streams of a consumer in the registry. Raise InvalidTopics if its filter cannot be read."""
        if registration.pattern == STATIC:
            return cls(registration.subscription)
        ((regex, streams),) = registration.subscription.items()
        return cls({}, TopicFilter(regex, registration.pattern == BLACK_LIST), streams)
