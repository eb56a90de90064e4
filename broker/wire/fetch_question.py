"""What a consumer of one partition repeats: all of a Fetch but its correlation id, its session's epoch and the offset.

As with what a producer repeats (broker.wire.envelope).
"""

import struct

from broker.wire import fetch
from broker.wire.fetch import FetchRequest
from broker.wire.frame import LENGTH_BYTES, FileRegion, Part
from broker.wire.primitives import length
from broker.wire.topics import topic as encode_topic

VERSION_MIN = 11  # with sessions, leader epochs and a preferred replica
_LIMITS_BYTES = 13


class FetchQuestion:
    """Made of a whole frame, without its length, where its body begins, and what was read from it: one partition."""

    __slots__ = ("_fixed", "_parts", "_head", "_before", "_index", "_after", "_flexible", "_tail", "_tail_bytes")

    def __init__(self, frame: memoryview, body: int, version: int, request: FetchRequest) -> None:
        (asked,) = request.partitions
        flexible = self._flexible = version >= fetch.FLEXIBLE
        topic = encode_topic(asked.topic, flexible, version >= fetch.TOPIC_IDS)
        one = length(1, flexible)
        epoch_at = body + (4 if version < 15 else 0) + _LIMITS_BYTES + 4
        between = len(one) + len(topic) + len(one) + 4 + 4  # up to index and current leader epoch
        rest = len(frame) - epoch_at - 4 - between - 8
        self._fixed = struct.Struct(f">4si{epoch_at - 8}si{between}sq{rest}s")
        kind, _, middle, _, second, _, end = self._fixed.unpack(frame)
        self._parts = kind, middle, second, end
        tag = b"\0" if flexible else b""
        self._before = tag + fetch.encode_head(request.session_id) + one + topic + one
        self._head = struct.Struct(f">ii{len(self._before)}sihqqq")
        self._index = asked.partition
        aborted = 0 if request.isolation_level == fetch.READ_COMMITTED else -1
        self._after = length(aborted, flexible) + fetch.NO_REPLICA
        self._tail = tag * 3
        self._tail_bytes = len(self._tail)

    def open(self, frame: memoryview) -> tuple[int, int, int] | None:
        """(correlation id, session epoch, fetch offset); None for a frame that asks anything else."""
        if len(frame) != self._fixed.size:
            return None
        kind, correlation_id, middle, epoch, second, offset, end = self._fixed.unpack(frame)
        if (kind, middle, second, end) != self._parts:
            return None
        return correlation_id, epoch, offset

    def reply(
        self, correlation_id: int, high_watermark: int, last_stable_offset: int, log_start_offset: int,
        records: FileRegion,
    ) -> tuple[list[Part], int]:  # fmt: skip
        """The whole answer with these records, with its length, and its bytes."""
        after = self._after + length(records.length, self._flexible)
        size = self._head.size + len(after) + records.length + self._tail_bytes
        head = self._head.pack(
            size - LENGTH_BYTES, correlation_id, self._before, self._index, 0, high_watermark, last_stable_offset,
            log_start_offset,
        )  # fmt: skip
        parts: list[Part] = [head + after, records]
        if self._tail:
            parts.append(self._tail)
        return parts, size


def question_of(frame: memoryview, body: int, version: int, request: FetchRequest) -> FetchQuestion | None:
    """The question of a request, where it has one that can be repeated."""
    if version < VERSION_MIN or len(request.partitions) != 1 or request.wants_ids or request.replica_id >= 0:
        return None
    made = FetchQuestion(frame, body, version, request)
    opened = made.open(frame)
    if opened is None or opened[1:] != (request.session_epoch, request.partitions[0].fetch_offset):
        return None
    return made
