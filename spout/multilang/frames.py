"""Frames of Storm's multilang protocol: a message in JSON, then a line with `end`.

    {"command": "next", "id": ""}
    end

Storm writes a frame in one piece, but the pipe may split it anywhere.
"""

import json
import re
from typing import Any

END = b"\nend\n"
SYNC = b'{"command":"sync"}\nend\n'

_END = END.decode()
_SPACE = re.compile(r"\s*")
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # as `raw_decode` calls it, in half the time
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class BadFrame(ValueError):
    """A frame that cannot be read, or one that is too large. The stream is of no use from there on."""


class FrameDecoder:
    """A decoder that is fed bytes and returns messages. A frame may have `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pieces: list[bytes] = []  # of the incomplete frame
        self._size = 0
        self._tail = b""  # its last bytes, in which the end may begin

    def receive(self, data: bytes) -> list[Any]:
        """Return the messages that these bytes complete. Raise BadFrame."""
        if not self._size and data.endswith(END):  # the usual case, in short: one frame
            try:
                text = data.decode()
                message, at = _scan(text, 0)
                if at + len(END) == len(text):
                    return [message]
            except (ValueError, RecursionError, StopIteration):
                pass  # several frames, or a bad one
        if self._size:
            if END not in data and END not in self._tail + data[: len(END) - 1]:
                self._keep(data)
                return []
            data = b"".join((*self._pieces, data))
            self._pieces.clear()
            self._size, self._tail = 0, b""
        end = data.rfind(END) + len(END)
        if end < len(END):
            self._keep(data)
            return []
        if end < len(data):
            self._keep(data[end:])
            data = data[:end]
        try:
            return _messages(data.decode())
        except UnicodeDecodeError as error:
            raise BadFrame(f"a frame is not UTF-8: {error}") from None

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        self._tail = (self._tail + data)[1 - len(END) :]
        if self._size > self.limit:
            raise BadFrame(f"a frame of more than {self.limit} bytes came (flakelog.storm.frame.max.bytes)")


def frame(message: object) -> bytes:
    """Return the frame of a message."""
    return _dumps(message).encode(errors="replace") + END


def _messages(text: str) -> list[Any]:
    """Return the messages of complete frames."""
    messages = []
    at, size = 0, len(text)
    while at < size:
        try:
            message, at = _scan(text, at)
        except StopIteration:
            message, at = _scan_later(text, at)
        except (ValueError, RecursionError) as error:
            raise BadFrame(f"a frame is no JSON: {error}") from None
        if not text.startswith(_END, at):
            at = _skip_space(text, at)
        at += len(_END)
        messages.append(message)
    return messages


def _scan_later(text: str, at: int) -> tuple[Any, int]:
    """Scan a message that does not begin at once, such as one after an empty line."""
    begin = _skip(text, at)
    try:
        message, end = _scan(text, begin)
    except (StopIteration, ValueError, RecursionError):
        raise BadFrame(f"a frame is no JSON: {text[at : at + 80]!r}") from None
    return message, end


def _skip_space(text: str, at: int) -> int:
    """Return where the end of the frame begins, after spaces that are allowed before it."""
    end_of_space = _skip(text, at)
    begin = end_of_space - 1
    if begin < at or not text.startswith(_END, begin):
        raise BadFrame(f"a frame goes on after its JSON: {text[at : at + 80]!r}")
    return begin


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at
