"""Damaged requests by wire do a server no harm: no fault in its log, no growth, and other clients are served on.

    export FLAKELOG_SEED=123 FLAKELOG_FUZZ_FRAMES=100000
    .venv/bin/python -m pytest tests/compat/faults/test_fuzz_by_wire.py -m soak
"""

import os
from pathlib import Path
from random import Random

import pytest

from broker.client.blocking import Client
from tests.compat.raw_connection import RawConnection
from tests.compat.server_process import ServerProcess
from tests.oracle import recorded
from tests.oracle.mutations import mutated
from tests.patience import until

SEED = int(os.environ.get("FLAKELOG_SEED", "0"))
SOAK_FRAMES = int(os.environ.get("FLAKELOG_FUZZ_FRAMES", "100000"))
FEW = 500
AT_ONCE = 20
"""Frames of one connection, before the peer reads what was answered and closes it."""
DAMAGED = 0.9
GROWTH_BYTES = 64 << 20
SETTINGS = {"flakelog.max.partitions": 500, "group.initial.rebalance.delay.ms": 0}


def frames_of(seed, number):
    """Yield frames of real clients, most of them damaged."""
    chance, strays = Random(seed), recorded.strays()
    for _ in range(number):
        frame = chance.choice(strays)
        yield (mutated(chance, frame, strays) if chance.random() < DAMAGED else frame).data


def send(address, frames):
    """Send frames on one connection, read what is answered by then, and close it."""
    with RawConnection(address) as connection:
        try:
            for data in frames:
                connection.socket.sendall(data)
            connection.socket.setblocking(False)
            while connection.socket.recv(1 << 16):
                pass
        except (BlockingIOError, ConnectionResetError, BrokenPipeError):
            pass


def play(server, seed, number):
    frames = list(frames_of(seed, number))
    for first in range(0, number, AT_ONCE):
        send(server.address, frames[first : first + AT_ONCE])


def sockets(server):
    """Return the number of sockets that the server has open."""
    count = 0
    for each in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            count += os.readlink(each).startswith("socket:")
        except FileNotFoundError:
            pass  # it was closed meanwhile
    return count


def resident_bytes(server):
    return int(Path(f"/proc/{server.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def check(server, before):
    """Raise AssertionError unless the server has no fault, serves a client, and holds no connection of the others."""
    assert "fault of the broker's own" not in server.log and "Traceback" not in server.log
    until(lambda: sockets(server) <= before)
    with Client(server.address) as client:
        client.topics()


def test_a_server_serves_on_after_damaged_frames(tmp_path):
    with ServerProcess(tmp_path / "data", SETTINGS) as server:
        before = sockets(server)
        play(server, SEED, FEW)
        check(server, before)


@pytest.mark.soak
def test_a_hundred_thousand_damaged_frames_leave_nothing_in_a_server(tmp_path):
    with ServerProcess(tmp_path / "data", SETTINGS) as server:
        before = sockets(server)
        play(server, SEED, SOAK_FRAMES // 4)  # until all caches are as large as they become
        size = resident_bytes(server)
        for quarter in range(1, 4):
            play(server, SEED + quarter, SOAK_FRAMES // 4)
        check(server, before)
        assert resident_bytes(server) < size + GROWTH_BYTES
