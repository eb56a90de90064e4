"""Bytes in, frames out (four bytes of length, then so many bytes).

A frame that lies whole in what was received is a view into it, valid until the next `feed`. One that does not is
gathered in a buffer of its own; `wanted` is the rest of that buffer, and bytes received straight into it need no copy.
The buffer begins small and grows as bytes come: a length is only a claim, and must not cost what it claims.
"""

import struct

from broker.wire.errors import WireError
from broker.wire.frame import LENGTH_BYTES

# A producer's batch is 1 MB by default, so that its frame is seldom copied; who has sent a little costs no more.
FIRST_BYTES = 1 << 20
# Who has sent less than this of a frame has room for so much, and for FIRST_BYTES when that has come: thousands of
# peers that announce a frame each and then say no more would else cost a megabyte each, for eight bytes.
LITTLE_BYTES = 1 << 16

_NOTHING = memoryview(bytearray())
_length_from = struct.Struct(">I").unpack_from

# First bytes of what is often sent to a plain Kafka port by mistake.
_STRANGERS = {
    b"\x16\x03": "a TLS handshake; this listener is plain (security.protocol=PLAINTEXT)",
    b"GE": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"PO": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"HE": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"PU": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"OP": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"PR": "an HTTP/2 request or a PROXY header; this listener takes neither",
    b"SS": "an SSH greeting",
}


class FrameDecoder:
    """`feed`, then `next_frame` until it gives None, then `end`; or `pause` in between."""

    __slots__ = (
        "has_more", "partial", "_max_frame_bytes", "_view", "_at", "_head", "_size", "_filled", "_frames_begun",
    )  # fmt: skip

    def __init__(self, max_frame_bytes: int) -> None:
        self.has_more = False
        """Bytes were put aside by `pause` and wait to be read."""
        self._max_frame_bytes = max_frame_bytes
        self._view = _NOTHING
        self._at = 0
        self._head = b""
        self.partial: bytearray | None = None
        """Of the frame that has begun: its beginning, and room for more of it."""
        self._size = 0
        self._filled = 0
        self._frames_begun = 0

    @property
    def begun(self) -> tuple[int, int] | None:
        """The frame that has begun and is not whole, where its length is known: (its number, its bytes)."""
        return None if self.partial is None else (self._frames_begun, self._size)

    @property
    def in_frame(self) -> bool:
        """Part of a frame has come and its rest has not."""
        return self.partial is not None or bool(self._head)

    def wanted(self) -> memoryview | None:
        """Where the next bytes may be received to, when a frame has begun."""
        return None if self.partial is None else memoryview(self.partial)[self._filled :]

    def sole_frame(self, data: memoryview) -> memoryview | None:
        """The frame, without its length, where `data` is one whole frame and nothing was begun before it: as small
        requests nearly always come. None where it has to be fed; nothing was taken then."""
        size = len(data) - LENGTH_BYTES
        if (
            size < 0
            or self.partial is not None
            or self._head
            or self._view is not _NOTHING
            or size > self._max_frame_bytes
            or size != _length_from(data)[0]
        ):
            return None
        return data[LENGTH_BYTES:]

    def feed(self, data: memoryview) -> None:
        """Writable bytes of the stream; what was fed before must have been read, or put aside by `pause`."""
        partial = self.partial
        if partial is not None:
            if data.obj is partial:
                self._filled += len(data)
                self._make_room()
                return
            data = self._gather(data)
        elif self._head:
            data = memoryview(bytearray(self._head) + data)
            self._head = b""
        if self._at < len(self._view):
            data = memoryview(bytearray(self._view[self._at :]) + data)
        self._view, self._at = data, 0

    def _gather(self, data: memoryview) -> memoryview:
        """Take from `data` what belongs to the frame that has begun; what follows it is given back."""
        end = min(len(data), self._size - self._filled)
        taken = 0
        while taken < end and self.partial is not None:
            piece = data[taken : min(end, taken + len(self.partial) - self._filled)]
            self.partial[self._filled : self._filled + len(piece)] = piece
            self._filled += len(piece)
            taken += len(piece)
            self._make_room()
        return data[end:]

    def _make_room(self) -> None:
        """Double a buffer that is full before its frame is whole."""
        partial = self.partial
        if partial is not None and self._filled == len(partial) < self._size:
            self.partial = bytearray(min(max(2 * len(partial), FIRST_BYTES), self._size))
            self.partial[: self._filled] = partial

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length; None until more is fed. WireError for an impossible length."""
        partial = self.partial
        if partial is not None:
            if self._filled < self._size:
                return None
            self.partial = None
            return memoryview(partial)
        view, at = self._view, self._at
        left = len(view) - at
        if left < LENGTH_BYTES:
            return None
        (size,) = _length_from(view, at)
        if size > self._max_frame_bytes:
            raise WireError(self._complaint(bytes(view[at : at + 2]), size))
        if left - LENGTH_BYTES < size:
            return None
        self._at = at = at + LENGTH_BYTES + size
        return view[at - size : at]

    def put_back(self, frame: memoryview) -> None:
        """Give back a frame that was read, to be read again first; what follows it was put aside by `pause`."""
        size = len(frame).to_bytes(LENGTH_BYTES, "big")
        self._view, self._at = memoryview(bytearray(size) + frame + self._view[self._at :]), 0
        self.has_more = True

    def pause(self) -> None:
        """Put aside what has not been read: the bytes fed are valid no longer, and reading goes on later."""
        self._view, self._at = memoryview(bytearray(self._view[self._at :])), 0
        self.has_more = len(self._view) > 0

    def end(self) -> None:
        """All whole frames were read: keep the beginning of the next one."""
        view, at = self._view, self._at
        left = len(view) - at
        if left >= LENGTH_BYTES:
            (self._size,) = _length_from(view, at)
            self._filled = left - LENGTH_BYTES
            self._frames_begun += 1
            room = LITTLE_BYTES if self._filled < LITTLE_BYTES else max(FIRST_BYTES, 2 * self._filled)
            self.partial = partial = bytearray(min(self._size, room))
            partial[: self._filled] = view[at + LENGTH_BYTES :]
        elif left:
            self._head = bytes(view[at:])
        self._view, self._at = _NOTHING, 0
        self.has_more = False

    def _complaint(self, first: bytes, size: int) -> str:
        stranger = _STRANGERS.get(first)
        if stranger:
            return f"its first bytes are {stranger}"
        return f"a frame of {size} bytes is announced, socket.request.max.bytes is {self._max_frame_bytes}"
