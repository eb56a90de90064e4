"""Options that name a ZooKeeper, and the session of a command with it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import Ensemble
from flakelog.commands.exit_codes import fail
from flakelog.commands.terminal import idgen_options
from flakelog.commands.waiting import greet, timeout_option

if TYPE_CHECKING:
    from coordination.access import Access
    from coordination.zookeeper import ZooKeeperCoordinator

Command = Callable[..., Any]


def zookeeper_options(what: str) -> Callable[[Command], Command]:
    """Add the options that name a ZooKeeper, `zookeeper` and `idgen`, and --timeout; `what` is kept there."""

    def add(command: Command) -> Command:
        zookeeper = click.option(
            "--zookeeper", type=Ensemble(), required=True, metavar="HOST:PORT,...[/CHROOT]", help=f"Where {what} is."
        )
        options: Command = zookeeper(idgen_options(timeout_option(command)))
        return options

    return add


@contextmanager
def zookeeper_session(zookeeper: str, access: "Access") -> "Iterator[ZooKeeperCoordinator]":
    """Open a session with ZooKeeper. An error of ZooKeeper's ends the command."""
    from coordination.port import CoordinationError
    from coordination.zookeeper import ZooKeeperCoordinator

    if not zookeeper:
        raise click.BadParameter("it is empty", param_hint="--zookeeper")
    try:
        coordinator = ZooKeeperCoordinator(zookeeper, access, wait=False)
        greet(coordinator, zookeeper)
    except CoordinationError as error:
        fail(str(error))
    try:
        yield coordinator
    except CoordinationError as error:
        fail(f"{zookeeper}: {error}")
    finally:
        coordinator.close()
