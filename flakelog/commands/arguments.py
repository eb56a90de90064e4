"""Types of arguments that know their bounds, so that no number and no text gets further than it fits.

Kafka's protocol has partitions and brokers of 32 bits, offsets and counts of 64, and strings of at most 32,767 bytes.
`bounded` gives every option and argument of a command such a type.
"""

import math
import os
from typing import Any

import click

from coordination.access import an_ensemble
from coordination.errors import quoted as quoted  # for the commands

INT16_MAX, INT32_MAX = (1 << 15) - 1, (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
TEXT_BYTES_MAX = (1 << 15) - 1  # of a string in Kafka's protocol
TOPIC_CHARACTERS_MAX = 249  # Kafka's, so that the names of files and directories fit
SECONDS_MAX = 1_000_000_000  # 31 years; Python's timers end at 300
FILE_NAME_BYTES_MAX = 255  # NAME_MAX of Linux and macOS
DIGITS_MAX = 40  # int() refuses thousands of digits


class Whole(click.IntRange):
    """A whole number that fits its bits. Help and errors name an upper bound only if it is exceeded, or is ours."""

    def __init__(self, least: int = -INT64_MAX, most: int = INT64_MAX) -> None:
        super().__init__(least, most)

    def _describe_range(self) -> str:
        if self.max not in (INT32_MAX, INT64_MAX):
            return f"{self.min}<=x<={self.max}"
        return "" if self.min == -INT64_MAX else f"x>={self.min}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        assert self.min is not None and self.max is not None, "both have values"
        try:
            number = int(value) if len(str(value)) <= DIGITS_MAX else None
        except ValueError:
            number = None
        if number is None:
            self.fail(f"{quoted(value)} is not a valid integer.", param, ctx)
        if not self.min <= number <= self.max:
            bounds = self._describe_range() if number < self.min else f"{self.min}<=x<={self.max}"
            self.fail(f"{number} is not in the range {bounds}.", param, ctx)
        return number


class Seconds(click.FloatRange):
    """A time to wait: neither nan nor infinite, nor longer than the clocks of Python count."""

    def __init__(self, least: float = 0, most: float = SECONDS_MAX, *, above_least: bool = False) -> None:
        super().__init__(least, most, min_open=above_least)

    def _describe_range(self) -> str:
        if self.max == SECONDS_MAX:
            return f"x>{'' if self.min_open else '='}{self.min:g}"
        return super()._describe_range()

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            self.fail(f"{quoted(value)} is not a valid float.", param, ctx)
        if number > SECONDS_MAX:
            self.fail(f"{quoted(value)} is too long; at most {SECONDS_MAX:,} s.", param, ctx)
        return float(super().convert(number, param, ctx))


class Text(click.ParamType[str]):
    """A text that can be sent to a server: UTF-8, and not longer than Kafka's strings."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            self.fail(f"{quoted(text)} is no UTF-8 text", param, ctx)
        if size > TEXT_BYTES_MAX:
            self.fail(f"{quoted(text)} has {size:,} bytes; at most {TEXT_BYTES_MAX:,} can be sent", param, ctx)
        return text


class Addresses(Text):
    """HOST:PORT,... of servers. An address with a scheme or a user is refused, and not quoted: it may have a password.
    """

    name = "addresses"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if "://" in text or "@" in text:
            self.fail("an address has no scheme, no user and no password; give HOST:PORT", param, ctx)
        return text


class Ensemble(Addresses):
    """HOST:PORT,...[/CHROOT] of a ZooKeeper ensemble. An empty text names none, because scripts may leave it empty."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if text and (wanted := an_ensemble(text)):
            self.fail(f"{quoted(text)} {wanted}", param, ctx)
        return text


class Name(Text):
    """A text that names something, and so is not empty."""

    name = "name"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not value:
            self.fail("it is empty", param, ctx)
        return super().convert(value, param, ctx)


class TopicName(Name):
    """The name of a topic; the broker refuses characters that Kafka does not allow."""

    name = "topic"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        if len(text) > TOPIC_CHARACTERS_MAX:
            self.fail(f"{quoted(text)} is longer than a topic's {TOPIC_CHARACTERS_MAX} characters", param, ctx)
        return text


class FilePath(click.Path):
    """The path of a file or a directory, in which no name is longer than file systems allow."""

    def __init__(self, path: click.Path) -> None:
        vars(self).update(vars(path))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if any(len(os.fsencode(part)) > FILE_NAME_BYTES_MAX for part in os.fspath(value).split(os.sep)):
            self.fail(f"{quoted(value)} has a name of more than {FILE_NAME_BYTES_MAX} bytes", param, ctx)
        return super().convert(value, param, ctx)


PARTITION = Whole(0, INT32_MAX)
BROKER = Whole(0, INT32_MAX)


def bounded(command: click.Command) -> None:
    """Replace the unbounded types of click, in a command and its subcommands: text, numbers, times to wait, paths."""
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            bounded(subcommand)
    for param in command.params:
        old = param.type
        if type(old) is type(click.STRING):
            param.type = Text()
        elif type(old) is type(click.INT):
            param.type = Whole()
        elif type(old) is click.IntRange:
            least, most = old.min, old.max
            param.type = Whole(-INT64_MAX if least is None else least, INT64_MAX if most is None else most)
        elif type(old) is click.Path:
            param.type = FilePath(old)
        elif type(old) is click.FloatRange:
            most_s = SECONDS_MAX if old.max is None else old.max
            param.type = Seconds(old.min or 0, most_s, above_least=old.min_open)
