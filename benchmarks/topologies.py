"""Topologies: messages from a log through a spout and a bolt, acked, in one process; and word counts beside peers."""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

from confluent_kafka import Producer

from benchmarks import stream_program
from benchmarks.brokers import Topics, checkouts, flakelog
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale
from benchmarks.plan import SEED
from benchmarks.python_program import PROGRAM_SECONDS, per_message, run_program
from benchmarks.sink_program import AT_LEAST_ONCE, EXACTLY_ONCE, PLAIN
from broker.client.blocking import Client
from tests.compat.server_process import ROOT

PROGRAM = Path(__file__).with_name("topology_program.py")
SINK_PROGRAM = Path(__file__).with_name("sink_program.py")
MESSAGES, MESSAGES_MIN = 500_000, 2_000
PARTITIONS, PARTITIONS_MANY = 4, 1_000
SENTENCES = 200_000
WORDS, WORDS_IN_SENTENCE = 1_000, 15
SENTENCES_KINDS = 10_000
FLUSH_SECONDS = 120


def _fill(address: str, topic: str, partitions: int, values: list[bytes], messages: int) -> None:
    settings = {"bootstrap.servers": address, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings)
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, values[number % len(values)], partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(FLUSH_SECONDS) == 0


def _run(root: Path, plan: dict[str, Any]) -> Figures:
    """Run our topology from a checkout."""
    return _figures(plan["messages"], [run_program(PROGRAM, root, plan)])


def _figures(messages: int, measured: list[dict[str, float]]) -> Figures:
    seconds = max(figures["ended"] for figures in measured) - min(figures["began"] for figures in measured)
    return per_message(messages, {"seconds": seconds, "cpu": sum(figures["cpu"] for figures in measured)})


def _run_group(address: str, topic: str, messages: int, processes: int) -> Figures:
    """Run processes of one consumer group. All join, and then all begin at once."""
    plan = {
        "servers": address,
        "topic": topic,
        "messages": messages // processes,
        "partitions": PARTITIONS // processes,
        "group": f"bench-{uuid4().hex}",
    }
    with TemporaryDirectory() as directory, ExitStack() as stack:
        running = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, str(PROGRAM), json.dumps(plan)],
                    cwd=directory,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(processes)
        ]
        for program in running:
            assert program.stdout is not None and program.stdout.readline() == "joined\n", "a process did not join"
        for program in running:
            assert program.stdin is not None
            program.stdin.write("\n")
            program.stdin.flush()
        outputs = [program.communicate(timeout=PROGRAM_SECONDS)[0] for program in running]
    return _figures(messages, [json.loads(output.splitlines()[-1]) for output in outputs])


@contextmanager
def _topics(scale: Scale, *partitions: int) -> Iterator[tuple[str, int, list[str]]]:
    """Run a broker with a topic of 100 B messages for each number of partitions: (address, messages, topics)."""
    messages = scale.of(MESSAGES, MESSAGES_MIN)
    values = [random.Random(SEED).randbytes(100)]
    with ExitStack() as stack:
        server = stack.enter_context(flakelog())
        topics = Topics(server.address)
        names = [stack.enter_context(topics.fresh(number)) for number in partitions]
        for name, number in zip(names, partitions, strict=True):
            _fill(server.address, name, number, values, messages)
        yield server.address, messages, names


@contextmanager
def _topology_row(scale: Scale) -> Iterator[Contenders]:
    with _topics(scale, PARTITIONS) as (address, messages, (topic,)):
        plan = {"servers": address, "topic": topic, "messages": messages}
        contenders: Contenders = {name: partial(_run, root, plan) for name, root in checkouts(scale).items()}
        bare = stream_program.BARE_LOOP
        peer = partial(stream_program.run, bare, address, topic, messages)
        yield {**contenders, stream_program.GUARANTEES[bare]: peer}


