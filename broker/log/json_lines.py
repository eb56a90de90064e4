"""Small whole files of the data directory: lines of JSON, then a line with the CRC-32C of those in hexadecimal."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from crc32c import crc32c

_CHECK_BYTES = 9


class CrcMismatch(ValueError):
    """The CRC does not hold."""


def encode(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return with_crc("".join(json.dumps(line) + "\n" for line in lines).encode())


def decode(data: bytes) -> list[Any]:
    """Return the lines. Raise CrcMismatch, or ValueError if they are no JSON."""
    return [json.loads(line) for line in checked(data).decode().splitlines()]


def with_crc(lines: bytes) -> bytes:
    """Return lines of any kind, and the line with their CRC."""
    return lines + f"{crc32c(lines):08x}\n".encode()


def checked(data: bytes) -> bytes:
    """Return the lines before that of the CRC. Raise CrcMismatch."""
    lines, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    if check != f"{crc32c(lines):08x}\n".encode():
        raise CrcMismatch("its CRC does not hold")
    return lines
