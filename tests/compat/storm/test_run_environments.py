"""`run` in real processes: signals, runs one after another, threads, asyncio, and what the log on stderr says."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS

ROOT = Path(__file__).resolve().parents[3]

# Each program begins with this. `numbers` emits 0, 1, 2, ...; with `last` it raises Enough once that many are acked.
HEAD = """
import asyncio, logging, signal, sys, threading, time
from flakelog import Bolt, Spout, Topology, TopologyConfig, run, run_async, run_in_background

class Enough(Exception):
    pass

class Numbers(Spout):
    output_fields = ("n",)
    def __init__(self, last=None):
        self.last, self.n, self.acked = last, 0, 0
    def next_tuple(self):
        if self.acked == self.last:
            raise Enough(f"{self.acked} are acked")
        if self.n != self.last:
            self.emit((self.n,), self.n)
            self.n += 1
    def ack(self, id):
        self.acked += 1
    def close(self):
        sys.stdout.write("closed\\n")

class Say(Bolt):
    def execute(self, tup):
        if tup["n"] == 0:
            sys.stdout.write("first\\n")
            sys.stdout.flush()

def topology(last=None, bolt=Say()):
    made = Topology("numbers")
    made.spout("numbers", Numbers(last))
    made.bolt("say", bolt).shuffle("numbers")
    return made
"""


class Program:
    """A program as a process."""

    def __init__(self, text):
        self.process = subprocess.Popen(
            [sys.executable, "-c", HEAD + text],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def read_line(self):
        return self.process.stdout.readline().strip()

    def send(self, number):
        self.process.send_signal(number)

    def wait_for_error(self, text):
        """Read stderr up to a line with `text`."""
        for line in self.process.stderr:
            if text in line:
                return line
        pytest.fail(f"no {text!r} on stderr")

    def end(self):
        """Return (exit code, the rest of stdout, the rest of stderr)."""
        out, err = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, out, err


def result_of(text):
    return Program(text).end()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_stops_the_topology_cleanly_and_says_so(number):
    program = Program("run(topology())\nprint('went on')\n")
    assert program.read_line() == "first"
    program.send(number)
    code, out, err = program.end()
    assert (code, out) == (0, "closed\nwent on\n")
    assert "info  topology 'numbers' starts: spout numbers; bolt say\n" in err
    assert f"{number.name}: stopping" in err
    assert re.search(r"topology 'numbers' stopped after \d+\.\d s: [\d,]+ emitted, [\d,]+ acked, 0 failed", err)
    assert "Traceback" not in err


BLOCKING = """
class Block(Bolt):
    def execute(self, tup):
        print("blocked", flush=True)
        threading.Event().wait()

run(topology(bolt=Block()))
"""


def test_a_second_ctrl_c_ends_a_process_whose_bolt_blocks_for_ever():
    program = Program(BLOCKING)
    assert program.read_line() == "blocked"
    while program.process.poll() is None:  # the first stops; those within a moment count as the same one
        program.send(signal.SIGINT)
        try:
            program.process.wait(0.1)
        except subprocess.TimeoutExpired:
            pass
    code, _, err = program.end()
    assert code == -signal.SIGINT and "KeyboardInterrupt" in err


def test_run_works_twice_in_threads_and_where_an_asyncio_loop_runs():
    """A notebook is a main thread in which an asyncio loop runs."""
    code, out, err = result_of("""
def enough():
    try:
        run(topology(3))
    except Enough as error:
        sys.stdout.write(f"{error}\\n")

before = signal.getsignal(signal.SIGINT)
enough()
assert signal.getsignal(signal.SIGINT) is before
enough()
threads = [threading.Thread(target=enough) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()

async def cell():
    enough()

asyncio.run(cell())
""")
    assert code == 0, err
    assert out.count("3 are acked\n") == out.count("closed\n") == 5
    assert err.count("Enough: 3 are acked") == 5 and "Traceback" in err, "each failure is logged with its traceback"


def test_the_garbage_collector_runs_rarely_while_a_topology_runs_and_is_then_as_before():
    code, out, err = result_of("""
import gc

class Look(Bolt):
    def execute(self, tup):
        if tup["n"] == 0:
            sys.stdout.write(f"{gc.get_threshold()[0]} {gc.get_freeze_count() > 10_000}\\n")

before = gc.get_threshold()
for _ in range(2):
    try:
        run(topology(1, Look()))
    except Enough:
        pass
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)
gc.freeze()
gc.set_threshold(5_000)
try:
    run(topology(1, Look()))
except Enough:
    pass
assert gc.get_threshold()[0] == 5_000 and gc.get_freeze_count(), "a program's own settings stay"
""")
    assert code == 0, err
    assert out.split("closed\n") == ["100000 True\n", "100000 True\n", "5000 True\n", ""]


def test_run_async_runs_beside_a_loop_and_stops_cleanly_when_cancelled():
    code, out, err = result_of("""
