"""Figures that the broker counts while it works: requests and their durations, bytes, failures, flushes.

Counting is on the path of every request, so it is a few additions; flakelog/figures.py names the figures when they
are requested. Figures that the logs have (offsets, sizes) are not counted again here. The figures follow early Kafka's
MBeans (SocketServerStats, BrokerTopicStat, LogFlushStats).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable

from broker.log.partition_log import PartitionLog

NS_PER_SECOND = 1_000_000_000
# Upper bounds of the buckets, in ns: three to a decade, from 50 us (a small produce) to 10 s (a long wait).
BOUNDS_NS = tuple(
    step * 10**power for power in range(4, 10) for step in (1, 2, 5) if 50_000 <= step * 10**power
) + (10 * NS_PER_SECOND,)


class Latency:
    """A histogram of durations. `counts` has one bucket more than there are bounds, for longer durations."""

    __slots__ = ("counts", "sum_ns", "max_ns")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_NS) + 1)
        self.sum_ns = 0
        self.max_ns = 0

    def observe(self, duration_ns: int, number: int = 1) -> None:
        self.counts[bisect_left(BOUNDS_NS, duration_ns)] += number
        self.sum_ns += duration_ns * number
        if duration_ns > self.max_ns:
            self.max_ns = duration_ns

    @property
    def number(self) -> int:
        return sum(self.counts)


class TopicFigures:
    """Figures of one topic, or of all, since the start. Copies from leaders, and for followers, count by themselves."""

    __slots__ = (
        "messages_in", "bytes_in", "bytes_out", "failed_produce", "failed_fetch", "replication_in", "replication_out",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.bytes_out = self.failed_produce = self.failed_fetch = 0
        self.replication_in = self.replication_out = 0

    def add_log(self, log: PartitionLog) -> None:
        self.messages_in += log.messages_in
        self.bytes_in += log.bytes_in - log.bytes_copied
        self.bytes_out += log.bytes_out
        self.replication_in += log.bytes_copied
        self.replication_out += log.bytes_replicated

    def add(self, other: "TopicFigures") -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Metrics:
    """Figures of one broker. Only existing topics have figures, so that invented names take no memory."""

    def __init__(self) -> None:
        self.requests: dict[int, Latency] = {}
        """Latencies by API key, from when a request was read to when its answer was ready, waiting included."""
        self.flushes = Latency()
        self.bytes_received = 0
        self.bytes_sent = 0
        self.connections_opened = 0
        self.throttled: Counter[str] = Counter()
        """Number of requests or connections throttled, by quota."""
        self.throttled_ms: Counter[str] = Counter()
        """Total throttle time in ms, by quota."""
        self._by_topic: dict[str, TopicFigures] = {}
        """Figures that no log has: refused requests, and what logs counted before they were opened anew."""
        self._strangers = TopicFigures()
        self._deleted = TopicFigures()
        """Figures of deleted topics, without which the totals would fall."""

    def of_api(self, api_key: int) -> Latency:
        latency = self.requests.get(api_key)
        if latency is None:
            latency = self.requests[api_key] = Latency()
        return latency

    def throttle(self, quota: str, throttle_ms: int) -> None:
        """Count a connection that is not read for `throttle_ms`, because its client is over a quota."""
        self.throttled[quota] += 1
        self.throttled_ms[quota] += throttle_ms

    def failed_produce(self, topic: str | None) -> None:
        """Count a refused partition of a Produce. `topic` is None if it does not exist."""
        self._of_topic(topic).failed_produce += 1

    def failed_fetch(self, topic: str | None) -> None:
        self._of_topic(topic).failed_fetch += 1

    def _of_topic(self, topic: str | None) -> TopicFigures:
        return self._strangers if topic is None else self._by_topic.setdefault(topic, TopicFigures())

    def reopened(self, log: PartitionLog) -> None:
        """Keep the figures of a log that is opened anew, because the next opening counts from zero."""
        self._of_topic(log.topic).add_log(log)

    def deleted(self, topics: Collection[str], logs: Iterable[PartitionLog]) -> None:
        """Move the figures of deleted topics into the totals."""
        figures = self.by_topic(logs)
        for topic in topics:
            self._deleted.add(figures.get(topic, TopicFigures()))
            self._by_topic.pop(topic, None)

    def by_topic(self, logs: Iterable[PartitionLog]) -> dict[str, TopicFigures]:
        """Return the figures of each topic that has a log or a failure."""
        by_name: dict[str, TopicFigures] = {}
        for log in logs:
            by_name.setdefault(log.topic, TopicFigures()).add_log(log)
        for topic, figures in self._by_topic.items():
            by_name.setdefault(topic, TopicFigures()).add(figures)
        return by_name

    def total(self, logs: Iterable[PartitionLog]) -> TopicFigures:
        """Return the sum over all topics, including deleted topics and names that never existed."""
        total = TopicFigures()
        for counters in (self._deleted, self._strangers, *self.by_topic(logs).values()):
            total.add(counters)
        return total
