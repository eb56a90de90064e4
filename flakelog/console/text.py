"""Bytes, numbers and times as text for people. Nothing here trusts what a message holds."""

import json
import re
from datetime import UTC, datetime
from typing import NamedTuple

from flakelog.visible_text import visible

SUMMARY_CHARACTERS = 160
BODY_CHARACTERS = 4_096  # of a value on a page of messages; the message's own page shows more
JSON_BYTES_MAX = 65_536  # a longer text is shown as it is
INDENTS_MAX = 16
HEX_BYTES = 512

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def is_typable(name: str) -> bool:
    """Return True if a form can bring a name back as it is. Browsers drop or change line breaks."""
    return _CONTROL.search(name) is None


class Shown(NamedTuple):
    """A key, a value or a header's value. `kind` is null, empty, json, text or bytes; `size` is in bytes.

    `summary` is one line; `body` may have several, and is empty if the summary is all.
    """

    kind: str
    size: int
    summary: str
    body: str = ""
    is_cut: bool = False


def shown(data: bytes | None, characters: int = BODY_CHARACTERS) -> Shown:
    """Return bytes as a page shows them, with at most this many characters of them."""
    if data is None:
        return Shown("null", 0, "null")
    if not data:
        return Shown("empty", 0, "empty")
    try:
        text = data[: 4 * characters + 4].decode()
    except UnicodeDecodeError as error:
        if len(data) <= 4 * characters + 4 or error.start < 4 * characters:
            return _binary(data)
        text = data[: error.start].decode()
    pretty = pretty_json(data) if data[:1] in b'{["' and len(data) <= JSON_BYTES_MAX else None
    whole = visible(text if pretty is None else pretty)
    summary = " ".join(visible(text[: 2 * SUMMARY_CHARACTERS]).split())
    is_cut = len(whole) > characters or len(text.encode()) < len(data)
    body = whole[:characters]
    if len(summary) > SUMMARY_CHARACTERS:
        summary = summary[: SUMMARY_CHARACTERS - 1] + "…"
    elif body == summary and not is_cut:
        body = ""
    return Shown("text" if pretty is None else "json", len(data), summary, body, is_cut)


def pretty_json(data: bytes) -> str | None:
    """Return a JSON text with line breaks and indents, each token as it was; None if it is not JSON."""
    try:
        text = data.decode()
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    parts: list[str] = []
    depth = 0
    tokens = _TOKEN.findall(text)
    for number, token in enumerate(tokens):
        before = tokens[number - 1] if number else ""
        if token in "}]":
            depth -= 1
            if before not in ("{", "["):
                parts.append(_line(depth))
        elif before in ("{", "["):
            parts.append(_line(depth))
        parts.append(token)
        if token in ("{", "["):
            depth += 1
        elif token == ",":
            parts.append(_line(depth))
        elif token == ":":
            parts.append(" ")
    return "".join(parts)


def _line(depth: int) -> str:
    return "\n" + "  " * min(depth, INDENTS_MAX)


def _binary(data: bytes) -> Shown:
    lines = []
    for start in range(0, min(len(data), HEX_BYTES), 16):
        some = data[start : start + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{start:06x}  {some.hex(' '):47}  {plain}")
    summary = data[:24].hex(" ") + (" …" if len(data) > 24 else "")
    return Shown("bytes", len(data), summary, "\n".join(lines), len(data) > HEX_BYTES)


# --- numbers and times -----------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Return a number with commas; a fraction only below 10."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if isinstance(value, float) and abs(value) < 10 and value % 1 else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Return a number of bytes in B, kB, MB, GB or TB."""
    if value is None:
        return "–"
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= least:
            return f"{value / least:,.1f} {unit}"
    return f"{value:,.0f} B"


def duration(ms: float | None) -> str:
    """Return a duration with the unit that fits it."""
    if ms is None:
        return "–"
    if ms < 1_000:
        return f"{ms:,.0f} ms" if ms >= 10 or ms == int(ms) else f"{ms:,.2g} ms"
    seconds = ms / 1_000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def time(ms: int | None) -> str:
    """Return a Unix time in ms as 2026-11-23T10:00:00.000Z, or as a number if no calendar has it."""
    if ms is None or ms < 0:
        return "–"
    try:
        moment = datetime.fromtimestamp(ms / 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1_000:03}Z"
