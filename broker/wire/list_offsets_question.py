"""What a consumer repeats: all of a ListOffsets of one partition but its correlation id and the timestamp.

As with what a producer repeats (broker.wire.envelope): reading the same request again, and writing the same answer
around another offset, is most of what it costs.
"""

import struct

from broker.wire import list_offsets
from broker.wire.list_offsets import FoundOffset, ListOffsetsRequest, ListOffsetsResponse

_RESULT = struct.Struct(">hqqi")  # error, timestamp, offset, leader epoch
_MARK = 0x5A5A, -2, -3, -4


class Question:
    """Made of a whole frame, without its length, and what was read from it: one partition, no tags."""

    __slots__ = ("_fixed", "_request", "_middle", "_end", "_reply", "_size", "_before", "_after")

    def __init__(self, frame: memoryview, version: int, request: ListOffsetsRequest) -> None:
        (wanted,) = request.partitions
        flexible = version >= list_offsets.FLEXIBLE
        # After the timestamp: the tags of partition and topic, the timeout, the tags of the request.
        end_size = 3 * flexible + 4 * (version >= list_offsets.TIMEOUT)
        self._fixed = struct.Struct(f">4si{len(frame) - 8 - 8 - end_size}sq{end_size}s")
        self._request, _, self._middle, _, self._end = self._fixed.unpack(frame)
        marked = FoundOffset(wanted.topic, wanted.partition, *_MARK)
        body = (b"\0" if flexible else b"") + list_offsets.encode_response(version, ListOffsetsResponse([marked]))
        before, _, self._after = body.partition(_RESULT.pack(*_MARK))
        self._before = before
        self._size = 4 + len(body)
        self._reply = struct.Struct(f">ii{len(before)}shqqi{len(self._after)}s")

    def open(self, frame: memoryview) -> tuple[int, int] | None:
        """(correlation id, timestamp); None for a frame that asks anything else."""
        if len(frame) != self._fixed.size:
            return None
        request, correlation_id, middle, timestamp, end = self._fixed.unpack(frame)
        if middle != self._middle or request != self._request or end != self._end:
            return None
        return correlation_id, timestamp

    @property
    def has_tags(self) -> bool:
        return any(self._end[:2]) or any(self._end[-1:])

    def reply(self, correlation_id: int, timestamp: int, offset: int, leader_epoch: int) -> bytes:
        """The whole answer of what was found, with its length."""
        return self._reply.pack(
            self._size, correlation_id, self._before, 0, timestamp, offset, leader_epoch, self._after
        )


def question_of(frame: memoryview, version: int, request: ListOffsetsRequest) -> Question | None:
    """The question of a request, where it has one that can be repeated."""
    if version < list_offsets.LEADER_EPOCHS or len(request.partitions) != 1 or request.by_id:
        return None
    made = Question(frame, version, request)
    opened = made.open(frame)
    if made.has_tags or opened is None or opened[1] != request.partitions[0].timestamp:
        return None  # something stands behind the timestamp that is not known here
    return made
