"""No message is lost and none invented, whatever stops, fails or answers late (DESIGN, section 7).

Each seed is one history: a topology is killed while it works, stopped, and started with other numbers of tasks; bolts
fail, forget to ack, or fail after their transaction; a broker is down; an offset store loses requests and answers;
some batches of the log cannot be decoded. The oracle knows every message. In the end each message is applied or, if all
its attempts failed, among the dead letters, and so is each such batch; everything is committed; and another run sees no
message again.

A failure prints the command that replays it; FLAKELOG_SEEDS takes a seed, or a range such as 0-9999.
"""

import os
import random

import pytest

from flakelog.testing import TopologyDriver
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import LoadOffset, SaveOffset
from partition_manager.progress import Progress
from spout.api import Bolt
from spout.bolts import BatchBolt
from spout.config import SpoutConfig, TopologyConfig
from spout.log_spout import LogSpout
from spout.topology import Topology
from tests.poison import PASSES_LENGTHS
from tests.spout.worlds import SpoutWorld

PARTITIONS = 3
SPOUT = SpoutConfig(
    spout_fetch_max_records=7,
    spout_max_uncommitted=25,
    spout_done_ranges_max=3,
    spout_commit_interval_ms=300,
    spout_refresh_interval_ms=2_000,
)
TOPOLOGY = TopologyConfig(
    topology_max_spout_pending=9, topology_executor_receive_buffer_size=4, topology_message_timeout_secs=5
)


class Database:
    """A database that survives the topology. A transaction is one call of `apply`."""

    def __init__(self):
        self.applied = {}
        self.times_seen = 0

    def apply(self, batch):
        self.times_seen += len(batch)
        for tup in batch:
            self.applied.setdefault(tup["id"], tup["value"])


class Flaky(Bolt):
    """A bolt that fails some tuples, forgets to ack some (they time out) and passes on the rest.

    It always fails poison.
    """

    output_fields = ("id", "value")
    auto_ack = False

    def __init__(self, simulation):
        self.simulation = simulation

    def execute(self, tup):
        if tup["value"] == b"poison":
            raise ValueError("poison")
        dice = self.simulation.dice()
        if dice < 0.1:
            raise RuntimeError("on purpose")
        self.emit((tup["id"], tup["value"]))
        if dice > 0.13:
            self.ack(tup)


class Apply(BatchBolt):
    """A bolt that applies tuples, and sometimes fails after its transaction is done."""

    batch_size = 4

    def __init__(self, simulation):
        self.simulation = simulation

    def process_batch(self, batch):
        self.simulation.database.apply(batch)
        if self.simulation.dice() < 0.05:
            raise ConnectionError("the answer to the commit got lost")


