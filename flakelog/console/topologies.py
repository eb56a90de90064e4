"""Topologies that run, by the documents of their processes (spout/figures/document.py), and one with its graph.

A process that stops deletes its document. A process that is killed leaves its document, which expires. A topology of
which all documents have expired is listed as lost.

The documents come from a topic that others can write to. So nothing in them is trusted to be there, or to be of a type.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from broker.client.blocking import Client
from broker.client.group_config import LONG_WAIT_MS
from flakelog.console.json_fields import list_of, mapping_of, mappings_of, number_of, text_of
from flakelog.console.messages import read_partition_records, size_of

BACK_MS = 15_000  # longer than a document is valid, so that each process has one in this time
BYTES_MAX = 16 << 20  # of documents to read for a page: those of ten large processes in a minute
LOST_MS = 7 * 86_400_000  # how long a lost topology is listed
LOST_MAX = 50
LOST_BYTES_MAX = 32 << 20  # to read of the topic for lost ones: two segments, and older segments that are compacted
PARTITIONS_SHOWN = 200
PROBLEMS_SHOWN = 50
PROCESSES_SHOWN = 100  # inside Storm each task is a process
COMPONENTS_MAX = 200
POINTS = ("emitted", "acked", "failed", "messages behind")


class TopologyRow(NamedTuple):
    """A running topology over all its processes. A figure is None while it is not known."""

    id: str
    name: str
    states: Sequence[str]
    processes: int
    acked: float
    failed: float
    lag: int | None
    lag_ms: int | None
    in_flight: int
    dead_letters: int
    problems: int


class LostRow(NamedTuple):
    """A topology that ended without a word: when its last process told of itself, and how many processes it had."""

    id: str
    name: str
    at_ms: int
    processes: int


class ComponentRow(NamedTuple):
    """A spout or a bolt: its tasks and its rates in a second, over all processes.

    The latencies are those of the slowest process, because shares of a whole do not add up.
    """

    name: str
    kind: str
    tasks: int
    rates: Mapping[str, float]
    errors: int
    p50_ms: float | None
    p99_ms: float | None
    inputs: Sequence[tuple[str, str, str]]


class Node(NamedTuple):
    """A box of the graph, with its upper left corner."""

    component: ComponentRow
    x: int
    y: int


class Edge(NamedTuple):
    """A stream of the graph, as the path of an SVG, with a label and its place."""

    path: str
    label: str
    x: int
    y: int


class Graph(NamedTuple):
    """The graph of a topology as boxes and curves."""

    nodes: Sequence[Node]
    edges: Sequence[Edge]
    width: int
    height: int


class TopologyPage(NamedTuple):
    """A topology. `lost_ms` is when a lost one told of itself last, None if it runs."""

    row: TopologyRow
    components: Sequence[ComponentRow]
    graph: Graph
    partitions: Sequence[Mapping[str, Any]]
    partitions_left_out: int
    processes: Sequence[Mapping[str, Any]]
    problems: Sequence[str]
    dead_letter_topics: Sequence[str]
    group_waits: Sequence[str] = ()
    lost_ms: int | None = None


def read_documents(client: Client, topic: str, partitions: Iterable[int], now_ms: int) -> list[dict[str, Any]]:
    """Return the documents of the topologies that run. Raise ClientError or WireError."""
    from spout.figures.document import running

    records = []
    for number in partitions:
        start = client.find_offset(topic, number, now_ms - BACK_MS)
        records += read_partition_records(client, topic, number, start, BYTES_MAX)[0]
    return running(((record.key, record.value) for record in records), now_ms)


def read_lost(client: Client, topic: str, starts: Mapping[int, int], now_ms: int) -> list[dict[str, Any]]:
    """Return the expired documents of processes that did not delete them, by the topic's records from `starts` on.

    Documents before the last clean stop of a process of their topology do not count. Raise ClientError or WireError.
    """
    latest: dict[tuple[int, bytes], tuple[int, bytes | None]] = {}
    stopped: dict[bytes, int] = {}  # by topology: the number of its last tombstone among the records
    count = 0
    for number, offset in starts.items():
        bytes_left = LOST_BYTES_MAX
        while bytes_left > 0:
            records, following = read_partition_records(client, topic, number, offset, 1 << 20)
            if following == offset:
                break
            for record in records:
                count, key = count + 1, record.key or b""
                latest[number, key] = count, record.value
                if record.value is None:
                    stopped[_topology_of(key)] = count
            bytes_left -= sum(map(size_of, records))
            offset = following
    later = (value for (_, key), (at, value) in latest.items() if at > stopped.get(_topology_of(key), 0))
    return lost_documents(later, now_ms)


def _topology_of(key: bytes) -> bytes:
    return key.rpartition(b"/")[0]


def lost_documents(values: Iterable[bytes | None], now_ms: int) -> list[dict[str, Any]]:
    """Return the documents that expired in the last LOST_MS, of topologies of which none is fresh."""
    from spout.figures.document import decode, is_fresh

    documents = [document for value in values if value is not None and (document := decode(value))]
    running = {text_of(snapshot.get("topology_id")) for snapshot in documents if is_fresh(snapshot, now_ms)}
    return [
        snapshot
        for snapshot in documents
        if is_fresh(snapshot, now_ms - LOST_MS) and text_of(snapshot.get("topology_id")) not in running
    ]


def lost_rows(documents: Iterable[Mapping[str, Any]]) -> list[LostRow]:
    """Return a row for each lost topology, the one that was lost last first."""
    rows = [
        LostRow(id, text_of(some[0].get("topology")) or id, max(map(_at_ms, some)), len(some))
        for id, some in _by_id(documents).items()
    ]
    return sorted(rows, key=lambda row: (-row.at_ms, row.id))[:LOST_MAX]


def topology_rows(documents: Iterable[Mapping[str, Any]]) -> list[TopologyRow]:
    """Return a row for each topology, by name."""
    return sorted((_row(id, some) for id, some in _by_id(documents).items()), key=lambda row: (row.name, row.id))


def topology_page(documents: Iterable[Mapping[str, Any]], id: str) -> TopologyPage | None:
    """Return the topology with this id, None if it does not run."""
    mine = [document for document in documents if text_of(document.get("topology_id")) == id]
    if not mine:
        return None
    components = _components(mine)
    partitions = [partition for snapshot in mine for partition in mappings_of(snapshot.get("partitions"))]
    partitions.sort(key=_by_need)
    left_out = max(len(partitions) - PARTITIONS_SHOWN, 0)
    left_out += sum(int(number_of(snapshot.get("partitions_left_out")) or 0) for snapshot in mine)
    letters = {text_of(topic) for snapshot in mine for topic in list_of(snapshot.get("dead_letter_topics"))}
    return TopologyPage(
        row=_row(id, mine),
        components=components,
        graph=graph_of(components),
        partitions=[_partition(partition) for partition in partitions[:PARTITIONS_SHOWN]],
        partitions_left_out=left_out,
        processes=[_process(snapshot) for snapshot in mine[:PROCESSES_SHOWN]],
        problems=[problem for snapshot in mine for problem in _problems(snapshot)][:PROBLEMS_SHOWN],
        dead_letter_topics=sorted(letters),
        group_waits=[wait for snapshot in mine for wait in _group_waits(snapshot)][:PROBLEMS_SHOWN],
    )


def lost_page(documents: Iterable[Mapping[str, Any]], id: str) -> TopologyPage | None:
    """Return the last figures of a lost topology, None if none with this id was lost."""
    mine = [document for document in documents if text_of(document.get("topology_id")) == id]
    page = topology_page(mine, id)
    return None if page is None else page._replace(lost_ms=max(map(_at_ms, mine)))


def points_of(row: TopologyRow, components: Sequence[ComponentRow]) -> list[float | None]:
    """Return the values of POINTS."""
    emitted = sum(component.rates["emitted"] for component in components if component.kind == "spout")
    return [emitted, row.acked, row.failed, row.lag]


# --- parts of a document ---------------------------------------------------------------------------------------------


def _row(id: str, documents: Sequence[Mapping[str, Any]]) -> TopologyRow:
    from spout.figures.model import add_lags

    spouts = [component for component in _components(documents) if component.kind == "spout"]
    # A process that reads no partition has no lag, as each bolt's inside Storm.
    lags = [mapping_of(snapshot.get("lag")) for snapshot in documents if mappings_of(snapshot.get("partitions"))]
    letters = 0.0
    for document in documents:
        for component in mappings_of(document.get("components")):
            letters += number_of(mapping_of(component.get("messages")).get("dead_lettered")) or 0
    return TopologyRow(
        id=id,
        name=text_of(documents[0].get("topology")) or id,
        states=sorted({text_of(snapshot.get("state")) for snapshot in documents}),
        processes=len(documents),
        acked=sum(spout.rates["acked"] for spout in spouts),
        failed=sum(spout.rates["failed"] for spout in spouts),
        lag=add_lags("lag", [_whole(lag.get("lag")) for lag in lags]),
        lag_ms=add_lags("lag_ms", [_whole(lag.get("lag_ms")) for lag in lags]),
        in_flight=int(sum(number_of(snapshot.get("in_flight")) or 0 for snapshot in documents)),
        dead_letters=int(letters),
        problems=sum(len(list(_problems(snapshot))) for snapshot in documents),
    )


def _whole(value: object) -> int | None:
    number = number_of(value)
    return None if number is None else int(number)


def _by_id(documents: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    by_id: dict[str, list[Mapping[str, Any]]] = {}
    for document in documents:
        by_id.setdefault(text_of(document.get("topology_id")), []).append(document)
    return by_id


def _at_ms(document: Mapping[str, Any]) -> int:
    return int(number_of(document.get("at_ms")) or -1)


def _components(documents: Sequence[Mapping[str, Any]]) -> list[ComponentRow]:
    from spout.figures.model import RATES

    by_name: dict[str, ComponentRow] = {}
    for document in documents:
        rates, latencies = mapping_of(document.get("rates")), mapping_of(document.get("latency_ms"))
        for component in mappings_of(document.get("components"))[:COMPONENTS_MAX]:
            name = text_of(component.get("name"))
            own = mapping_of(rates.get(name))
            before = by_name.get(name)
            tasks = mappings_of(component.get("tasks"))
            by_name[name] = ComponentRow(
                name,
                text_of(component.get("kind")),
                int(number_of(component.get("parallelism")) or 0) + (before.tasks if before else 0),
                {key: (number_of(own.get(key)) or 0.0) + (before.rates[key] if before else 0.0) for key in RATES},
                int(sum(number_of(task.get("errors")) or 0 for task in tasks)) + (before.errors if before else 0),
                _longest(mapping_of(latencies.get(name)).get("p50"), before.p50_ms if before else None),
                _longest(mapping_of(latencies.get(name)).get("p99"), before.p99_ms if before else None),
                [
                    (text_of(source.get("component")), text_of(source.get("stream")), text_of(source.get("grouping")))
                    for source in mappings_of(component.get("inputs"))
                ],
            )
    return list(by_name.values())


def _longest(value: object, before: float | None) -> float | None:
    """Return the longer of two times. Either may be unknown; if both are, return None."""
    return max((wait_s for wait_s in (number_of(value), before) if wait_s is not None), default=None)


def _problems(document: Mapping[str, Any]) -> Iterable[str]:
    from spout.figures.model import NOT_TAKEN

    for component in mappings_of(document.get("components")):
        if group_error := text_of(component.get("group_error") or ""):
            yield f"{text_of(component.get('name'))} {NOT_TAKEN}: {group_error}"
        for outage in mappings_of(component.get("outages")):
            yield f"{text_of(component.get('name'))}: {text_of(outage.get('text'))}"
    for partition in mappings_of(document.get("partitions")):
        trouble = partition.get("error") or partition.get("no_progress")
        if trouble or partition.get("phase") in ("fenced", "broken"):
            name = f"{text_of(partition.get('topic'))}-{text_of(partition.get('partition'))}"
            task = f"{text_of(partition.get('component'))}, {text_of(partition.get('phase'))}"
            yield f"{name} ({task}): {text_of(trouble)}"


def _group_waits(document: Mapping[str, Any]) -> Iterable[str]:
    for component in mappings_of(document.get("components")):
        wait_ms = number_of(component.get("group_wait_ms")) or 0
        if wait_ms >= LONG_WAIT_MS:
            process = f"process {text_of(document.get('pid'))} at {text_of(document.get('host'))}"
            yield f"{text_of(component.get('name'))} waits for its group for {wait_ms / 1000:.0f} s ({process})"


def _by_need(partition: Mapping[str, Any]) -> tuple[bool, float, str]:
    """Sort partitions with trouble first, then those with the most lag."""
    trouble = partition.get("error") or partition.get("no_progress")
    return not trouble, -(number_of(partition.get("lag")) or 0), text_of(partition.get("topic"))


def _partition(partition: Mapping[str, Any]) -> dict[str, Any]:
    names = ("watermark", "high_watermark", "lag", "lag_ms", "pending")
    numbers = {name: number_of(partition.get(name)) for name in names}
    texts = {name: text_of(partition.get(name)) for name in ("component", "topic", "partition", "phase")}
    return numbers | texts | {"error": text_of(partition.get("error") or partition.get("no_progress"))}


def _process(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: int(number_of(snapshot.get(name)) or -1) for name in ("started_ms", "at_ms")}
    own = mappings_of(snapshot.get("components"))
    is_task = len(own) == 1 and own[0].get("parallelism") == 1  # as all are inside Storm
    texts = {name: text_of(snapshot.get(name)) for name in ("run_id", "host", "pid", "state")}
    return times | texts | {"task": text_of(own[0].get("name")) if is_task else ""}


# --- the graph -------------------------------------------------------------------------------------------------------

BOX_WIDTH, BOX_HEIGHT = 168, 58
GAP_X, GAP_Y, MARGIN = 84, 22, 16


def graph_of(components: Sequence[ComponentRow]) -> Graph:
    """Return the graph from left to right: a component stands right of all those it gets tuples from."""
    by_name = {component.name: component for component in components}
    layers = _layers(by_name)
    columns: dict[int, list[ComponentRow]] = {}
    for component in components:
        columns.setdefault(layers[component.name], []).append(component)
    tallest = max((len(some) for some in columns.values()), default=0)
    height = 2 * MARGIN + max(tallest * (BOX_HEIGHT + GAP_Y) - GAP_Y, 0)
    nodes: dict[str, Node] = {}
    for layer, some in columns.items():
        top = (height - len(some) * (BOX_HEIGHT + GAP_Y) + GAP_Y) // 2
        for at, component in enumerate(some):
            nodes[component.name] = Node(
                component, MARGIN + layer * (BOX_WIDTH + GAP_X), top + at * (BOX_HEIGHT + GAP_Y)
            )
    edges = [
        _edge(nodes[source], nodes[component.name], stream, grouping)
        for component in components
        for source, stream, grouping in component.inputs
        if source in nodes
    ]
    width = 2 * MARGIN + max((layer + 1 for layer in columns), default=0) * (BOX_WIDTH + GAP_X) - GAP_X
    return Graph(list(nodes.values()), edges, max(width, 0), height)


def _layers(components: Mapping[str, ComponentRow]) -> dict[str, int]:
    """Return the longest way to each component from one without inputs. A circle ends the search."""
    layers = dict.fromkeys(components, 0)
    for _ in range(min(len(components), COMPONENTS_MAX)):
        changed = False
        for name, component in components.items():
            wanted = max((layers[source] + 1 for source, _, _ in component.inputs if source in layers), default=0)
            if wanted > layers[name] and wanted < len(components):
                layers[name], changed = wanted, True
        if not changed:
            break
    return layers


def _edge(source: Node, target: Node, stream: str, grouping: str) -> Edge:
    x, y = source.x + BOX_WIDTH, source.y + BOX_HEIGHT // 2
    to_x, to_y = target.x, target.y + BOX_HEIGHT // 2
    middle = (x + to_x) // 2
    label = grouping if stream in ("", "default") else f"{stream}: {grouping}"
    return Edge(f"M{x} {y}C{middle} {y} {middle} {to_y} {to_x} {to_y}", label, middle, (y + to_y) // 2 - 5)
