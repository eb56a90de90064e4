"""The demo from beginning to end. Each step prints what it did; the last line says whether the results agree."""

import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from broker.client.blocking import Client
from broker.client.core import EARLIEST, LATEST
from broker.client.records import Record
from flakelog.config import ServerConfig
from flakelog.demo import figures as figures_of
from flakelog.demo import replay, report, stream
from flakelog.demo.figures import Figures
from flakelog.demo.flights import POISON, load_flights, messages
from flakelog.demo.load import edge_messages, load
from flakelog.demo.processes import Child, wait_until
from flakelog.demo.report import Step
from idgen.layout import Layout

TOPIC = "flights"
PARTITIONS = 4
STREAM_SECONDS = 300.0
CHECK_SECONDS = 1.0
ROWS_PER_TASK = 20_000
DEAD_LETTERS = f"{TOPIC}.dead-letters"
DATA = "data"  # the server's directory among the results, so that a server can show them later
CONSOLE = f"http://{ServerConfig().http_listener}/"

Rows = list[tuple[str, str]]

FAILURES = (
    "Every hundredth flight fails its first attempt on purpose, and a message that is no flight fails all of its "
    "attempts. A failed message is retried. There is no retry after the last attempt, because the message then becomes "
    "a dead letter, and none for a failure just before the kill, because the second life delivers that message anew. "
    "The second life also delivers what the first one had counted but not yet stored as done. The bolt recognises such "
    "a message, so that each flight counts once. A message that is no flight can become a dead letter in both lives."
)
"""Why the figures of the failures differ, for a reader who compares them."""


class TimeSpan(NamedTuple):
    """A span of time in the middle of the load, and its ids (half-open)."""

    start_ms: int
    end_ms: int
    first_id: int
    end_id: int


