"""The topology: flights in, delays by carrier out, each flight counted once in spite of failures.

    flights (log spout) -> parse (shuffle, 2 tasks) -> delays (by carrier, 2 tasks)

At-least-once delivery means that a bolt can see a message again, after a failure or a kill. `DelaysByCarrier` is a
OncePerMessage: it stores the origins of the flights it has counted in the same SQLite transaction as the counts.

Run as a program, this module is one life of the topology; the demo kills the first one.
"""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import click

from flakelog.demo.figures import Delays, Figures
from flakelog.demo.flights import parse
from spout.api import Bolt, Tuple
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.once import OncePerMessage
from spout.topology import Topology

TASKS = 2
FAIL_EVERY = 100
STATUS_SECONDS = 0.25
STATUS_FILE = "status.json"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS counted (id INTEGER PRIMARY KEY, n INTEGER, carrier TEXT, arr_delay INTEGER);
CREATE TABLE IF NOT EXISTS delays (
  carrier TEXT PRIMARY KEY, flights INTEGER, arrived INTEGER, total INTEGER, squares INTEGER,
  least INTEGER, most INTEGER);
CREATE TABLE IF NOT EXISTS seen_again (times INTEGER);
"""
_ADD = """
INSERT INTO delays VALUES (?, 1, ?, ?, ?, ?, ?) ON CONFLICT (carrier) DO UPDATE SET
  flights = flights + 1, arrived = arrived + excluded.arrived, total = total + excluded.total,
  squares = squares + excluded.squares, least = min(least, excluded.least), most = max(most, excluded.most)
"""
_ADD_CANCELLED = """
INSERT INTO delays VALUES (?, 1, 0, 0, 0, NULL, NULL) ON CONFLICT (carrier) DO UPDATE SET flights = flights + 1
"""


class FailsOnPurpose(Exception):
    """A failure on purpose, for the demo."""


class ParseFlight(Bolt):
    """A parser from JSON to the fields of the figures. Invalid JSON fails each time, every hundredth flight once."""

    output_fields = ("id", "n", "carrier", "arr_delay")
    failed: ClassVar[set[int]] = set()  # shared in this process, because a retry may come to the other task

    def execute(self, tup: Tuple) -> None:
        flight = parse(tup["value"])
        n = flight["n"]
        if n % FAIL_EVERY == FAIL_EVERY - 1 and n not in self.failed:
            self.failed.add(n)
            raise FailsOnPurpose(f"flight {n} fails the first time, as every {FAIL_EVERY}th does")
        delay = flight["arr_delay"]
        self.emit((tup["id"], n, flight["carrier"], None if delay is None else int(delay)))


class DelaysByCarrier(OncePerMessage):
    """A bolt that counts each flight once."""

    schema = _SCHEMA
    batch_size = 1000
    tick_interval_ms = 50

    def apply(self, tup: Tuple) -> None:
        id, n, carrier, delay = tup
        self.db.execute("INSERT INTO counted VALUES (?, ?, ?, ?)", (id, n, carrier, delay))
        if delay is None:
            self.db.execute(_ADD_CANCELLED, (carrier,))
        else:
            # SQLite's min and max are NULL if one argument is, so a carrier's first arrival replaces its NULLs.
            self.db.execute(
                "UPDATE delays SET least = ?, most = ? WHERE carrier = ? AND least IS NULL", (delay, delay, carrier)
            )
            self.db.execute(_ADD, (carrier, 1, delay, delay * delay, delay, delay))

    def apply_again(self, tup: Tuple) -> None:
        self.db.execute("INSERT INTO seen_again VALUES (1)")


def make_topology(servers: str, topic: str, directory: Path) -> Topology:
    """Return the topology over a topic, with its progress and its state in `directory`."""
    config = SpoutConfig(spout_commit_interval_ms=500)
    spout = LogSpout(topic, servers=servers, store=str(directory / "progress"), config=config)
    topology = Topology("flight-delays")
    topology.spout("flights", spout)
    topology.bolt("parse", ParseFlight(), parallelism=TASKS).shuffle("flights")
    topology.bolt("delays", DelaysByCarrier(state_file(directory)), parallelism=TASKS).fields("parse", "carrier")
    return topology


# --- results -----------------------------------------------------------------------------------------------------


def state_file(directory: Path) -> Path:
    return directory / "delays.sqlite"


def _ask(directory: Path, query: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    path = state_file(directory)
    if not path.exists():
        return []
    db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        return db.execute(query, values).fetchall()
    except sqlite3.OperationalError:
        return []  # the table is being created
    finally:
        db.close()


def counted(directory: Path) -> int:
    """Return the number of flights counted so far."""
    return sum(row[0] for row in _ask(directory, "SELECT count(*) FROM counted"))


def seen_again(directory: Path) -> int:
    """Return the number of repeated deliveries of counted flights."""
    return sum(row[0] or 0 for row in _ask(directory, "SELECT sum(times) FROM seen_again"))


def figures(directory: Path) -> Figures:
    """Return the counts, as the bolts stored them."""
    rows = _ask(directory, "SELECT carrier, flights, arrived, total, squares, least, most FROM delays")
    return {row[0]: Delays(*(value or 0 for value in row[1:])) for row in sorted(rows)}


def flights_between(directory: Path, first_id: int, end_id: int) -> list[tuple[int, str, int | None]]:
    """Return (n, carrier, arrival delay) of the flights counted under the ids first_id .. end_id - 1."""
    query = "SELECT n, carrier, arr_delay FROM counted WHERE id >= ? AND id < ?"
    return [(n, carrier, delay) for n, carrier, delay in _ask(directory, query, (first_id, end_id))]


@click.command()
@click.option("--servers", required=True)
@click.option("--topic", required=True)
@click.option("--directory", required=True, type=click.Path(path_type=Path, exists=True))
def main(servers: str, topic: str, directory: Path) -> None:
    """Run one life of the topology, until SIGTERM; write its counts to status.json."""
    from twisted.internet import reactor
    from twisted.internet.task import LoopingCall

    from spout.runner import Runner

    runner = Runner(make_topology(servers, topic, directory))
    installed: Any = reactor

    def write_status() -> None:
        spouts = runner.executor.instances_of("flights")
        total = sum((spout.counts for spout in spouts[1:]), spouts[0].counts)
        temporary = directory / (STATUS_FILE + ".tmp")
        names = ("fetched", "acked", "failed", "retried", "dead_lettered", "already_done")
        temporary.write_text(json.dumps({name: getattr(total, name) for name in names}))
        os.replace(temporary, directory / STATUS_FILE)

    problems: list[Any] = []
    loop = LoopingCall(write_status)
    runner.start().addErrback(problems.append).addBoth(lambda _: installed.running and installed.stop())
    loop.start(STATUS_SECONDS)
    installed.addSystemEventTrigger("before", "shutdown", lambda: runner.stop().addBoth(lambda _: write_status()))
    installed.run()
    if problems:
        raise click.ClickException(problems[0].getTraceback())


if __name__ == "__main__":
    main()
