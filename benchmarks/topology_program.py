"""A topology from a log to a bolt, as a process that measures itself.

    python topology_program.py JSON

JSON has `servers`, `topic`, `messages`, and perhaps `held` (the first message is acked after the last one), `store`
(where progress is stored) and `words` (the bolt counts the words of each message). The process ends when it has
processed all messages, and prints the seconds and the CPU seconds from the first message to the last one as JSON. It
uses the public interface only, so that it runs on any checkout.
"""

import json
import sys
import time
from collections import Counter
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet import reactor

from flakelog import Bolt, LogSpout, Topology
from spout.runner import Runner

plan: dict[str, Any] = json.loads(sys.argv[1])
clock: list[tuple[float, float]] = []
words: Counter[bytes] = Counter()


class Process(Bolt):
    """Counts the messages, and stops the topology after the last one."""

    auto_ack = False
    seen = 0
    held: Any = None

    def execute(self, tup: Any) -> None:
        if not self.seen:
            clock.append((time.perf_counter(), time.process_time()))
        self.seen += 1
        if plan.get("words"):
            words.update(tup[2].split())
        if self.seen == 1 and plan.get("held"):
            self.held = tup
        else:
            self.ack(tup)
        if self.seen == plan["messages"]:
            clock.append((time.perf_counter(), time.process_time()))
            if self.held is not None:
                self.ack(self.held)
            runner.stop()


with TemporaryDirectory() as directory:
    topology = Topology("bench")
    spout = LogSpout(plan["topic"], servers=plan["servers"], store=plan.get("store", directory))
    topology.spout("log", spout)
    topology.bolt("process", Process).shuffle("log")
    runner = Runner(topology)
    reactor.callWhenRunning(lambda: runner.start().addBoth(lambda _: reactor.stop()))
    reactor.run()
(began, cpu_began), (ended, cpu_ended) = clock
print(json.dumps({"seconds": ended - began, "cpu": cpu_ended - cpu_began}))
