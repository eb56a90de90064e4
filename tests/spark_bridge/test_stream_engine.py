"""Every offset is in exactly one committed batch, wherever Spark's driver dies (hypothesis over a model of the engine).

The model keeps Spark's offset log and commit log over crashes, and asks the source for its start again after each
crash before batch 0 is committed.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from spark_bridge.selection.stream_limits import StreamLimits
from spark_bridge.selection.stream_planner import StreamPlanner
from tests.spark_bridge.memory_stream import Engine, MemoryStreamLog

PARTITIONS_MAX = 4


class CrashingStream(RuleBasedStateMachine):
    """A stream whose driver is killed at any step while producers append and partitions are added."""

    @initialize(
        starting=st.sampled_from(["earliest", "latest"]), ends=st.lists(st.integers(0, 20), min_size=1, max_size=3)
    )
    def begin(self, starting, ends):
        self.log = MemoryStreamLog({"t": {p: (0, end) for p, end in enumerate(ends)}}, starting)
        self.engine = Engine()
        self.most = 0
        self.crash()

    @rule(partition=st.integers(0, PARTITIONS_MAX), count=st.integers(1, 50))
    def append(self, partition, count):
        partitions = self.log.topics["t"]
        self.log.append("t", partition % len(partitions), count)

    @precondition(lambda self: len(self.log.topics["t"]) < PARTITIONS_MAX)
    @rule(count=st.integers(0, 30))
    def add_partition(self, count):
        self.log.topics["t"][len(self.log.topics["t"])] = [0, count]

    @precondition(lambda self: len(self.log.topics) < 2)
    @rule(count=st.integers(0, 30))
    def add_topic(self, count):
        self.log.topics["u"] = {0: [0, count]}
        self.log.ids["u"] = "id-of-u"

    @rule(steps=st.integers(1, 6))
    def advance(self, steps):
        for _ in range(steps):
            next(self.run)

    @rule(most=st.sampled_from([0, 1, 7, 100]), available_now=st.booleans())
    def restart(self, most, available_now):
        self.most = most
        self.crash(available_now)

    def crash(self, available_now=False):
        planner = StreamPlanner(self.log, StreamLimits(max_offsets=self.most), max_records_per_partition=13)
        if available_now:
            planner.freeze()
        self.run = self.engine.run(planner)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        self.most = 0
        self.crash()
        while next(self.run) != "idle":
            pass
        read = self.engine.read()
        for topic, partitions in self.log.topics.items():
            for partition, (_, end) in partitions.items():
                ranges = read.get((topic, partition), [])
                for (_, stop), (start, _) in zip(ranges, ranges[1:], strict=False):
                    assert stop == start, f"{topic}-{partition}: a batch ends at {stop}, the next begins at {start}"
                if ranges:
                    assert ranges[-1][1] == end
                    assert ranges[0][0] == 0 or self.log.starting == "latest"
                else:
                    assert end == 0 or self.log.starting == "latest"


TestCrashingStream = CrashingStream.TestCase
TestCrashingStream.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
