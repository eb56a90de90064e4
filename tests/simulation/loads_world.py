"""Drivers of loads that run side by side, one step at a time, and are killed between any two steps.

A step is one operation of the storage or of the log. Each driver runs in a thread, and only one thread runs at a time.
"""

import threading

from spark_bridge.load.load import LoadError
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.sink import LoadState
from spark_bridge.reading.range_cursor import DataLoss
from tests.spark_bridge.load.world import MemoryLog, MemoryStorage, Topics, driver, plain_reader


class Killed(BaseException):
    """Raised at each step of a killed driver, so that none of its cleaning has an effect."""


class Runner:
    """One run of a driver."""

    def __init__(self, world, name, options):
        self.options = options
        self.outcome = self.error = None
        self.at, self.over, self.killed, self.steps = "start", False, False, 0
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        storage = MemoryStorage(world.objects, self._step, renames=world.renames, exclusive=world.exclusive)
        self.driver = driver(MemoryLog(world.topics, self._step), storage, name, world.sink, **options)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def step(self):
        """Let the driver run up to its next step, or to its end."""
        self._go.release()
        self._paused.acquire()

    def kill(self):
        """Kill the driver before its next step."""
        self.killed = True
        self.step()
        assert self.over

    def _step(self, step_name):
        if self.killed:
            raise Killed
        self.at = step_name
        self.steps += 1
        self._paused.release()
        self._go.acquire()
        if self.killed:
            raise Killed

    def _run(self):
        self._go.acquire()
        try:
            if not self.killed:
                self.outcome = self.driver.run()
        except Killed:
            pass
        except (LoadError, DataLoss) as error:
            self.error = error
        except Exception as error:
            self.error = AssertionError(f"{error!r} at {self.at}")
        self.over = True
        self._paused.release()


class World:
    """A topic, a destination and its drivers. `check` raises AssertionError if a promise is broken."""

    def __init__(self, *ends, renames=True, exclusive=True, sink=ParquetSink):
        self.topics = Topics(*ends)
        self.objects = {}
        self.renames, self.exclusive, self.sink = renames, exclusive, sink
        self.running = []
        self.started = 0
        self._checked = None

    def start(self, **options):
        self.started += 1
        runner = Runner(self, f"driver-{self.started}", options)
        self.running.append(runner)
        return runner

    def run(self, **options):
        """Run one driver to its end, and return it."""
        runner = self.start(**options)
        while not runner.over:
            self.step(runner)
        return runner

    def step(self, runner):
        runner.step()
        if runner.over:
            self.running.remove(runner)
        self.check()

    def kill(self, runner):
        runner.kill()
        self.running.remove(runner)
        self.check()

    def stop(self):
        for runner in list(self.running):
            runner.kill()
        self.running = []

    # --- promises ---------------------------------------------------------------------------------------------------

    def sink_now(self):
        return driver(MemoryLog(self.topics), MemoryStorage(self.objects)).sink

    def check(self):
        """At any time: no row twice, no file of an undecided load, and all files of a receipt whole and in place."""
        if self.objects == self._checked:
            return
        self._checked = dict(self.objects)
        rows = plain_reader(self.objects)
        values = [value for _, value in rows]
        assert len(values) == len(set(values)), "duplicate: a plain reader sees a row twice"
        decided = set()
        for name in self.objects:
            if name.endswith(".decision.json"):
                stored = self.sink_now().find(int(name.rpartition("/")[2].partition(".")[0]))
                decided |= set(stored.receipt.files)
                if stored.state is LoadState.PUBLISHED:
                    problems = list(self.sink_now().file_problems([stored.receipt]))
                    assert not problems, f"published, but {problems}"
        assert {name for name, _ in rows} <= decided, "leak: a plain reader sees a file of an undecided load"
