"""The figures of a producer, early Kafka's (SyncProducerStats, AsyncProducerStats), as values."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any

STATISTICS_MS = 5_000  # how often librdkafka tells its requests; each time costs it and us under a millisecond
_LATENCY = methodcaller("latency")  # in seconds, or None


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """The figures of a producer. Counts begin when the producer is made; `seconds` is its age."""

    seconds: float
    sent: int
    """Messages that were queued."""
    acknowledged: int
    failed: int
    """Messages that were dropped without an acknowledgement."""
    queued: int
    """Messages that wait for their acknowledgement now."""
    bytes: int
    """Bytes of the values and keys that were acknowledged."""
    ack_ms_avg: float
    """Mean time from `send` to the acknowledgement, in ms."""
    ack_ms_max: float
    requests: int
    """Requests to all brokers, up to five seconds ago; so are their times."""
    request_ms_avg: float
    request_ms_max: float

    @property
    def requests_per_second(self) -> float:
        """Mean rate of requests since the start."""
        return self.requests / self.seconds if self.seconds else 0.0


class ProducerCounts:
    """The counters of a producer."""

    def __init__(self, begun_s: float) -> None:
        self.sent = 0  # messages that were queued
        self.failed = 0
        self._begun_s = begun_s
        self._acknowledged = self._bytes = 0
        self._ack_s = self._ack_s_max = 0.0
        self._requests = 0
        self._request_ms_avg = self._request_ms_max = 0.0

    def acknowledge(self, messages: Sequence[Any]) -> None:
        """Count messages that were acknowledged, as librdkafka reports them."""
        latencies_s = [*filter(None, map(_LATENCY, messages))]
        self._acknowledged += len(messages)
        self._bytes += sum(map(len, messages))
        self._ack_s += sum(latencies_s)
        self._ack_s_max = max(self._ack_s_max, max(latencies_s, default=0.0))

    def statistics(self, text: str) -> None:
        """Take librdkafka's statistics (https://github.com/confluentinc/librdkafka/blob/master/STATISTICS.md)."""
        brokers = [
            broker for broker in json.loads(text).get("brokers", {}).values() if broker.get("rtt", {}).get("cnt")
        ]
        self._requests = sum(int(broker["tx"]) for broker in brokers) or self._requests
        number = sum(int(broker["rtt"]["cnt"]) for broker in brokers)
        if number:
            self._request_ms_avg = (
                sum(broker["rtt"]["avg"] * broker["rtt"]["cnt"] for broker in brokers) / number / 1_000
            )
            self._request_ms_max = max(self._request_ms_max, max(broker["rtt"]["max"] for broker in brokers) / 1_000)

    @property
    def acknowledged(self) -> int:
        return self._acknowledged

    @property
    def queued(self) -> int:
        """Messages without an outcome."""
        return self.sent - self._acknowledged - self.failed

    def figures(self, now_s: float) -> ProducerFigures:
        """Return the figures until now."""
        return ProducerFigures(
            now_s - self._begun_s,
            self.sent,
            self._acknowledged,
            self.failed,
            self.queued,
            self._bytes,
            1_000 * self._ack_s / self._acknowledged if self._acknowledged else 0.0,
            1_000 * self._ack_s_max,
            self._requests,
            self._request_ms_avg,
            self._request_ms_max,
        )
