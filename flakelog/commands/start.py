"""The place where `flakelog consume` begins: `--from earliest | latest | OFFSET | -N | @TIME | id:ID`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flakelog.commands.exit_codes import fail
from flakelog.commands.terminal import parse_time

if TYPE_CHECKING:
    from broker.client.blocking import BlockingClient

ONLY = "Only this one; repeatable."
PLACES = (
    "earliest, latest, an offset, -N: the last N, "
    "@TIME (@2013-01-01T12:00Z, @Unix-ms), or id:ID: the first id not below it."
)


class Start(NamedTuple):
    """A place to begin. `kind` is "earliest", "latest", "offset", "last", "time" or "id".

    `value` is the offset, the number of last records, the Unix ms, or the id.
    """

    kind: str
    value: int = 0


class StartType(click.ParamType[Start]):
    """A place to begin on the command line."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        if isinstance(value, Start):
            return value
        try:
            return parse_start(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def parse_start(text: str) -> Start:
    """Parse one of the six forms; raise ValueError for any other text."""
    if text in ("earliest", "latest"):
        return Start(text)
    if text.startswith("@"):
        return Start("time", parse_time(text[1:]))
    if text.startswith("-") and text[1:].isascii() and text[1:].isdigit() and 0 < int(text[1:]) < 1 << 63:
        return Start("last", int(text[1:]))
    number = text.removeprefix("id:")
    if number.isascii() and number.isdigit() and int(number) < 1 << 63:
        return Start("offset" if number == text else "id", int(number))
    raise ValueError(f"{text!r} is no place to begin; give earliest, latest, an offset, -N, @TIME or id:ID")


class Span(NamedTuple):
    """The offsets of a partition to read: `offset` is next, `end` is the partition's end when it was looked up."""

    topic: str
    partition: int
    offset: int
    end: int


def bounds_of(client: "BlockingClient", topic: str, partition: int, committed: bool = False) -> tuple[int, int]:
    """Return (first offset, offset of the next message).

    With `committed`, the second is the start of the first open transaction if one is open.
    """
    from broker.client.core import EARLIEST, LATEST

    return client.find_offset(topic, partition, EARLIEST), client.find_offset(topic, partition, LATEST, committed)


def end_of(client: "BlockingClient", topic: str, partition: int) -> int | None:
    """Return the offset of a partition's next message, None if the partition no longer exists."""
    from broker.client.core import LATEST
    from broker.client.errors import BrokerError

    try:
        return client.find_offset(topic, partition, LATEST)
    except BrokerError:
        return None


def move_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that moves stored progress: `topics`, `partitions`, `start` and `execute`."""
    options = (
        click.option("--topic", "topics", multiple=True, metavar="TOPIC", help=ONLY),
        click.option("--partition", "partitions", type=click.IntRange(0), multiple=True, help=ONLY),
        click.option("--to", "start", type=StartType(), required=True, metavar="PLACE", help=PLACES),
        click.option("--execute", is_flag=True, help="Do it; without this it is only shown."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def find_start(
    client: "BlockingClient", topic: str, partition: int, start: Start, committed: bool = False
) -> Span:
    """Ask the partition's leader for the offset of `start`; fail if `start` is an offset that does not exist."""
    begin, end = bounds_of(client, topic, partition, committed)
    match start:
        case Start("earliest"):
            return Span(topic, partition, begin, end)
        case Start("last", number):
            return Span(topic, partition, max(begin, end - number), end)
        case Start("time", time_ms):
            return Span(topic, partition, client.find_offset(topic, partition, time_ms), end)
        case Start("id", id):
            return Span(topic, partition, client.find_id(topic, partition, id), end)
        case Start("offset", offset):
            if not begin <= offset <= end:
                fail(f"{topic}-{partition} has offsets {begin} to {end}, not {offset}")
            return Span(topic, partition, offset, end)
    return Span(topic, partition, end, end)
