"""Rows, contenders and runs: a row measures its contenders side by side, several times, and reports the medians."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

Figures = Mapping[str, float]
"""The figures of one run by unit, e.g. {"MB/s": 480.0, "CPU s": 0.3}."""

Contenders = Mapping[str, Callable[[], Figures]]
"""By name, ours first: a function that runs the contender once and returns its figures."""

OURS = "flakelog"
IDLE_WAIT_SECONDS, IDLE_LOOK_SECONDS, IDLE_SHARE = 30.0, 0.1, 0.3


class Scale(NamedTuple):
    """The amount of work: a small share of it shows that a row runs, and says nothing of speed."""

    runs: int
    warm_up: int
    share: float
    kafka: bool
    """Whether Apache Kafka is measured too, if this machine has it."""
    against: Path | None = None
    """Another checkout of Flakelog, whose servers are measured too."""
    log_gb: int = 1
    """The size of the log that a cold reader reads in `stalls`, before `share`, in GB."""

    def of(self, number: int, least: int = 1) -> int:
        return max(int(number * self.share), least)

    @property
    def other(self) -> str:
        """The name of the other checkout's servers."""
        return f"{OURS} at {self.against}"


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
    """Run the contenders by turns, so that a disturbance of the machine falls on all of them.

    Every second round runs them in the reverse order, so that a machine that grows slower favours none of them.
    """
    with row.open(scale) as contenders:
        counted: dict[str, list[Figures]] = {name: [] for name in contenders}
        for number in range(scale.warm_up + scale.runs):
            names = list(contenders)
            for name in names if number % 2 == 0 else reversed(names):
                step(f"{row.name}: {name}, " + (f"run {number}" if number >= scale.warm_up else "warm-up"))
                figures = contenders[name]()
                if number >= scale.warm_up:
                    counted[name].append(figures)
    return {name: _spreads(runs) for name, runs in counted.items()} | _pairs(counted, scale)


def _spreads(runs: list[Figures]) -> dict[str, Spread]:
    by_unit = {unit: [figures[unit] for figures in runs] for unit in runs[0]}
    return {unit: Spread(min(v), statistics.median(v), max(v)) for unit, v in by_unit.items()}


def _pairs(counted: Mapping[str, list[Figures]], scale: Scale) -> Result:
    """Divide our figures by the other checkout's, run by run. The runs of a pair are close in time, so a disturbance
    that lasts longer than a pair cancels out."""
    result: Result = {}
    for name, theirs in counted.items():
        if scale.against is None or not name.startswith(scale.other):
            continue
        ours = OURS + name.removeprefix(scale.other)
        ratios = [
            {unit: figures[unit] / other[unit] for unit in figures if other[unit]}
            for figures, other in zip(counted[ours], theirs, strict=True)
        ]
        common = set.intersection(*(set(ratio) for ratio in ratios))
        units = [unit for unit in theirs[0] if unit in common]
        result[f"{ours}: ratio of pairs"] = _spreads([{unit: ratio[unit] for unit in units} for ratio in ratios])
    return result


def cpu_seconds(pid: int) -> float:
    """Read the user and system time that a process has used (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def await_idle(pids: Sequence[int]) -> None:
    """Wait until processes have worked off what they were sent, and use little processor time."""
    deadline = time.monotonic() + IDLE_WAIT_SECONDS
    used = sum(map(cpu_seconds, pids))
    while time.monotonic() < deadline:
        time.sleep(IDLE_LOOK_SECONDS)
        before, used = used, sum(map(cpu_seconds, pids))
        if used - before <= IDLE_LOOK_SECONDS * IDLE_SHARE:
            return


def numbered() -> Iterator[int]:
    """Count from 1, for the names of topics."""
    number = 0
    while True:
        number += 1
        yield number
