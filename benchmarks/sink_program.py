"""Messages copied from one topic to another, as a process that measures itself.

    python sink_program.py JSON

JSON has `servers`, `source`, `sink`, `messages` and `how`: "at least once" and "exactly once" are our LogSink, "plain"
is a loop over confluent-kafka whose transactions are committed as often. The process prints as JSON the seconds and the
CPU seconds from the first message until all are acked, or committed.
"""

import json
import sys
import time
from typing import Any
from uuid import uuid4

AT_LEAST_ONCE, EXACTLY_ONCE, PLAIN = "at least once", "exactly once", "plain"
COMMIT_SECONDS = 0.1  # as flakelog.sink.commit.interval.ms
MESSAGES_AT_ONCE = 1_000
POLL_SECONDS = 0.01


class Clock:
    """The time since the first message."""

    def __init__(self) -> None:
        self._began: tuple[float, float] | None = None

    def begin(self) -> None:
        """Begin at the first call."""
        if self._began is None:
            self._began = time.perf_counter(), time.process_time()

    def end(self) -> None:
        """Print the time."""
        assert self._began is not None
        seconds, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        print(json.dumps({"seconds": seconds, "cpu": cpu}), flush=True)


def copy_with_sink(plan: dict[str, Any], clock: Clock) -> None:
    """Copy by a topology of ours."""
    from twisted.internet import reactor

    from flakelog import LogSink, LogSpout, Topology
    from spout.runner import Runner

    class Measured(LogSink):
        def output(self, tup: Any) -> Any:
            clock.begin()
            return super().output(tup)

    topology = Topology("bench")
    spout = LogSpout(plan["source"], servers=plan["servers"], store="kafka", id=uuid4().hex)
    topology.spout("log", spout)
    sink = Measured(plan["sink"], servers=plan["servers"], exactly_once=plan["how"] == EXACTLY_ONCE)
    topology.bolt("out", sink).shuffle("log")
    runner = Runner(topology)

    def check_end() -> None:
        (spout,) = runner.executor.instances_of("log")
        settlement = spout.settlement
        if spout.counts.acked == plan["messages"] and (settlement is None or settlement.is_settled):
            clock.end()
            runner.stop()
        else:
            reactor.callLater(POLL_SECONDS, check_end)

    def begin() -> None:
        runner.start().addBoth(lambda _: reactor.stop())
        check_end()

    reactor.callWhenRunning(begin)
    reactor.run()


def copy_plainly(plan: dict[str, Any], clock: Clock) -> None:
    """Copy by a loop of a consumer and a transactional producer."""
    from confluent_kafka import Consumer, Producer

    servers = {"bootstrap.servers": plan["servers"]}
    consumer = Consumer(
        servers | {"group.id": uuid4().hex, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    producer = Producer(servers | {"transactional.id": uuid4().hex, "linger.ms": 5})
    consumer.subscribe([plan["source"]])
    producer.init_transactions()
    copied = 0
    while copied < plan["messages"]:
        producer.begin_transaction()
        end = time.monotonic() + COMMIT_SECONDS
        while time.monotonic() < end and copied < plan["messages"]:
            for message in consumer.consume(MESSAGES_AT_ONCE, COMMIT_SECONDS):
                clock.begin()
                copied += 1
                producer.produce(plan["sink"], message.value(), message.key())
            producer.poll(0)
        positions = [position for position in consumer.position(consumer.assignment()) if position.offset >= 0]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata())
        producer.commit_transaction()
    clock.end()
    consumer.close()


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    (copy_plainly if asked["how"] == PLAIN else copy_with_sink)(asked, Clock())
