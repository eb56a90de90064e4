"""Tools for tests: a real broker that fails on demand, and a driver that runs topologies without any broker.

    from flakelog.testing import Broker

    with Broker(topics={"flights": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

The broker is a separate process, ready in about half a second. The pytest plugin (`flakelog.pytest_plugin`) has
fixtures for it.

    from flakelog.testing import TopologyDriver, run_bolt

    with TopologyDriver(word_count) as test:
        test.log("sentences").append("a b a")
        test.run()

Importing this package loads neither Twisted nor any client; each name is loaded on first use (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flakelog.testing.broker import Broker
    from flakelog.testing.memory import MemoryDeadLetters, MemoryLog, MemoryWorld
    from flakelog.testing.process import BrokerError, DidNotStart
    from flakelog.testing.topology import BoltResult, TopologyDriver, run_bolt

_MODULES = {
    "flakelog.testing.broker": ("Broker",),
    "flakelog.testing.memory": ("MemoryDeadLetters", "MemoryLog", "MemoryWorld"),
    "flakelog.testing.process": ("BrokerError", "DidNotStart"),
    "flakelog.testing.topology": ("BoltResult", "TopologyDriver", "run_bolt"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "BoltResult",
    "Broker",
    "BrokerError",
    "DidNotStart",
    "MemoryDeadLetters",
    "MemoryLog",
    "MemoryWorld",
    "TopologyDriver",
    "run_bolt",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"flakelog.testing has no {name!r}; it offers {', '.join(__all__)}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
