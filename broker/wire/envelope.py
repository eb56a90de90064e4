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
    """Made of a whole frame, without its length, and what was read from it: one partition, with records, no tags.
    `head` is what the records begin with; it is read with the rest."""

    __slots__ = (
        "topic", "_partition", "_version", "_flexible", "_head", "_fixed", "_start", "_overhead", "_request", "_middle",
        "_middle_end", "_records_size", "_records_min", "_length", "_tail", "_reply", "_size", "_before", "_after",
    )  # fmt: skip

    def __init__(self, frame: memoryview, version: int, request: ProduceRequest, head: struct.Struct) -> None:
        (each,) = request.partitions
        assert each.records is not None and not request.wants_ids and version >= VERSION_MIN
        self.topic, self._partition, self._version = each.topic, each.partition, version
        flexible = self._flexible = version >= produce.FLEXIBLE
        self._tail = b"\0\0\0" if flexible else b""  # the tags of partition, topic and request, if they are empty
        self._head, self._records_min = head, head.size
        size = len(each.records)
        self._middle_end = len(frame) - len(self._tail) - size - len(length(size, flexible))
        self._measure(size)
        self._request, _, self._middle, *_ = self._fixed.unpack_from(frame)
        marked = PartitionResult(each.topic, each.partition, 0x5A5A, -2, -3, -4)
        body = (b"\0" if flexible else b"") + produce.encode_response(version, [marked])
        before, _, self._after = body.partition(_MARK)
        self._before = before
        self._size = 4 + len(body)
        self._reply = struct.Struct(f">ii{len(before)}shqqq{len(self._after)}s")

    def _measure(self, size: int) -> None:
        """Take frames for those whose records' length has as many bytes as that of `size` bytes of records."""
        self._records_size, self._length = size, length(size, self._flexible)
        self._start = self._middle_end + len(self._length)
        self._overhead = self._start + len(self._tail)
        self._fixed = struct.Struct(f">4si{self._middle_end - 8}s{len(self._length)}s{self._head.format[1:]}")

    def open(self, frame: memoryview) -> tuple[int, memoryview, tuple[int, ...]] | None:
        """(correlation id, records, the fields of their head); None for a frame with any other envelope. The records
        are a view into the frame."""
        size = len(frame) - self._overhead
        if size < self._records_min:
            return None
        fields = self._fixed.unpack_from(frame)
        if fields[2] != self._middle or fields[0] != self._request:
            return None
        if size != self._records_size or fields[3] != self._length:
            if fields[3] != length(size, self._flexible):
                return self.open(frame) if self._measured_anew(frame) else None
            self._records_size, self._length = size, fields[3]
        end = self._start + size
        if self._flexible and frame[end:] != self._tail:
            return None
        return fields[1], frame[self._start : end], fields[4:]

    def records_span(self, frame: memoryview) -> tuple[int, int]:
        """Where the records lie in a frame that it opened just now: from, to."""
        return self._start, len(frame) - len(self._tail)

    def _measured_anew(self, frame: memoryview) -> bool:
        """Whether the records' length has another number of bytes in this frame than in the one before, as where sizes
        go to and fro about 126 bytes; frames like this one are taken from now on."""
        try:
            size, start = read_length(frame, self._middle_end, self._flexible)
        except WireError:
            return False
        if start == self._start or len(length(size, self._flexible)) != start - self._middle_end:
            return False
        self._measure(size)
        return True

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


def envelope_of(frame: memoryview, version: int, request: ProduceRequest, head: struct.Struct) -> Envelope | None:
    """The envelope of a request, where it has one that can be repeated; `head` as of `Envelope`, in big-endian."""
    if version < VERSION_MIN or len(request.partitions) != 1 or request.wants_ids:
        return None
    records = request.partitions[0].records
    if records is None or len(records) < head.size:
        return None
    made = Envelope(frame, version, request, head)
    return made if made.open(frame) is not None else None  # a tag somewhere: it does not open its own frame
