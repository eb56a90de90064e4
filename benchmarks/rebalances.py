"""How long a group of ConsumerConnectors needs from a change until all partitions are read, beside the writes alone."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any, Self

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from benchmarks.brokers import Topics, flakelog
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from benchmarks.rebalance_program import CONNECTORS, WRITES
from broker.client.registry.nodes import decode_owner, owned_topic_path
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from flakelog import Producer
from tests.compat.server_process import ROOT

PROGRAM = Path(__file__).with_name("rebalance_program.py")
CONSUMERS, PROCESSES, PARTITIONS = 20, 4, 200
GROUP = "rebalance"
TICK_S = 0.02  # each partition gets a record in each tick
TIMEOUT_S = 120
JOINS, LEAVES = "ms, one joins", "ms, one leaves"
ALONE = "the ZooKeeper writes alone"

Owners = Mapping[int, str]
"""The consumer that owns each partition, by the partition's number."""

Move = tuple[list[int], list[int]]
"""The partitions that a consumer releases, and those that it claims."""


class Program:
    """A process with several consumers, or with the clients that write what consumers wrote."""

    def __init__(self, plan: Mapping[str, str]) -> None:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, str(PROGRAM), json.dumps(plan)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *words: object) -> Self:
        """Send a line."""
        assert self._process.stdin is not None
        print(*words, file=self._process.stdin, flush=True)
        return self

    def ask(self, *words: object) -> Any:
        """Send a line, and return its answer."""
        return self.tell(*words).answer()

    def answer(self) -> Any:
        """Return the answer to the oldest line that has none; RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{PROGRAM.name} ended with {self._process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


class Group:
    """Consumers in several processes, and a producer that sends to all partitions of their topic all the time.

    `moves` has, for each change, the partitions that each consumer released and claimed in it.
    """

    def __init__(self, zookeeper: KazooClient, programs: list[Program], topic: str, partitions: int) -> None:
        self.moves: dict[str, list[Move]] = {}
        self._zookeeper = zookeeper
        self._programs = programs
        self._topic = topic
        self._partitions = partitions
        self._members: dict[str, Program] = {}

    def fill(self, consumers: int) -> None:
        """Start the first consumers, and wait until they share all partitions."""
        for number in range(consumers):
            self._join(self._programs[number % len(self._programs)])
        self._await_delivered(self._await_shared(), 0)

    def run(self) -> Figures:
        """Let a consumer join the first process, and then its oldest one leave."""
        join_ms = self._time(JOINS, partial(self._join, self._programs[0]))
        leave_ms = self._time(LEAVES, self._leave)
        return {JOINS: join_ms, LEAVES: leave_ms}

    def _time(self, change: str, make: Callable[[], None]) -> float:
        before, began_ns = self._owners(), time.monotonic_ns()
        make()
        owners = self._await_shared()
        self.moves[change] = moves(before, owners)
        return (self._await_delivered(owners, began_ns) - began_ns) / 1e6

    def _join(self, program: Program) -> None:
        self._members[program.ask("join")] = program

    def _leave(self) -> None:
        oldest = next(name for name, program in self._members.items() if program is self._programs[0])
        self._members.pop(oldest).ask("leave", oldest)

    def _owners(self) -> Owners:
        """Return the owners of all partitions; those of fewer while one changes hands."""
        path, owners = owned_topic_path(GROUP, self._topic), {}
        with suppress(NoNodeError):
            for number in self._zookeeper.get_children(path):
                owners[int(number)] = decode_owner(path, self._zookeeper.get(f"{path}/{number}")[0]).consumer
        return owners

    def _await_shared(self) -> Owners:
        """Wait until each partition has an owner, and the shares of all members differ by one at most."""
        for _ in rounds("the partitions are not shared"):
            owners = self._owners()
            shares = Counter(owners.values())
            is_whole = len(owners) == self._partitions and shares.keys() == self._members.keys()
            if is_whole and max(shares.values()) - min(shares.values()) <= 1:
                return owners
        raise AssertionError

    def _await_delivered(self, owners: Owners, since_ns: int) -> int:
        """Return when the last partition had a record delivered by its owner."""
        for _ in rounds("some partitions are not read"):
            deliveries = [delivery for program in self._programs for delivery in program.ask("report", since_ns)]
            first = {partition: ns for name, partition, ns in deliveries if owners[partition] == name}
            if len(first) == self._partitions:
                return max(first.values())
        raise AssertionError


def rounds(failure: str) -> Iterator[None]:
    """Yield after each pause; RuntimeError with the failure after TIMEOUT_S."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        yield
        time.sleep(TICK_S)
    raise RuntimeError(f"{failure} within {TIMEOUT_S} s")


def moves(before: Owners, after: Owners) -> list[Move]:
    """Return what each consumer released and claimed."""
    moved = [partition for partition, owner in after.items() if before[partition] != owner]
    consumers = {*(before[partition] for partition in moved), *(after[partition] for partition in moved)}
    return [
        (
            [partition for partition in moved if before[partition] == consumer],
            [partition for partition in moved if after[partition] == consumer],
        )
        for consumer in sorted(consumers)
    ]


def write_alone(programs: list[Program], group: Group) -> Figures:
    """Play the writes of the group's last changes, without a rebalance."""
    figures = {}
    for change, of_clients in group.moves.items():
        for number, program in enumerate(programs):
            program.tell("prepare", json.dumps(of_clients[number :: len(programs)]))
        for program in programs:
            program.answer()
        began_ns = time.monotonic_ns()
        for program in programs:
            program.tell("play")
        figures[change] = (max(program.answer() for program in programs) - began_ns) / 1e6
    return figures


@contextmanager
def load(address: str, topic: str, partitions: int) -> Iterator[None]:
    """Send a record to each partition in each tick."""
    over = Event()

    def send() -> None:
        with Producer(address) as producer:
            while not over.wait(TICK_S):
                for partition in range(partitions):
                    producer.send(topic, b"tick", partition=partition)

    thread = Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def _rebalance_row(scale: Scale) -> Iterator[Contenders]:
    consumers, partitions = scale.of(CONSUMERS, 3), scale.of(PARTITIONS, 9)
    with ExitStack() as stack:
        directory = stack.enter_context(TemporaryDirectory(prefix="flakelog-bench-"))
        zookeeper = stack.enter_context(EmbeddedZooKeeper(directory))
        observer = KazooClient(zookeeper.hosts)
        observer.start()
        stack.callback(observer.stop)
        server = stack.enter_context(flakelog())
        topic = stack.enter_context(Topics(server.address).fresh(partitions))
        plan = {"zookeeper": zookeeper.hosts, "servers": server.address, "topic": topic, "group": GROUP}
        programs: dict[str, list[Program]] = {how: [] for how in (CONNECTORS, WRITES)}
        for how, of_kind in programs.items():
            for _ in range(scale.of(PROCESSES, 2)):
                of_kind.append(Program(plan | {"how": how}))
                stack.callback(of_kind[-1].close)
        stack.enter_context(load(server.address, topic, partitions))
        group = Group(observer, programs[CONNECTORS], topic, partitions)
        group.fill(consumers)
        group.run()
        yield {OURS: group.run, ALONE: partial(write_alone, programs[WRITES], group)}


ROWS = [
    Row(
        "connector-rebalance",
        "ms from a change until each of 200 partitions is read by its owner, 20 ConsumerConnectors in 4 processes",
        _rebalance_row,
    )
]
