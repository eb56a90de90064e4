"""A read_committed reader sees each output once, whatever aborts, is fenced, is killed or answers late.

Each seed is one history of a topology from topic to topic. It is killed and started again with other numbers of tasks;
bolts fail, forget to ack, and join messages; transactions abort, wait, and lose the answer to their commit; the topic
refuses outputs for ever, whose messages become dead letters; a killed process commits its last transaction after its
successor has begun.

A failure prints the command that replays it; FLAKELOG_SEEDS takes a seed, or a range such as 0-9999.
"""

import os
import random
from collections import Counter

import pytest

from flakelog.testing import MemoryWorld, TopologyDriver
from flakelog.testing.memory import MemoryTransactor
from partition_manager.dead_letter import REFUSED
from spout.api import Bolt
from spout.bolts import BatchBolt
from spout.config import SpoutConfig, TopologyConfig
from spout.log_sink import LogSink
from spout.log_spout import LogSpout
from spout.sink_config import SinkConfig
from spout.topology import Topology
from spout.transaction_ports import Aborted, FencedOut, OutputsRefused

PARTITIONS = 3
SPOUT = SpoutConfig(
    spout_fetch_max_records=7,
    spout_commit_interval_ms=300,
    spout_refresh_interval_ms=2_000,
    spout_max_attempts=4,
    spout_handover_ms=100,
)
SINK = SinkConfig(sink_commit_interval_ms=50, sink_held_bytes=2_000)
TOPOLOGY = TopologyConfig(
    topology_max_spout_pending=9, topology_executor_receive_buffer_size=4, topology_message_timeout_secs=2
)


class Flaky(Bolt):
    """Emits two tuples for each message; fails some tuples between the two, and forgets to ack some."""

    output_fields = ("value",)
    auto_ack = False

    def __init__(self, simulation):
        self.simulation = simulation

    def execute(self, tup):
        dice = self.simulation.dice()
        self.emit((tup["value"] + b".1",))
        if dice < 0.1:
            raise RuntimeError("on purpose")
        self.emit((tup["value"] + b".2",))
        if dice > 0.12:
            self.ack(tup)


class Join(BatchBolt):
    """Passes each tuple on, in one output for several of them, and sometimes fails after it."""

    output_fields = ("value",)
    batch_size = 3
    tick_interval_ms = 40

    def __init__(self, simulation):
        self.simulation = simulation

    def process_batch(self, batch):
        self.emit((b" ".join(tup["value"] for tup in batch),), anchors=batch)
        if self.simulation.dice() < 0.03:
            raise ConnectionError("on purpose")


class Transactor:
    """A transactor whose transactions abort, are fenced before or after they are committed, are refused, or wait."""

    def __init__(self, simulation, inner):
        self.simulation = simulation
        self.inner = inner

    def ask(self, request, answer):
        dice = self.simulation.dice()
        if dice < 0.1:
            answer(Aborted("on purpose"))
        elif dice < 0.13:
            answer(FencedOut("before the commit"))
        elif dice < 0.16:
            self.inner.ask(request, lambda outcome: answer(FencedOut("after the commit")))
        elif dice < 0.18 and request.outputs:
            number = self.simulation.chance.randrange(len(request.outputs))
            answer(OutputsRefused({number: "too large"}))
        elif dice < 0.4:
            self.simulation.late.append(lambda: self.inner.ask(request, answer))
        else:
            self.inner.ask(request, answer)

    def close(self):
        pass


class World(MemoryWorld):
    def __init__(self, simulation):
        super().__init__()
        self.simulation = simulation
        self.topic("in", partitions=PARTITIONS)
        self.topic("out", partitions=2)

    def transactor(self, servers, sources, transactional_id, config, *, security=None):
        return Transactor(self.simulation, MemoryTransactor(self))


