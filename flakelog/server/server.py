"""A server that has started: the parts that the HTTP site, the metrics and the console show."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker.engine.engine import Engine
from broker.security.altered_tls import AlteredTls
from coordination.port import Coordinator
from flakelog.console.own_place import OwnPlace
from flakelog.console.security import console_address
from flakelog.ready_line import ready_line
from flakelog.server.lifecycle import Lifecycle
from flakelog.settings import Settings
from idgen.claim import WorkerClaim
from idgen.clock import IdClock
from idgen.peers import Peers
from idgen.server import ClaimDriver
from idgen.service import IdService


@dataclass(eq=False)
class Server:
    """A `flakelog server`, or a `flakelog idgen` without a broker. `Starter.start` makes it."""

    settings: Settings
    reactor: Any
    clock: IdClock
    addresses: dict[str, str]
    """Each port's address by its name: broker, broker.<listener>, ids, http."""
    engine: Engine | None
    """None if there are no broker listeners."""
    own_place: OwnPlace | None
    """Where the console reaches the broker."""
    service: IdService | None
    """None if neither ids nor HTTP has a port."""
    peers: Peers | None
    """The other id services; None if flakelog.ids.sanity.check is off."""
    tls: AlteredTls
    """The ports that speak TLS."""
    _registry: Coordinator
    _claim_driver: ClaimDriver
    _lifecycle: Lifecycle

    @property
    def stopped(self) -> bool:
        """True once the server was told to stop."""
        return self._lifecycle.stopped

    @property
    def serving(self) -> bool:
        """True if the server has started and was not told to stop."""
        return self._lifecycle.serving

    @property
    def scope(self) -> str:
        """The place in which this process's ids are unique, as text."""
        return self._registry.scope

    @property
    def claims(self) -> tuple[WorkerClaim, ...]:
        """The claims of this process's worker numbers: the log's and the id service's."""
        return self._claim_driver.claims

    @property
    def shown_addresses(self) -> dict[str, str]:
        """The addresses by name, the console's among them if there is a console."""
        addresses = dict(self.addresses)
        if self.engine is not None and "http" in addresses:
            guarded = bool(self.settings.broker.authorizer_class_name)
            machine = socket.gethostname()
            console = console_address(self.settings.server, addresses["http"], machine, has_authorizer=guarded)
            addresses |= {} if console is None else {"console": console}
        return addresses

    def ready_line(self) -> str:
        """Return the line that says that it serves."""
        return ready_line(self.shown_addresses, self.scope)


def default_data_dir() -> Path:
    """Return $XDG_STATE_HOME/flakelog, by default ~/.local/state/flakelog."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(state) / "flakelog"
