"""Polite clients beside a flooder, which sends as fast as its socket takes it; Apache Kafka gets the same flood."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.apache import Peer
from benchmarks.brokers import Topics, brokers
from benchmarks.load import Load, check_stored, options_of, play
from benchmarks.measure import Contenders, Figures, Row, Scale, await_idle
from benchmarks.plan import VALUE_BYTES, Plan, one_each, produce_request, questions

POLITE = 49
REQUESTS = 50_000
SECONDS_MAX = 5  # of a run: beside a flooder the polite clients may get little
LOAD = Load(one_each, connections=POLITE, partitions=POLITE, seconds=SECONDS_MAX)


class Flood(NamedTuple):
    plan: Callable[[str, int], Plan]
    reads: bool = True


def _produces(topic: str, partition: int) -> Plan:
    """Plan small Produce requests to the partition after those of the polite clients."""
    return Plan([produce_request(topic, {partition: bytes(VALUE_BYTES)})])


FLOODS = {
    "alone": None,
    "beside Produce": Flood(_produces),
    "beside Produce, answers unread": Flood(_produces, reads=False),
    "beside ListOffsets and Metadata": Flood(questions),
}


def _run(peer: Peer, topics: Topics, directory: Path, flood: Flood | None, requests: int) -> Figures:
    with topics.fresh(POLITE + 1) as topic:
        plan = LOAD.plan(topic, POLITE)
        options = options_of(LOAD) | {"requests": requests}
        if flood is None:
            played = play(peer, directory, plan, **options)
        else:
            played = play(peer, directory, plan, flood.plan(topic, POLITE), flood_reads=int(flood.reads), **options)
        await_idle(peer.pids)  # the next contender needs the processor
        check_stored(peer, topic, POLITE, played, unanswered=POLITE)
        figures = played.figures
    del figures["CPU us/req"]  # most of it is the flooder's
    if flood is not None:
        figures["flood sent/s"] = played.flood_sent / played.seconds
        figures["flood answered/s"] = played.flood_answers / played.seconds
    return figures


@contextmanager
def _flooder_row(scale: Scale) -> Iterator[Contenders]:
    count = scale.of(REQUESTS, POLITE)
    with TemporaryDirectory() as name, brokers(scale) as peers:
        topics = {who: Topics(peer.address) for who, peer in peers.items()}
        yield {
            f"{who}, {what}": partial(_run, peer, topics[who], Path(name), flood, count)
            for who, peer in peers.items()
            for what, flood in FLOODS.items()
        }


ROWS = [
    Row(
        "flooder",
        f"one 100 B record per request, {POLITE} connections, beside one that pipelines requests without end",
        _flooder_row,
    )
]
