"""`flakelog server` and `flakelog idgen`: processes that serve until SIGTERM or Ctrl-C."""

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from flakelog import garbage
from flakelog.commands.arguments import Ensemble, Seconds, Whole
from flakelog.commands.exit_codes import WrongSettings
from flakelog.commands.server_processes import (
    announce_to_parent,
    check_left_out,
    fields_of_child,
    inherited_from_parent,
    serve_processes,
)
from flakelog.config import PROCESSES_MAX
from flakelog.settings import Given, Properties, Settings, collect, gather, misspelt_variables
from idgen.settings import InvalidSetting, settings_of

if TYPE_CHECKING:
    from broker.security.sasl.added_scram import AddedScram
    from flakelog.control import Control
    from flakelog.processes.messages import Inherited
    from flakelog.server.lifecycle import Lifecycle, Report
    from flakelog.server.server import Server

Option = Callable[[Callable[..., Any]], Callable[..., Any]]

# Settings of --dev, below all other sources, so that nothing waits for a cluster that does not exist.
DEV = (
    Given("auto.create.topics.enable", "true", "--dev"),
    Given("group.initial.rebalance.delay.ms", "0", "--dev"),
    Given("flakelog.lower.replication", "true", "--dev"),
)
# The longest that the cleaner's thread may keep the interpreter while a request waits; Python's default is ten times
# as long.
SWITCH_SECONDS = 0.0005
# Python's default is 700. A turn of small requests makes more objects that live for the turn, and none is in a cycle.
GC_THRESHOLD = 5_000, 10, 10
MOVED = ("listeners", "advertised.listeners", "flakelog.ids.listener", "flakelog.http.listener")  # by --port
NO_BROKER = (Given("listeners", "", "flakelog idgen"),)


