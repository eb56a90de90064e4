"""A topology from a log to a bolt, as a process that measures itself.

    python topology_program.py JSON

JSON has `servers`, `topic`, `messages`, and perhaps `held` (the first message is acked after the last one), `words`
(the bolt counts the words of each message) and `partitions`. With `partitions` the process joins a consumer group. Once
it has that many partitions it prints a line, waits for a line on its standard input, and emits the first message then.

The process ends when it has processed all messages. It prints as JSON the monotonic times of the first message and the
last one, and the CPU seconds in between. It uses the public interface only, so that it runs on any checkout.
"""

import json
import sys
import time
from collections import Counter
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from flakelog import Bolt, LogSpout, Topology
from spout.runner import Runner

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
            runner.stop()

    def hold(self, tup: Any) -> None:
        """Ack each message but the first."""
        if self.seen == 1:
            self.held = tup
        else:
            self.ack(tup)


def begin() -> None:
    runner.start().addBoth(lambda _: reactor.stop())
    if "partitions" in plan:
        runner.pause()
        wait_for_partitions()


def wait_for_partitions() -> None:
    (spout,) = runner.executor.instances_of("log")
    if sum(each.phase.value == "running" for each in spout.status()) == plan["partitions"]:
        print("joined", flush=True)
        deferToThread(sys.stdin.readline).addCallback(lambda _: runner.resume())
    else:
        reactor.callLater(POLL_SECONDS, wait_for_partitions)


with TemporaryDirectory() as directory:
    topology = Topology("bench")
    store = "kafka" if "partitions" in plan else directory
    topology.spout("log", LogSpout(plan["topic"], servers=plan["servers"], store=store, id=plan.get("group")))
    topology.bolt("process", Process).shuffle("log")
    runner = Runner(topology)
    reactor.callWhenRunning(begin)
    reactor.run()
(began, cpu_began), (ended, cpu_ended) = clock
print(json.dumps({"began": began, "ended": ended, "cpu": cpu_ended - cpu_began}))
