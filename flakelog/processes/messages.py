"""Messages between parent and child: lines in a pipe, and the inherited descriptors in an environment variable.

    child -> parent     "beat" each second, and once {"ready": {...}} as JSON
    parent -> child     nothing; the end of the pipe tells the child that the parent has ended
"""

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import NamedTuple

BEAT_MS = 1_000
BEAT = b"beat\n"
VARIABLE = "FLAKELOG_INHERITED"  # like systemd's LISTEN_FDS
LINE_BYTES_MAX = 1 << 16  # longer lines are cut, so that output without line ends fills no memory


class Ready(NamedTuple):
    """A child's readiness: its addresses as its `ready:` line names them, and the scope of its ids."""

    addresses: dict[str, str]
    scope: str


class Inherited(NamedTuple):
    """The descriptors that a child inherits, and the directory in which the brokers meet."""

    report: int
    """The pipe to the parent."""
    parent: int
    """The pipe that ends when the parent does."""
    sockets: dict[str, int]
    """The listening sockets by the names of their addresses: http, ids."""
    cluster_dir: str
    broker_ids: Sequence[int]
    """The ids of all brokers of this machine."""


class LineBuffer:
    """Bytes of a stream, cut into lines."""

    def __init__(self) -> None:
        self._unfinished = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that `data` completes, without line ends."""
        *lines, self._unfinished = (self._unfinished + data).split(b"\n")
        while len(self._unfinished) > LINE_BYTES_MAX:
            lines.append(self._unfinished[:LINE_BYTES_MAX])
            self._unfinished = self._unfinished[LINE_BYTES_MAX:]
        return lines

    def end(self) -> list[bytes]:
        """Return the last line if it has no line end."""
        line, self._unfinished = self._unfinished, b""
        return [line] if line else []


def forwarded(name: str, line: bytes, *, as_json: bool) -> bytes:
    """Return a line of a child's output behind the child's name. With `as_json`, an object gets a field instead."""
    if as_json and line.startswith(b'{"'):
        return b'{"process": %b, %b\n' % (json.dumps(name).encode(), line[1:])
    return b"[%b] %b\n" % (name.encode(), line)


def ready_message(ready: Ready) -> bytes:
    return json.dumps({"ready": ready._asdict()}).encode() + b"\n"


def messages_of(lines: list[bytes]) -> Iterator[Ready | None]:
    """Yield Ready, or None for a beat. A line that is neither counts as a beat, because a live process sent it."""
    for line in lines:
        try:
            fields = json.loads(line)["ready"]
            yield Ready({str(name): str(text) for name, text in fields["addresses"].items()}, str(fields["scope"]))
        except (ValueError, LookupError, TypeError, AttributeError):
            yield None


def with_inherited(environment: Mapping[str, str], inherited: Inherited) -> dict[str, str]:
    """Return the environment of a child."""
    return {**environment, VARIABLE: json.dumps(inherited._asdict())}


def take_inherited(environment: MutableMapping[str, str]) -> Inherited | None:
    """Remove the variable, because programs that the child starts inherit no descriptors; None without a parent."""
    text = environment.pop(VARIABLE, None)
    return None if text is None else Inherited(**json.loads(text))
