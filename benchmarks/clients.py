"""Small requests as applications send them, beside Apache Kafka: partitions in turn, varying sizes, two partitions in a
request, idempotent producers, Produce and Fetch on one connection, thousands of connections."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.brokers import Topics, brokers
from benchmarks.load import CONNECTIONS, Load, run_load
from benchmarks.measure import Contenders, Row, Scale
from benchmarks.native import Unavailable
from benchmarks.plan import VALUE_BYTES_MAX, VALUE_BYTES_MIN, one_each, produce_then_fetch, sizes_vary, two_each
from benchmarks.single import DURABLE, DURABLY, Work, load_row

REQUESTS = 200_000
MANY_CONNECTIONS = 2_000
OTHER_FILES = 500  # of a broker and of the load program, beside the connections
PRODUCER_BASE = 1_000_000


def _in_turn(partitions: int) -> Load:
    return Load(sizes_vary, partitions=partitions, step=1)


@contextmanager
def _connections_row(scale: Scale) -> Iterator[Contenders]:
    """Each connection keeps one of 50 partitions and has one request outstanding."""
    many = scale.of(MANY_CONNECTIONS, 2 * CONNECTIONS)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < many + OTHER_FILES:
        raise Unavailable(f"{many + OTHER_FILES} open files are needed, the hard limit is {most} (ulimit -Hn)")
    count = scale.of(REQUESTS, many)
    with TemporaryDirectory() as name, brokers(scale) as peers:
        topics = {who: Topics(peer.address) for who, peer in peers.items()}
        yield {
            f"{who}, {number:,} connections": partial(
                run_load, peer, topics[who], Path(name), Load(one_each, connections=number, partitions=50), count
            )
            for who, peer in peers.items()
            for number in (CONNECTIONS, many)
        }


_SIZES = f"record of {VALUE_BYTES_MIN} to {VALUE_BYTES_MAX} B"

ROWS = [
    *(
        Row(
            f"turn-{partitions}p",
            f"one {_SIZES} per request, {CONNECTIONS} connections, each sends to {partitions} partitions in turn",
            partial(load_row, Work(_in_turn(partitions), REQUESTS)),
        )
        for partitions in (10, 50, 100)
    ),
    Row(
        "durable-turn-50p",
        "turn-50p, each answered when it is on the disk (Kafka: flush.messages=1)",
        partial(load_row, Work(_in_turn(50)._replace(config=DURABLE), 100_000, **DURABLY)),
    ),
    Row(
        "two-partitions",
        f"two partitions in each request, one 100 B record for each, {CONNECTIONS} connections, 10 partitions in turn",
        partial(load_row, Work(Load(two_each, partitions=10, step=1), REQUESTS)),
    ),
    Row(
        "idempotent-5",
        f"one 100 B record per request, {CONNECTIONS} idempotent producers, five requests in flight, 50 partitions",
        partial(load_row, Work(Load(one_each, partitions=50, depth=5, producer=PRODUCER_BASE), REQUESTS)),
    ),
    Row(
        "produce-and-fetch",
        f"{CONNECTIONS} connections alternate a Produce of 100 B with a Fetch from that record on, 10 partitions",
        partial(load_row, Work(Load(produce_then_fetch, partitions=10), REQUESTS)),
    ),
    Row(
        "connections-2000",
        f"one 100 B record per request, 50 partitions, {CONNECTIONS} and {MANY_CONNECTIONS:,} connections",
        _connections_row,
    ),
]
