"""Mirrors: list those that publish their figures in a cluster, and pause and resume them.

The documents come from a topic that others can write to. So nothing in them is trusted to be there, or to be of a type.
"""

from typing import Any

from broker.client.blocking import Client
from broker.client.core import EARLIEST
from broker.client.errors import BrokerError
from broker.client.log_record import Record
from broker.client.mirror import document, orders
from broker.client.mirror.figures import PAUSED as PAUSED  # noqa: F401  (for its users)
from broker.client.mirror.figures import RUNNING as RUNNING
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode
from flakelog.operations.errors import NotPossible

BACK_MS = 15_000  # longer than a document is valid, so that each process has one in this time


def list_mirrors(client: Client, now_ms: int) -> list[dict[str, Any]]:
    """Return the documents of the mirrors that copy into this cluster now, by name. Raise ClientError."""
    from spout.figures.document import running  # documents of mirrors expire as those of topologies do

    fresh = running(((record.key, record.value) for record in _records(client, document.TOPIC, now_ms)), now_ms)
    return sorted(fresh, key=lambda fields: (str(fields.get("name")), str(fields.get("from")), str(fields.get("pid"))))


def paused(client: Client) -> frozenset[str]:
    """Return the names of the mirrors that are to pause. Raise ClientError."""
    known = orders.Orders()
    known.read((record.key, record.value) for record in _records(client, orders.TOPIC))
    return frozenset(known.paused)


def check(client: Client, name: str, state: str) -> None:
    """Raise NotPossible if a mirror has been ordered to this state, running or paused, already. Raise ClientError."""
    is_paused = name in paused(client)
    if state == PAUSED and is_paused:
        raise NotPossible(f"the mirror {name} is paused already; `flakelog mirror resume` lets it go on")
    if state == RUNNING and not is_paused:
        raise NotPossible(f"the mirror {name} is not paused")


def set_state(client: Client, name: str, state: str, now_ms: int) -> None:
    """Let all processes of a mirror pause, or go on. Raise NotPossible, ClientError."""
    check(client, name, state)
    there = {str(fields.get("name")) for fields in list_mirrors(client, now_ms)}
    if state == PAUSED and name not in there:
        others = f"; these do: {', '.join(sorted(there))}" if there else ", and no other does"
        raise NotPossible(f"no mirror {name} copies into this cluster now{others}")
    value = orders.pause_order(now_ms) if state == PAUSED else None
    batch = encode_batch([BatchRecord(0, 0, name.encode(), value)], base_timestamp_ms=now_ms)
    try:
        client.produce(orders.TOPIC, 0, batch)
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        client.create_topic(orders.TOPIC, 1, orders.TOPIC_CONFIGS)
        client.produce(orders.TOPIC, 0, batch)


def _records(client: Client, topic: str, now_ms: int | None = None) -> list[Record]:
    """Return the records of a topic, or those of the last BACK_MS; none if it does not exist."""
    records: list[Record] = []
    try:
        offset = client.find_offset(topic, 0, EARLIEST if now_ms is None else now_ms - BACK_MS)
        while True:
            more, following = client.fetch(topic, 0, offset, max_wait_ms=0)
            records += more
            if following == offset:
                return records
            offset = following
    except BrokerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return records
