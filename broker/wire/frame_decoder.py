"""A decoder of a byte stream into frames: a length of four bytes, then that number of bytes.

A frame that lies whole in the received bytes is a view into them, valid until the turn ends. Any other frame is
gathered in a separate buffer; `wanted` is the free part of that buffer, and bytes received into it need no copy. The
buffer begins small and grows as bytes come, so that a peer cannot claim memory by announcing a length. It has the
frame's size at once if the peer is trusted. If the process has no memory for it, the stream ends there: `next_frame`
raises WireError, so that only this connection is closed.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress

from broker.wire.errors import WireError
from broker.wire.frame import LENGTH_BYTES

# A producer's batch has at most 1 MB by default, so its frame is copied at most once.
FIRST_BYTES = 1 << 20
# The first buffer of a frame that begins with fewer bytes than this. With FIRST_BYTES for all, thousands of peers that
# send eight bytes each and then stall would cost a megabyte each.
LITTLE_BYTES = 1 << 16

_NOTHING = memoryview(bytearray())
_length_from = struct.Struct(">I").unpack_from

# First bytes of protocols that are often sent to a plain Kafka port by mistake.
_STRANGERS = {
    b"\x16\x03": "a TLS handshake; this listener is plain (security.protocol=PLAINTEXT)",
    b"GE": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"PO": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"HE": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"PU": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"OP": "an HTTP request; HTTP is served on flakelog.http.listener",
    b"FL": "a command's look for an HTTP server, because this broker has not answered the command in time",
    b"PR": "an HTTP/2 request or a PROXY header; this listener takes neither",
    b"SS": "an SSH greeting",
}


class FrameDecoder:
    """The decoder of one connection.

    Call `feed`, then `next_frame` while it returns frames, and `pause` before the fed bytes become invalid.
    """

    __slots__ = (
        "partial", "_max_frame_bytes", "_limit", "_view", "_at", "_owned", "_head", "_size", "_filled", "_frames_begun",
        "_end", "_is_trusted",
    )  # fmt: skip

    def __init__(self, max_frame_bytes: int, *, is_trusted: bool = False) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._is_trusted = is_trusted
        self._limit = "socket.request.max.bytes"
        self._view = _NOTHING
        self._at = 0
        self._owned = True
        """True if `_view` is the decoder's copy, which stays valid."""
        self._head = b""
        self.partial: bytearray | None = None
        """The buffer of an incomplete frame: its received bytes, and free space."""
        self._size = 0
        self._filled = 0
        self._frames_begun = 0
        self._end: str | None = None
        """Why the stream has no more frames."""

    @property
    def begun(self) -> tuple[int, int] | None:
        """Return (number, size in bytes) of the incomplete frame whose length is known, or None."""
        return None if self.partial is None else (self._frames_begun, self._size)

    @property
    def in_frame(self) -> bool:
        """Return True if a frame is received in part."""
        return self.partial is not None or bool(self._head)

    @property
    def is_empty(self) -> bool:
        """Return True if all bytes that were fed are in frames that `next_frame` has returned."""
        return self._at == len(self._view) and not self.in_frame

    @property
    def unread_bytes(self) -> int:
        """Return the number of fed bytes that are in no frame yet, without those of an incomplete frame."""
        return len(self._view) - self._at

    @property
    def received_bytes(self) -> int:
        """Return the received bytes of an incomplete frame."""
        return self._filled if self.partial is not None else 0

    def limit(self, max_frame_bytes: int, setting: str) -> None:
        """Refuse frames above `max_frame_bytes`, which is the value of `setting`, from the next one on."""
        self._max_frame_bytes, self._limit = max_frame_bytes, setting

    def shrink(self) -> None:
        """Free the space of an incomplete frame's buffer, because its connection is not read now."""
        if self.partial is not None and self._filled < len(self.partial):
            with suppress(MemoryError):
                self.partial = self.partial[: self._filled]

    def grow(self) -> None:
        """Make space again in the buffer of an incomplete frame."""
        try:
            self._make_room()
        except MemoryError:
            self._out_of_memory()

    def wanted(self) -> memoryview | None:
        """Return the memory for the next bytes of an incomplete frame, or None."""
        return None if self.partial is None else memoryview(self.partial)[self._filled :]

    def sole_frame(self, data: memoryview) -> memoryview | None:
        """Return the frame, without its length, if `data` is exactly one and the decoder is empty.

        Nearly every small request comes so. Otherwise take nothing and return None: the caller must `feed` the data.
        """
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

    def feed(self, data: memoryview) -> bool:
        """Take bytes of the stream, valid until the next `pause`.

        Return False if they only made an incomplete frame longer, so that there is nothing to execute.
        """
        try:
            return self._feed(data)
        except MemoryError:
            return self._out_of_memory()

    def _feed(self, data: memoryview) -> bool:
        partial = self.partial
        if self._end is not None:
            return True
        if partial is not None:
            if data.obj is partial:
                self._filled += len(data)
                self._make_room()
                return self._filled == self._size
            data = self._gather(data)
            if self._filled < self._size:
                return False
        elif self._head:
            data = memoryview(bytearray(self._head) + data)
            self._head = b""
        if self._at < len(self._view):
            data = memoryview(bytearray(self._view[self._at :]) + data)
            self._owned = True
        else:
            self._owned = False
        self._view, self._at = data, 0
        return True

    def _out_of_memory(self) -> bool:
        """Drop the frames that are not executed yet, and let `next_frame` raise. Return True."""
        self._end = f"the server has no memory for its request, a frame of {self._size} bytes"
        self.partial, self._head = None, b""
        self._view, self._at, self._owned = memoryview(b""), 0, True
        return True

    def _gather(self, data: memoryview) -> memoryview:
        """Copy the bytes of the incomplete frame from `data`; return the bytes behind them."""
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
        """Double the buffer of an incomplete frame when it is full."""
        partial = self.partial
        if partial is not None and self._filled == len(partial) < self._size:
            self.partial = bytearray(min(max(2 * len(partial), FIRST_BYTES), self._size))
            self.partial[: self._filled] = partial

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame without its length, or None. Raise WireError for a length past the limit."""
        partial = self.partial
        if partial is not None:
            if self._filled < self._size:
                return None
            self.partial = None
            return memoryview(partial)
        view, at = self._view, self._at
        bytes_left = len(view) - at
        if bytes_left < LENGTH_BYTES:
            if self._end is not None:
                raise WireError(self._end)
            return None
        (size,) = _length_from(view, at)
        if size > self._max_frame_bytes:
            raise WireError(self._complaint(bytes(view[at : at + 2]), size))
        if bytes_left - LENGTH_BYTES < size:
            return None
        self._at = at = at + LENGTH_BYTES + size
        return view[at - size : at]

    def following(self, most: int) -> Iterator[memoryview]:
        """Yield at most `most` whole frames that `next_frame` will return, and leave them where they are."""
        view, at = self._view, self._at
        while most and self.partial is None and len(view) - at >= LENGTH_BYTES:
            (size,) = _length_from(view, at)
            at += LENGTH_BYTES + size
            if size > self._max_frame_bytes or at > len(view):
                return
            yield view[at - size : at]
            most -= 1

    def has_frame(self) -> bool:
        """Return True if `next_frame` would return a frame or raise; if not, keep the beginning of the next frame."""
        partial = self.partial
        if partial is not None:
            return self._filled == self._size
        view, at = self._view, self._at
        bytes_left = len(view) - at
        if bytes_left >= LENGTH_BYTES:
            (size,) = _length_from(view, at)
            if size <= bytes_left - LENGTH_BYTES or size > self._max_frame_bytes:
                return True
            try:
                self._begin(view, at, size)
            except MemoryError:
                return self._out_of_memory()
        elif bytes_left:
            self._head = bytes(view[at:])
        self._view, self._at = _NOTHING, 0
        return False

    def _begin(self, view: memoryview, at: int, size: int) -> None:
        """Make a buffer for an incomplete frame."""
        self._size = size
        self._filled = len(view) - at - LENGTH_BYTES
        self._frames_begun += 1
        room = LITTLE_BYTES if self._filled < LITTLE_BYTES else max(FIRST_BYTES, 2 * self._filled)
        self.partial = partial = bytearray(size if self._is_trusted else min(size, room))
        partial[: self._filled] = view[at + LENGTH_BYTES :]

    def put_back(self, frame: memoryview) -> None:
        """Give back a frame, so that `next_frame` returns it again before those that follow it."""
        try:
            self._put_back(frame)
        except MemoryError:
            self._size = len(frame)
            self._out_of_memory()

    def _put_back(self, frame: memoryview) -> None:
        following = bytearray(self._view[self._at :])
        if self.partial is not None:  # it follows `frame`, so its bytes go behind it
            following = bytearray(self._size.to_bytes(LENGTH_BYTES, "big")) + self.partial[: self._filled] + following
            self.partial = None
        elif self._head:
            following = bytearray(self._head) + following
            self._head = b""
        size = len(frame).to_bytes(LENGTH_BYTES, "big")
        self._view, self._at = memoryview(bytearray(size) + frame + following), 0
        self._owned = True

    def pause(self) -> None:
        """Copy the unread bytes, because the caller's buffer is about to become invalid."""
        if not self._owned:
            try:
                self._view, self._at = memoryview(bytearray(self._view[self._at :])), 0
            except MemoryError:
                self._out_of_memory()
            self._owned = True

    def _complaint(self, first: bytes, size: int) -> str:
        stranger = _STRANGERS.get(first)
        if stranger:
            return f"its first bytes are {stranger}"
        return f"a frame of {size} bytes is announced, {self._limit} is {self._max_frame_bytes}"
