"""A program that reads all messages of a topic in one way, and prints their number and its peak memory (VmHWM) in KiB.

python unpacking_program.py WAY SERVERS TOPIC MESSAGES STORE        WAY: consumer, asyncio, spout or read
"""

import asyncio
import sys
import threading
from pathlib import Path

from flakelog import AsyncConsumer, Bolt, Consumer, LogSpout, Topology, read, run_in_background


def consumer(servers, topic, messages, store):
    with Consumer(servers, topic) as records:
        return sum(1 for _ in zip(range(messages), records, strict=False))


def in_asyncio(servers, topic, messages, store):
    async def count():
        async with AsyncConsumer(servers, topic) as records:
            for _ in range(messages):
                await anext(records)

    asyncio.run(count())
    return messages


def spout(servers, topic, messages, store):
    processed, done = [], threading.Event()

    class Count(Bolt):
        def execute(self, tup):
            processed.append(1)
            if len(processed) == messages:
                done.set()

    topology = Topology("count")
    topology.spout("log", LogSpout(topic, servers=servers, store=store))
    topology.bolt("count", Count()).shuffle("log")
    running = run_in_background(topology)
    done.wait()
    running.stop()
    running.wait()
    return len(processed)


def without_spark(servers, topic, messages, store):
    return sum(batch.num_rows for batch in read(servers, topic))


READERS = {"consumer": consumer, "asyncio": in_asyncio, "spout": spout, "read": without_spark}

if __name__ == "__main__":
    reader, servers, topic, messages, store = sys.argv[1:]
    number = READERS[reader](servers, topic, int(messages), store)
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak_kib,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    print(number, peak_kib)
