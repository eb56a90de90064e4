"""The brokers that a client finds in ZooKeeper, and the decision when to read them again. A core without I/O.

A shell passes the coordinator's events to `notified`, and carries out `read` whenever `is_due` says so. While the
coordinator is away, and while it names no broker at all, the last addresses stay: the brokers may outlive their
sessions, for example when ZooKeeper itself was down for longer.
"""

from collections.abc import Generator
from typing import Any

from broker.client.address import Address
from broker.cluster.documents import BROKER_IDS, DamagedDocument, Registration, broker_path
from coordination.port import (
    Changed,
    Children,
    CoordinationError,
    Event,
    Get,
    Node,
    NoNode,
    Operation,
    SessionEstablished,
)

RETRY_MS = 1_000
"""The pause after a read that failed."""

PLAINTEXT = "PLAINTEXT"


class LivingBrokers:
    """The addresses of the brokers that live, by broker id: their first listeners of the `protocol`.

    `problem` says why the last read is incomplete.
    """

    def __init__(self, protocol: str = PLAINTEXT) -> None:
        self._protocol = protocol
        self.addresses: dict[int, Address] = {}
        self.problem: str | None = None
        self._due_ms: int | None = 0

    def is_due(self, now_ms: int) -> bool:
        """Return True if the brokers may have changed since the last read."""
        return self._due_ms is not None and now_ms >= self._due_ms

    def notified(self, event: Event) -> None:
        """Read again after a change of a broker's node, and after each new connection, which may have lost watches."""
        match event:
            case SessionEstablished():
                self._due_ms = 0
            case Changed(path) if path == BROKER_IDS or path.startswith(f"{BROKER_IDS}/"):
                self._due_ms = 0

    def read(self, now_ms: int) -> Generator[Operation, Any, None]:
        """Read all brokers, and watch them. Each watch is set by the read itself, so no change is missed.

        Read again after a pause if no broker is there: a node that does not exist yet takes no watch for its children.
        """
        self._due_ms = None
        why = "no broker is registered"
        try:
            names: tuple[str, ...] = yield Children(BROKER_IDS, watch=True)
        except NoNode:
            names, why = (), f"there is no {BROKER_IDS}: no broker has been in this chroot, so check its name"
        addresses: dict[int, Address] = {}
        problems = []
        for name in names:
            if not name.isdigit():
                problems.append(f"{BROKER_IDS}/{name}: {name!r} is no number of a broker")
                continue
            try:
                node: Node = yield Get(f"{BROKER_IDS}/{name}", watch=True)
                addresses[int(name)] = _address(int(name), node.data, self._protocol)
            except NoNode:  # it has gone since
                continue
            except (DamagedDocument, ValueError) as error:
                problems.append(str(error))
        if addresses:
            self.addresses = addresses
        else:
            self._due_ms = now_ms + RETRY_MS
            problems = problems or [why]
        self.problem = "; ".join(problems) or None

    def failed(self, error: CoordinationError, now_ms: int) -> None:
        """Keep the brokers of the read before, and read again after a pause."""
        self.problem = str(error) or type(error).__name__
        self._due_ms = now_ms + RETRY_MS


def _address(broker_id: int, data: bytes, protocol: str) -> Address:
    """Return a broker's first listener of a protocol, as early Kafka's clients did. Raise ValueError without one."""
    registration = Registration.decode(broker_path(broker_id), data)
    listener = next((end for end in registration.endpoints if end.protocol == protocol), None)
    if listener is None:
        others = ", ".join(dict.fromkeys(end.protocol for end in registration.endpoints))
        raise ValueError(
            f"broker {broker_id} has no listener with the protocol {protocol}, but with {others}, which "
            "security.protocol of a client's properties names"
        )
    return Address(listener.host, listener.port)
