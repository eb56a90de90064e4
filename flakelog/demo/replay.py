"""The same figures by Spark: for a span of ids, from a manifest, and over everything."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flakelog.demo.figures import Delays, Figures

TURN_SECONDS = 0.2


def figures(rows: Any) -> Figures:
    """Return the figures of a DataFrame from the Data Source, without messages that are not flights (the poison)."""
    from pyspark.sql import functions as F

    flight = F.from_json(F.col("value").cast("string"), "n BIGINT, carrier STRING, arr_delay DOUBLE")
    flights = rows.select(flight.alias("f")).where("f.n is not null and f.carrier is not null")
    delay = F.col("f.arr_delay").cast("bigint")
    grouped = flights.groupBy(F.col("f.carrier").alias("carrier")).agg(
        F.count(F.lit(1)),
        F.count(delay),
        F.coalesce(F.sum(delay), F.lit(0)),
        F.coalesce(F.sum(delay * delay), F.lit(0)),
        F.coalesce(F.min(delay), F.lit(0)),
        F.coalesce(F.max(delay), F.lit(0)),
    )
    return {row[0]: Delays(*row[1:]) for row in sorted(grouped.collect())}


def save_manifest(options: dict[str, str], path: Path) -> Any:
    """Fix what a replay reads, and save it as a manifest before any task reads."""
    from spark_bridge.replay.job import make_manifest
    from spark_bridge.replay.job import save_manifest as save

    manifest = make_manifest(options)
    save(manifest, path)
    return manifest


@contextmanager
def repeating(show: Callable[[], None]) -> Iterator[None]:
    """Call `show` in a thread every fifth of a second, while the body waits for Spark."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(TURN_SECONDS):
            show()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
