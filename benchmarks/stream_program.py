"""The word count of other stream processors in Python, each as a process that measures itself.

    python -m benchmarks.stream_program NAME SERVERS TOPIC MESSAGES

`make bench` installs them to build/stream-packages/NAME. Without arguments the process prints their names and versions.
With arguments it reads the topic from its beginning and counts the words of each message in memory. It prints the
seconds and the CPU seconds from the first message to the last one as JSON.
"""

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from benchmarks.measure import Figures
from benchmarks.multilang_components import STREAMPARSE, VERSION

ROOT = Path(__file__).parent.parent
INSTALLED = ROOT / "build" / "stream-packages"
VERSIONS = {"quixstreams": "3.28.1", "bytewax": "0.21.1", "faust-streaming": "0.15.3"}
BARE_LOOP = "confluent-kafka"
GUARANTEES = {
    BARE_LOOP: "confluent-kafka, a bare loop: offsets committed every 5 s",
    "quixstreams": "Quix Streams, at least once: offsets committed every 5 s",
    "bytewax": "Bytewax, no recovery: begins anew after a restart",
    "faust-streaming": "faust-streaming, acks per message, offsets committed every 3 s",
}
MESSAGES_AT_ONCE = 1_000
PROGRAM_SECONDS = 600


class Count:
    """Counts words, and the time that this takes."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.words: Counter[bytes] = Counter()
        self._seen = 0
        self._began = (0.0, 0.0)

    def __call__(self, value: bytes) -> bool:
        """Count the words of a message. Return True for the last message."""
        if not self._seen:
            self._began = time.perf_counter(), time.process_time()
        self._seen += 1
        self.words.update(value.split())
        if self._seen < self.messages:
            return False
        seconds, cpu = time.perf_counter() - self._began[0], time.process_time() - self._began[1]
        os.write(1, b"\n%s\n" % json.dumps({"seconds": seconds, "cpu": cpu}).encode())  # faust replaces sys.stdout
        return True


def installed() -> list[str]:
    """Return the names of the installed packages."""
    return [BARE_LOOP, *(name for name in VERSIONS if (INSTALLED / name).is_dir())]


def run(name: str, servers: str, topic: str, messages: int) -> Figures:
    """Measure a package in a separate process. RuntimeError has the process's message if it fails."""
    argv = [sys.executable, "-m", "benchmarks.stream_program", name, servers, topic, str(messages)]
    with TemporaryDirectory() as directory:
        environment = os.environ | {"PYTHONPATH": f"{INSTALLED / name}:{ROOT}"}
        done = subprocess.run(
            argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RuntimeError(f"{name}: {done.stderr.strip()[-2000:]}")
    measured = json.loads(lines[-1])
    return {"msg/s": messages / measured["seconds"], "CPU us/msg": measured["cpu"] / messages * 1e6}


def _quixstreams(servers: str, topic: str, count: Count) -> None:
    from quixstreams import Application

    app = Application(
        broker_address=servers, consumer_group=uuid4().hex, auto_offset_reset="earliest", loglevel="ERROR"
    )
    app.dataframe(app.topic(topic, value_deserializer="bytes")).update(count)
    app.run(count=count.messages)


def _bytewax(servers: str, topic: str, count: Count) -> None:
    import bytewax.operators as op
    from bytewax.connectors.kafka import KafkaSource
    from bytewax.dataflow import Dataflow
    from bytewax.testing import TestingSink, run_main

    flow = Dataflow("bench")
    source: Any = KafkaSource([servers], [topic], tail=False, batch_size=1_000)
    messages = op.input("log", flow, source)
    last = op.filter("count", messages, lambda message: count(message.value))
    op.output("end", last, TestingSink([]))
    run_main(flow)


def _faust(servers: str, topic: str, count: Count) -> None:
    import faust

    app = faust.App(uuid4().hex, broker=f"kafka://{servers}", store="memory://", web_enabled=False)
    source = app.topic(topic, value_type=bytes, value_serializer="raw", key_serializer="raw")

    async def process(stream: Any) -> None:
        async for value in stream:
            if count(value):
                os._exit(0)  # a clean stop takes ten seconds

    app.agent(source)(process)
    worker = faust.Worker(app, loglevel="ERROR", loop=asyncio.new_event_loop())
    worker.execute_from_commandline()


def _bare_loop(servers: str, topic: str, count: Count) -> None:
    from confluent_kafka import Consumer

    consumer = Consumer({"bootstrap.servers": servers, "group.id": uuid4().hex, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    while True:
        for message in consumer.consume(MESSAGES_AT_ONCE, 1.0):
            if count(message.value()):
                consumer.close()
                return


RUNS = {BARE_LOOP: _bare_loop, "quixstreams": _quixstreams, "bytewax": _bytewax, "faust-streaming": _faust}

if __name__ == "__main__":
    if len(sys.argv) == 1:
        print(*(f"{name}=={version}" for name, version in {**VERSIONS, STREAMPARSE: VERSION}.items()))
    else:
        RUNS[sys.argv[1]](sys.argv[2], sys.argv[3], Count(int(sys.argv[4])))
