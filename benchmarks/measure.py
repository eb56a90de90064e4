"""Rows, contenders and runs: what is measured side by side, how often, and the medians of it."""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Figures = Mapping[str, float]
"""One run's figures by unit, e.g. {"MB/s": 480.0, "CPU s": 0.3}."""

Contenders = Mapping[str, Callable[[], Figures]]
"""By name, ours first: what runs once and gives its figures."""


class Scale(NamedTuple):
    """How much: a tenth or a hundredth of the work shows that a row runs, and says nothing of speed."""

    runs: int
    warm_up: int
    share: float
    kafka: bool
    """Whether Apache Kafka is measured too, where it is to be had."""

    def of(self, number: int, least: int = 1) -> int:
        return max(int(number * self.share), least)


SERIOUS = Scale(runs=5, warm_up=2, share=1.0, kafka=True)
QUICK = Scale(runs=1, warm_up=0, share=0.005, kafka=False)


@dataclass(frozen=True)
class Row:
    """`open` sets the contenders up, and tears them down at the end."""

    name: str
    about: str
    open: Callable[[Scale], AbstractContextManager[Contenders]]


class Spread(NamedTuple):
    least: float
    median: float
    most: float


Result = dict[str, dict[str, Spread]]
"""Contender -> unit -> spread over the counted runs."""


def measure(row: Row, scale: Scale, step: Callable[[str], None] = lambda _: None) -> Result:
    """Run the contenders by turns, so that what a neighbour does to the machine falls on all of them."""
    with row.open(scale) as contenders:
        counted: dict[str, list[Figures]] = {name: [] for name in contenders}
        for number in range(scale.warm_up + scale.runs):
            for name, run in contenders.items():
                step(f"{row.name}: {name}, " + (f"run {number}" if number >= scale.warm_up else "warm-up"))
                figures = run()
                if number >= scale.warm_up:
                    counted[name].append(figures)
    return {name: _spreads(runs) for name, runs in counted.items()}


def _spreads(runs: list[Figures]) -> dict[str, Spread]:
    by_unit = {unit: [figures[unit] for figures in runs] for unit in runs[0]}
    return {unit: Spread(min(v), statistics.median(v), max(v)) for unit, v in by_unit.items()}


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def numbered() -> Iterator[int]:
    """A fresh number for each run's topic."""
    number = 0
    while True:
        number += 1
        yield number
