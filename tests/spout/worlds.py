"""The world of a spout over one topic, and bolts shared by the tests."""

from spout.api import Bolt
from tests.partition_manager.world import World


class SpoutWorld(World):
    """The ports of one in-memory world, returned to each spout task as the engine would create them."""

    def __init__(self, partitions=1):
        super().__init__(partitions)
        self.dead_topic = None

    def fetcher(self, servers, config, *, security=None):
        return self.log

    def offset_store(self, store, path, access):
        self.path = path
        return super().offset_store(store, path, access)

    def dead_letters(self, servers, topic, *, security=None):
        self.dead_topic = topic
        return self.dead


class Collect(Bolt):
    """A bolt that records its inputs, and fails a tuple if `fails(tup, times seen before)` is true."""

    def __init__(self, fails=lambda tup, seen: False):
        self.seen = []
        self.fails = fails

    def execute(self, tup):
        values = tuple(tup)
        seen = self.seen.count(values)
        self.seen.append(values)
        if self.fails(tup, seen):
            raise RuntimeError("on purpose")
