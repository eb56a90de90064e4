"""The figures of a topology for people: one line for a log, or one screen of a terminal."""

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from spout.figures.model import RATES, ComponentFigures, Rates, Snapshot, SpoutPartitionFigures

if TYPE_CHECKING:
    from rich.console import RenderableType

PARTITIONS_SHOWN_MIN = 3  # also on the smallest terminal
GAP = 2  # between columns
ERROR = "ERROR"
ERROR_CHARACTERS_MIN = 14  # of a message that is cut where the screen ends
TEXTS = ("PHASE", ERROR)
# Columns by need: on a narrow terminal the last ones are left out.
COMPONENT_NEED = ("ACKED/S", "FAILED/S", "EXECUTED/S", "BUSY", "ERRORS", "EMITTED/S", "TASKS")
PARTITION_NEED = ("LAG", "SECONDS", "PHASE", ERROR, "END", "WATERMARK", "BYTES")


def line_of(before: Snapshot | None, after: Snapshot) -> str:
    """Return the figures as one line: rates since `before`, latency, failures and lag."""
    return "; ".join(f"{name} {text}" for name, text in _summary(before, after).items())


def facts_of(before: Snapshot | None, after: Snapshot) -> dict[str, Any]:
    """Return the same figures as data for JSON."""
    rates = Rates(before, after)
    return {
        "topology": after.topology,
        "state": after.state,
        "spouts": {
            spout.name: {
                "emitted_per_second": round(rates.rate(spout.name, "emitted"), 1),
                "acked_per_second": round(rates.rate(spout.name, "acked"), 1),
                "failed_per_second": round(rates.rate(spout.name, "failed"), 1),
                "latency_p50_ms": rates.latency_ms(spout.name, 0.5),
                "latency_p99_ms": rates.latency_ms(spout.name, 0.99),
            }
            for spout in after.spouts
        },
        "in_flight": after.in_flight,
        "lag_messages": after.lag("lag"),
        "lag_bytes": after.lag("lag_bytes"),
        "lag_ms": after.lag("lag_ms"),
        "dead_letters": after.dead_letters,
        "group_waits_ms": {spout.name: spout.group_wait_ms for spout in after.spouts if spout.group_wait_ms},
        "problems": after.problems,
    }


def screen_of(before: Snapshot | None, after: Snapshot, height: int, width: int) -> "RenderableType":
    """Return the figures as tables of at most `height` lines; columns that do not fit `width` are left out."""
    from rich.console import Group
    from rich.text import Text

    rates = Rates(before, after)
    summary = _summary(before, after)
    head = Text(f"{after.topology}, {after.state} for {_duration(after.at_ms - after.started_ms)}", style="bold")
    totals = ", ".join(f"{name} {summary[name]}" for name in summary)
    components = _table(
        "COMPONENT", [_component(component, rates) for component in after.components], COMPONENT_NEED, width
    )
    around = 7 + len(wrap(totals, width))  # the lines beside those of components and partitions
    room = max(height - len(after.components) - around, PARTITIONS_SHOWN_MIN)
    shown = after.by_need()[:room]
    partitions = _table("PARTITION", [_partition(partition) for partition in shown], PARTITION_NEED, width)
    more = len(after.partitions) - len(shown)
    rest = [Text(f"and {more:,} more partitions")] if more else []
    return Group(head, Text(totals), Text(""), components, Text(""), partitions, *rest)


def _component(component: ComponentFigures, rates: Rates) -> dict[str, str]:
    per_second = {f"{name.upper()}/S": _rate(rates.rate(component.name, name)) for name in RATES}
    busy = f"{rates.rate(component.name, 'busy_ns') / 1e7:.0f} %" if component.kind == "bolt" else "-"
    tasks, errors = str(component.parallelism), f"{component.total('errors'):,}"
    return {"COMPONENT": component.name, "TASKS": tasks, **per_second, "ERRORS": errors, "BUSY": busy}


def _partition(partition: SpoutPartitionFigures) -> dict[str, str]:
    return {
        "PARTITION": f"{partition.topic}-{partition.partition}",
        "PHASE": partition.phase,
        "WATERMARK": _number(partition.watermark),
        "END": _number(partition.high_watermark),
        "LAG": _number(partition.lag),
        "BYTES": _size(partition.lag_bytes),
        "SECONDS": _age(partition.lag_ms),
        "ERROR": partition.trouble,
    }


def _table(first: str, rows: Sequence[dict[str, str]], need: Sequence[str], width: int) -> "RenderableType":
    """Return a table of the columns that fit `width`: `first`, which names a row, and the others by `need`.

    A name that is too long loses its beginning, because a partition's number is at its end.
    """
    from rich.table import Table

    widths = {name: max([len(name), *(len(row[name]) for row in rows)]) + GAP for name in (first, *need)}
    widths[ERROR] = min(widths.get(ERROR, 0), ERROR_CHARACTERS_MIN)
    kept, room = {first, need[0]}, width - widths[need[0]]
    named = min(widths[first], max(room, len(first) + GAP))
    room -= named
    for name in need[1:]:
        if widths[name] > room:
            break
        kept.add(name)
        room -= widths[name]
    table = Table(box=None, padding=(0, GAP, 0, 0))
    for name in (column for column in (rows[0] if rows else widths) if column in kept):
        is_text = name in (first, *TEXTS)
        table.add_column(name, justify="left" if is_text else "right", no_wrap=True)
    for row in rows:
        cells = row | {first: _ending(row[first], named - GAP)}
        if ERROR in kept:
            cells[ERROR] = row[ERROR][: room + widths[ERROR] - GAP]
        table.add_row(*(cells[name] for name in row if name in kept))
    return table


def _ending(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"…{text[1 - characters:]}"


def _summary(before: Snapshot | None, after: Snapshot) -> dict[str, str]:
    rates = Rates(before, after)
    total = {
        name: sum(rates.rate(spout.name, name) for spout in after.spouts) for name in ("emitted", "acked", "failed")
    }
    summary = {name: f"{_rate(value)}/s" for name, value in total.items()}
    for spout in after.spouts:
        half, most = rates.latency_ms(spout.name, 0.5), rates.latency_ms(spout.name, 0.99)
        if half is not None:
            summary[f"latency of {spout.name}" if len(after.spouts) > 1 else "latency"] = f"{half} ms, p99 {most} ms"
    summary["in flight"] = f"{after.in_flight:,}"
    summary |= {f"spout {name}": wait for name, wait in after.group_waits.items()}
    if after.partitions or after.group_waits:
        lag = _number(after.lag("lag"), " messages"), _size(after.lag("lag_bytes")), _age(after.lag("lag_ms"))
        summary["lag"] = ", ".join(lag)
        summary["dead letters"] = f"{after.dead_letters:,}"
    if after.problems:
        summary["problems"] = f"{len(after.problems):,}, the first: {after.problems[0]}"
    return summary


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def _number(value: int | None, unit: str = "") -> str:
    return "-" if value is None else f"{value:,}{unit}"


def _size(value: int | None) -> str:
    if value is None:
        return "-"
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value} B"


def _age(value_ms: int | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000:,.1f} s"


def _duration(ms: int) -> str:
    seconds = ms // 1000
    return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
