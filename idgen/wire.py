"""Twitter's Thrift interface, as bytes: framed transport, binary protocol (idgen/flakelog.thrift).

    frame    i32 length | message
    message  i32 0x80010000 + type | i32 n, n bytes name | i32 seqid | struct          (strict: the form written today)
             i32 n, n bytes name | i8 type | i32 seqid | struct                        (old, read but never written)
    struct   { i8 field type | i16 field id | value }*  i8 0

Types of a message: 1 call, 2 reply, 3 exception. A reply's struct has field 0, the value; an exception's is
TApplicationException: 1 message, 2 type. Source: Apache Thrift, doc/specs/thrift-binary-protocol.md and thrift-rpc.md.
"""

import struct
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

VERSION_1 = 0x80010000
VERSION_MASK = 0xFFFF0000
CALL, REPLY, EXCEPTION = 1, 2, 3
STOP, BOOL, BYTE, DOUBLE, I16, I32, I64, STRING, STRUCT, MAP, SET, LIST = 0, 2, 3, 4, 6, 8, 10, 11, 12, 13, 14, 15
FIXED_BYTES = {BOOL: 1, BYTE: 1, DOUBLE: 8, I16: 2, I32: 4, I64: 8}
MAX_FRAME_BYTES = 4_096  # requests have fewer than 200; answers of get_ids are longer and have a separate limit
MAX_NESTING = 8  # our structs nest nothing; unknown fields are skipped down to this depth
KNOWN_TAILS_MAX = 256  # get_id and get_ids calls whose arguments are remembered, so that they are parsed once

_GET_ID_HEAD = struct.pack(">Ii6s", VERSION_1 | CALL, 6, b"get_id")
_GET_IDS_HEAD = struct.pack(">Ii7s", VERSION_1 | CALL, 7, b"get_ids")
_LOW_BYTES = bytes(range(256))
_I32 = struct.Struct(">i")
_GET_ID_REPLY = struct.Struct(">iIi6sibhqb")
_GET_ID_REPLY_BYTES = _GET_ID_REPLY.size - 4


class ThriftError(Exception):
    """The peer's bytes are not framed binary Thrift; its connection is closed."""


class ExceptionType(IntEnum):
    """The types of TApplicationException that are used."""

    UNKNOWN_METHOD = 1
    MISSING_RESULT = 5
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7


class Call(NamedTuple):
    """A request: get_worker_id(), get_id(1: user_agent), get_ids(1: user_agent, 2: count), decode_id(1: number)..."""

    method: str
    seqid: int
    user_agent: str | None = None
    count: int | None = None  # type: ignore[assignment]  # hides tuple.count, as the argument's name does
    numbers: tuple[int, ...] = ()  # the i64 arguments; empty if one is missing from field 1 on


_call_of = tuple.__new__  # takes all fields; faster than Call(), which is a function that fills in defaults


class Reply(NamedTuple):
    """An answer: `value` is an i64, a list of them or a struct's fields; if it is None, `error` has the reason."""

    seqid: int
    value: int | list[int] | None
    error: str | None = None


class FrameDecoder:
    """A decoder from bytes to whole messages, however the bytes are cut. It keeps at most one unfinished frame, of at
    most `max_frame_bytes`."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._max = max_frame_bytes
        self._rest = b""

    def frames(self, data: bytes) -> Iterator[bytes]:
        """Yield each frame's message. ThriftError as soon as a frame's length is invalid."""
        data, position = self._rest + data, 0
        end = len(data)
        try:
            while end - position >= 4:
                length = _I32.unpack_from(data, position)[0]
                if not 0 < length <= self._max:
                    raise ThriftError(self._why(length))
                start = position + 4
                if end - start < length:
                    break
                position = start + length
                yield data[start:position]
        finally:  # also if the caller stops early
            self._rest = data[position:]

    def _why(self, length: int) -> str:
        if length & VERSION_MASK == VERSION_1 - (1 << 32) & VERSION_MASK:
            return "an unframed Thrift message; this service uses TFramedTransport"
        start = _I32.pack(length)
        if start in (b"GET ", b"POST", b"PUT ", b"HEAD"):
            return "an HTTP request; ids over HTTP are at flakelog.http.listener"
        if start == b"FLAK":
            return "a command's look for an HTTP server, because this service has not answered the command in time"
        if start[:2] == b"\x16\x03":
            return "a TLS handshake; this port speaks plain framed Thrift"
        if start[:2] == b"\x15\x03":
            return "an alert of TLS; the service speaks TLS, so its client needs security.protocol=SSL"
        return f"a frame of {length} bytes ({start!r}); frames have 1 to {self._max}"


class CallDecoder:
    """The server's decoder, from frames to calls."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._frames = FrameDecoder(max_frame_bytes)
        self._known_tails: dict[bytes, str | None] = {}  # get_id's arguments: the user agent
        self._known_orders: dict[bytes, tuple[str | None, int | None]] = {}  # get_ids' arguments: user agent, count

    def calls(self, data: bytes) -> Iterator[Call]:
        """Yield the calls that `data` completes, in order. ThriftError, after the calls before the fault."""
        for frame in self._frames.frames(data):
            yield self._call(frame)

    def _call(self, frame: bytes) -> Call:
        if not frame.startswith(_GET_ID_HEAD) or len(frame) < 18:
            return self._other_call(frame)
        tail = frame[18:]  # the arguments: the same bytes in each call of one client
        if tail in self._known_tails:
            return _call_of(Call, ("get_id", _I32.unpack_from(frame, 14)[0], self._known_tails[tail], None, ()))
        call = decode_call(frame)
        if len(self._known_tails) < KNOWN_TAILS_MAX:
            self._known_tails[tail] = call.user_agent
        return call

    def _other_call(self, frame: bytes) -> Call:
        if not frame.startswith(_GET_IDS_HEAD) or len(frame) < 19:
            return decode_call(frame)
        tail = frame[19:]
        known = self._known_orders.get(tail)
        if known is not None:
            return _call_of(Call, ("get_ids", _I32.unpack_from(frame, 15)[0], *known, ()))
        call = decode_call(frame)
        if len(self._known_orders) < KNOWN_TAILS_MAX:
            self._known_orders[tail] = call.user_agent, call.count
        return call


