"""A real broker for a test suite: a separate process, ready in about half a second, that fails on demand.

    from flakelog.testing import Broker

    with Broker(topics={"flights": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

Importing this package loads neither Twisted nor any client. The pytest plugin (`flakelog.pytest_plugin`) has fixtures
for it.
"""

from flakelog.testing.broker import Broker
from flakelog.testing.process import BrokerError, DidNotStart

__all__ = ["Broker", "BrokerError", "DidNotStart"]
