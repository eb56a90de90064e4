"""The marker of an adoption that is not complete, /flakelog_adoption, and the brokers that wait for its end.

The node is created together with /cluster/id and is the last one of the adoption to go (`adoption` has the rules).
"""

import json
from dataclasses import dataclass

from broker.cluster.documents import DamagedDocument
from broker.cluster.procedure import Pause, Procedure, read_node
from coordination.errors import FlakelogError

ADOPTION = "/flakelog_adoption"
POLL_MS = 200


class AdoptionIncomplete(FlakelogError):
    """The coordinator has only a part of the data that another broker brings into it."""


@dataclass(frozen=True)
class AdoptionMarker:
    """The broker that brings its data directory into the coordinator, and the cluster id of the directory."""

    broker_id: int
    cluster_id: str

    def encode(self) -> bytes:
        document = {"version": 1, "broker": self.broker_id, "cluster_id": self.cluster_id}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> "AdoptionMarker":
        try:
            document = json.loads(data)
            return cls(int(document["broker"]), str(document["cluster_id"]))
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedDocument(f"{ADOPTION}: {data[:80]!r} names no broker and cluster id") from error

    def incomplete(self) -> AdoptionIncomplete:
        return AdoptionIncomplete(
            f"Broker {self.broker_id} has not finished bringing its data directory (cluster {self.cluster_id}) into "
            f"this coordinator: start that broker again and wait until it is ready. If its directory is lost, use "
            "another, empty path of the coordinator"
        )


def wait_for_adoption(session_timeout_ms: int) -> Procedure[None]:
    """Wait for the end of an adoption, up to one session time; then raise AdoptionIncomplete.

    The caller has read /cluster/id before. While that exists, no other adoption can begin.
    """
    for _ in range(max(1, session_timeout_ms // POLL_MS)):
        node = yield from read_node(ADOPTION)
        if node is None:
            return
        marker = AdoptionMarker.decode(node.data)
        yield Pause(POLL_MS, f"broker {marker.broker_id} brings its data directory into the coordinator")
    raise marker.incomplete()
