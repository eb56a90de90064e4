"""SHELL (sockets, a clock, a log): manifests and receipts of replays and loads in a topic, for consoles elsewhere.

    topic   __flakelog_replays, compacted, one partition, on the cluster that is read
    key     PLACE/SHA256 of a replay, with the SHA-256 of its manifest, or PLACE/TOPIC/NUMBER of a load
    value   {"v": 1, "kind": "replay" or "load", "state": "planned", "done" or "withdrawn", "at_ms": ...,
             "place": "...", "manifest": {...}, "receipt": {...} or null}

A replay or a load never depends on it: an error is logged once, and nothing more is published by this process.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from broker.client.blocking import Client
from broker.client.errors import BrokerError, ClientError
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode, WireError

TOPIC = "__flakelog_replays"
TOPIC_CONFIGS = {"cleanup.policy": "compact"}
VERSION = 1
PLANNED, DONE, WITHDRAWN = "planned", "done", "withdrawn"
VALUE_BYTES_MAX = 900_000
"""A value fits Kafka's message.max.bytes of 1 MiB. A larger one goes without its ranges and files, see `left_out`."""
TIMEOUT_MS = 5_000  # of each request; the work has ended, or waits, meanwhile
_LONG = ("ranges", "files", "parts", "poison")

_log = logging.getLogger(__name__)


class ReplayTopic:
    """The topic on the cluster at `servers`. `security` has properties of Kafka's clients."""

    def __init__(self, servers: str, security: Iterable[tuple[str, str]] = ()) -> None:
        self._servers = servers
        self._security = tuple(security)
        self._failed = False

    def publish(
        self,
        key: str,
        kind: str,
        location: str,
        manifest: str,
        receipt: str | None = None,
        *,
        is_withdrawn: bool = False,
    ) -> None:
        """Publish a manifest, and the receipt if the work is done, both as JSON texts. Log a warning if that fails."""
        if self._failed:
            return
        now_ms = time.time_ns() // 1_000_000
        state = WITHDRAWN if is_withdrawn else PLANNED if receipt is None else DONE
        head = {"v": VERSION, "kind": kind, "state": state, "at_ms": now_ms, "place": location}
        value = value_of(head, json.loads(manifest), None if receipt is None else json.loads(receipt))
        try:
            self._send(encode_batch([BatchRecord(0, 0, key.encode(), value)], base_timestamp_ms=now_ms))
        except (ClientError, WireError, OSError, ValueError) as error:
            self._failed = True
            _log.warning("the %s is not published in %s at %s: %s", kind, TOPIC, self._servers, error)

    def _send(self, batch: bytearray) -> None:
        with Client(self._servers, timeout_ms=TIMEOUT_MS, security=dict(self._security)) as client:
            try:
                client.produce(TOPIC, 0, batch)
            except BrokerError as error:
                if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                _create(client)
                client.retry(lambda: client.core.produce(TOPIC, 0, batch), timeout_ms=TIMEOUT_MS)


def value_of(head: Mapping[str, Any], manifest: Mapping[str, Any], receipt: Mapping[str, Any] | None) -> bytes:
    """Return the JSON of a document, without its long lists if it would be larger than VALUE_BYTES_MAX."""
    value = json.dumps({**head, "manifest": manifest, "receipt": receipt}, separators=(",", ":")).encode()
    if len(value) <= VALUE_BYTES_MAX:
        return value
    short = {"manifest": _shortened(manifest), "receipt": None if receipt is None else _shortened(receipt)}
    return json.dumps({**head, **short, "left_out": list(_LONG)}, separators=(",", ":")).encode()


def _shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document without its long lists, at any depth."""
    return {
        name: _shortened(value) if isinstance(value, Mapping) else value
        for name, value in document.items()
        if name not in _LONG
    }


def _create(client: Client) -> None:
    try:
        client.create_topic(TOPIC, 1, TOPIC_CONFIGS)
    except BrokerError as error:
        if error.code != ErrorCode.TOPIC_ALREADY_EXISTS:
            raise