class ProcessOptions(NamedTuple):
    """The options of a server process that are not settings."""

    data_dir: Path | None
    zookeeper: str | None
    log_format: str
    print_config: bool
    as_json: bool
    topics: tuple[str, ...] = ()
    dev: bool = False
    controlled: bool = False
    port: int | None = None
    cluster_dir: Path | None = None
    added_scram: tuple[str, ...] = ()


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that both commands take."""
    options: list[Option] = [
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path, file_okay=False),
            help="Where everything is kept; made if it is not there. [default: log.dirs, else ~/.local/state/flakelog]",
        ),
        click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help="A properties file: Kafka's server.properties, or one of ours.",
        ),
        click.option(
            "--set", "assignments", multiple=True, metavar="NAME=VALUE", help="A setting, over environment and file."
        ),
        click.option(
            "--zookeeper",
            type=Ensemble(),
            metavar="HOST:PORT,...",
            help="Own worker numbers through ZooKeeper.",
        ),
        click.option(
            "--log-format",
            type=click.Choice(("text", "json")),
            default="text",
            show_default=True,
            help="Lines for people, or a JSON object a line.",
        ),
        click.option(
            "--timeout",
            type=Seconds(0.1, 86_400),
            metavar="SECONDS",
            help="How long a start waits for the registry of worker numbers: flakelog.start.timeout.ms.",
        ),
        click.option("--print-config", is_flag=True, help="Print every setting, where it comes from, and exit."),
        click.option("--json", "as_json", is_flag=True, help="JSON for programs: of --print-config, --check-config."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@_options
@click.option(
    "--check-config",
    "checked",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="Print what becomes of each property of FILE, and exit: 0 where a server would start with it.",
)
@click.option(
    "--port",
    type=Whole(1, 65_535),
    help="Where the broker listens. The ports of ids and HTTP move by the same distance: 9192 takes 7709 and 8709 too.",
)
@click.option(
    "--processes",
    type=Whole(1, PROCESSES_MAX),
    metavar="N",
    help="Run N brokers, each with a core of its own, at N ports; those of HTTP and ids come after the last. They are "
    "one cluster: flakelog.processes.",
)
@click.option(
    "--dev",
    is_flag=True,
    help="For development: a temporary directory, gone at exit; no waiting for members; replication lowered to 1.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME[:PARTITIONS[:SETTING=VALUE,...]]",
    help="Make this topic, unless it is there.",
)
@click.option(
    "--add-scram",
    "added_scram",
    multiple=True,
    metavar="MECHANISM=[name=USER,password-file=FILE]",
    help="Give this user a password for SCRAM-SHA-256 or SCRAM-SHA-512, unless there is one; as kafka-storage format.",
)
@click.option(
    "--controlled",
    is_flag=True,
    help="For tests (flakelog.testing): take orders on stdin, fail on demand, end when stdin does.",
)
@click.option(
    "--cluster-dir",
    type=click.Path(path_type=Path, file_okay=False),
    hidden=True,
    help="For tests (flakelog.testing): the directory in which brokers of this machine meet.",
)
def server(
    data_dir: Path | None,
    config: Path | None,
    assignments: tuple[str, ...],
    zookeeper: str | None,
    log_format: str,
    timeout: float | None,
    print_config: bool,
    as_json: bool,
    checked: Path | None,
    port: int | None,
    processes: int | None,
    dev: bool,
    topics: tuple[str, ...],
    added_scram: tuple[str, ...],
    controlled: bool,
    cluster_dir: Path | None,
) -> None:
    """Serve the log (Kafka's protocol), ids (Thrift), and HTTP for ids, metrics and health.

    Prints one line beginning `ready:` with its addresses when it serves. SIGTERM and Ctrl-C stop it cleanly. A setting
    is taken from --set, else from the environment (FLAKELOG_LOG_SEGMENT_BYTES), else from --config.
    """
    if checked is not None:
        raise SystemExit(_check(checked, as_json))
    common = data_dir, zookeeper, log_format, print_config, as_json
    run = ProcessOptions(*common, topics, dev, controlled, port, cluster_dir, added_scram)
    mode = DEV if dev else ()
    moves = () if port is None else _moves(port, config, assignments, mode)
    _run(run, config, (*assignments, *_timeout(timeout), *_processes(processes)), mode, moves)


@click.command()
@_options
def idgen(
    data_dir: Path | None,
    config: Path | None,
    assignments: tuple[str, ...],
    zookeeper: str | None,
    log_format: str,
    timeout: float | None,
    print_config: bool,
    as_json: bool,
) -> None:
    """Serve ids alone, without a log.

    Thrift is served at flakelog.ids.listener (127.0.0.1:7609; Twitter's get_id, and more), and HTTP at
    flakelog.http.listener (127.0.0.1:8609; POST /id, /openapi.json, /metrics, /health). Ids are unique in the data
    directory or, with --zookeeper, among all processes that use the same ZooKeeper.

    Prints one line beginning `ready:` with its addresses when it serves. SIGTERM and Ctrl-C stop it cleanly.
    `flakelog settings flakelog.ids` explains its settings; `flakelog id new` requests ids from it.
    """
    run = ProcessOptions(data_dir, zookeeper, log_format, print_config, as_json)
    _run(run, config, (*assignments, *_timeout(timeout)), (), NO_BROKER)


def _moves(
    port: int, config: Path | None, assignments: tuple[str, ...], mode: tuple[Given, ...]
) -> tuple[Given, ...]:
    """Return the listeners as --port moves them, over those of file and environment. BadParameter if it cannot."""
    from flakelog.config import ServerConfig
    from flakelog.listeners import moved
    from idgen.config import IdgenConfig

    with _wrong_settings():
        properties = collect(config, assignments, os.environ, mode)
    settings = (*settings_of(ServerConfig), *settings_of(IdgenConfig))
    defaults = {setting.name: str(setting.default or "") for setting in settings if setting.name in MOVED}
    texts = defaults | {name: text for name, text in properties.texts.items() if name in MOVED}
    wrong = [name for name in MOVED if properties.origins.get(name) == "--set" and texts[name]]
    if wrong:
        conflict = f"it places all listeners, and so does --set {wrong[0]}={texts[wrong[0]]}; give one of both"
        raise click.BadParameter(conflict, param_hint="--port")
    try:
        listeners = moved(texts, port)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--port") from None
    return tuple(Given(name, text, f"--port {port}") for name, text in listeners.items() if text)


@contextmanager
def _wrong_settings() -> Iterator[None]:
    """Turn errors in settings, and in the file of settings, into one line and exit code 2."""
    try:
        yield
    except (InvalidSetting, OSError) as error:
        raise WrongSettings(str(error)) from None


def _timeout(seconds: float | None) -> tuple[str, ...]:
    return () if seconds is None else (f"flakelog.start.timeout.ms={int(seconds * 1000)}",)


def _processes(number: int | None) -> tuple[str, ...]:
    return () if number is None else (f"flakelog.processes={number}",)


def _check(file: Path, as_json: bool) -> int:
    from flakelog.commands.config_report import print_verdicts

    with _wrong_settings():
        return 0 if print_verdicts(gather(file), as_json) else 1


def _run(
    run: ProcessOptions,
    config: Path | None,
    assignments: tuple[str, ...],
    mode: tuple[Given, ...],
    fixed: tuple[Given, ...] = (),
) -> None:
    from flakelog.machine import file_limit, machine_defaults, raise_file_limit

    inherited = inherited_from_parent()
    raise_file_limit()
    with _wrong_settings():
        properties = collect(config, assignments, os.environ, (*machine_defaults(file_limit()), *mode), fixed)
        settings = properties.settings()
    if run.print_config:
        from flakelog.commands.config_report import print_values

        print_values(settings, properties.origins, run.as_json)
        return
    topics, added_scram = _topics(run.topics), _added_scram(run.added_scram)
    several = inherited is None and settings.server.processes > 1 and fixed != NO_BROKER
    if several:
        _check_options_of_several(run)
    else:
        _before_imports()
    with _directory(run, settings) as directory:
        if inherited is None and run.cluster_dir is None:
            check_left_out(settings, directory)
        if not several:
            warnings = [*_warnings(properties), *_shown_passwords(added_scram)]
            _serve(settings, directory, run, topics, added_scram, warnings, inherited)
            return
        unmoved = collect(config, assignments, os.environ, mode)
        arguments = [*_shared_arguments(run, config), *(f"--set={assignment}" for assignment in assignments)]
        of_first = [f"--add-scram={text}" for text in run.added_scram]
        serve_processes(
            settings, unmoved.texts, directory, arguments, of_first, port=run.port, log_format=run.log_format
        )


def _check_options_of_several(run: ProcessOptions) -> None:
    """Raise BadParameter for an option that several processes do not take."""
    if run.topics:
        create = "it is for one process; with several, `flakelog topic create` creates topics"
        raise click.BadParameter(create, param_hint="--topic")
    if run.controlled:
        raise click.BadParameter("it is for one process, and --processes asks for several", param_hint="--controlled")


def _shared_arguments(run: ProcessOptions, config: Path | None) -> list[str]:
    """Return the options of this command that go to all of several brokers."""
    arguments = [f"--log-format={run.log_format}"]
    arguments += [] if config is None else [f"--config={config}"]
    arguments += [] if run.zookeeper is None else [f"--zookeeper={run.zookeeper}"]
    return arguments + (["--dev"] if run.dev else [])


def _warnings(properties: Properties) -> list[str]:
    """Return warnings about the given settings, for the log."""
    ignored = properties.ignored
    lines = misspelt_variables(os.environ)
    if ignored:
        lines.append(f"settings without effect here (flakelog settings NAME says why): {', '.join(ignored)}")
    return lines


@contextmanager
def _directory(run: ProcessOptions, settings: Settings) -> Iterator[Path]:
    """Yield the data directory; with --dev and no named directory, a temporary one that is deleted afterwards."""
    named = run.data_dir or (Path(settings.server.log_dirs) if settings.server.log_dirs else None)
    if named is not None or not run.dev:
        from flakelog.server.server import default_data_dir

        yield named or default_data_dir()
        return
    temporary = Path(tempfile.mkdtemp(prefix="flakelog-dev-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _serve(
    settings: Settings,
    directory: Path,
    run: ProcessOptions,
    topics: "list[Any]",
    added_scram: "list[AddedScram]",
    warnings: list[str],
    inherited: "Inherited | None",
) -> None:
    from broker.net import reactor as fast

    fast.install(settings.server.busy_poll_us)
    from twisted.internet import reactor as installed
    from twisted.logger import Logger

    from flakelog import server_log
    from flakelog.server.broker_parts import plain_engine
    from flakelog.server.lifecycle import Lifecycle, StartError, StoppedWhileStarting
    from flakelog.server.starter import Starter
    from flakelog.service_manager import notify

    garbage.resume()
    reactor: Any = installed
    server_log.begin(run.log_format)
    log = Logger("flakelog")
    sys.setswitchinterval(SWITCH_SECONDS)
    for line in warnings:
        log.warn("{line}", line=line)

    def report(line: str) -> None:
        log.info("{line}", line=line)

    lifecycle = Lifecycle(reactor, report, settings.server.shutdown_grace_ms)
    fast.when_stopped_again(reactor, lifecycle.end_grace)
    control = _control(lifecycle, reactor) if run.controlled else None
    make_engine = plain_engine if control is None else control.make_engine
    taken = {"cluster_dir": run.cluster_dir} if inherited is None else fields_of_child(inherited)
    taken |= {"topics": topics, "added_scram": added_scram, "make_engine": make_engine}
    starter = Starter(settings, directory, run.zookeeper, reactor, report, lifecycle, **taken)
    announce = partial(_announce, report) if inherited is None else announce_to_parent(inherited, lifecycle, reactor)
    outcome: list[str] = []

    def failed(failure: Any) -> None:
        if failure.check(StoppedWhileStarting):
            return  # SIGTERM came first, so the failed start is not an error
        # A StartError, which an operator can fix, is shown in one line. Any other error is a bug and has its traceback.
        outcome.append(str(failure.value) if failure.check(StartError) else failure.getTraceback())
        lifecycle.stop().addBoth(lambda _: reactor.stop())

    def begin() -> None:
        starter.start().addCallback(started).addErrback(failed)

    def started(server: "Server") -> None:
        # Freeze all objects of the start, because they stay: the collector would walk them again and again, for some ms
        # each time.
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLD)
        announce(server)

    def stop() -> Any:
        notify(report, "STOPPING=1")
        return lifecycle.stop()

    reactor.callWhenRunning(begin)
    reactor.addSystemEventTrigger("before", "shutdown", stop)
    reactor.run()
    if control is not None:
        control.clean_up()
    if outcome:
        raise click.ClickException(outcome[0])


def _announce(report: "Report", server: "Server") -> None:
    """Print the `ready:` line, and tell systemd; feed its watchdog from now on."""
    from twisted.internet.task import LoopingCall

    from flakelog.service_manager import notify, watchdog_seconds

    line = server.ready_line()
    print(line, flush=True)
    notify(report, "READY=1", f"STATUS={line}")
    seconds = watchdog_seconds(os.environ, os.getpid())
    if seconds is not None:
        LoopingCall(notify, lambda _: None, "WATCHDOG=1").start(seconds)


def _before_imports() -> None:
    """Let `_serve` import quickly: without garbage collection, which it resumes, and without hypothesis.

    kio imports hypothesis where it is installed, and that takes as long as half a start.
    """
    garbage.pause()
    sys.modules.setdefault("hypothesis", None)  # type: ignore[arg-type]


def _control(lifecycle: "Lifecycle", reactor: Any) -> "Control":
    """Take orders from stdin as soon as the reactor runs; the server stops when stdin ends.

    SIGHUP is ignored, because it means no more than the end of stdin.
    """
    from twisted.internet.stdio import StandardIO

    from flakelog.control import Control

    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    control = Control(lifecycle, reactor.stop)
    reactor.callWhenRunning(StandardIO, control)
    return control


def _added_scram(texts: tuple[str, ...]) -> "list[AddedScram]":
    if not texts:
        return []
    from secrets import choice

    from broker.security.sasl.added_scram import parse_added_scram
    from broker.security.sasl.scram_keys import SALT_CHARACTERS, SALT_LENGTH

    def salt() -> bytes:
        return "".join(choice(SALT_CHARACTERS) for _ in range(SALT_LENGTH)).encode()

    try:
        return [parse_added_scram(text, lambda file: Path(file).read_text(), salt) for text in texts]
    except (ValueError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--add-scram") from None


def _shown_passwords(added_scram: "list[AddedScram]") -> list[str]:
    """Return a warning for each password on the command line."""
    users = [scram.user for scram in added_scram if scram.shows_password]
    return [f"a list of processes shows the password of {user}: give --add-scram a password-file" for user in users]


def _topics(texts: tuple[str, ...]) -> "list[Any]":
    if not texts:
        return []
    from flakelog.new_topic import parse_topic

    try:
        return [parse_topic(text) for text in texts]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--topic") from None
