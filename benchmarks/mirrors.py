"""Mirrors: ours and MirrorMaker 2 copy the same topic of 8 partitions from one Flakelog broker into another.

The rate and the CPU time are those of the mirror's process from the moment when the target has a tenth of the messages,
so that the start of a process, or of a JVM, does not count.
"""

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.apache import JVM_OPTIONS, Peer
from benchmarks.brokers import Topics, flakelog
from benchmarks.bulk import produce
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, cpu_seconds
from benchmarks.mirror_maker import MirrorMaker, mirror_maker_command
from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.client.errors import ClientError

PARTITIONS = 8
MESSAGES = {100: 2_000_000, 1024: 400_000}
MIRROR_MAKER = "MirrorMaker 2"
COPY_SECONDS = 300
LOOK_SECONDS = 0.02

Run = Callable[[ExitStack, Path, str, str, str], int]
"""Starts a mirror of a topic in this directory, from a source to a target. Returns the process's id."""

_numbers = itertools.count(1)


@contextmanager
def _mirror_row(size: int, scale: Scale) -> Iterator[Contenders]:
    with flakelog() as source, flakelog() as target, ExitStack() as stack:
        topic = stack.enter_context(Topics(source.address).fresh(PARTITIONS))
        produce(Peer(source.address, source.pid), topic, scale.of(MESSAGES[size]), size, PARTITIONS)
        copy = partial(_copy, source.address, target.address, topic, size)
        contenders = {OURS: partial(copy, _own_mirror)}
        if scale.kafka:
            mirror_maker_command()
            contenders[MIRROR_MAKER] = partial(copy, _mirror_maker)
        yield contenders


def _copy(source: str, target: str, topic: str, size: int, run: Run) -> Figures:
    """Copy the topic into an empty one."""
    with Client(source) as client:
        count = _messages(client, topic)
    with TemporaryDirectory(prefix="flakelog-bench-") as directory, Client(target) as client, ExitStack() as stack:
        first, began, before = 0, time.perf_counter(), 0.0
        pid = run(stack, Path(directory), source, target, topic)
        _await(client, topic, count // 10)
        if _messages(client, topic) < count // 2:  # a tiny run is measured with the start of the process
            first, began, before = _messages(client, topic), time.perf_counter(), cpu_seconds(pid)
        _await(client, topic, count)
        seconds, cpu = time.perf_counter() - began, cpu_seconds(pid) - before
        stack.close()
        client.delete_topic(topic)
    copied = count - first
    return {"msg/s": copied / seconds, "MB/s": copied * size / seconds / 1e6, "CPU s": cpu}


def _own_mirror(stack: ExitStack, directory: Path, source: str, target: str, topic: str) -> int:
    options = "--from", source, "--to", target, "--topics", topic, "--name", f"run-{next(_numbers)}", "--every", "0"
    process = subprocess.Popen([sys.executable, "-m", "flakelog", "mirror", *options], stderr=subprocess.DEVNULL)

    def stop() -> None:
        process.terminate()
        process.wait()

    stack.callback(stop)
    return process.pid


def _mirror_maker(stack: ExitStack, directory: Path, source: str, target: str, topic: str) -> int:
    alias = f"run{next(_numbers)}"
    maker = MirrorMaker(directory, source, target, topic, alias=alias, jvm_options=JVM_OPTIONS)
    return stack.enter_context(maker).pid


def _await(client: Client, topic: str, count: int) -> None:
    deadline = time.monotonic() + COPY_SECONDS
    while _messages(client, topic) < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{_messages(client, topic)} of {count} messages were copied in {COPY_SECONDS} s")
        time.sleep(LOOK_SECONDS)


def _messages(client: Client, topic: str) -> int:
    """Return the number of messages of a topic, 0 if it is not there."""
    try:
        ends = client.run(client.core.list_offsets([(topic, number) for number in range(PARTITIONS)], LATEST))
    except ClientError:
        return 0
    return sum(end or 0 for end in ends.values())


ROWS = [
    Row("mirror-100", "a mirror's rate and CPU time, 100 B, 8 partitions", partial(_mirror_row, 100)),
    Row("mirror-1k", "a mirror's rate and CPU time, 1 KiB, 8 partitions", partial(_mirror_row, 1024)),
]
