"""A real broker for a test-suite: a process of its own, ready in about half a second, that fails on demand.

    from flakelog.testing import Broker

    with Broker(topics={"flights": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

Nothing here loads Twisted or any client; the pytest plugin (`flakelog.pytest_plugin`) has fixtures of it.
"""

from flakelog.testing.broker import Broker
from flakelog.testing.process import BrokerError, DidNotStart

__all__ = ["Broker", "BrokerError", "DidNotStart"]
