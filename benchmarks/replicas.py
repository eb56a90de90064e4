"""Three brokers with three copies of each partition, beside three of Apache Kafka's: bulk, small requests, what three
copies cost beside one, idle brokers, and the time until other brokers lead the partitions of one that ended."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from confluent_kafka.admin import AdminClient, PartitionMetadata

from benchmarks import bulk
from benchmarks.brokers import SETTINGS, Topics
from benchmarks.clusters import BROKERS, TIMEOUT_S, Cluster, Settings, clusters, in_turn, peer_of, produce_to
from benchmarks.load import CONNECTIONS, Load, run_on
from benchmarks.measure import Contenders, Figures, Row, Scale, await_idle, cpu_seconds
from benchmarks.plan import one_each

COPIES, COPIES_MIN = 3, 2
PARTITIONS, MANY_PARTITIONS = 50, 1_000
SESSION_MS = 6_000
IDLE_SECONDS, IDLE_SECONDS_MIN = 20, 1
POLL_SECONDS = 0.05
NO_LEADER = -1
REPLICATED = {
    "default.replication.factor": str(COPIES),
    "min.insync.replicas": str(COPIES_MIN),
    "offsets.topic.replication.factor": str(COPIES),
    "transaction.state.log.replication.factor": str(COPIES),
    "transaction.state.log.min.isr": str(COPIES_MIN),
    "log.segment.delete.delay.ms": SETTINGS["log.segment.delete.delay.ms"],
}
OPEN_FILES = 10_000
"""The files of partitions that a broker of ours may have open. It takes a fifth of the system's limit, which is mostly
524,288. Where the limit is 20,000, the unsynced files of 1,000 partitions do not fit, and each append has a log synced.
Kafka's brokers take what they need."""
OURS_REPLICATED = REPLICATED | {
    "flakelog.max.open.files": str(OPEN_FILES),
    "zookeeper.session.timeout.ms": str(SESSION_MS),
}
KAFKA_REPLICATED = REPLICATED | {
    "broker.session.timeout.ms": str(SESSION_MS),
    "broker.heartbeat.interval.ms": "2000",
}
REPLICAS = Settings(MappingProxyType(OURS_REPLICATED), MappingProxyType(KAFKA_REPLICATED))


# --- requests --------------------------------------------------------------------------------------------------------


@contextmanager
def _bulk_row(messages: int, size: int, partitions: int, scale: Scale) -> Iterator[Contenders]:
    """Produce with acks=all, which is librdkafka's default."""
    count = scale.of(messages)

    def run(cluster: Cluster, topics: Topics) -> Figures:
        peer = peer_of(cluster)
        with topics.fresh(partitions) as topic:
            bulk.ready_memory(COPIES * bulk.kept_bytes(count, size))
            await_idle(peer.pids)
            before = peer.cpu_seconds()
            figures = bulk.produce(peer, topic, count, size, partitions)
            await_idle(peer.pids)  # a follower outside of the quorum may be behind
            cpu_s = peer.cpu_seconds() - before
        return {"MB/s": figures["MB/s"], "msg/s": figures["msg/s"], "CPU ms/MB": cpu_s / (count * size / 1e6) * 1e3}

    with clusters(scale, REPLICAS, processes=False) as started:
        yield {name: partial(run, cluster, topics_of(cluster, COPIES)) for name, cluster in started.items()}


def topics_of(cluster: Cluster, copies: int) -> Topics:
    """Return topics on whose partitions request_load's connections find their leaders: connection 0, 50, 100 .. is to
    the first broker, as the leaders of partitions 0, 50, 100 .. are."""

    def place(partition: int) -> list[int]:
        return in_turn(partition % CONNECTIONS, copies=copies)

    return Topics(cluster.bootstrap, place)


