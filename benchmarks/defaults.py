"""librdkafka with a client's default settings: the CPU time that its fetches and its waiting cost the broker."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from uuid import uuid4

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.bulk import fetch, produce
from benchmarks.measure import Contenders, Figures, Row, Scale
from benchmarks.native import program, run_program
from benchmarks.plan import VALUE_BYTES

FETCH_MESSAGES, FETCH_MESSAGE_BYTES = 1_000_000, 1024
TRICKLE_PER_SECOND, TRICKLE_SECONDS = 1_000, 60


@contextmanager
def _fetch_row(scale: Scale) -> Iterator[Contenders]:
    """A member of a new group reads a topic from its beginning."""
    count = scale.of(FETCH_MESSAGES)

    def run(peer: Peer, topic: str) -> Figures:
        return fetch(peer, topic, count, "subscribe", f"group.id={uuid4()}", "auto.offset.reset=earliest")

    with brokers(scale) as peers, ExitStack() as stack:
        contenders = {}
        for who, peer in peers.items():
            topic = stack.enter_context(Topics(peer.address).fresh())
            produce(peer, topic, count, FETCH_MESSAGE_BYTES, 1)
            contenders[who] = partial(run, peer, topic)
        yield contenders


def _trickle(peer: Peer, topics: Topics, messages: int) -> Figures:
    with topics.fresh() as topic:
        numbers = map(str, (TRICKLE_PER_SECOND, messages, VALUE_BYTES))
        argv = program("trickle"), topic, str(uuid4()), *numbers, peer.address, str(peer.pid)
        seconds, p50_us, p99_us, cpu = run_program(*argv)
        return {"CPU s": cpu, "msg/s": messages / seconds, "p50 us": p50_us, "p99 us": p99_us}


@contextmanager
def _trickle_row(scale: Scale) -> Iterator[Contenders]:
    count = scale.of(TRICKLE_PER_SECOND * TRICKLE_SECONDS)
    with brokers(scale) as peers:
        yield {who: partial(_trickle, peer, Topics(peer.address), count) for who, peer in peers.items()}


ROWS = [
    Row("fetch-default", "fetch, 1 KiB, from the page cache, librdkafka with its default settings", _fetch_row),
    Row(
        "trickle-1000",
        f"{TRICKLE_PER_SECOND:,} messages of 100 B a second for {TRICKLE_SECONDS} s, producer and consumer with "
        "librdkafka's default settings",
        _trickle_row,
    ),
]
