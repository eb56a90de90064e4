"""`flakelog server` and `flakelog idgen`: processes that serve until they are told to stop."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flakelog.settings import Settings, collect
from idgen.config import InvalidSetting

Option = Callable[[Callable[..., Any]], Callable[..., Any]]


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What both commands take."""
    options: list[Option] = [
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="Where everything is kept; made if it is not there. [default: ~/.local/state/flakelog]",
        ),
        click.option(
            "--config", type=click.Path(path_type=Path, dir_okay=False, exists=True), help="A properties file."
        ),
        click.option("--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting, over --config."),
        click.option("--zookeeper", metavar="HOST:PORT,...", help="Own worker numbers through ZooKeeper."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_options
def server(data_dir: Path | None, config: Path | None, assignments: tuple[str, ...], zookeeper: str | None) -> None:
    """Serve the log (Kafka's protocol), ids (Thrift), and HTTP for ids, metrics and health.

    Prints one line beginning `ready:` with its addresses when it serves. SIGTERM and Ctrl-C stop it cleanly.
    """
    _serve(_settings(config, assignments, {}), data_dir, zookeeper)


@click.command()
@_options
def idgen(data_dir: Path | None, config: Path | None, assignments: tuple[str, ...], zookeeper: str | None) -> None:
    """Serve ids alone, without a log."""
    _serve(_settings(config, assignments, {"listeners": ""}), data_dir, zookeeper)


def _settings(config: Path | None, assignments: tuple[str, ...], fixed: dict[str, str]) -> Settings:
    try:
        return Settings(collect(config, assignments) | fixed)
    except (InvalidSetting, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(str(error)) from None


def _serve(settings: Settings, data_dir: Path | None, zookeeper: str | None) -> None:
    from broker import reactor as fast

    fast.install()
    from twisted.internet import reactor as installed
    from twisted.logger import (
        FilteringLogObserver,
        Logger,
        LogLevel,
        LogLevelFilterPredicate,
        globalLogBeginner,
        textFileLogObserver,
    )

    from flakelog.app import Server, default_data_dir, raise_file_limit

    reactor: Any = installed
    # Ours from info up; of Twisted and others only what went wrong.
    levels: Any = LogLevelFilterPredicate(defaultLogLevel=LogLevel.warn)
    for ours in ("flakelog", "broker", "idgen", "coordination"):
        levels.setLogLevelForNamespace(ours, LogLevel.info)
    lines: Any = textFileLogObserver(sys.stderr)
    observer: Any = FilteringLogObserver(lines, [levels])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)
    log = Logger("flakelog")
    raise_file_limit()
    directory = data_dir or default_data_dir()
    app = Server(settings, directory, zookeeper, reactor, lambda line: log.info("{line}", line=line))
    outcome: list[str] = []

    def failed(failure: Any) -> None:
        if app.stopped:
            return  # SIGTERM came first: that it did not start is no news
        # Two kinds: what an operator can mend is one line; anything else is a fault of ours, with its traceback.
        expected = type(failure.value).__name__ == "StartError"
        outcome.append(str(failure.value) if expected else failure.getTraceback())
        app.stop().addBoth(lambda _: reactor.stop())

    def begin() -> None:
        app.start().addCallback(lambda line: print(line, flush=True)).addErrback(failed)

    reactor.callWhenRunning(begin)
    reactor.addSystemEventTrigger("before", "shutdown", app.stop)
    reactor.run()
    if outcome:
        raise click.ClickException(outcome[0])
