"""`flakelog spout run` as a process whose components end the program, or do not let it end."""

import os
import signal
import subprocess
import sys

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS, until

TOPOLOGY = """
import asyncio
import sys
import time

from flakelog import Bolt, LogSpout, Topology


class Step(Bolt):
    def execute(self, tup):
        self.work(tup["value"])

    def work(self, value):
        print("got", value.decode(), flush=True)
        if value == b"exit":
            sys.exit(7)
        if value == b"block":
            time.sleep(100_000)


class Thread(Step):
    threads = 1


class Coroutine(Step):
    async def execute(self, tup):
        await asyncio.sleep(0)
        self.work(tup["value"])


class Gather(Coroutine):
    async def execute(self, tup):
        await asyncio.gather(asyncio.sleep(0), super().execute(tup))


class Forgets(Coroutine):
    async def execute(self, tup):
        if tup["value"] == b"exit":
            asyncio.get_running_loop().call_soon(self.work, tup["value"])
        else:
            self.work(tup["value"])


def make(bolt):
    made = Topology("exits")
    made.spout("lines", LogSpout({topic!r}, servers={servers!r}, store="progress"))
    made.bolt("work", bolt).shuffle("lines")
    return made


step, thread, coroutine, gather, forgets = (make(each()) for each in (Step, Thread, Coroutine, Gather, Forgets))
"""


@pytest.fixture
def start(broker, name, tmp_path):
    """Return a function that runs the topology of that name on a topic with these messages."""
    processes = []

    def begin(which, *values, options=()):
        if not processes:
            with Client(broker.address) as client:
                client.create_topic(name)
        with Client(broker.address) as client:
            for value in values:
                client.produce(name, 0, encode_batch([BatchRecord(0, 0, None, value, ())], base_timestamp_ms=1_000))
        text = TOPOLOGY.replace("{topic!r}", repr(name)).replace("{servers!r}", repr(broker.address))
        (tmp_path / "exits.py").write_text(text)
        with open(tmp_path / "out", "w") as out, open(tmp_path / "err", "w") as err:
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-m", "flakelog", "spout", "run", f"exits:{which}", *options],
                    cwd=tmp_path,
                    env={**os.environ, "PYTHONPATH": PYTHONPATH},
                    stdout=out,
                    stderr=err,
                )
            )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize("which", ["step", "thread", "coroutine", "gather"])
def test_an_exit_in_a_bolt_is_the_exit_code_and_its_message_comes_again(start, tmp_path, name, which):
    assert start(which, b"a", b"exit", b"c").wait(SECONDS) == 7
    log = (tmp_path / "err").read_text()
    (line,) = [line for line in log.splitlines() if "SystemExit" in line]
    assert "work[0]: execute raised SystemExit(7): the topology stops with exit code 7" in line
    assert f"comes again at the next start; {name}-0 offset 1" in line
    assert "Traceback" not in log and "ends nothing" not in log and "topology 'exits' stopped after" in log
    assert start(which).wait(SECONDS) == 7
    assert (tmp_path / "out").read_text().splitlines()[0] == "got exit"


def test_an_exit_that_no_component_awaits_is_logged_and_ends_nothing(start, tmp_path):
    process = start("forgets", b"a", b"exit", b"c")
    until(lambda: "got c" in (tmp_path / "out").read_text(), "the message after the exit")
    until(lambda: "SystemExit ends nothing" in (tmp_path / "err").read_text(), "the line about the exit")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("which", ["step", "coroutine"])
def test_a_signal_ends_a_process_whose_engine_is_blocked(start, tmp_path, which, number, code):
    process = start(which, b"a", b"block", options=("--every", "0.1", "--set", "flakelog.topology.drain.ms=100"))
    until(lambda: "got block" in (tmp_path / "out").read_text(), "the message that blocks")
    process.send_signal(number)
    assert process.wait(SECONDS) == code
    assert "does not stop, because a component blocks" in (tmp_path / "err").read_text()


def test_a_thread_that_blocks_delays_a_stop_no_longer_than_the_drain_time(start, tmp_path):
    process = start("thread", b"a", b"block", options=("--set", "flakelog.topology.drain.ms=100"))
    until(lambda: "got block" in (tmp_path / "out").read_text(), "the message that blocks")
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0
    assert "tuples are still in flight after 100 ms" in (tmp_path / "err").read_text()