def decode_call(frame: bytes) -> Call:
    """Parse one call. ThriftError unless the frame holds exactly one."""
    reader = _Reader(frame)
    kind, method, seqid = reader.message_head()
    if kind != CALL:
        raise ThriftError(f"a message of type {kind} where a call (1) is due")
    user_agent, count = None, None
    numbers: dict[int, int] = {}
    for field, field_type in reader.fields():
        if (field, field_type) == (1, STRING):
            user_agent = reader.text()
        elif (field, field_type) == (2, I32):
            count = reader.integer(4)
        elif field_type == I64 and field in (1, 2):
            numbers[field] = reader.integer(8)
        else:
            reader.skip(field_type)
    reader.finish()
    return Call(method, seqid, user_agent, count, _in_order(numbers))


def _in_order(fields: dict[int, int]) -> tuple[int, ...]:
    """Return the values of a struct's fields 1, 2... in this order, or nothing if one is missing."""
    numbers = range(1, len(fields) + 1)
    return tuple(fields[n] for n in numbers) if all(n in fields for n in numbers) else ()


def encode_call(call: Call) -> bytes:
    """Encode a call, with its frame length."""
    body = bytearray(_message_head(CALL, call.method, call.seqid))
    if call.user_agent is not None:
        text = call.user_agent.encode()
        body += struct.pack(">bhi", STRING, 1, len(text)) + text
    if call.count is not None:
        body += struct.pack(">bhi", I32, 2, call.count)
    body += _i64_fields(call.numbers)
    body.append(STOP)
    return _I32.pack(len(body)) + body


def encode_id(seqid: int, id: int) -> bytes:
    """Encode the answer to get_id; the bytes are `encode_i64`'s, made faster."""
    return _GET_ID_REPLY.pack(
        _GET_ID_REPLY_BYTES, VERSION_1 | REPLY, 6, b"get_id", seqid, I64, 0, id, STOP  # fmt: skip
    )


def encode_i64(method: str, seqid: int, value: int) -> bytes:
    """Encode the answer to a method that returns an i64."""
    body = _message_head(REPLY, method, seqid) + struct.pack(">bhqb", I64, 0, value, STOP)
    return _I32.pack(len(body)) + body


def encode_runs(method: str, seqid: int, runs: Iterable[tuple[int, int]]) -> bytes:
    """Encode an answer of type list<i64>: each number of the runs (first, count), which are not negative.

    256 neighbours differ in their last byte only, so repeat the first one and overwrite every eighth byte.
    """
    parts: list[bytes | bytearray] = [b""]
    length = 0
    for first, count in runs:
        length += count
        end = first + count
        while first < end:
            stop = min(end, (first | 0xFF) + 1)
            neighbours = bytearray(first.to_bytes(8, "big")) * (stop - first)
            neighbours[7::8] = _LOW_BYTES[first & 0xFF : (stop - 1 & 0xFF) + 1]
            parts.append(neighbours)
            first = stop
    parts[0] = _message_head(REPLY, method, seqid) + struct.pack(">bhbi", LIST, 0, I64, length)
    parts.append(bytes((STOP,)))
    body = b"".join(parts)
    return _I32.pack(len(body)) + body


