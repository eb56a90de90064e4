"""Frames and headers: each message is four bytes of length, then a header, then the body.

Request header:  api key i16 | api version i16 | correlation id i32 | client id (nullable string) | tags (flexible)
Response header: correlation id i32 | tags (flexible; never for ApiVersions, which must be readable by anyone)
"""

import struct
from typing import NamedTuple, Protocol, TypeAlias

from broker.wire.errors import WireError
from broker.wire.primitives import Buffer

_REQUEST = struct.Struct(">hhih")
REQUEST_HEADER_BYTES_MIN = 8
LENGTH_BYTES = 4


class RegionFile(Protocol):
    """A file whose bytes can go out. While a region refers to it, it stays open."""

    def read(self, position: int, length: int) -> bytes: ...

    def fileno(self) -> int:
        """What sendfile takes, or -1 where the file is in memory only."""
        ...


class FileRegion(NamedTuple):
    """Bytes of a file to be sent as they are. Equal in a reply to the bytes they stand for."""

    file: RegionFile
    position: int
    length: int


Part: TypeAlias = bytes | bytearray | FileRegion
"""A reply is a list of these, in order."""


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    """Where the header's tags begin (flexible versions) or the body does (the others)."""


def read_request_header(data: Buffer) -> RequestHeader:
    """The header up to its client id; WireError where the frame is too short for one."""
    size = len(data)
    if size < REQUEST_HEADER_BYTES_MIN:
        raise WireError(f"a frame of {size} bytes is too short for a request header")
    if size < REQUEST_HEADER_BYTES_MIN + 2:
        raise WireError("the request header ends before its client id")
    api_key, version, correlation_id, client_length = _REQUEST.unpack_from(data)
    body = 10
    if client_length < 0:
        return RequestHeader(api_key, version, correlation_id, None, body)
    end = body + client_length
    if end > size:
        raise WireError(f"the client id says {client_length} bytes, {size - body} are left")
    return RequestHeader(api_key, version, correlation_id, str(data[body:end], "utf-8", "replace"), end)


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool) -> bytes:
    encoded = b"" if client_id is None else client_id.encode()
    fixed = _REQUEST.pack(api_key, version, correlation_id, -1 if client_id is None else len(encoded))
    return fixed + encoded + (b"\0" if flexible else b"")


def size_of(parts: list[Part]) -> int:
    """Bytes of a reply."""
    if len(parts) == 1 and not isinstance(parts[0], FileRegion):
        return len(parts[0])
    return sum(part.length if isinstance(part, FileRegion) else len(part) for part in parts)
