"""Several ConsumerConnectors of one group in a process, or plain clients of ZooKeeper that write what these wrote.

    python rebalance_program.py JSON

JSON has `how` (CONNECTORS or WRITES), `zookeeper`, `servers`, `topic` and `group`. The process obeys lines on stdin,
and answers each by a line of JSON:

    CONNECTORS   join                 a consumer joins; its name
                 leave NAME           a consumer commits, releases its partitions and leaves; null
                 report NS            by consumer and partition, when the first record after NS was delivered
    WRITES       prepare MOVES        make the nodes; null
                 play                 release and claim as MOVES says; when the last write was answered

Times are in ns on the clock that the processes of a machine share. MOVES is JSON: for each client the partitions that
it releases and those that it claims.
"""

import json
import sys
import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import Any

CONNECTORS, WRITES = "connectors", "writes"
SESSION_S = 30
DELIVERIES_MAX = 1_000_000  # in one process; the oldest half goes first


class Connectors:
    """Consumers that note each delivery."""

    def __init__(self, zookeeper: str, servers: str, topic: str, group: str) -> None:
        self._arguments = (zookeeper, group, servers)
        self._topic = topic
        self._connectors: dict[str, Any] = {}
        self._deliveries: list[tuple[int, str, int]] = []
        self._lock = Lock()

    def join(self) -> str:
        """Start a consumer with one stream, and a thread that reads it; return its name."""
        import flakelog

        connector = flakelog.ConsumerConnector(*self._arguments)
        self._connectors[connector.name] = connector
        [stream] = connector.streams({self._topic: 1})[self._topic]
        Thread(target=self._read, args=(connector.name, stream), daemon=True).start()
        return str(connector.name)

    def leave(self, name: str) -> None:
        """Shut a consumer down."""
        self._connectors.pop(name).shutdown()

    def report(self, since_ns: str) -> list[tuple[str, int, int]]:
        """Return (consumer, partition, ns) of first deliveries after a time."""
        first: dict[tuple[str, int], int] = {}
        with self._lock:
            deliveries = self._deliveries[:]
        for now_ns, name, partition in deliveries:
            if now_ns > int(since_ns):
                first.setdefault((name, partition), now_ns)
        return [(name, partition, now_ns) for (name, partition), now_ns in first.items()]

    def _read(self, name: str, stream: Any) -> None:
        for record in stream:
            with self._lock:
                self._deliveries.append((time.monotonic_ns(), name, record.partition))
                if len(self._deliveries) > DELIVERIES_MAX:
                    del self._deliveries[: DELIVERIES_MAX // 2]


class Writes:
    """Clients of ZooKeeper, one for each consumer, whose writes are those of a rebalance and nothing else."""

    def __init__(self, zookeeper: str, servers: str, topic: str, group: str) -> None:
        self._hosts = zookeeper
        self._root = f"/writes/{group}"
        self._clients: list[tuple[Any, list[int], list[int]]] = []

    def prepare(self, moves: str) -> None:
        """Connect a client for each move, and make the nodes that it changes."""
        from kazoo.client import KazooClient

        for client, _, _ in self._clients:
            client.stop()
        self._clients = []
        for released, claimed in json.loads(moves):
            client = KazooClient(self._hosts, timeout=SESSION_S)
            client.start()
            client.ensure_path(f"{self._root}/owners")
            for partition in {*released, *claimed}:
                client.ensure_path(f"{self._root}/offsets/{partition}")
            for partition in released:
                client.ensure_path(f"{self._root}/owners/{partition}-released")
            for partition in claimed:
                if client.exists(f"{self._root}/owners/{partition}-claimed"):
                    client.delete(f"{self._root}/owners/{partition}-claimed")
            self._clients.append((client, released, claimed))

    def play(self) -> int:
        """Send all releases of each client, then its claims; return when the last one was answered."""
        for answers in (self._releases(), self._claims()):
            for answer in answers:
                failed = [result for result in answer.get() if isinstance(result, Exception)]
                assert not failed, failed
        return time.monotonic_ns()

    def _releases(self) -> list[Any]:
        return [self._multi(client, partition, "") for client, released, _ in self._clients for partition in released]

    def _claims(self) -> list[Any]:
        return [self._multi(client, partition, "me") for client, _, claimed in self._clients for partition in claimed]

    def _multi(self, client: Any, partition: int, owner: str) -> Any:
        multi = client.transaction()
        multi.check(f"{self._root}/offsets", -1)
        multi.set_data(f"{self._root}/offsets/{partition}", b"1")
        if owner:
            multi.create(f"{self._root}/owners/{partition}-claimed", owner.encode(), ephemeral=True)
        else:
            multi.delete(f"{self._root}/owners/{partition}-released")
        return multi.commit_async()


if __name__ == "__main__":
    plan: dict[str, str] = json.loads(sys.argv[1])
    obeyed: Callable[..., Any] = Connectors if plan.pop("how") == CONNECTORS else Writes
    program = obeyed(**plan)
    for line in sys.stdin:
        verb, *arguments = line.rstrip("\n").split(" ", 1)
        print(json.dumps(getattr(program, verb)(*arguments)), flush=True)