def encode_i64_struct(method: str, seqid: int, values: tuple[int, ...]) -> bytes:
    """Encode the answer to a method that returns a struct of i64 fields, numbered from 1."""
    head = _message_head(REPLY, method, seqid) + struct.pack(">bh", STRUCT, 0)
    body = head + _i64_fields(values) + bytes((STOP, STOP))
    return _I32.pack(len(body)) + body


def encode_exception(method: str, seqid: int, kind: ExceptionType, message: str) -> bytes:
    """Encode a TApplicationException, which a Thrift client raises for an error that no method declares."""
    text = message.encode()
    fields = struct.pack(">bhi", STRING, 1, len(text)) + text + struct.pack(">bhib", I32, 2, kind, STOP)
    body = _message_head(EXCEPTION, method, seqid) + fields
    return _I32.pack(len(body)) + body


def decode_reply(frame: bytes) -> Reply:
    """Parse an answer to one of our calls. ThriftError for other bytes."""
    reader = _Reader(frame)
    kind, _, seqid = reader.message_head()
    value: int | list[int] | None = None
    error = None
    for field, field_type in reader.fields():
        if kind == REPLY and (field, field_type) == (0, I64):
            value = reader.integer(8)
        elif kind == REPLY and (field, field_type) == (0, LIST):
            value = reader.i64_list()
        elif kind == REPLY and (field, field_type) == (0, STRUCT):
            value = reader.i64_struct()
        elif kind == EXCEPTION and (field, field_type) == (1, STRING):
            error = reader.text()
        else:
            reader.skip(field_type)
    if value is None and error is None:
        error = "the answer holds no result"
    return Reply(seqid, value, error)


def _message_head(kind: int, method: str, seqid: int) -> bytes:
    name = method.encode()
    return struct.pack(">Ii", VERSION_1 | kind, len(name)) + name + _I32.pack(seqid)


def _i64_fields(values: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack(">bhq", I64, field, value) for field, value in enumerate(values, 1))


class _Reader:
    """A reader of one frame, from its start; ThriftError if the frame ends too soon."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._at = 0

    def take(self, n: int) -> bytes:
        if not 0 <= n <= len(self._frame) - self._at:
            raise ThriftError(f"{n} bytes are due at {self._at}, the frame has {len(self._frame)}")
        self._at += n
        return self._frame[self._at - n : self._at]

    def integer(self, width: int) -> int:
        return int.from_bytes(self.take(width), "big", signed=True)

    def text(self) -> str:
        try:
            return self.take(self.integer(4)).decode()
        except UnicodeDecodeError:
            raise ThriftError("a string that is not UTF-8") from None

    def message_head(self) -> tuple[int, str, int]:
        """Return (type, method, seqid)."""
        first = self.integer(4)
        if first >= 0:  # the old form begins with the length of the name
            self._at -= 4
            method = self.text()
            kind = self.integer(1)
        elif first & VERSION_MASK == VERSION_1:
            kind = first & 0xFF
            method = self.text()
        else:
            raise ThriftError(f"protocol version {first & VERSION_MASK:#x}; {VERSION_1:#x} (binary) is spoken here")
        return kind, method, self.integer(4)

    def fields(self) -> Iterator[tuple[int, int]]:
        """Yield (field id, type) of each field; the caller must read the field's value before the next one."""
        while field_type := self.integer(1):
            yield self.integer(2), field_type

    def skip(self, field_type: int, nesting: int = 0) -> None:
        """Skip the value of an unknown field."""
        if nesting > MAX_NESTING:
            raise ThriftError(f"values nested more than {MAX_NESTING} deep")
        if field_type in FIXED_BYTES:
            self.take(FIXED_BYTES[field_type])
        elif field_type == STRING:
            self.take(self.integer(4))
        elif field_type == STRUCT:
            for _, inner in self.fields():
                self.skip(inner, nesting + 1)
        elif field_type in (MAP, SET, LIST):
            kinds = [self.integer(1) for _ in range(2 if field_type == MAP else 1)]
            for _ in range(self.integer(4)):
                for kind in kinds:
                    self.skip(kind, nesting + 1)
        else:
            raise ThriftError(f"a value of type {field_type}, which there is not")

    def i64_list(self) -> list[int]:
        kind, count = self.integer(1), self.integer(4)
        if kind != I64:
            raise ThriftError(f"a list of type {kind} where i64 ({I64}) is due")
        return list(struct.unpack(f">{count}q", self.take(8 * count)))

    def i64_struct(self) -> list[int]:
        fields = {}
        for field, field_type in self.fields():
            if field_type == I64:
                fields[field] = self.integer(8)
            else:
                self.skip(field_type)
        return list(_in_order(fields))

    def finish(self) -> None:
        if self._at != len(self._frame):
            raise ThriftError(f"{len(self._frame) - self._at} bytes after the end of the message")
