"""Java properties, the format of Kafka's configuration files, as java.util.Properties reads them."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from idgen.settings import InvalidSetting

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """A property, and the number of its line."""

    name: str
    text: str
    line: int


def parse_properties(text: str, where: str) -> list[Property]:
    """Parse the text of a file; `where` names it. Raise InvalidSetting.

    A line is name=value (or ":", or a space). Comments begin with # or !, and a \\ joins lines or escapes the next
    character. If a name is given twice, the last value counts.
    """
    properties: dict[str, Property] = {}
    for number, line in _logical_lines(text):
        match = re.fullmatch(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)", line, re.DOTALL)
        if match is None:
            raise InvalidSetting(f"{where}, line {number}", line, "must be name=value")
        properties[match[1]] = Property(match[1], _ESCAPE.sub(_unescaped, match[2]), number)
    return list(properties.values())


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of its first line, logical line with its continuation lines)."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        while _continues(line):
            line = line[:-1] + next(lines, (0, ""))[1].strip()
        yield number, line


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _ESCAPED.get(escaped, escaped)
