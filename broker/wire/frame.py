"""Frames and headers: each message is four bytes of length, then a header, then the body.

Request header:  api key i16 | api version i16 | correlation id i32 | client id (nullable string) | tags (flexible)
Response header: correlation id i32 | tags (flexible; never for ApiVersions, because any client must be able to read it)
"""

import struct
from typing import NamedTuple, Protocol, TypeAlias

from broker.wire.errors import WireError
from broker.wire.primitives import Buffer

_REQUEST = struct.Struct(">hhih")
REQUEST_HEADER_BYTES_MIN = 8
LENGTH_BYTES = 4


class RegionDescriptor(Protocol):
    """An open file descriptor, which stays open while a caller holds it."""

    @property
    def fd(self) -> int: ...


class RegionFile(Protocol):
    """A file whose bytes can be sent. It stays readable while a region refers to it."""

    def read(self, position: int, length: int) -> bytes: ...

    def descriptor(self) -> RegionDescriptor | None:
        """Return the open descriptor for sendfile, None if the file is in memory only. Raise StorageError."""
        ...


class FileRegion(NamedTuple):
    """A range of bytes in a file, to be sent unchanged. A reply may have it in place of the bytes themselves."""

    file: RegionFile
    position: int
    length: int


Part: TypeAlias = bytes | bytearray | FileRegion
"""A part of a reply; a reply is a list of parts, sent in order."""


_record = tuple.__new__  # as RequestHeader(...), at half its price


class RequestHeader(NamedTuple):
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None
    body: int
    """Position of the header's tags (flexible versions) or of the body (other versions)."""


def read_request_header(data: Buffer) -> RequestHeader:
    """Return the header up to its client id. Raise WireError if the frame is too short for a header."""
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
    client_id = str(data[body:end], "utf-8", "replace")
    return _record(RequestHeader, (api_key, version, correlation_id, client_id, end))


def request_header(api_key: int, version: int, correlation_id: int, client_id: str | None, flexible: bool) -> bytes:
    encoded = b"" if client_id is None else client_id.encode()
    fixed = _REQUEST.pack(api_key, version, correlation_id, -1 if client_id is None else len(encoded))
    return fixed + encoded + (b"\0" if flexible else b"")


def size_of(parts: list[Part]) -> int:
    """Return the number of bytes in a reply."""
    if len(parts) == 1 and not isinstance(parts[0], FileRegion):
        return len(parts[0])
    size = 0
    for part in parts:
        size += part.length if part.__class__ is FileRegion else len(part)
    return size
