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


def open_existing(zookeeper: str, access: "Access") -> "ZooKeeperCoordinator":
    """Open a session with a ZooKeeper that has the chroot, and create nothing. Raise CoordinationError.

    End the command if no ZooKeeper answers, or if the chroot is not there.
    """
    from coordination.port import Get, NoNode
    from coordination.zookeeper import ZooKeeperCoordinator

    coordinator = ZooKeeperCoordinator(zookeeper, access, wait=False, make_chroot=False)
    greet(coordinator, zookeeper)
    try:
        coordinator.execute(Get("/"))
    except NoNode:
        coordinator.close()
        servers, _, chroot = zookeeper.partition("/")
        fail(f"there is no /{chroot} in ZooKeeper at {servers}; check the name of the chroot")
    except BaseException:
        coordinator.close()
        raise
    return coordinator


@contextmanager
def zookeeper_session(zookeeper: str, access: "Access") -> "Iterator[ZooKeeperCoordinator]":
    """Open a session as `open_existing` does. An error of ZooKeeper's ends the command."""
    from coordination.port import CoordinationError

    if not zookeeper:
        raise click.BadParameter("it is empty", param_hint="--zookeeper")
    try:
        coordinator = open_existing(zookeeper, access)
    except CoordinationError as error:
        fail(str(error))
    try:
        yield coordinator
    except CoordinationError as error:
        fail(f"{zookeeper}: {error}")
    finally:
        coordinator.close()