@contextmanager
def _partitions_row(scale: Scale) -> Iterator[Contenders]:
    many = scale.of(PARTITIONS_MANY, 10)
    with _topics(scale, 1, many) as (address, messages, topics):
        contenders: Contenders = {
            f"{name}, {count_of(number)}": partial(
                _run, root, {"servers": address, "topic": topic, "messages": messages}
            )
            for name, root in checkouts(scale).items()
            for number, topic in zip((1, many), topics, strict=True)
        }
        yield contenders


def count_of(partitions: int) -> str:
    """Return the number of partitions in words."""
    return "1 partition" if partitions == 1 else f"{partitions:,} partitions"


@contextmanager
def _processes_row(scale: Scale) -> Iterator[Contenders]:
    with _topics(scale, PARTITIONS) as (address, messages, (topic,)):
        yield {
            f"{OURS}, {number} process{'es' if number > 1 else ''}": partial(
                _run_group, address, topic, messages, number
            )
            for number in (1, 2)
        }


@contextmanager
def _held_row(scale: Scale) -> Iterator[Contenders]:
    with _topics(scale, 1) as (address, messages, (topic,)):
        plan = {"servers": address, "topic": topic, "messages": messages}
        yield {
            f"{OURS}, all acked at once": partial(_run, checkouts(scale)[OURS], plan),
            f"{OURS}, the first message held": partial(
                _run, checkouts(scale)[OURS], plan | {"held": True}
            ),
        }


@contextmanager
def _words_row(scale: Scale) -> Iterator[Contenders]:
    messages = scale.of(SENTENCES, MESSAGES_MIN)
    chance = random.Random(SEED)
    words = [b"word%d" % number for number in range(WORDS)]
    sentences = [b" ".join(chance.choices(words, k=WORDS_IN_SENTENCE)) for _ in range(SENTENCES_KINDS)]
    with flakelog() as server, Topics(server.address).fresh(1) as topic:
        _fill(server.address, topic, 1, sentences, messages)
        plan = {"servers": server.address, "topic": topic, "messages": messages, "words": True}
        contenders = {f"{OURS}, at least once: acks per message": partial(_run, checkouts(scale)[OURS], plan)}
        for name in stream_program.installed():
            contenders[stream_program.GUARANTEES[name]] = partial(
                stream_program.run, name, server.address, topic, messages
            )
        yield contenders


def _copy(root: Path, plan: dict[str, Any]) -> Figures:
    """Copy the messages of a topic to a new one."""
    sink = f"sink-{uuid4().hex}"
    with Client(plan["servers"]) as client:
        client.create_topic(sink, PARTITIONS)
    return per_message(plan["messages"], run_program(SINK_PROGRAM, root, plan | {"sink": sink}))


@contextmanager
def _sink_row(scale: Scale) -> Iterator[Contenders]:
    with _topics(scale, PARTITIONS) as (address, messages, (topic,)):
        plan = {"servers": address, "source": topic, "messages": messages}
        contenders: Contenders = {
            f"{name}, {how}": partial(_copy, root, plan | {"how": how})
            for name, root in checkouts(scale).items()
            for how in (AT_LEAST_ONCE, EXACTLY_ONCE)
        }
        yield {**contenders, "confluent-kafka, a plain loop, exactly once": partial(_copy, ROOT, plan | {"how": PLAIN})}


ROWS = [
    Row("topology", "a log of 4 partitions to a spout to a bolt, 100 B, each message acked", _topology_row),
    Row("topology-partitions", "the same with 1 partition, and with 1,000", _partitions_row),
    Row("topology-processes", "the same in one and in two processes of a consumer group", _processes_row),
    Row("topology-held", "the same while the first message stays unacked to the end", _held_row),
    Row("log-sink", "100 B messages copied from a topic to another, 4 partitions each, by LogSink", _sink_row),
    Row("word-count", "words of sentences counted in memory, one process, one partition", _words_row),
]