async def main():
    try:
        await run_async(topology(3))
    except Enough as error:
        print(error, flush=True)
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    class Tell(Bolt):
        def execute(self, tup):
            loop.call_soon_threadsafe(heard.set)

    task = asyncio.create_task(run_async(topology(bolt=lambda: Tell())))
    await heard.wait()
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        print("cancelled", flush=True)

asyncio.run(main())
""")
    assert (code, out) == (0, "first\nclosed\n3 are acked\nclosed\ncancelled\n"), err
    assert "topology 'numbers' stopped after" in err


def test_run_async_uses_the_reactor_that_the_program_runs_on_its_loop():
    code, out, err = result_of("""
async def main():
    from twisted.internet import asyncioreactor
    asyncioreactor.install(asyncio.get_running_loop())
    from twisted.internet import reactor
    reactor.startRunning()

    class Where(Bolt):
        def execute(self, tup):
            print(threading.current_thread() is threading.main_thread(), flush=True)

    try:
        await run_async(topology(1, bolt=Where()))
    except Enough:
        print("enough", flush=True)
    try:
        run(topology(1))
    except RuntimeError as error:
        print(str(error).partition(":")[0])

asyncio.run(main())
""")
    blocks = "run() blocks, and this is the thread that runs Twisted's reactor"
    assert (code, out) == (0, f"True\nclosed\nenough\n{blocks}\n"), err


def test_a_topology_in_the_background_is_stopped_by_its_handle_or_at_the_end_of_the_program():
    code, out, err = result_of("""
first = run_in_background(topology(bolt=Bolt()))
first.stop()
first.wait()
print("stopped", first.ended, flush=True)
second = run_in_background(topology())
try:
    second.wait(timeout_ms=10)
except TimeoutError:
    print("runs on", flush=True)
""")
    lines = out.splitlines()
    assert code == 0, err
    assert lines[:2] == ["closed", "stopped True"] and sorted(lines[2:]) == ["closed", "first", "runs on"]


def test_a_failing_bolt_is_logged_once_with_its_traceback_and_then_summed_up():
    code, _, err = result_of("""
class Fail(Bolt):
    def execute(self, tup):
        if tup["n"] < 100:
            raise ValueError("no good")

class Patient(Numbers):
    def fail(self, id):
        self.acked += 1

made = Topology("numbers")
made.spout("numbers", Patient(200))
made.bolt("fail", Fail()).shuffle("numbers")
run(made)
""")
    assert code == 1
    assert "error fail[0]: ValueError: no good; id 0\n" in err
    assert err.count(", in execute\n") == 1
    assert "error 99 times more in the last" in err


def test_the_log_goes_to_logging_if_the_program_has_configured_it():
    code, _, err = result_of("""
logging.basicConfig(format="%(name)s|%(levelname)s|%(message)s", level=logging.INFO)
run(topology(3))
""")
    assert code == 1
    assert "spout.runner.Runner|INFO|topology 'numbers' starts: spout numbers; bolt say\n" in err
    assert "spout.runner.Runner|ERROR|topology 'numbers' failed after" in err
    assert err.count("' starts: ") == 1


def test_the_log_goes_to_the_observers_of_twisted_if_the_program_has_chosen_them():
    code, out, err = result_of("""
from twisted.logger import formatEvent, globalLogBeginner
globalLogBeginner.beginLoggingTo([lambda event: print(formatEvent(event))], redirectStandardIO=False)
try:
    run(topology(3))
except Enough:
    pass
""")
    assert code == 0 and err == ""
    assert "topology 'numbers' starts: spout numbers; bolt say\n" in out


def test_a_reactor_that_was_stopped_is_named():
    code, _, err = result_of("""
from twisted.internet import reactor
reactor.callWhenRunning(reactor.stop)
reactor.run()
run(topology(3))
""")
    assert code == 1 and "RuntimeError: Twisted's reactor was stopped in this process, and cannot run again" in err


def test_an_asynchronous_bolt_has_an_asyncio_loop_without_more_ado():
    code, _, err = result_of("""
class Wait(Bolt):
    async def execute(self, tup):
        await asyncio.sleep(0.001)

run(topology(20, bolt=Wait()))
""")
    assert code == 1 and "Enough: 20 are acked" in err


def test_asynchronous_and_blocking_bolts_run_side_by_side():
    """`run` runs Twisted on an asyncio loop for an async bolt."""
    program = Program("""
class Sleeps(Bolt):
    output_fields = ("n", "together")
    at_work = 0
    async def execute(self, tup):
        Sleeps.at_work += 1
        await asyncio.sleep(0.001)
        self.emit((tup["n"], Sleeps.at_work))
        Sleeps.at_work -= 1

class Blocks(Bolt):
    threads = 3
    seen, barrier = set(), threading.Barrier(3)
    def execute(self, tup):
        self.barrier.wait(60)
        self.seen.add((threading.current_thread().name, tup["together"] > 1))

made = topology(30, Sleeps())
made.bolt("blocks", Blocks).shuffle("say")
try:
    run(made)
except Enough as enough:
    print(enough, sorted(name for name, together in Blocks.seen if together) == [f"blocks[0]-{n}" for n in (1, 2, 3)])
""")
    assert "30 are acked True" in program.end()[1]