class Simulation:
    def __init__(self, seed, world=None):
        self.chance = random.Random(seed)
        self.world = world or SpoutWorld(PARTITIONS)
        self.database = Database()
        self.now_ms = 0
        self.calm = False
        self.lives = self.disturbed = 0
        self.written = {}
        self.poison = set()

    def dice(self):
        """Return a random number for the bolts, or 1.0 in the calm phase, in which nothing fails."""
        return 1.0 if self.calm else self.chance.random()

    def begin(self):
        """Start a new run of the topology. A previous run is killed: it is not stepped again."""
        self.lives += 1
        tasks = self.chance.randint(1, 3)
        topology = Topology("t")
        topology.spout("log", LogSpout("t", config=SPOUT), parallelism=tasks)
        topology.bolt("flaky", lambda: Flaky(self), parallelism=2).shuffle("log")
        topology.bolt("apply", lambda: Apply(self), parallelism=2).fields("flaky", "value")
        run_id, seed = f"life-{self.lives}", self.chance.getrandbits(64)
        return TopologyDriver(topology, self.world, now_ms=self.now_ms, config=TOPOLOGY, run_id=run_id, seed=seed)

    def append(self):
        partition = self.chance.randrange(PARTITIONS)
        if self.chance.random() < 0.02:
            self.poison.add(self.world.log.append_poison(PASSES_LENGTHS, partition).first_id)
            return
        value = b"poison" if self.chance.random() < 0.02 else b"%d" % len(self.written)
        offset = self.world.log.append(value, partition)
        id = self.world.log.kept[partition][offset].id
        self.written[id] = value
        if value == b"poison":
            self.poison.add(id)

    def disturb(self):
        """Break or heal a part of the world."""
        self.disturbed += 1
        world, dice = self.world, self.chance.randrange(7)
        if dice == 0:
            world.session.lose_answers = self.chance.randint(1, 2)
        elif dice == 1:
            world.session.lose_requests = self.chance.randint(1, 2)
        elif dice == 2:
            world.log.down = "broker down"
        elif dice == 3:
            world.dead.down = "broker down"
        else:
            self.heal()

    def heal(self):
        self.world.log.down = self.world.dead.down = None

    def run(self):
        driver = self.begin()
        for _ in range(150):
            dice = self.chance.random()
            if dice < 0.5:
                self.append()
            elif dice < 0.8:
                driver.advance(self.chance.randint(0, 400))
                self.now_ms = driver.now_ms
            elif dice < 0.9:
                self.disturb()
            elif dice < 0.95:
                for _ in range(self.chance.randint(0, 5)):
                    driver.executor.step(self.now_ms)  # killed while it works
                driver = self.begin()
            elif not self.world.log.down:
                driver.stop()
                driver = self.begin()
        self.calm = True
        self.heal()
        driver.advance(60_000).stop()
        self.seen_before_the_last_life = self.database.times_seen
        self.begin().advance(60_000)

    def verdict(self):
        """Return the violations by kind; `lost` is Jepsen's term."""
        buried = {letter.record.id for letter in self.world.dead.letters}
        wanted = {id: value for id, value in self.written.items() if id not in self.poison}
        wrong = {
            # A message that fails its five attempts by chance is in the dead letters, so it is not lost.
            "lost": sorted(set(wanted) - set(self.database.applied) - buried),
            "poison lost": sorted(self.poison - buried),
            "invented": sorted(set(self.database.applied) - set(wanted)),
            "not committed": [n for n in range(PARTITIONS) if self.committed(n) != self.world.log.ends[n]],
            "seen again": self.database.times_seen - self.seen_before_the_last_life,
        }
        return {name: what for name, what in wrong.items() if what}

    def committed(self, partition):
        store, answers = self.world.store(), []
        store.ask(LoadOffset("t", partition), answers.append)
        return OffsetDocument.decode(answers[0].document).progress.offset


def seeds():
    first, _, last = os.environ.get("FLAKELOG_SEEDS", "0-39").partition("-")
    return range(int(first), int(last or first) + 1)


def play(seed, world=None):
    simulation = Simulation(seed, world)
    simulation.run()
    return simulation


@pytest.mark.parametrize("seed", seeds())
def test_nothing_is_lost_and_nothing_invented(seed):
    replay = f"FLAKELOG_SEEDS={seed} .venv/bin/python -m pytest {os.path.relpath(__file__)}"
    wrong = play(seed).verdict()
    assert not wrong, f"{wrong}\nreplay: {replay}"


def test_the_histories_are_busy_ones():
    """The histories contain enough restarts, faults and repeated deliveries to make the absence of loss meaningful."""
    histories = [play(seed) for seed in range(10)]
    assert min(h.lives for h in histories) >= 4 and min(h.disturbed for h in histories) >= 5
    assert sum(len(h.written) for h in histories) > 500
    assert any(h.poison - set(h.written) for h in histories), "no history has a batch that cannot be decoded"
    assert any(h.poison & set(h.written) for h in histories), "no history has a message that always fails"
    again = sum(h.database.times_seen - len(h.database.applied) for h in histories)
    assert again > 50, "hardly any message was delivered twice"


class AheadOfTheWork(SpoutWorld):
    """A world with a planted bug: the stored progress covers every message written, whether it was handled or not."""

    def offset_store(self, store, path, access):
        return AheadStore(super().offset_store(store, path, access), self.log.ends)


class AheadStore:
    def __init__(self, store, ends):
        self._store = store
        self._ends = ends

    def ask(self, request, answer):
        if isinstance(request, SaveOffset):
            document = OffsetDocument.decode(request.document).at(Progress(self._ends[request.partition]))
            request = request._replace(document=document.encode())
        self._store.ask(request, answer)

    def close(self):
        self._store.close()


def test_progress_stored_ahead_of_the_work_is_caught():
    """It shows as lost messages."""
    assert any("lost" in play(seed, AheadOfTheWork(PARTITIONS)).verdict() for seed in range(5))
