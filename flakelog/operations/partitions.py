"""Partitions: list them, find the bounds of their logs, and ask many at once, of which some may be offline or deleted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from broker.client.api_versions import METADATA
from broker.client.blocking import Client
from broker.client.core import Partition
from broker.client.errors import BrokerError, no_leader
from broker.client.log_record import Record
from broker.client.offset_lookup import find_bounds, find_offsets, find_positions
from broker.client.offset_spec import AtOffset, Bounds, Latest, OffsetSpec, Position
from broker.wire.fetch import READ_COMMITTED, READ_UNCOMMITTED
from flakelog.operations.cluster import partition_sizes
from flakelog.operations.errors import NotPossible

Answer = TypeVar("Answer")
INTERNAL = "__"  # the prefix of the broker's own topics, such as __consumer_offsets
FETCH_BYTES_MAX = 1 << 20
SEARCHED_AT_ONCE = 200  # in a request of a search: about 0.3 s, so that its progress is seen


def ask_each(
    partitions: Iterable[Partition], ask: Callable[[list[Partition]], dict[Partition, Answer]]
) -> tuple[dict[Partition, Answer], dict[Partition, BrokerError]]:
    """Return the answers to `ask`, and the errors of partitions that are offline or deleted.

    `ask` raises BrokerError if one of its partitions has an error. Then ask for each half, and so on.
    """
    wanted = list(partitions)
    if not wanted:
        return {}, {}
    try:
        return ask(wanted), {}
    except BrokerError as error:
        if len(wanted) == 1:
            return {}, {wanted[0]: error}
    half = len(wanted) // 2
    first, second = ask_each(wanted[:half], ask), ask_each(wanted[half:], ask)
    return first[0] | second[0], first[1] | second[1]


def ask_in_portions(
    partitions: Sequence[Partition],
    ask: Callable[[list[Partition]], dict[Partition, Answer]],
    step: Callable[[int], object],
    at_once: int = SEARCHED_AT_ONCE,
) -> tuple[dict[Partition, Answer], dict[Partition, BrokerError]]:
    """Ask as `ask_each` does, for `at_once` partitions at a time, and call `step` with their number after each."""
    answers: dict[Partition, Answer] = {}
    errors: dict[Partition, BrokerError] = {}
    for begin in range(0, len(partitions), at_once):
        portion = partitions[begin : begin + at_once]
        answered, failed = ask_each(portion, ask)
        answers |= answered
        errors |= failed
        step(len(portion))
    return answers, errors


def partitions_of(client: Client, topics: Sequence[str] = ()) -> list[Partition]:
    """Return the partitions of these topics, or of all topics if none is named."""
    described = [client.topic(name) for name in topics] if topics else client.topics()
    return [(topic.name, number) for topic in described for number in range(topic.partitions)]


def bounds_of(client: Client, topic: str, partition: int, committed: bool = False) -> tuple[int, int]:
    """Return (first offset, offset of the next message).

    With `committed`, the second is the start of the first open transaction if one is open.
    """
    return bounds_of_all(client, [(topic, partition)], committed)[topic, partition]


def bounds_of_all(
    client: Client, partitions: Iterable[Partition], committed: bool = False
) -> dict[Partition, tuple[int, int]]:
    """Return the bounds of partitions, as `bounds_of` does. A request asks for many, so that thousands take no time."""
    level = READ_COMMITTED if committed else READ_UNCOMMITTED
    return dict(client.run(find_bounds(client.core, partitions, isolation_level=level)))


def ends_of(client: Client, partitions: Iterable[Partition]) -> dict[Partition, int]:
    """Return the offset of each partition's next message, without partitions that do not answer."""
    return client.run(find_offsets(client.core, partitions, Latest(), failed={}))


def positions_of(
    client: Client, partitions: Iterable[Partition], spec: OffsetSpec, committed: bool = False
) -> dict[Partition, Position]:
    """Return the position in each partition. Raise NotPossible if a log does not have the offset of an AtOffset.

    With `committed`, a log ends at the start of its first open transaction.
    """
    level = READ_COMMITTED if committed else READ_UNCOMMITTED
    positions = client.run(find_positions(client.core, partitions, spec, isolation_level=level))
    for (topic, number), (offset, (begin, end), wanted) in positions.items():
        if isinstance(spec, AtOffset) and wanted != offset:
            raise NotPossible(f"{topic}-{number} has offsets {begin} to {end}, not {wanted}")
    return positions


