"""A topology of a LogSpout and a bolt, run in one process as `flakelog spout run` does, which measures itself.

    python topology_program.py JSON

JSON is an object with `servers`, `topic` and `messages`, the number of messages to process. It may have:

- `held`: the bolt acks the first message after the last one
- `words`: the bolt counts the words of each message
- `partitions`: the process joins the consumer group `group` and waits until it reads this many partitions. It prints
  "joined" then, and emits the first message when it has read a line from its standard input.

The process ends after the last message. Its last line is JSON with `began` and `ended`, the monotonic times of the
first and the last message in seconds, and `cpu`, the CPU seconds in between. With an older checkout in PYTHONPATH the
program measures that one, if it has `flakelog spout run`.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from tempfile import TemporaryDirectory
from typing import Any

from flakelog import Bolt, LogSpout, Topology
from spout.config import TopologyConfig
from spout.run import BackgroundRun, run_until_stopped

POLL_SECONDS = 0.2
plan: dict[str, Any] = json.loads(sys.argv[1])
clock: list[tuple[float, float]] = []
words: Counter[bytes] = Counter()


class Process(Bolt):
    """Counts the messages, and stops the topology after the last one."""

    auto_ack = not plan.get("held")
    seen = 0
    held: Any = None

    def execute(self, tup: Any) -> None:
        if not self.seen:
            clock.append((time.perf_counter(), time.process_time()))
        self.seen += 1
        if plan.get("words"):
            words.update(tup[2].split())
        if plan.get("held"):
            self.hold(tup)
        if self.seen == plan["messages"]:
            clock.append((time.perf_counter(), time.process_time()))
            if self.held is not None:
                self.ack(self.held)
            os.kill(os.getpid(), signal.SIGTERM)

    def hold(self, tup: Any) -> None:
        """Ack each message but the first."""
        if self.seen == 1:
            self.held = tup
        else:
            self.ack(tup)


def watch(running: BackgroundRun) -> None:
    """With `partitions`, let the first message be emitted when they are there and the parent has written a line."""
    if "partitions" in plan:
        running.pause()
        while running.call(lambda _: partitions_of(running)) < plan["partitions"]:
            time.sleep(POLL_SECONDS)
        print("joined", flush=True)
        sys.stdin.readline()
        running.resume()


def partitions_of(running: BackgroundRun) -> int:
    """Return the number of partitions that the process reads."""
    (spout,) = running.runner.executor.instances_of("log")
    return sum(reader.phase.value == "running" for reader in spout.status())


with TemporaryDirectory() as directory:
    topology = Topology("bench")
    store = "kafka" if "partitions" in plan else directory
    topology.spout("log", LogSpout(plan["topic"], servers=plan["servers"], store=store, id=plan.get("group")))
    topology.bolt("process", Process).shuffle("log")
    run_until_stopped(topology, config=TopologyConfig(), watch=watch)
(began, cpu_began), (ended, cpu_ended) = clock
print(json.dumps({"began": began, "ended": ended, "cpu": cpu_ended - cpu_began}))
