"""SHELL (Twisted's reactor and log, imports of the user's module): the task of a process, with its ports.

It is imported after the handshake, so that Storm has the process's id before a slow import.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.base import ReactorBase
from twisted.logger import ILogObserver, eventAsText, globalLogPublisher
from zope.interface import provider

from broker.client.group_config import GroupMemberConfig, member_of
from broker.client.security.client_security import Security
from partition_manager.ports import DeadLetterSink, GroupStore
from spout.api import Bolt
from spout.config import TopologyConfig
from spout.figures.bolts_reader import BoltsReader
from spout.figures.collect import clusters_of
from spout.figures.model import Snapshot
from spout.figures.publisher import Publishing
from spout.multilang.bolt_task import BoltTask
from spout.multilang.config import StormConfig
from spout.multilang.context import TaskSetup, node_of
from spout.multilang.figures import task_snapshot
from spout.multilang.handshake import Handshake
from spout.multilang.named_letters import LetterLines, NamedLetters
from spout.multilang.spout_task import SpoutTask
from spout.multilang.wire import Pipe
from spout.stderr_log import is_of_interest
from spout.topology_source import ConfiguredTopology, find_topology
from spout.work import Mode, mode_of
from spout.world import TwistedWorld

LEVELS = {"debug": 1, "info": 2, "warn": 3, "error": 4, "critical": 4}  # Twisted's names, Storm's numbers


class StormWorld(TwistedWorld):
    """The ports of a process that has one task of its component. `bolts` tells what the bolts published, if they do."""

    def __init__(self, reactor: ReactorBase, bolts: BoltsReader | None) -> None:
        super().__init__(reactor)
        self._bolts = bolts
        self.lines = LetterLines()

    def dead_letters(self, servers: str, topic: str, *, security: Security = None) -> DeadLetterSink:
        """Return a sink of dead letters that name the exceptions of the bolts."""
        sink = super().dead_letters(servers, topic, security=security)
        return sink if self._bolts is None else NamedLetters(sink, self._bolts, self.lines, self._reactor)

    def group_member(
        self,
        servers: str,
        group_id: str,
        component: str,
        tasks: int,
        config: GroupMemberConfig,
        *,
        security: Security = None,
    ) -> Callable[[int], GroupStore]:
        """Return a function from the task's index to its store: each process is a member of the group.

        A static member has the task's index in its name.
        """
        make = super().group_member

        def member(index: int) -> GroupStore:
            named = member_of(config, config.group_instance_id, str(index))
            return make(servers, group_id, component, 1, named, security=security)(0)

        return member


def prepared(
    name: str, handshake: Handshake, config: StormConfig, run_id: str, pipe: Pipe, wake: Callable[[], None]
) -> tuple[SpoutTask | BoltTask, Publishing, ReactorBase]:
    """Return the task of the topology at `name`, the publishing of its figures, and the reactor.

    An exception of the user's module comes out.
    """
    plan = ConfiguredTopology(find_topology(name), handshake.texts(), handshake.security()).plan()
    made = node_of(plan, handshake.component).make()
    is_bolt = isinstance(made, Bolt)
    if isinstance(made, Bolt) and mode_of(made) is Mode.COROUTINE:
        from twisted.internet import asyncioreactor

        asyncioreactor.install(asyncio.new_event_loop())  # type: ignore[no-untyped-call]
    from twisted.internet import reactor

    reactor_: Any = reactor
    topology_config = handshake.config(TopologyConfig)
    clusters = clusters_of(plan) if topology_config.topology_publish else {}
    bolts = None if is_bolt else _bolts_reader(clusters, plan.id, reactor_)
    world = StormWorld(reactor_, bolts)
    setup = TaskSetup(plan, handshake, topology_config, config, world, run_id, pipe, wake)
    task: SpoutTask | BoltTask
    if is_bolt:
        from spout.background import TwistedBackground

        task = BoltTask(setup, TwistedBackground(reactor_), time.monotonic_ns)
    else:
        task = SpoutTask(setup)
        task.read_bolts = bolts.read if bolts is not None else None
        world.lines.say = task.context.log_now
        task.context.keeps = world.lines.keeps
    started_ms = _unix_ms()

    def figures() -> Snapshot:
        now_ms = time.monotonic_ns() // 1_000_000
        return task_snapshot(setup, task, state="running", started_ms=started_ms, at_ms=_unix_ms(), now_ms=now_ms)

    return task, Publishing(clusters, figures, reactor_), reactor_


def _bolts_reader(clusters: Mapping[str, Security], topology_id: str, reactor: ReactorBase) -> BoltsReader | None:
    """Return a reader of what the topology publishes at its first cluster, None if it publishes at none."""
    for servers, security in clusters.items():
        return BoltsReader(servers, topology_id, reactor, security=security)
    return None


def _unix_ms() -> int:
    return time.time_ns() // 1_000_000


def observe_log(say: Callable[[str, int], None]) -> None:
    """Give the events of Twisted's log that the embedded engine shows to `say`, with Storm's level."""

    @provider(ILogObserver)  # type: ignore[untyped-decorator]
    def observe(event: Any) -> None:
        if is_of_interest(event):
            text = eventAsText(event, includeTimestamp=False, includeSystem=False).strip()
            say(text, LEVELS[event["log_level"].name])

    globalLogPublisher.addObserver(observe)
