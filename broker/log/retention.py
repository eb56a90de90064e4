"""Which of a log's oldest segments may go: plain functions over its list of segments, oldest first.

A policy says how many of them are past their time; whole segments go, and none that reaches past the high watermark.
The rules are Kafka's (https://kafka.apache.org/documentation/#topicconfigs_retention.ms): the newest record of a
segment tells its age, a size is kept from below, so at least `retention.bytes` stay. A topic that is only compacted
keeps everything but what lies below the log's start.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from broker.config import TopicConfig
from broker.log.segment import Segment

Policy: TypeAlias = Callable[[Sequence[Segment]], int]
"""How many of these segments, the oldest, may go."""


def expired(
    segments: Sequence[Segment], config: TopicConfig, log_start_offset: int, high_watermark: int, wall_ms: int
) -> int:
    """How many of the oldest segments a log with this configuration gives up at `wall_ms`."""
    policies = [below(log_start_offset)]
    if config.deletes:
        policies += [over_bytes(config.retention_bytes), older_than(config.retention_ms, wall_ms)]
    gone = 0
    for policy in policies:
        gone += policy(segments[gone:])
    return min(gone, _seen(segments, high_watermark))


def _seen(segments: Sequence[Segment], high_watermark: int) -> int:
    """The segments below the high watermark, but for an empty one at the end: that is where the log goes on."""
    return sum(segment.base_offset < segment.next_offset <= high_watermark for segment in segments)


def below(log_start_offset: int) -> Policy:
    """Segments of which no record can be read any more."""
    return lambda segments: sum(following.base_offset <= log_start_offset for _, following in pairwise(segments))


def older_than(retention_ms: int, wall_ms: int) -> Policy:
    """Segments up to the first with a record that is not older than `retention_ms`; all are kept where that is -1."""

    def policy(segments: Sequence[Segment]) -> int:
        number = 0
        while number < len(segments) and wall_ms - segments[number].newest_ms > retention_ms:
            number += 1
        return number

    return policy if retention_ms >= 0 else _none


def over_bytes(retention_bytes: int) -> Policy:
    """As many segments as can go with `retention_bytes` left; all are kept where that is -1."""

    def policy(segments: Sequence[Segment]) -> int:
        left = sum(segment.size for segment in segments) - retention_bytes
        number = 0
        while number < len(segments) and left >= segments[number].size:
            left -= segments[number].size
            number += 1
        return number

    return policy if retention_bytes >= 0 else _none


def _none(segments: Sequence[Segment]) -> int:
    return 0
