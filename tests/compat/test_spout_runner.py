"""The embedded engine as a process: killed in the middle and started again, it counts each message once."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.spout_program import message

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 6_000


def expected():
    totals = {}
    for n in range(MESSAGES):
        text = message(n).decode()
        carrier, delay = text[13:15], int(text.split(": ")[2][:-1])
        count, total = totals.get(carrier, (0, 0))
        totals[carrier] = (count + 1, total + delay)
    return totals


def counted(database):
    with sqlite3.connect(database) as db:
        return {carrier: (n, total) for carrier, n, total in db.execute("SELECT carrier, n, total FROM delays")}


@pytest.fixture
def program(tmp_path):
    running = []

    def start():
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.spout_program", tmp_path / "store", tmp_path / "db", str(MESSAGES)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        process.stdout.close()


def read_until(process, enough):
    """Lines until `enough(line)`; the test's own time limit is the deadline."""
    for line in process.stdout:
        if enough(line):
            return line
    pytest.fail(f"the program ended early, with exit code {process.wait()}")


def applied(line):
    return int(line.split()[1]) if line.startswith("applied") else 0


@pytest.mark.timeout(60)
def test_killed_twice_in_the_middle_each_message_is_counted_once(program, tmp_path):
    """DESIGN, section 7, and the demo's promise: at least once, and exactly once in what a bolt keeps by message id."""
    for _ in range(2):
        process = program()
        read_until(process, lambda line: applied(line) >= MESSAGES // 4)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert sum(n for n, _ in counted(tmp_path / "db").values()) < MESSAGES, "killed too late to show anything"
    process = program()
    read_until(process, lambda line: sum(n for n, _ in counted(tmp_path / "db").values()) == MESSAGES)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    assert counted(tmp_path / "db") == expected()


@pytest.mark.timeout(60)
def test_after_a_clean_stop_nothing_comes_again(program, tmp_path):
    process = program()
    read_until(process, lambda line: applied(line) >= MESSAGES // 2)
    process.send_signal(signal.SIGTERM)
    assert read_until(process, lambda line: line.startswith("stopped")) == "stopped, 1 dead\n"
    assert process.wait() == 0
    process = program()
    read_until(process, lambda line: sum(n for n, _ in counted(tmp_path / "db").values()) == MESSAGES)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 0
    with sqlite3.connect(tmp_path / "db") as db:
        assert db.execute("SELECT sum(n) FROM seen").fetchone() == (MESSAGES,)
    assert counted(tmp_path / "db") == expected()
