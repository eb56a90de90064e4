"""SHELL (Twisted's reactor and log, imports of the user's module): the task of a process, with its ports.

It is imported after the handshake, so that Storm has the process's id before a slow import.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.logger import ILogObserver, eventAsText, globalLogPublisher
from zope.interface import provider

from broker.client.group_config import GroupMemberConfig
from partition_manager.ports import GroupStore
from spout.api import Bolt
from spout.config import TopologyConfig
from spout.multilang.bolt_task import BoltTask
from spout.multilang.config import StormConfig
from spout.multilang.context import Place, node_of
from spout.multilang.figures import servers_of
from spout.multilang.handshake import Handshake
from spout.multilang.outage_reader import OutageReader
from spout.multilang.publishing import Publishing
from spout.multilang.spout_task import SpoutTask
from spout.multilang.wire import Pipe
from spout.stderr_log import is_of_interest
from spout.topology_source import ConfiguredTopology, find_topology
from spout.work import Mode, mode_of
from spout.world import TwistedWorld

LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "critical": 4}  # Twisted's names, Storm's numbers


class StormWorld(TwistedWorld):
    """The ports of a process that has one task of its component."""

    def group_member(
        self, servers: str, group_id: str, component: str, tasks: int, config: GroupMemberConfig
    ) -> Callable[[int], GroupStore]:
        """Return a function from the task's index to its store: each process is a member of the group."""
        member = super().group_member(servers, group_id, component, 1, config)
        return lambda index: member(0)


def prepared(
    name: str, handshake: Handshake, config: StormConfig, run_id: str, pipe: Pipe, wake: Callable[[], None]
) -> tuple[SpoutTask | BoltTask, Publishing, ReactorBase]:
    """Return the task of the topology at `name`, the publishing of its figures, and the reactor.

    An exception of the user's module comes out.
    """
    plan = ConfiguredTopology(find_topology(name), handshake.texts()).plan()
    made = node_of(plan, handshake.component).make()
    is_bolt = isinstance(made, Bolt)
    if isinstance(made, Bolt) and mode_of(made) is Mode.COROUTINE:
        from twisted.internet import asyncioreactor

        asyncioreactor.install(asyncio.new_event_loop())  # type: ignore[no-untyped-call]
    from twisted.internet import reactor

    reactor_: Any = reactor
    place = Place(plan, handshake, handshake.config(TopologyConfig), config, StormWorld(reactor_), run_id, pipe, wake)
    task: SpoutTask | BoltTask
    if is_bolt:
        from spout.background import TwistedBackground

        task = BoltTask(place, TwistedBackground(reactor_), time.monotonic_ns)
    else:
        task = SpoutTask(place)
        if place.topology_config.topology_publish and (servers := servers_of(plan)):
            task.look = OutageReader(servers[0], plan.id, reactor_).look
    return task, Publishing(place, task, reactor_), reactor_


def observe_log(say: Callable[[str, int], None]) -> None:
    """Give the events of Twisted's log that the embedded engine shows to `say`, with Storm's level."""

    @provider(ILogObserver)  # type: ignore[untyped-decorator]
    def observe(event: Any) -> None:
        if is_of_interest(event):
            text = eventAsText(event, includeTimestamp=False, includeSystem=False).strip()
            say(text, LEVELS[event["log_level"].name])

    globalLogPublisher.addObserver(observe)
