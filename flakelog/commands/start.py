"""Positions in the log on the command line, such as that of `flakelog consume --from`, and the offsets they have."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from broker.client.offset_spec import OffsetSpec, check_start, parse_offset_spec
from flakelog.commands.arguments import PARTITION, TopicName

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from broker.client.errors import BrokerError
    from broker.client.group_protocol import Partition

LEFT_OUT_MAX = 5

ONLY = "Only this one; repeatable."
STARTS = (
    "earliest, latest, an offset, -N: the last N, "
    "@TIME (@2013-01-01T12:00Z, @Unix-ms), or id:ID: the first id not below it."
)


class StartType(click.ParamType[OffsetSpec]):
    """A position in the log on the command line."""

    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OffsetSpec:
        if not isinstance(value, str):
            return check_start(value)
        try:
            return parse_offset_spec(value, time.time_ns() // 1_000_000)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class RangeToRead(NamedTuple):
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


def move_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that moves stored progress: `topics`, `partitions`, `start` and `execute`."""
    options = (
        click.option("--topic", "topics", type=TopicName(), multiple=True, metavar="TOPIC", help=ONLY),
        click.option("--partition", "partitions", type=PARTITION, multiple=True, help=ONLY),
        click.option("--to", "start", type=StartType(), required=True, metavar="PLACE", help=STARTS),
        click.option("--execute", is_flag=True, help="Do it; without this it is only shown."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def print_move(before: "Mapping[Partition, int]", after: "Mapping[Partition, int]", as_json: bool) -> None:
    """Print the offset of each partition before and after a move."""
    from flakelog.commands.terminal import print_json, print_table

    rows = [(*partition, before.get(partition), offset) for partition, offset in after.items()]
    names = ("topic", "partition", "before", "after")
    if as_json:
        for row in rows:
            print_json(dict(zip(names, row, strict=True)))
    else:
        print_table([name.upper() for name in names], rows)


def name_at_end(at_end: "Sequence[Partition]") -> None:
    """Name on stderr the partitions that go to their end because all their messages are before the time."""
    for topic, partition in at_end[:LEFT_OUT_MAX]:
        click.echo(f"{topic}-{partition}: no message is so new; this is the end", err=True)
    if len(at_end) > LEFT_OUT_MAX:
        click.echo(f"and {len(at_end) - LEFT_OUT_MAX:,} others", err=True)


def find_starts(
    client: "Client", partitions: "Iterable[Partition]", start: OffsetSpec, committed: bool = False
) -> list[RangeToRead]:
    """Return where each partition begins. Raise NotPossible if a log does not have the offset of an AtOffset."""
    from flakelog.operations.partitions import positions_of

    positions = positions_of(client, partitions, start, committed)
    return [
        RangeToRead(*partition, position.offset, position.bounds.log_end) for partition, position in positions.items()
    ]
