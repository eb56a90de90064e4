"""A cluster in memory behind the planner's port, and a model of Spark's micro-batch engine over it."""

import json

from spark_bridge.reading.cluster import Description, Topic
from spark_bridge.selection.stream_planner import StreamPlanner


class MemoryStreamLog:
    """StreamLog and StreamSnapshot over {topic: {partition: [start, end]}}. `starting` is earliest or latest."""

    def __init__(self, topics, starting="earliest"):
        self.topics = {name: {p: list(span) for p, span in offsets.items()} for name, offsets in topics.items()}
        self.ids = {name: f"id-of-{name}" for name in topics}
        self.starting = starting

    def append(self, topic, partition, count):
        self.topics[topic][partition][1] += count

    def make_again(self, topic, offsets):
        self.topics[topic] = {p: list(span) for p, span in offsets.items()}
        self.ids[topic] += "-again"

    def snapshot(self):
        return self

    @property
    def description(self):
        topics = {
            name: Topic(name, self.ids.get(name), dict.fromkeys(offsets)) for name, offsets in self.topics.items()
        }
        return Description("c", topics)

    def initial(self, snapshot):
        return {name: getattr(self, self.starting)(name) for name in snapshot.description.topics}

    def earliest(self, topic):
        return {p: start for p, (start, _) in self.topics[topic].items()}

    def latest(self, topic):
        return {p: end for p, (_, end) in self.topics[topic].items()}


class Engine:
    """Spark's MicroBatchExecution: an offset log and a commit log that outlive a run, and a sink idempotent by batch.

    `run` is one run, a generator that stops after each step. A test that drops the generator kills the driver there.
    """

    def __init__(self):
        self.offset_log = []
        self.committed = -1
        self.sink = {}

    def run(self, planner: StreamPlanner, *, limited=True):
        """Yield the name of each step; "idle" if there was nothing to do."""
        while True:
            if self.committed == len(self.offset_log) - 1:
                yield from self._construct(planner, limited)
            if self.committed < len(self.offset_log) - 1:
                yield from self._execute(planner, self.committed + 1)

    def _construct(self, planner, limited):
        before = self._before(planner, len(self.offset_log))
        after = json.dumps(planner.next(json.loads(before), limited=limited, now_ms=0))
        if not self.offset_log or after != before:
            yield "planned"
            self.offset_log.append(after)
            yield "logged"
        else:
            yield "idle"

    def _execute(self, planner, batch):
        start = self._before(planner, batch)
        ranges = planner.ranges(json.loads(start), json.loads(self.offset_log[batch]))
        yield "split"
        self.sink[batch] = [task.within for task in ranges]
        yield "written"
        self.committed = batch
        yield "committed"

    def _before(self, planner, batch):
        """Return the former batch's document; for batch 0 Spark asks the source again each time."""
        return self.offset_log[batch - 1] if batch else json.dumps(planner.initial())

    def read(self):
        """Return the ranges of the committed batches: {(topic, partition): [(start, end), ...]} in order."""
        ranges = {}
        for batch in range(self.committed + 1):
            for within in self.sink[batch]:
                ranges.setdefault((within.topic, within.partition), []).append((within.start, within.end))
        return ranges
