"""The writes and orders of Apache Kafka's controller, act by act (tests/golden/controller/README.md)."""

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent / "controller"
_ORDER = re.compile(r"(\S+) to (\d) from (\d) (\w+) ?(type0)? ?(.*?)(?: ?live \[(.*?)\])? -> \S+$")
_TOPIC = re.compile(r"(\w+)\((.*?)\)(?:; |$)")
_STATE = re.compile(
    r"(\d+):L(-?\d+) e(-?\d+) isr\[(.*?)\] pe(\d+) r\[(.*?)\](?: \+\[\d*\] -\[\d*\])?( new)?(?: off\[(.*?)\])?"
)
_STOP = re.compile(r'"PartitionIndex": (\d+), "LeaderEpoch": (-?\d+), "DeletePartition": (\w+)')


class Write(NamedTuple):
    operation: str
    path: str
    data: str


class Order(NamedTuple):
    """A request to a broker. `partitions` are sorted, because Kafka's order is that of a hash map."""

    broker_id: int
    kind: str
    partitions: tuple[tuple[object, ...], ...]
    live: tuple[int, ...]


def writes(first_zxid, last_zxid):
    """Return the writes between two zxids, both included."""
    acts = []
    for line in (HERE / "writes.txt").read_text().splitlines():
        zxid, operation, path, *data = line.split(" ", 3)
        if first_zxid <= int(zxid) <= last_zxid:
            acts.append(Write(operation, path, data[0] if data else ""))
    return acts


def orders(first_s, last_s):
    """Return the orders of a time, those to each broker in order."""
    acts = []
    for line in (HERE / "orders.txt").read_text().splitlines():
        match = _ORDER.match(line)
        if match and first_s <= float(match[1]) <= last_s and match[4] != "ControlledShutdown":
            acts.append(Order(int(match[2]), match[4], _partitions(match[4], match[6]), tuple(sorted(_ids(match[7])))))
    return sorted(acts, key=lambda order: order.broker_id)


def _partitions(kind, text):
    if kind == "StopReplica":
        topics = re.findall(r"(\w+)\((\[.*?\])\)", text)
        rows = [(topic, int(i), int(e), d == "true") for topic, states in topics for i, e, d in _STOP.findall(states)]
        return tuple(sorted(rows))
    rows = []
    for topic, states in _TOPIC.findall(text):
        for index, leader, epoch, isr, partition_epoch, replicas, is_new, offline in _STATE.findall(states):
            rows.append(
                (
                    topic, int(index), int(leader), int(epoch), _ids(isr), int(partition_epoch), _ids(replicas),
                    bool(is_new), _ids(offline),
                )  # fmt: skip
            )
    return tuple(sorted(rows))


def _ids(text):
    return tuple(int(number) for number in (text or "").split(", ") if number)
