"""No id is issued twice when real processes are stopped, killed and misled, and a real ZooKeeper is cut off and killed.

The simulation (tests/simulation/test_ids_never_repeat.py) searches for faults; these tests show that its results hold
for the real programs. Each program writes its ids to a file, and all files are compared.
"""

import itertools
import json
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordination.embedded_zookeeper import EmbeddedZooKeeper
from idgen.layout import Layout
from tests.compat.server_process import PYTHONPATH
from tests.compat.tcp_proxy import TcpProxy
from tests.patience import MS, SECONDS, until

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = Path(__file__).with_name("id_writer_program.py")
HOUR_MS = 3_600_000
LEAD_S = 2.0  # LEAD_MS of id_writer_program.py
LONG_LEAD_MS = 10 * MS  # for tests in which ids continue without the coordinator, however slow the machine is


def elapse(seconds):
    """Let time pass for the programs under test; the test examines afterwards what they did meanwhile."""
    threading.Event().wait(seconds)


class Writer:
    """A program that issues ids. Its file outlives it, and `start` runs the same program again."""

    def __init__(self, file, **task):
        self.file = file
        self._task = json.dumps({"file": str(file), **task})
        self._process = None
        file.touch()

    def start(self):
        with open(self.file.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(PROGRAM), self._task],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "PYTHONPATH": PYTHONPATH},
            )
        return self

    def send_signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        self._process.kill()
        self._process.wait()

    @property
    def ids(self):
        data = self.file.read_bytes()
        return [id for (id,) in struct.iter_unpack("<q", data[: len(data) // 8 * 8])]

    def wait_for_more(self):
        """Wait for ids that were not in the file at the time of the call."""
        before = self.file.stat().st_size
        end = time.monotonic() + SECONDS
        while self.file.stat().st_size <= before:
            assert self._process.poll() is None, self.file.with_suffix(".log").read_text()
            assert time.monotonic() < end, f"no more ids within {SECONDS} s"
            elapse(0.01)
        return self


class Writers:
    """All writers of a test. At its end their ids are compared and they are killed."""

    def __init__(self, folder):
        self._folder = folder
        self.all = []

    def start(self, **task):
        self.all.append(Writer(self._folder / f"{len(self.all)}.ids", **task))
        return self.all[-1].start()

    def check(self):
        ids = list(itertools.chain.from_iterable(writer.ids for writer in self.all))
        twice = len(ids) - len(set(ids))
        assert not twice, f"{twice} of {len(ids)} ids were issued twice"
        assert ids, "no id was issued at all"


@pytest.fixture
def writers(tmp_path):
    made = Writers(tmp_path)
    try:
        yield made
        made.check()
    finally:
        for writer in made.all:
            writer.kill()


COUNTER = itertools.count()


@pytest.fixture(params=["directory", "zookeeper"])
def place(request, tmp_path):
    if request.param == "directory":
        return {"directory": str(tmp_path / "numbers")}
    return {"zookeeper": f"{request.getfixturevalue('zookeeper').hosts}/faults{next(COUNTER)}"}


@pytest.fixture
def chroot(zookeeper):
    return f"/faults{next(COUNTER)}"


def worker_numbers(writer):
    return {Layout().unpack(id).worker_number for id in writer.ids}


def test_a_process_stopped_longer_than_its_session_wakes_up_to_find_its_number_taken(zookeeper, chroot, writers):
    """A process stopped for longer than its session repeats no id, although kazoo reports the lost session late.

    Until the report it could issue tens of thousands of ids.
    """
    place = {"zookeeper": zookeeper.hosts + chroot, "worker": 0}
    zombie = writers.start(**place).wait_for_more()
    zombie.send_signal(signal.SIGSTOP)
    successor = writers.start(**place).wait_for_more()
    zombie.send_signal(signal.SIGCONT)
    elapse(0.5)  # the test is about what the zombie does in this time
    wait_for_either(successor, zombie)
    successor.kill()
    zombie.wait_for_more()
    assert worker_numbers(zombie) == worker_numbers(successor) == {0}


def wait_for_either(*some):
    """Wait for more ids of any writer. A live writer may have lost its session to a pause of the machine."""
    before = [len(writer.ids) for writer in some]
    until(lambda: [len(writer.ids) for writer in some] != before, "an id")


def kill_in_a_loop(writers, place, lives):
    """Run two programs; kill one as soon as it has issued ids, and the other while it starts or soon after."""
    one, other = writers.start(**place), writers.start(**place)
    for life in range(lives):
        one.wait_for_more()
        one.kill()
        one.start()
        elapse(0.05 * (life % 8))
        other.kill()
        other.start()
    one.wait_for_more()
    other.wait_for_more()


def test_kill_9_with_instant_restarts(place, writers):
    kill_in_a_loop(writers, place, lives=3)


@pytest.mark.soak
def test_kill_9_with_instant_restarts_a_hundred_times(place, writers):
    kill_in_a_loop(writers, place, lives=100)


def test_a_connection_cut_delayed_and_swallowed(zookeeper, chroot, writers):
    with TcpProxy(zookeeper.port) as proxy:
        through = f"127.0.0.1:{proxy.port}{chroot}"
        behind = writers.start(zookeeper=through).wait_for_more()
        lasting = writers.start(zookeeper=through, lead_ms=LONG_LEAD_MS).wait_for_more()
        writers.start(zookeeper=zookeeper.hosts + chroot).wait_for_more()
        proxy.delay_s = 0.3
        behind.wait_for_more()
        proxy.cut()
        lasting.wait_for_more()  # up to its high-water mark
        proxy.heal()
        proxy.blackhole = True
        elapse(LEAD_S + 0.5)  # longer than the session and the lead
        rival = writers.start(zookeeper=zookeeper.hosts + chroot).wait_for_more()
        proxy.heal()
        behind.wait_for_more()
        rival.wait_for_more()


def test_clocks_that_are_hours_apart_and_step(place, writers):
    stepping = writers.start(**place, clock=[[0, HOUR_MS], [1.0, -2 * HOUR_MS], [2.0, 1_000], [2.5, 3 * HOUR_MS]])
    behind = writers.start(**place, clock=[[0, -HOUR_MS]])
    for writer in (stepping, behind):
        writer.wait_for_more()
    behind.kill()
    elapse(1.0)  # the first program's clock steps meanwhile
    stepping.kill()
    again = writers.start(**place)  # its clock differs from the marks of both numbers
    again.wait_for_more()
    stepping.start().wait_for_more()


def test_zookeeper_is_killed_and_restarted_under_its_clients(tmp_path, writers):
    with EmbeddedZooKeeper(tmp_path / "server") as server:
        one = writers.start(zookeeper=server.hosts, lead_ms=LONG_LEAD_MS)
        other = writers.start(zookeeper=server.hosts)
        for writer in (one, other):
            writer.wait_for_more()
        server.kill()
        one.wait_for_more()  # within its lead
        other.kill()
        other.start()  # it finds no ZooKeeper
        server.start()
        for writer in (one, other):
            writer.wait_for_more()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_all_faults_together(seed, tmp_path, writers):
    """No id repeats in two minutes of random faults.

    `seed` repeats the choices but not the races; FLAKELOG_SEEDS has no effect.
    """
    rng = random.Random(seed)
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedZooKeeper(tmp_path / "server"))
        proxies = [stack.enter_context(TcpProxy(server.port)) for _ in range(4)]
        alive = [writers.start(zookeeper=f"127.0.0.1:{p.port}", clock=clock_of(rng)) for p in proxies]
        end = time.monotonic() + 120
        while time.monotonic() < end:
            elapse(rng.uniform(0.05, 1.0))
            at = rng.randrange(4)
            something_happens(rng, alive[at], proxies[at], server)
        for writer, proxy in zip(alive, proxies):
            proxy.heal()
            writer.send_signal(signal.SIGCONT)
        elapse(LEAD_S)
        assert any(writer.wait_for_more() for writer in alive)


def clock_of(rng):
    return [[rng.uniform(0, 60), rng.choice([-HOUR_MS, -500, 500, HOUR_MS])] for _ in range(rng.randrange(4))]


def something_happens(rng, writer, proxy, server):
    what = rng.choice(["stop", "continue", "kill", "cut", "heal", "heal", "blackhole", "delay", "server"])
    if what == "stop":
        writer.send_signal(signal.SIGSTOP)
    elif what == "continue":
        writer.send_signal(signal.SIGCONT)
    elif what == "kill":
        writer.kill()
        writer.start()
    elif what == "cut":
        proxy.cut()
    elif what == "heal":
        proxy.heal()
    elif what == "blackhole":
        proxy.blackhole = True
    elif what == "delay":
        proxy.delay_s = rng.choice([0.1, 1.5])
    elif rng.random() < 0.3:
        server.kill()
        server.start()