class Demo:
    """A run of the demo. `out` is the directory of the results; `flights` limits the number of flights.

    With `stay`, the server runs on after the demo, so that a user can look at its web console, until Ctrl-C.
    """

    def __init__(self, out: Path, console: Console, flights: int | None = None, stay: bool = False) -> None:
        self.out = out
        self.stay = stay
        self.flights = flights
        self.console = console
        self.layout = Layout()
        self.steps: list[Step] = []
        self.servers = ""
        self.http = ""

    def run(self) -> bool:
        """Run every step; return True if stream, replay and source agree."""
        started = time.monotonic()
        _fresh(self.out)
        with ExitStack() as stack:
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flakelog-demo-")))
            server = self._start_server(stack, work)
            flights = load_flights()[: self.flights]
            self._load(flights)
            state = work / "stream"
            state.mkdir()
            self._stream(stack, state, len(flights))
            with ExitStack() as spark:
                problems = self._replay(spark, flights, state)
            self._report(flights, stream.figures(state), problems, time.monotonic() - started)
            if self.stay:
                _until_interrupted(server)
        return not problems

    def _step(self, title: str, rows: Rows, note: str = "", lasting: Rows | None = None) -> None:
        """Print a step, and keep it for the report. `lasting` replaces rows that will not hold after the demo."""
        self.steps.append(Step(title, rows if lasting is None else lasting, note))
        self.console.print(title, style="bold")
        table = Table(show_header=False, box=None, padding=(0, 1))
        table.add_column(style="dim")
        table.add_column(justify="right")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)
        if note:
            self.console.print(Padding(note, (0, 1)), style="dim")
        self.console.print()

    def _progress(self, stack: ExitStack, description: str, total: int) -> Callable[[int], None]:
        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        progress = stack.enter_context(Progress(*columns, console=self.console, transient=True))
        task = progress.add_task(description, total=total)
        return lambda done: progress.update(task, completed=done)

    # --- 1 -------------------------------------------------------------------------------------------------------

    def _start_server(self, stack: ExitStack, work: Path) -> Child:
        free = ["listeners=PLAINTEXT://127.0.0.1:0", "flakelog.ids.listener=127.0.0.1:0"]
        free.append("flakelog.http.listener=127.0.0.1:0")
        settings = [argument for free_port in free for argument in ("--set", free_port)]
        data = str((self.out / DATA).resolve())
        server = Child(["flakelog", "server", "--data-dir", data, *settings], work / "server.log")
        stack.callback(server.stop)
        ready = server.wait_for_line("ready:")
        addresses = dict(word.split("=", 1) for word in ready.split() if "=" in word)
        self.servers = addresses["broker"]
        self.http = addresses["http"]
        lasting = [
            ("it ran for this demo only; its data is in", str(self.out / DATA)),
            ("to see the data in the web console, run", self._console_command()),
            ("in the directory", str(Path.cwd())),
            ("and open", CONSOLE),
        ]
        self._step("1. A broker with its id service", list(addresses.items()), lasting=lasting)
        return server

    # --- 2 -------------------------------------------------------------------------------------------------------

    def _load(self, flights: Any) -> None:
        with Client(self.servers) as client, ExitStack() as stack:
            client.create_topic(TOPIC, PARTITIONS, {"retention.ms": "-1"})  # no message expires before the replay
            total = len(flights) + len(POISON)
            loaded = load(self.servers, TOPIC, messages(flights), self._progress(stack, "producing", total))
            edges = edge_messages(client, TOPIC)
        rate = loaded.messages / loaded.seconds
        rows = [("messages", f"{loaded.messages:,}"), ("a second", f"{rate:,.0f}")]
        rows += [(f"id {record.id}", self._decoded(record)) for record in (edges[0], edges[len(edges) // 2], edges[-1])]
        self._step("2. Every flight produced by a stock client, each message with an id", rows)

    def _decoded(self, record: Record) -> str:
        assert record.id is not None, "Flakelog gives every message an id"
        parts = self.layout.unpack(record.id)
        carrier = (record.key or b"").decode()
        return f"{_iso(parts.time_ms)}  worker {parts.worker_number}  sequence {parts.sequence:4}  {carrier}"

    # --- 3 -------------------------------------------------------------------------------------------------------

    def _stream(self, stack: ExitStack, state: Path, flights: int) -> None:
        arguments = ["flakelog.demo.stream", "--servers", self.servers, "--topic", TOPIC, "--directory", str(state)]
        with ExitStack() as bar:
            show = self._progress(bar, "streaming", flights)
            first = Child(arguments, state / "first.log")
            stack.callback(first.stop)
            at_kill = self._until(first, state, show, lambda counted: counted >= flights // 2)
            first.kill()
            before = _status(state)
            second = Child(arguments, state / "second.log")
            stack.callback(second.stop)
            self._until(second, state, show, lambda counted: counted >= flights and self._buried() >= len(POISON))
            second.stop()
        after = _status(state)
        self._step(
            "3. A topology counts them, fails on purpose, is killed and goes on",
            [
                ("killed (kill -9) after", f"{at_kill:,} flights"),
                ("messages acked, first life / second", f"{before['acked']:,} / {after['acked']:,}"),
                ("failed", f"{before['failed'] + after['failed']:,}"),
                ("retried", f"{before['retried'] + after['retried']:,}"),
                ("dead-lettered (poison)", f"{self._buried():,}"),
                ("re-delivered, counted before", f"{stream.seen_again(state):,}"),
                ("flights counted, each once", f"{stream.counted(state):,}"),
            ],
            FAILURES,
        )

    def _until(self, child: Child, state: Path, show: Callable[[int], None], done: Callable[[int], bool]) -> int:
        def ask() -> int | None:
            counted = stream.counted(state)
            show(counted)
            return counted if done(counted) else None

        return wait_until(ask, child.check, STREAM_SECONDS, "end of the stream")

    def _buried(self) -> int:
        """Return the number of messages in the dead-letter topic."""
        with Client(self.servers) as client:
            topics = [topic for topic in client.topics() if topic.name == DEAD_LETTERS]
            partitions = range(topics[0].partitions) if topics else range(0)
            ends = [client.find_offset(DEAD_LETTERS, p, LATEST) for p in partitions]
            return sum(ends) - sum(client.find_offset(DEAD_LETTERS, p, EARLIEST) for p in partitions)

    # --- 4 -------------------------------------------------------------------------------------------------------

    def _replay(self, stack: ExitStack, flights: Any, state: Path) -> list[str]:
        from spark_bridge.replay.job import read_manifest
        from spark_bridge.session import rows_read, spark_session

        span = self._middle()
        options = {"kafka.bootstrap.servers": self.servers, "subscribe": TOPIC}
        wanted = options | {"startingId": str(span.first_id), "endingId": str(span.end_id)}
        path = self.out / "manifest.json"
        manifest = replay.save_manifest(wanted, path)
        with self.console.status("starting Spark"), _stderr_into(state / "spark.log"):
            spark = stack.enter_context(_stopping(spark_session("flakelog-demo")))
        pieces = options | {"maxRecordsPerPartition": str(ROWS_PER_TASK)}  # small tasks, because each end is progress
        with ExitStack() as bar:
            show = self._progress(bar, "replaying", manifest.offsets + len(flights) + len(POISON))
            bar.enter_context(replay.repeating(lambda: show(rows_read(spark))))
            of_span = replay.figures(read_manifest(spark, self.servers, path))
            of_all = replay.figures(spark.read.format("flakelog").options(**pieces).load())
        between = stream.flights_between(state, span.first_id, span.end_id)
        source = flights[flights["n"].isin([n for n, _, _ in between])]
        of_stream = figures_of.of_rows((carrier, delay) for _, carrier, delay in between)
        problems = [
            *figures_of.differences("replay of the span", of_span, "the stream", of_stream),
            *figures_of.differences("replay of the span", of_span, "pandas", figures_of.of_source(source)),
            *figures_of.differences("replay of everything", of_all, "the stream", stream.figures(state)),
            *figures_of.differences("replay of everything", of_all, "pandas", figures_of.of_source(flights)),
        ]
        self._step(
            "4. The same figures by Spark, from a manifest",
            [
                ("span of the load", f"{_iso(span.start_ms)} to {_iso(span.end_ms)}"),
                ("its ids", f"{span.first_id} to {span.end_id - 1}"),
                ("messages in its ranges", f"{manifest.offsets:,} in {len(manifest.ranges)} partitions"),
                ("flights, span / all", f"{_total(of_span):,} / {_total(of_all):,}"),
            ],
        )
        return problems

    def _middle(self) -> TimeSpan:
        """Return the middle third of the time that the load took, by the ids, widened to hold its middle message.

        A short load comes in few batches, and its middle third of time may lie between two of them.
        """
        with Client(self.servers) as client:
            edges = edge_messages(client, TOPIC)
        times = [self.layout.unpack(record.id or 0).time_ms for record in edges]
        first, middle, last = times[0], times[len(times) // 2], times[-1]
        third = max((last - first) // 3, 1)
        start, end = min(first + third, middle), max(first + 2 * third, middle + 1)
        return TimeSpan(start, end, *self.layout.id_range(start, end))

    # --- 5 -------------------------------------------------------------------------------------------------------

    def _report(self, flights: Any, streamed: Figures, problems: list[str], seconds: float) -> None:
        report.write_table(streamed, self.out / report.TABLE)
        report.write_plot(flights, streamed, self.out / report.PLOT)
        agreed = f"replay agrees: Spark, stream and pandas give the same for {_total(streamed):,} flights"
        verdict = agreed if not problems else f"replay differs in {len(problems)} carriers"
        report.write_page(self.out / report.PAGE, verdict, not problems, self.steps)
        self.console.print(self._closing(streamed))
        self.console.print(f"written to {self.out}/: manifest.json {report.TABLE} {report.PLOT}")
        self.console.print(f"in {seconds:.0f} s")
        self.console.print(f"report:  {self.out / report.PAGE}", soft_wrap=True)
        self.console.print(f"console: {self._console_address()}", soft_wrap=True)
        for problem in problems:
            self.console.print(problem, style="red")
        self.console.print(verdict, style="bold green" if not problems else "bold red", soft_wrap=True)

    def _console_address(self) -> str:
        """Return where the web console shows the flights, now or after a command."""
        if self.stay:
            return f"http://{self.http}/ until Ctrl-C"
        return f"{CONSOLE} after\n  {self._console_command()}"

    def _console_command(self) -> str:
        return f"{_own_program()} server --data-dir {self.out / DATA}"

    def _closing(self, streamed: Figures) -> Table:
        names = report.airline_names()
        table = Table(title="Arrival delays, in minutes", title_justify="left", title_style="bold")
        table.add_column("airline")
        for column in ("flights", "arrived", "mean", "least", "most"):
            table.add_column(column, justify="right")
        for carrier, figures in sorted(streamed.items(), key=lambda item: -item[1].flights):
            numbers = f"{figures.flights:,}", f"{figures.arrived:,}", f"{figures.mean_min:+.2f}"
            table.add_row(names.get(carrier, carrier), *numbers, str(figures.least_min), str(figures.most_min))
        return table


def _own_program() -> str:
    """Return how a shell here starts the `flakelog` of this environment."""
    program = Path(sys.executable).with_name("flakelog")
    if shutil.which("flakelog") == str(program):
        return "flakelog"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)


def _until_interrupted(server: Child) -> None:
    """Wait for Ctrl-C or SIGTERM; raise ChildFailed if the server ends first."""
    try:
        while True:
            server.check()
            time.sleep(CHECK_SECONDS)
    except KeyboardInterrupt:
        return


def _total(figures: Figures) -> int:
    return sum(figure.flights for figure in figures.values())


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _status(state: Path) -> dict[str, int]:
    status: dict[str, int] = json.loads((state / stream.STATUS_FILE).read_text())
    return status


def _fresh(out: Path) -> None:
    """Create an empty directory; remove the results of an earlier run."""
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)


@contextmanager
def _stderr_into(log: Path) -> Iterator[None]:
    """Redirect the stderr of a Java that starts inside to a file, because its warnings need no change by the user.

    Errors of Spark reach Python as exceptions with Java's text.
    """
    sys.stderr.flush()
    before = os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 2)
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(file)


class _stopping:
    """A context manager that stops a Spark session."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def __enter__(self) -> Any:
        return self._spark

    def __exit__(self, *_: object) -> None:
        self._spark.stop()
