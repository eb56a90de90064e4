"""The place where `flakelog consume` begins: `--from earliest | latest | OFFSET | -N | @TIME | id:ID`."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flakelog.commands.arguments import DIGITS_MAX, INT64_MAX, PARTITION, TopicName, quoted
from flakelog.commands.exit_codes import fail
from flakelog.commands.terminal import typed_time

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.errors import BrokerError
    from broker.client.group_protocol import Partition

LEFT_OUT_MAX = 5

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
        return Start("time", typed_time(text[1:]))
    last, number = _number(text.removeprefix("-")), _number(text.removeprefix("id:"))
    if text.startswith("-") and last:
        return Start("last", last)
    if number is not None:
        return Start("id" if text.startswith("id:") else "offset", number)
    raise ValueError(f"{quoted(text)} is no place to begin; give earliest, latest, an offset, -N, @TIME or id:ID")


def _number(text: str) -> int | None:
    """Return a number from 0 on that fits 63 bits, None for any other text."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        return None
    return int(text) if int(text) <= INT64_MAX else None


class Span(NamedTuple):
    """The offsets of a partition to read: `offset` is next, `end` is the partition's end when it was looked up."""

    topic: str
    partition: int
    offset: int
    end: int


def name_left_out(errors: "Mapping[Partition, BrokerError]") -> None:
    """Name on stderr the partitions that could not be asked, and why; the first few of many."""
    for error in list(errors.values())[:LEFT_OUT_MAX]:
        click.echo(f"left out: {error}", err=True)
    if len(errors) > LEFT_OUT_MAX:
        click.echo(f"and {len(errors) - LEFT_OUT_MAX:,} others", err=True)


def offsets_of(
    client: "Client", places: "list[Partition]", at: int, by_id: bool = False, committed: bool = False
) -> "dict[Partition, int]":
    """Return each partition's first offset at a time or an id, or its end if all messages are older."""
    from broker.client.core import LATEST, NOT_FOUND
    from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED

    level = READ_COMMITTED if committed else READ_UNCOMMITTED
    found = client.run(client.core.list_offsets(places, at, by_id=by_id, isolation_level=level))
    late = [place for place, offset in found.items() if offset is None]
    if late:
        found |= client.run(client.core.list_offsets(late, LATEST, isolation_level=level))
    return {place: NOT_FOUND if offset is None else offset for place, offset in found.items()}


def move_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that moves stored progress: `topics`, `partitions`, `start` and `execute`."""
    options = (
        click.option("--topic", "topics", type=TopicName(), multiple=True, metavar="TOPIC", help=ONLY),
        click.option("--partition", "partitions", type=PARTITION, multiple=True, help=ONLY),
        click.option("--to", "start", type=StartType(), required=True, metavar="PLACE", help=PLACES),
        click.option("--execute", is_flag=True, help="Do it; without this it is only shown."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def find_start(
    client: "Client", topic: str, partition: int, start: Start, committed: bool = False
) -> Span:
    """Ask the partition's leader for the offset of `start`; fail if `start` is an offset that does not exist."""
    (span,) = find_starts(client, [(topic, partition)], start, committed)
    return span


def find_starts(
    client: "Client", places: "Iterable[Partition]", start: Start, committed: bool = False
) -> list[Span]:
    """Return where each partition begins, as `find_start` does."""
    from flakelog.operations.partitions import bounds_of_all

    bounds = bounds_of_all(client, places, committed)
    found: dict[Partition, int] = {}
    if start.kind in ("time", "id"):
        found = offsets_of(client, list(bounds), start.value, by_id=start.kind == "id")
    spans = []
    for place, (begin, end) in bounds.items():
        match start:
            case Start("earliest"):
                offset = begin
            case Start("last", number):
                offset = max(begin, end - number)
            case Start("offset", offset):
                if not begin <= offset <= end:
                    fail(f"{place[0]}-{place[1]} has offsets {begin} to {end}, not {offset}")
            case _:
                offset = found.get(place, end)
        spans.append(Span(*place, offset, end))
    return spans