def positions_at(client: Client, offsets: Mapping[Partition, int]) -> dict[Partition, Position]:
    """Return the position of each partition that has this offset. Raise NotPossible if a log does not have its offset.
    """
    positions = {}
    for (topic, number), (begin, end) in bounds_of_all(client, offsets).items():
        offset = offsets[topic, number]
        if not begin <= offset <= end:
            raise NotPossible(f"{topic}-{number} has offsets {begin} to {end}, not {offset}")
        positions[topic, number] = Position(offset, Bounds(begin, end), offset)
    return positions


def is_internal(topic: str) -> bool:
    """Return True for the broker's own topics."""
    return topic.startswith(INTERNAL)


def read_records(
    client: Client,
    partition: Partition,
    offset: int,
    end: int,
    *,
    committed: bool = False,
    max_bytes: int = FETCH_BYTES_MAX,
) -> Iterator[Record]:
    """Yield the records of a partition from an offset up to an end; the records of one fetch are in memory.

    Raise NotPossible if the broker gives nothing before the end.
    """
    topic, number = partition
    while offset < end:
        records, following = client.fetch(topic, number, offset, max_bytes=max_bytes, committed=committed)
        for record in records:
            if record.offset < end:
                yield record
        if following == offset:
            raise NotPossible(f"{topic}-{number} answers nothing at offset {offset}, though it goes to {end}")
        offset = following


# --- list ------------------------------------------------------------------------------------------------------------


class Replicas(NamedTuple):
    """The nodes of a partition; `leader` is -1 if it has none now."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]
    offline: tuple[int, ...] = ()
    """The replicas whose broker or disk is gone."""


@dataclass(frozen=True)
class ListedPartition:
    """A partition with its nodes, and with the bounds and bytes of its log, as far as brokers tell.

    `error` is why the partition does not answer.
    """

    topic: str
    partition: int
    nodes: Replicas
    begin: int | None
    end: int | None
    bytes: int | None
    error: BrokerError | None

    @property
    def leader(self) -> int | None:
        return self.nodes.leader if self.nodes.leader >= 0 else None

    @property
    def offsets(self) -> int | None:
        """The number of offsets from the log's first to its end."""
        return None if self.begin is None or self.end is None else self.end - self.begin

    @property
    def has_problem(self) -> bool:
        """True if the partition does not answer, or has replicas that are not in sync."""
        return self.error is not None or set(self.nodes.in_sync) != set(self.nodes.replicas)


def replicas(client: Client, topics: Sequence[str] = ()) -> dict[Partition, Replicas]:
    """Return the nodes of all partitions of these topics, or of all topics if none is named."""
    named = [{"name": name} for name in topics] or None
    answer = client.run(client.core.ask_any(METADATA, {"topics": named, "allow_auto_topic_creation": False}))
    nodes = {}
    for topic in answer.topics:
        if topic.error_code:
            raise BrokerError(int(topic.error_code), f"topic {topic.name}")
        for part in topic.partitions:
            nodes[str(topic.name), int(part.partition_index)] = Replicas(
                int(part.leader_id),
                int(part.leader_epoch),
                tuple(part.replica_nodes),
                tuple(part.isr_nodes),
                tuple(part.offline_replicas),
            )
    return dict(sorted(nodes.items()))


def list_partitions(
    client: Client, topics: Sequence[str] = (), *, with_internal: bool = False, with_sizes: bool = True
) -> list[ListedPartition]:
    """Return the partitions of these topics; if none is named, of all topics but the broker's own.

    `with_sizes`, ask all nodes for the bytes of their logs too.
    """
    wanted = {
        partition: nodes
        for partition, nodes in replicas(client, topics).items()
        if topics or with_internal or not is_internal(partition[0])
    }
    led = [partition for partition, nodes in wanted.items() if nodes.leader >= 0]
    sizes = partition_sizes(client) if led and with_sizes else {}
    bounds, errors = ask_each(led, lambda some: bounds_of_all(client, some))
    errors |= {partition: no_leader(*partition) for partition, nodes in wanted.items() if nodes.leader < 0}
    listed = []
    for (topic, partition), nodes in wanted.items():
        key = topic, partition
        begin, end = bounds.get(key, (None, None))
        listed.append(ListedPartition(topic, partition, nodes, begin, end, sizes.get(key), errors.get(key)))
    return listed


def errors_of(partitions: Iterable[ListedPartition]) -> dict[Partition, BrokerError]:
    """Return why partitions do not answer, without those that do."""
    return {(listed.topic, listed.partition): listed.error for listed in partitions if listed.error is not None}
