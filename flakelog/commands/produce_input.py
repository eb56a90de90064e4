"""The input of `flakelog produce`: messages from stdin or files, as lines or as whole files."""

import os
import select
import stat
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, NamedTuple

import click

from flakelog.commands.arguments import quoted
from flakelog.commands.exit_codes import fail

CHUNK_BYTES = 64 * 1024  # messages that arrive together are sent together, up to about this size per batch
MESSAGE_BYTES_MAX = 16 << 20  # a longer line is not text; the broker's own limit, message.max.bytes, is far below
IDLE_SECONDS = 0.1


class Line(NamedTuple):
    """A message of the input; a value of None is a tombstone."""

    key: bytes | None
    value: bytes | None


class Framing(NamedTuple):
    """How messages are written: the text after each one, the text after its key, and whether nothing means null."""

    delimiter: bytes = b"\n"
    key_separator: bytes | None = None
    nulls: bool = False


class Target(NamedTuple):
    """The destination of the messages; if `partition` is None, the key selects it."""

    topic: str
    partitions: int
    partition: int | None
    compression: str
    headers: list[tuple[str, bytes | None]]


def known_size(files: list[BinaryIO]) -> int | None:
    """Return the bytes left in all files, None if one is no regular file."""
    total = 0
    for file in files:
        try:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return None
            total += max(status.st_size - file.tell(), 0)
        except OSError:  # a test's stdin has no descriptor
            return None
    return total


def read_lines(files: list[BinaryIO], framing: Framing, read: Callable[[int], object]) -> Iterator[list[Line]]:
    """Yield lists of messages, one for each chunk that could be read at once; an empty list while nothing comes.

    Messages before an invalid one are yielded. `read` is called with the number of bytes of each chunk.
    """
    number = 0
    for file in files:
        for texts in _texts(file, framing.delimiter, read):
            lines: list[Line] = []
            for text in texts:
                number += 1
                line = parse_line(text, framing)
                if line is None:
                    yield lines
                    separator = (framing.key_separator or b"").decode(errors="replace")
                    fail(f"line {number} has no {separator!r} between a key and a value; those before it were sent")
                lines.append(line)
            yield lines


class Input:
    """The messages of an input, in lists as they came; `is_small` if it ended at once, after few bytes."""

    def __init__(self, chunks: Iterator[list[Line]]) -> None:
        """Read the beginning of the input."""
        self._chunks = chunks
        self._begun: list[list[Line]] = []
        self._invalid: click.ClickException | None = None
        self.is_small = self._begin()

    def _begin(self) -> bool:
        size, until = 0, time.monotonic() + IDLE_SECONDS
        try:
            for lines in self._chunks:
                self._begun.append(lines)
                size += sum(len(line.key or b"") + len(line.value or b"") for line in lines)
                if size > CHUNK_BYTES or time.monotonic() > until:
                    return False
        except click.ClickException as error:  # an invalid line; those before it are sent first
            self._invalid = error
        return True

    def __iter__(self) -> Iterator[list[Line]]:
        yield from self._begun
        if self._invalid is not None:
            raise self._invalid
        yield from self._chunks


def read_whole(files: list[BinaryIO], framing: Framing, read: Callable[[int], object]) -> Iterator[list[Line]]:
    """Yield each file as the value of one message."""
    for file in files:
        value = _read(file, file.read, MESSAGE_BYTES_MAX + 1)
        if len(value) > MESSAGE_BYTES_MAX:
            fail(f"{file.name} is longer than {MESSAGE_BYTES_MAX >> 20} MiB")
        read(len(value))
        yield [Line(None, None if framing.nulls and not value else value)]


def _texts(file: BinaryIO, delimiter: bytes, read: Callable[[int], object]) -> Iterator[list[bytes]]:
    rest = b""
    for chunk in _chunks(file):
        read(len(chunk))
        *whole, rest = (rest + chunk).split(delimiter)
        if len(rest) > MESSAGE_BYTES_MAX:
            fail(f"a line is longer than {MESSAGE_BYTES_MAX >> 20} MiB")
        yield whole
    if rest:
        yield [rest]


def _chunks(file: Any) -> Iterator[bytes]:
    """Yield the bytes that can be read without waiting for a full chunk; empty bytes while nothing comes."""
    try:
        descriptor = file.fileno()
    except OSError:
        descriptor = None
    while True:
        # `read1` of a whole buffer leaves nothing behind in it, so the descriptor tells whether there is more.
        while descriptor is not None and not select.select([descriptor], [], [], IDLE_SECONDS)[0]:
            yield b""
        chunk = _read(file, file.read1, CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def _read(file: Any, read: Callable[[int], bytes], size: int) -> bytes:
    """Return what `read` reads. End with an error that names the file if it cannot be read."""
    try:
        return read(size)
    except OSError as error:
        fail(f"{file.name} cannot be read: {error.strerror}; what was read before is sent")


def parse_line(text: bytes, framing: Framing) -> Line | None:
    """Return the message that a line is, None if it lacks the key's separator."""
    if framing.delimiter == b"\n":
        text = text.removesuffix(b"\r")
    key: bytes | None = None
    value = text
    if framing.key_separator is not None:
        key, separator, value = text.partition(framing.key_separator)
        if not separator:
            return None
    if framing.nulls:
        return Line(key or None, value or None)
    return Line(key, value)


class EscapedType(click.ParamType[bytes]):
    r"""Text on the command line, not empty, in which \n, \t, \r, \0, \\ and \xHH are single bytes."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        if isinstance(value, bytes):
            return value
        try:
            unescaped = unescape(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not unescaped:
            self.fail("it is empty", param, ctx)
        return unescaped


_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}


def unescape(text: str) -> bytes:
    r"""Return the bytes of a text with \n, \t, \r, \0, \\ and \xHH; raise ValueError for another escape."""
    unescaped = bytearray()
    at = 0
    while at < len(text):
        if text[at] != "\\":
            unescaped += text[at].encode(errors="surrogateescape")
            at += 1
            continue
        kind, digits = text[at + 1 : at + 2], text[at + 2 : at + 4]
        if kind == "x" and len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
            unescaped.append(int(digits, 16))
            at += 4
        elif kind in _ESCAPES and kind:
            unescaped += _ESCAPES[kind]
            at += 2
        else:
            raise ValueError(rf"{quoted(text)} has an unknown escape; there are \n, \t, \r, \0, \\ and \xHH")
    return bytes(unescaped)


class HeaderType(click.ParamType[tuple[str, bytes | None]]):
    """A header on the command line. Its value may be any bytes."""

    name = "header"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, bytes | None]:
        return value if isinstance(value, tuple) else parse_header(value)


def parse_header(text: str) -> tuple[str, bytes | None]:
    """Return a header as `flakelog.produce.parse_header` does. Raise BadParameter for a name that cannot be sent.

    librdkafka's Python binding ends the process if a name is no UTF-8.
    """
    from flakelog import produce

    try:
        return produce.parse_header(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--header") from None
