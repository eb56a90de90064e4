"""The options of `flakelog replay` that say what is read: the range, the columns and the isolation."""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

from flakelog.commands.terminal import TimeType

ISOLATIONS = ("read_committed", "read_uncommitted")
PARTITION_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 63) - 1
_OFFSETS = re.compile(
    r"(?:(?P<topic>[\w.-]+):)?(?P<partition>\d{1,10}):(?P<first>\d{0,19})-(?P<end>\d{0,19})", re.ASCII
)


class OffsetRange(NamedTuple):
    """Offsets of a partition, half-open; None leaves a side open. `topic` is None if it is the command's one topic."""

    topic: str | None
    partition: int
    first: int | None
    end: int | None


class OffsetsType(click.ParamType[OffsetRange]):
    """`[TOPIC:]PARTITION:FIRST-END`."""

    name = "offsets"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> OffsetRange:
        match = _OFFSETS.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            self.fail(
                f"{value!r} is no range of offsets: [TOPIC:]PARTITION:FIRST-END, such as 0:17-42, 0:17- or 0:-42",
                param,
                ctx,
            )
        first, end = (int(text) if text else None for text in match.group("first", "end"))
        partition = int(match["partition"])
        if partition > PARTITION_MAX or max(first or 0, end or 0) > OFFSET_MAX:
            self.fail(f"{value!r}: a partition is at most {PARTITION_MAX}, an offset at most {OFFSET_MAX}", param, ctx)
        if first is not None and end is not None and end < first:
            self.fail(f"{value!r}: the end lies before the first offset", param, ctx)
        return OffsetRange(match["topic"], partition, first, end)


def range_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options. `range_of` takes their values by name."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--from-id", type=int, metavar="ID", help="The first id."),
    click.option("--to-id", type=int, metavar="ID", help="The id to end before."),
    click.option("--from-time", type=TimeType(), metavar="TIME", help="Messages with a timestamp not before it."),
    click.option("--to-time", type=TimeType(), metavar="TIME", help="Messages with a timestamp before it."),
    click.option(
        "--offsets",
        type=OffsetsType(),
        multiple=True,
        metavar="[TOPIC:]PARTITION:FIRST-END",
        help="These offsets of a partition, without END, and only these; repeatable. A side may be left out: 0:17-",
    ),
    click.option(
        "--partition", "partitions", type=click.IntRange(0, PARTITION_MAX), multiple=True,
        help="Only this one of each topic; repeatable.",
    ),
    click.option("--columns", metavar="NAME,...", help="The columns to write.  [default: all but the headers]"),
    click.option("--headers", is_flag=True, help="Write the headers of messages too."),
    click.option(
        "--isolation",
        type=click.Choice(ISOLATIONS),
        help="With read_committed, messages of aborted transactions stay out, and the end is at most the first open "
        "one.  [default: read_committed, or that of the manifest in PLACE]",
    ),
)  # fmt: skip


def range_of(
    topics: Sequence[str],
    *,
    from_id: int | None,
    to_id: int | None,
    from_time: int | None,
    to_time: int | None,
    offsets: Sequence[OffsetRange],
    partitions: Sequence[int],
    columns: str | None,
    headers: bool,
) -> dict[str, str]:
    """Return the Data Source's options, without servers and isolation. Raise UsageError, or OptionError."""
    from spark_bridge.selection.arguments import selection_options

    bounds = (from_id, to_id, from_time, to_time)
    if offsets and (partitions or any(bound is not None for bound in bounds)):
        raise click.UsageError("--offsets are the whole range: give no --partition, --from-... or --to-... beside them")
    options = {}
    if columns is not None:
        options["columns"] = columns
    if headers:
        options["includeHeaders"] = "true"
    return selection_options(
        topics,
        ids=None if from_id is None and to_id is None else (from_id, to_id),
        times=None if from_time is None and to_time is None else (from_time, to_time),
        offsets=_offsets_by_topic(topics, offsets) if offsets else None,
        partitions=partitions,
        options=options,
    )


def _offsets_by_topic(
    topics: Sequence[str], ranges: Sequence[OffsetRange]
) -> dict[str, dict[int, tuple[int | None, int | None]]]:
    by_topic: dict[str, dict[int, tuple[int | None, int | None]]] = {}
    for range_ in ranges:
        if range_.topic is None and len(topics) != 1:
            raise click.UsageError(f"--offsets {range_.partition}:...: of which topic? Write TOPIC:PARTITION:FIRST-END")
        topic = topics[0] if range_.topic is None else range_.topic
        if range_.partition in by_topic.setdefault(topic, {}):
            names = f"--offsets names partition {range_.partition} of {topic} twice"
            raise click.UsageError(f"{names}; a file has one range")
        by_topic[topic][range_.partition] = range_.first, range_.end
    if topics and set(by_topic) != set(topics):
        others = ", ".join(sorted(set(by_topic) ^ set(topics)))
        raise click.UsageError(f"--offsets and the topics differ in {others}: give offsets of each topic, or no topics")
    return by_topic