class Simulation:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.world = World(self)
        self.now_ms = self.lives = self.written = 0
        self.outcomes = Counter()
        self.calm = False
        self.late = []

    def dice(self):
        """Return a random number for bolts and transactions, or 1.0 in the calm phase, in which nothing fails."""
        return 1.0 if self.calm else self.chance.random()

    def begin(self):
        """Start a new run of the topology. A previous run is killed: it is not stepped again."""
        self.lives += 1
        self.world.groups.clear()  # the group gives the partitions of a killed process to its successor
        topology = Topology("t")
        topology.spout("in", LogSpout("in", store="kafka", config=SPOUT), parallelism=self.chance.randint(1, 3))
        topology.bolt("flaky", lambda: Flaky(self), parallelism=2).shuffle("in")
        topology.bolt("join", lambda: Join(self), parallelism=2).shuffle("flaky")
        topology.bolt("out", LogSink("out", exactly_once=True, config=SINK), parallelism=2).shuffle("join")
        run_id, seed = f"life-{self.lives}", self.chance.getrandbits(64)
        self.driver = TopologyDriver(
            topology, self.world, now_ms=self.now_ms, config=TOPOLOGY, run_id=run_id, seed=seed
        )
        self.settlement = self.driver.tasks("in")[0].settlement

    def answer_late(self):
        late, self.late = self.late, []
        for answer in late:
            answer()

    def rebalance(self):
        """Take a partition from the process, at once or after a hand-over, and give it back a little later."""
        (group,) = self.world.groups.values()
        partition = "in", self.chance.randrange(PARTITIONS)
        self.advance(1)  # so that the process has its partitions
        self.give_back()
        if self.chance.random() < 0.5:
            group.lose(partition)
            group.released.append(partition)
        else:
            group.revoke(partition)
        self.advance(self.chance.randint(0, 200))
        self.give_back()

    def give_back(self):
        for group in self.world.groups.values():
            for partition in sorted(set(group.released)):
                group.assign(partition)
            group.released.clear()

    def advance(self, ms):
        self.driver.advance(ms)
        self.now_ms = self.driver.now_ms

    def run(self):
        self.begin()
        for _ in range(120):
            dice = self.chance.random()
            self.give_back()
            if dice < 0.5:
                self.world.topic("in").append(b"%d" % self.written, self.chance.randrange(PARTITIONS))
                self.written += 1
            elif dice < 0.8:
                self.advance(self.chance.randint(0, 300))
            elif dice < 0.9:
                self.answer_late()
            elif dice < 0.93:
                self.rebalance()
            else:
                self.outcomes.update(self.settlement.counts)
                self.begin()
                if self.chance.random() < 0.5:
                    self.advance(20)
                self.answer_late()
        self.calm = True
        self.answer_late()
        self.advance(1_000)
        self.give_back()
        self.advance(30_000)
        self.outcomes.update(self.settlement.counts)
        self.driver.stop()

    def verdict(self):
        """Return the violations by kind."""
        out = self.world.topic("out")
        seen = Counter(
            value for partition in out.kept for record in out.records(partition) for value in record.value.split(b" ")
        )
        buried = Counter(letter.record.value for letter in self.world.letters("in"))
        wanted = {b"%d" % number for number in range(self.written)}
        halves = {value: (seen[value + b".1"], seen[value + b".2"]) for value in wanted}
        wrong = {
            "lost": [value for value in wanted if halves[value] != (1, 1) and not buried[value]],
            "twice": [value for value, count in (seen + buried).items() if count > 1],
            "in part": [value for value in wanted if halves[value] not in ((1, 1), (0, 0))],
            "both written and buried": [value for value in wanted if buried[value] and halves[value] != (0, 0)],
            "not committed": [n for n, p in self.world.progress("in").items() if p.offset != self.end(n)],
            "still held": self.settlement.held_bytes,
        }
        return {name: violations for name, violations in wrong.items() if violations}

    def end(self, partition):
        return self.world.topic("in").ends[partition]


def seeds():
    first, _, last = os.environ.get("FLAKELOG_SEEDS", "0-29").partition("-")
    return range(int(first), int(last or first) + 1)


def play(seed):
    simulation = Simulation(seed)
    simulation.run()
    return simulation


@pytest.mark.parametrize("seed", seeds())
def test_each_output_is_read_once(seed):
    replay = f"FLAKELOG_SEEDS={seed} .venv/bin/python -m pytest {os.path.relpath(__file__)}"
    wrong = play(seed).verdict()
    assert not wrong, f"{wrong}\nreplay: {replay}"


def test_the_histories_are_busy_ones():
    histories = [play(seed) for seed in range(8)]
    outcomes = sum((history.outcomes for history in histories), Counter())
    letters = [letter for history in histories for letter in history.world.letters("in")]
    assert sum(letter.reason == REFUSED for letter in letters) > 10, "hardly any output was refused"
    assert min(outcomes["committed"], outcomes["aborted"], outcomes["discarded"]) > 10, outcomes
    assert sum(history.lives for history in histories) > 40
