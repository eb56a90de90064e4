"""`flakelog server --processes N`: the parent of N brokers, each of which is `flakelog server` in a process."""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.exit_codes import WRONG_USAGE, WrongSettings
from flakelog.settings import Settings, errors_with_origin
from idgen.settings import InvalidSetting

if TYPE_CHECKING:
    from flakelog.processes.messages import Inherited
    from flakelog.processes.plan import Plan
    from flakelog.server.lifecycle import Lifecycle
    from flakelog.server.server import Server


def serve_processes(
    settings: Settings,
    texts: Mapping[str, str],
    directory: Path,
    arguments: Sequence[str],
    of_first: Sequence[str],
    *,
    port: int | None,
    log_format: str,
) -> None:
    """Run the brokers until all have ended; raise ClickException if they did not start, or did not stop cleanly.

    `texts` are the given settings, and `arguments` the options of `flakelog server` that all brokers share; the first
    one has those `of_first` too.
    """
    from twisted.logger import Logger

    from flakelog import server_log
    from flakelog.own_program import own_command, with_own_path
    from flakelog.processes.parent import STOP_TIMEOUT_MS, Parent, Program

    planned = _plan(settings, texts, directory, port)
    programs = [
        Program(child.name, own_command("server", *arguments, *of_one, *child.arguments), child.id)
        for child, of_one in zip(planned.children, chain([of_first], repeat(())), strict=False)
    ]
    os.environ.update(with_own_path(os.environ))  # for the children
    server_log.begin(log_format)
    log = Logger("flakelog")
    parent = Parent(
        programs,
        planned.sockets,
        planned.cluster_dir,
        lambda line: log.info("{line}", line=line),
        beat_timeout_ms=settings.server.zookeeper_session_timeout_ms,
        stop_timeout_ms=STOP_TIMEOUT_MS + settings.server.shutdown_grace_ms,
        json_log=log_format == "json",
    )
    ending = parent.run()
    if ending.reason:
        raise (WrongSettings if ending.status == WRONG_USAGE else click.ClickException)(ending.reason)


def _plan(settings: Settings, texts: Mapping[str, str], directory: Path, port: int | None) -> "Plan":
    from flakelog.machine import file_limit, own_memory_bytes, usable_cores
    from flakelog.processes.plan import Machine, plan

    machine = Machine(usable_cores(), own_memory_bytes(), file_limit())
    try:
        with errors_with_origin(settings.given):
            return plan(texts, settings.server.processes, directory.absolute(), machine, port=port)
    except InvalidSetting as error:
        raise WrongSettings(str(error)) from None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--port") from None


def check_left_out(settings: Settings, directory: Path) -> None:
    """End the command if a broker that has partitions in this data directory would not be started."""
    from coordination.port import CoordinationError
    from flakelog.server.cluster_coordinator import ClusterDirectory, coordinator_of
    from flakelog.server.left_out_brokers import check
    from flakelog.server.lifecycle import StartError

    coordinator = coordinator_of(directory, settings.server.zookeeper_connect, None)
    if not isinstance(coordinator, ClusterDirectory) or not settings.server.broker_listeners:
        return
    try:
        check(coordinator, settings.broker.node_id, settings.server.processes)
    except (StartError, CoordinationError) as error:
        raise click.ClickException(str(error)) from None


def inherited_from_parent() -> "Inherited | None":
    """Return what this process inherits from a parent of several brokers, None if it has no such parent."""
    from flakelog.processes.messages import VARIABLE

    if VARIABLE not in os.environ:
        return None
    from flakelog.processes.child import inherited_from

    return inherited_from(os.environ)


def fields_of_child(inherited: "Inherited") -> dict[str, Any]:
    """Return the arguments of a Starter that a child has from its parent."""
    return {
        "inherited": inherited.sockets,
        "cluster_dir": Path(inherited.cluster_dir),
        "broker_ids": inherited.broker_ids,
    }


def announce_to_parent(
    inherited: "Inherited", lifecycle: "Lifecycle", reactor: Any
) -> "Callable[[Server], None]":
    """Send beats to the parent, and stop when it ends. Return the function that tells it that this server serves."""
    from flakelog.processes.child import Child
    from flakelog.processes.messages import Ready

    def parent_ended() -> None:
        lifecycle.stop().addBoth(lambda _: reactor.stop())
        lifecycle.end_grace()  # the next parent waits for the directory

    child = Child(inherited, reactor, parent_ended)
    reactor.callWhenRunning(child.begin)
    return lambda server: child.ready(Ready(server.shown_addresses, server.scope))
