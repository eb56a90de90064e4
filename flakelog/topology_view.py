"""The figures of a topology for people: one line for a log, or one screen of a terminal."""

from typing import TYPE_CHECKING, Any

from spout.figures import PartitionFigures, Rates, Snapshot

if TYPE_CHECKING:
    from rich.console import RenderableType

PARTITIONS_SHOWN_MIN = 3  # also on the smallest terminal


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
            each.name: {
                "emitted_per_second": round(rates.rate(each.name, "emitted"), 1),
                "acked_per_second": round(rates.rate(each.name, "acked"), 1),
                "failed_per_second": round(rates.rate(each.name, "failed"), 1),
                "latency_p50_ms": rates.latency_ms(each.name, 0.5),
                "latency_p99_ms": rates.latency_ms(each.name, 0.99),
            }
            for each in after.spouts
        },
        "in_flight": after.in_flight,
        "lag_messages": after.lag("lag"),
        "lag_bytes": after.lag("lag_bytes"),
        "lag_ms": after.lag("lag_ms"),
        "dead_letters": _dead_letters(after),
        "problems": after.problems,
    }


def screen_of(before: Snapshot | None, after: Snapshot, height: int) -> "RenderableType":
    """Return the figures as tables of at most `height` lines."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rates = Rates(before, after)
    summary = _summary(before, after)
    head = Text(f"{after.topology}, {after.state} for {_duration(after.at_ms - after.started_ms)}", style="bold")
    told = Text(", ".join(f"{name} {summary[name]}" for name in summary))
    components = Table(box=None, padding=(0, 2, 0, 0))
    components.add_column("COMPONENT")
    for name in ("TASKS", "EMITTED/S", "EXECUTED/S", "ACKED/S", "FAILED/S", "ERRORS", "BUSY"):
        components.add_column(name, justify="right")
    for each in after.components:
        persecond = [_rate(rates.rate(each.name, name)) for name in ("emitted", "executed", "acked", "failed")]
        busy = f"{rates.rate(each.name, 'busy_ns') / 1e7:.0f} %" if each.kind == "bolt" else "-"
        components.add_row(each.name, str(each.parallelism), *persecond, f"{each.total('errors'):,}", busy)
    room = max(height - len(after.components) - 8, PARTITIONS_SHOWN_MIN)
    shown = sorted(after.partitions, key=_by_need)[:room]
    partitions = Table(box=None, padding=(0, 2, 0, 0))
    partitions.add_column("PARTITION")
    partitions.add_column("PHASE")
    for name in ("WATERMARK", "END", "LAG", "BYTES", "SECONDS"):
        partitions.add_column(name, justify="right")
    partitions.add_column("ERROR", no_wrap=True)
    for one in shown:
        partitions.add_row(f"{one.topic}-{one.partition}", one.phase, *_cells(one), one.error)
    more = len(after.partitions) - len(shown)
    rest = [Text(f"and {more:,} more partitions")] if more else []
    return Group(head, told, Text(""), components, Text(""), partitions, *rest)


def _summary(before: Snapshot | None, after: Snapshot) -> dict[str, str]:
    rates = Rates(before, after)
    total = {name: sum(rates.rate(each.name, name) for each in after.spouts) for name in ("emitted", "acked", "failed")}
    found = {name: f"{_rate(value)}/s" for name, value in total.items()}
    for each in after.spouts:
        half, most = rates.latency_ms(each.name, 0.5), rates.latency_ms(each.name, 0.99)
        if half is not None:
            found[f"latency of {each.name}" if len(after.spouts) > 1 else "latency"] = f"{half} ms, p99 {most} ms"
    found["in flight"] = f"{after.in_flight:,}"
    if after.partitions:
        lag = _number(after.lag("lag"), " messages"), _size(after.lag("lag_bytes")), _age(after.lag("lag_ms"))
        found["lag"] = ", ".join(lag)
        found["dead letters"] = f"{_dead_letters(after):,}"
    if after.problems:
        found["problems"] = f"{len(after.problems):,}, the first: {after.problems[0]}"
    return found


def _dead_letters(taken: Snapshot) -> int:
    return sum(each.messages.get("dead_lettered", 0) for each in taken.components)


def _by_need(one: PartitionFigures) -> tuple[bool, int, str, int]:
    """Sort partitions with errors first, then those with the most lag."""
    return not one.error, -(one.lag or 0), one.topic, one.partition


def _cells(one: PartitionFigures) -> list[str]:
    offsets = [_number(one.watermark), _number(one.high_watermark), _number(one.lag)]
    return [*offsets, _size(one.lag_bytes), _age(one.lag_ms)]


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
