"""Which of a log's oldest segments may go: plain functions over its list of segments, oldest first.

A policy says how many of them are past their time; whole segments go, and none that reaches past the high watermark.
The rules are Kafka's (https://kafka.apache.org/documentation/#topicconfigs_retention.ms): the newest record of a
segment tells its age, a size is kept from below, so at least `retention.bytes` stay. A topic that is only compacted
keeps everything but what lies below the log's start.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from broker.config import TopicConfig
from broker.log.segment import Segment

Policy: TypeAlias = Callable[[Sequence[Segment], int], bool]
"""Whether a segment may go when all before it have gone: the segments, and its number."""


def expired(
    segments: Sequence[Segment],
    log_bytes: int,
    config: TopicConfig,
    log_start_offset: int,
    high_watermark: int,
    wall_ms: int,
) -> int:
    """How many of the oldest segments a log of so many bytes gives up at `wall_ms`. It looks at no more than those and
    the next one."""
    policies = [below(log_start_offset)]
    if config.deletes:
        policies += [over_bytes(config.retention_bytes, log_bytes), older_than(config.retention_ms, wall_ms)]
    gone = 0
    for may_go in policies:
        while gone < len(segments) and _is_seen(segments[gone], high_watermark) and may_go(segments, gone):
            gone += 1
    return gone


def _is_seen(segment: Segment, high_watermark: int) -> bool:
    """Whether it is below the high watermark, and not the empty one at the end: that is where the log goes on."""
    return segment.base_offset < segment.next_offset <= high_watermark


def below(log_start_offset: int) -> Policy:
    """Segments of which no record can be read any more."""
    return lambda segments, number: (
        number + 1 < len(segments) and segments[number + 1].base_offset <= log_start_offset
    )


def older_than(retention_ms: int, wall_ms: int) -> Policy:
    """Segments up to the first with a record that is not older than `retention_ms`; all are kept where that is -1."""
    return lambda segments, number: 0 <= retention_ms < wall_ms - segments[number].newest_ms


def over_bytes(retention_bytes: int, log_bytes: int) -> Policy:
    """As many segments as can go with `retention_bytes` left; all are kept where that is -1."""
    left_bytes, counted = log_bytes, 0

    def policy(segments: Sequence[Segment], number: int) -> bool:
        nonlocal left_bytes, counted
        while counted <= number:
            left_bytes -= segments[counted].size
            counted += 1
        return 0 <= retention_bytes <= left_bytes

    return policy
