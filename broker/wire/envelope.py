"""What a producer repeats: all of a Produce of one partition but its correlation id and its records.

A producer that sends often sends the same envelope around ever new records, so reading it again, and writing the same
answer around another offset, is most of what a small request costs. An `Envelope` is made from a request that was read
the long way; it opens frames whose other bytes are the very same, and says of any other that it is none of its own.
"""

import struct

from broker.wire import produce
from broker.wire.errors import ApiError, WireError
from broker.wire.primitives import length, read_length
from broker.wire.produce import PartitionResult, ProduceRequest

VERSION_MIN = 5  # from here on an answer has the log start offset
_LENGTH_AND_ID = struct.Struct(">ii")
_RESULT = struct.Struct(">hqqq")  # error, base offset, log append time, log start offset
_MARK = _RESULT.pack(0x5A5A, -2, -3, -4)


class Envelope:
    """Made of a whole frame, without its length, and what was read from it: one partition, with records, no tags."""

    __slots__ = (
        "topic", "_partition", "_version", "_flexible", "_fixed", "_request", "_middle", "_tail", "_reply", "_size",
        "_before", "_after",
    )  # fmt: skip

    def __init__(self, frame: memoryview, version: int, request: ProduceRequest) -> None:
        (each,) = request.partitions
        assert each.records is not None and not request.wants_ids and version >= VERSION_MIN
        self.topic, self._partition, self._version = each.topic, each.partition, version
        flexible = self._flexible = version >= produce.FLEXIBLE
        self._tail = b"\0\0\0" if flexible else b""  # the tags of partition, topic and request, if they are empty
        size = len(each.records)
        length_bytes = len(length(size, flexible))
        middle_end = len(frame) - len(self._tail) - size - length_bytes
        self._fixed = struct.Struct(f">4si{middle_end - 8}s")
        self._request, _, self._middle = self._fixed.unpack_from(frame)
        marked = PartitionResult(each.topic, each.partition, 0x5A5A, -2, -3, -4)
        body = (b"\0" if flexible else b"") + produce.encode_response(version, [marked])
        before, _, self._after = body.partition(_MARK)
        self._before = before
        self._size = 4 + len(body)
        self._reply = struct.Struct(f">ii{len(before)}shqqq{len(self._after)}s")

    def open(self, frame: memoryview) -> tuple[int, memoryview] | None:
        """(correlation id, records, a view into the frame); None for a frame with any other envelope."""
        fixed = self._fixed
        tail = self._tail
        if len(frame) < fixed.size + 5 + len(tail):
            return None
        request, correlation_id, middle = fixed.unpack_from(frame)
        if middle != self._middle or request != self._request:
            return None
        try:
            size, start = read_length(frame, fixed.size, self._flexible)
        except WireError:
            return None
        end = start + size
        if size < 0 or frame[end:].tobytes() != tail:
            return None
        return correlation_id, frame[start:end]

    def reply(self, correlation_id: int, base_offset: int, log_append_time_ms: int, log_start_offset: int) -> bytes:
        """The whole answer of a batch that was appended, with its length."""
        return self._reply.pack(
            self._size, correlation_id, self._before, 0, base_offset, log_append_time_ms, log_start_offset, self._after
        )

    def refusal(self, correlation_id: int, error: ApiError) -> bytes:
        """The whole answer of a batch that was not."""
        result = PartitionResult(self.topic, self._partition, error.code, message=error.message)
        body = (b"\0" if self._flexible else b"") + produce.encode_response(self._version, [result])
        return _LENGTH_AND_ID.pack(4 + len(body), correlation_id) + body


def envelope_of(frame: memoryview, version: int, request: ProduceRequest) -> Envelope | None:
    """The envelope of a request, where it has one that can be repeated."""
    if version < VERSION_MIN or len(request.partitions) != 1 or request.wants_ids:
        return None
    records = request.partitions[0].records
    if records is None:
        return None
    made = Envelope(frame, version, request)
    return made if made.open(frame) is not None else None  # a tag somewhere: it does not open its own frame