def small(cluster: Cluster, topics: Topics, directory: Path, load: Load, requests: int) -> Figures:
    """Send small requests with acks=all, each to its partition's leader."""
    peer = peer_of(cluster)
    with topics.fresh(load.partitions) as topic:
        await_idle(peer.pids)
        return run_on(peer, topic, directory, load, requests)


@contextmanager
def _small_row(load: Load, requests: int, scale: Scale) -> Iterator[Contenders]:
    count = scale.of(requests, load.partitions)
    with TemporaryDirectory() as directory, clusters(scale, REPLICAS, processes=False) as started:
        yield {
            name: partial(small, cluster, topics_of(cluster, COPIES), Path(directory), load, count)
            for name, cluster in started.items()
        }


@contextmanager
def _copies_row(requests: int, scale: Scale) -> Iterator[Contenders]:
    """Compare three copies with one. Each connection sends to 20 of 1,000 partitions in turn, or to one of 50.

    Three copies get a third of the requests, which still take more processor time than all those with one copy.
    """
    loads = {
        f"{partitions:,} partitions": Load(one_each, partitions=partitions, step=CONNECTIONS)
        for partitions in (PARTITIONS, scale.of(MANY_PARTITIONS, 2 * CONNECTIONS))
    }
    with TemporaryDirectory() as directory, clusters(scale, REPLICAS, processes=False) as started:
        yield {
            f"{name}, {partitions}, {copies}": partial(
                small,
                cluster,
                topics_of(cluster, number),
                Path(directory),
                load,
                scale.of(requests // number, load.partitions),
            )
            for name, cluster in started.items()
            for partitions, load in loads.items()
            for copies, number in (("one copy", 1), ("three copies", COPIES))
        }


# --- 1,000 partitions ------------------------------------------------------------------------------------------------


@contextmanager
def _idle_row(scale: Scale) -> Iterator[Contenders]:
    """Read the processor time of three brokers without clients, after each partition has taken a record."""
    seconds = max(IDLE_SECONDS * scale.share, IDLE_SECONDS_MIN)
    partitions = scale.of(MANY_PARTITIONS, len(BROKERS))

    def run(cluster: Cluster) -> Figures:
        pids = peer_of(cluster).pids
        await_idle(pids)
        before = [cpu_seconds(pid) for pid in pids]
        time.sleep(seconds)
        shares = [(cpu_seconds(pid) - used) / seconds * 100 for pid, used in zip(pids, before, strict=True)]
        return {"mean % of a core": sum(shares) / len(shares), "most % of a core": max(shares)}

    with clusters(scale, REPLICAS) as started, ExitStack() as stack:
        for cluster in started.values():
            topic = stack.enter_context(topics_of(cluster, COPIES).fresh(partitions))
            produce_to(cluster, topic, range(partitions))
        yield {name: partial(run, cluster) for name, cluster in started.items()}


class _Leaving:
    """A broker that leads all partitions of a topic, and is about to end. It is not the controller."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        controller = self._admin.list_topics(timeout=TIMEOUT_S).controller_id
        self.number = next(broker for broker in BROKERS[1:] if broker != controller)

    def place(self, partition: int) -> list[int]:
        others = [broker for broker in in_turn(partition, copies=COPIES) if broker != self.number]
        return [self.number, *others]

    def end(self, *, cleanly: bool) -> None:
        self._cluster.end(self.number, cleanly=cleanly)

    def await_other_leaders(self, topic: str) -> None:
        self._await(topic, lambda partition: partition.leader not in (self.number, NO_LEADER))

    def come_back(self, topic: str) -> None:
        """Start the broker, and wait until it is in sync."""
        self._cluster.start(self.number)
        self._await(topic, lambda partition: len(partition.isrs) == COPIES)

    def _await(self, topic: str, is_so: Callable[[PartitionMetadata], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            partitions = self._admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions.values()
            if all(map(is_so, partitions)):
                return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{sum(not is_so(one) for one in partitions)} partitions have no such state")
            time.sleep(POLL_SECONDS)


@contextmanager
def _leaving(cluster: Cluster, partitions: int) -> Iterator[tuple[_Leaving, str]]:
    """Yield a broker and the topic that it leads. Afterwards the broker comes back."""
    leaving = _Leaving(cluster)
    with Topics(cluster.bootstrap, leaving.place).fresh(partitions) as topic:
        produce_to(cluster, topic, range(partitions))
        await_idle(peer_of(cluster).pids)
        yield leaving, topic
        leaving.come_back(topic)


def _time(leaving: _Leaving, topic: str, work: Callable[[], object]) -> Figures:
    """Do the work in a thread, and wait for its end and for the other leaders."""
    with ThreadPoolExecutor(1) as pool:
        begin = time.perf_counter()
        working = pool.submit(work)
        leaving.await_other_leaders(topic)
        moved = time.perf_counter() - begin
        working.result()
        return {"s": time.perf_counter() - begin, "s until all leaders have moved": moved}


def _kill(cluster: Cluster, partitions: int) -> Figures:
    """Kill the leader of all partitions, and produce to each of them.

    librdkafka looks for a leader that it lacks once a second, so that others lead before it knows of them.
    """
    with _leaving(cluster, partitions) as (leaving, topic):

        def work() -> None:
            leaving.end(cleanly=False)
            produce_to(cluster, topic, range(partitions))

        return _time(leaving, topic, work)


def _stop(cluster: Cluster, partitions: int) -> Figures:
    """Stop the leader of all partitions, and wait for the end of its process and for the other leaders."""
    with _leaving(cluster, partitions) as (leaving, topic):
        return _time(leaving, topic, partial(leaving.end, cleanly=True))


@contextmanager
def _leaving_row(run: Callable[[Cluster, int], Figures], processes: bool, scale: Scale) -> Iterator[Contenders]:
    partitions = scale.of(MANY_PARTITIONS, len(BROKERS))
    with clusters(scale, REPLICAS, processes=processes) as started:
        yield {name: partial(run, cluster, partitions) for name, cluster in started.items()}


_SMALL = "one 100 B record per request, acks=all, three copies"

ROWS = [
    *(
        Row(
            f"replicas-produce-{name}{suffix}",
            f"bulk produce with acks=all to three copies, {about}, {partitions} partition{'s' * (partitions > 1)}",
            partial(_bulk_row, messages, size, partitions),
        )
        for name, about, messages, size in (("100", "100 B", 2_000_000, 100), ("1k", "1 KiB", 200_000, 1024))
        for partitions, suffix in ((1, ""), (3, "-3p"))
    ),
    Row(
        "replicas-100-50p",
        f"{_SMALL}, {CONNECTIONS} connections, each keeps one of {PARTITIONS} partitions",
        partial(_small_row, Load(one_each, partitions=PARTITIONS), 100_000),
    ),
    Row("replicas-sync-100", f"{_SMALL}, one at a time", partial(_small_row, Load(one_each, connections=1), 10_000)),
    Row(
        "replicas-copies",
        f"one 100 B record per request, {CONNECTIONS} connections: three copies and one, {PARTITIONS} and "
        f"{MANY_PARTITIONS:,} partitions; the processor time is that of all three brokers",
        partial(_copies_row, 100_000),
    ),
    Row("replicas-idle", f"three brokers without clients, {MANY_PARTITIONS:,} partitions of three copies", _idle_row),
    Row(
        "replicas-kill",
        f"from kill -9 of the leader of {MANY_PARTITIONS:,} partitions until each takes a record with acks=all; a "
        f"session lasts {SESSION_MS / 1000:.0f} s",
        partial(_leaving_row, _kill, True),
    ),
    Row(
        "replicas-stop",
        f"from SIGTERM to the leader of {MANY_PARTITIONS:,} partitions until its process has ended and others lead",
        partial(_leaving_row, _stop, False),
    ),
]
