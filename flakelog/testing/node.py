"""A node of a `Broker`: its process, its directory, and ports that stay its own while it is down."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coordination.free_port import FreePort
from flakelog.testing.process import BrokerProcess
from flakelog.testing.security import PLAINTEXT


class Node:
    """A broker that can be started again on the same directory, at the same ports.

    `ports` are the settings of listeners that no setting of the test names. `cluster` is the directory in which the
    nodes of a cluster meet; None for a broker alone. `protocol` is that of the first listener.
    """

    def __init__(
        self,
        number: int,
        data: Path,
        log: Path,
        ports: Mapping[str, str],
        cluster: Path | None,
        protocol: str = PLAINTEXT,
    ) -> None:
        self.number = number
        self.process = BrokerProcess(log)
        self.addresses: dict[str, str] = {}
        """The addresses of its last start, by name."""
        self._data = data
        self._cluster = cluster
        self._protocol = protocol
        self._ports = {name: FreePort() for name in ports}
        """Reserved, so that no program takes them while the broker is down."""
        self._listeners = {name: ports[name].replace(":0", f":{port.number}") for name, port in self._ports.items()}

    def start(self, settings: Mapping[str, str], arguments: Sequence[str], seconds: float) -> None:
        """Start the process, and return when it serves. Raise DidNotStart."""
        options = ["--dev", "--data-dir", str(self._data), *arguments]
        own = self._same_ports()
        if self._cluster is not None:
            options += ["--cluster-dir", str(self._cluster)]
            own["broker.id"] = str(self.number)
        for name, value in (dict(settings) | own).items():
            options += ["--set", f"{name}={value}"]
        self.addresses = self.process.start(options, seconds)

    def _same_ports(self) -> dict[str, str]:
        """Return settings with fixed ports, so that clients find the broker again after a restart."""
        if not self.addresses:
            return dict(self._listeners)
        return {
            "listeners": f"{self._protocol}://{self.addresses['broker']}",
            "flakelog.http.listener": self.addresses["http"],
        }

    def close(self) -> None:
        """Give the ports back."""
        for port in self._ports.values():
            port.close()
