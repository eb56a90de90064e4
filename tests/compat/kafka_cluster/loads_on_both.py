"""Loads on topics with copies on brokers of both kinds, while brokers die: every acknowledged record is there.

    with loads_on_both(brokers, [Librdkafka(brokers.bootstrap)]) as loads:
        loads.kill_and_start(2)
"""

from contextlib import contextmanager

from tests.compat.cluster_servers import PARTITIONS
from tests.compat.faults.replicated_loads import NumbersLoad


class LoadsOnBoth:
    """Run a NumbersLoad for each writer."""

    def __init__(self, brokers, writers):
        self._brokers = brokers
        self._loads = [NumbersLoad(brokers, writer) for writer in writers]

    def kill_and_start(self, *killed):
        """Kill brokers at the same time, and start them again. Writers that lack one replica only go on meanwhile."""
        self.await_in_sync()
        self._brokers.kill(*killed)
        if len(killed) == 1:
            self._brokers.await_gone(*killed)
            self._await_more()
        self._brokers.start(*killed)

    def await_in_sync(self):
        """Wait until all replicas are in sync, and for more acknowledged writes."""
        for load in self._loads:
            for partition in PARTITIONS:
                self._brokers.await_in_sync(load.topic, partition)
        self._await_more()

    def _await_more(self):
        for load in self._loads:
            load.await_more()

    def end(self):
        """Let brokers of ours lead, stop all loads, and check logs and records."""
        for load in self._loads:
            self._brokers.elect_preferred(load.topic)
        self.await_in_sync()
        for load in self._loads:
            load.stop()
            for partition in PARTITIONS:
                self._brokers.await_equal(load.topic, partition)
            load.check()


@contextmanager
def loads_on_both(brokers, writers):
    """Yield loads that are at work; check at the end that they go on and that nothing is lost."""
    loads = LoadsOnBoth(brokers, writers)
    yield loads
    loads.end()
