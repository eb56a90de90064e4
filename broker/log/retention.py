"""Retention: which of a log's oldest segments may be dropped, as plain functions over its segments, oldest first.

Each policy decides how many of them have expired. Only whole segments below the high watermark are dropped. The rules
are Kafka's (https://kafka.apache.org/documentation/#topicconfigs_retention.ms): the newest record decides a segment's
age, and at least `retention.bytes` always remain. A topic that is only compacted keeps all records past the log's
start.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

from broker.log.segment import Segment
from broker.settings.config import TopicConfig

Policy: TypeAlias = Callable[[Sequence[Segment], int], bool]
"""Takes the segments and a number. Returns True if that segment may be dropped once all before it are."""


def expired(
    segments: Sequence[Segment],
    log_bytes: int,
    config: TopicConfig,
    log_start_offset: int,
    high_watermark: int,
    wall_ms: int,
) -> int:
    """Return the number of oldest segments that a log drops at `wall_ms`. Look at no more than these and the next one.

    `log_bytes` is the size of the log.
    """
    policies = [below(log_start_offset)]
    if config.deletes:
        policies += [over_bytes(config.retention_bytes, log_bytes), older_than(config.retention_ms, wall_ms)]
    number = 0
    for may_go in policies:
        while number < len(segments) and _is_seen(segments[number], high_watermark) and may_go(segments, number):
            number += 1
    return number


def _is_seen(segment: Segment, high_watermark: int) -> bool:
    """Return True if a segment is not empty and below the high watermark. The empty one takes the next append."""
    return segment.base_offset < segment.next_offset <= high_watermark


def below(log_start_offset: int) -> Policy:
    """Return the policy that drops segments without a record at or past the log's start."""
    return lambda segments, number: (
        number + 1 < len(segments) and segments[number + 1].base_offset <= log_start_offset
    )


def older_than(retention_ms: int, wall_ms: int) -> Policy:
    """Return the policy that drops segments up to the first with a record younger than `retention_ms`; -1 keeps all."""
    return lambda segments, number: 0 <= retention_ms < wall_ms - segments[number].newest_ms


def over_bytes(retention_bytes: int, log_bytes: int) -> Policy:
    """Return the policy that drops segments while at least `retention_bytes` remain; -1 keeps all."""
    left_bytes, counted = log_bytes, 0

    def policy(segments: Sequence[Segment], number: int) -> bool:
        nonlocal left_bytes, counted
        while counted <= number:
            left_bytes -= segments[counted].size
            counted += 1
        return 0 <= retention_bytes <= left_bytes

    return policy
