"""The figures by carrier that stream, replay and source must agree on. All are integers, so they compare exactly."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple


class Delays(NamedTuple):
    """Arrival delays of one carrier's flights, in minutes. Cancelled and diverted flights do not count as arrived."""

    flights: int
    arrived: int
    total_min: int
    squares: int
    least_min: int
    most_min: int

    @property
    def mean_min(self) -> float:
        return self.total_min / self.arrived if self.arrived else 0.0


Figures = dict[str, Delays]


def of_rows(rows: Iterable[tuple[str, int | None]]) -> Figures:
    """Return the figures from (carrier, arrival delay) of each flight."""
    by_carrier: dict[str, list[int]] = {}
    flights: dict[str, int] = {}
    for carrier, delay in rows:
        flights[carrier] = flights.get(carrier, 0) + 1
        if delay is not None:
            by_carrier.setdefault(carrier, []).append(delay)
    return {
        carrier: _delays(number, by_carrier.get(carrier, [])) for carrier, number in sorted(flights.items())
    }


def _delays(flights: int, delays: list[int]) -> Delays:
    squares = sum(delay * delay for delay in delays)
    return Delays(flights, len(delays), sum(delays), squares, min(delays, default=0), max(delays, default=0))


def of_source(flights: Any) -> Figures:
    """Return the figures of the source, computed with pandas."""
    arrived_flights = flights.dropna(subset=["arr_delay"]).copy()
    arrived_flights["arr_delay"] = arrived_flights["arr_delay"].astype("int64")
    arrived_flights["square"] = arrived_flights["arr_delay"] ** 2
    number = flights.groupby("carrier").size()
    by_carrier = arrived_flights.groupby("carrier").agg(
        arrived=("arr_delay", "size"),
        total=("arr_delay", "sum"),
        squares=("square", "sum"),
        least=("arr_delay", "min"),
        most=("arr_delay", "max"),
    )
    rows = by_carrier.reindex(number.index, fill_value=0)
    return {
        str(carrier): Delays(int(number[carrier]), *(int(value) for value in row))
        for carrier, row in zip(rows.index, rows.itertuples(index=False), strict=True)
    }


def differences(name: str, figures: Mapping[str, Delays], other: str, others: Mapping[str, Delays]) -> list[str]:
    """Return a line for each carrier in which two results differ, no lines if they are equal."""
    return [
        f"{carrier}: {name} has {figures.get(carrier)}, {other} has {others.get(carrier)}"
        for carrier in sorted({*figures, *others})
        if figures.get(carrier) != others.get(carrier)
    ]
