"""No message is lost and none invented, whatever stops, fails or answers late.

Each seed is one history. A topology is killed while it works, stopped, and started with other numbers of tasks, also
while the former one still runs: they fence each other, or share the topic in a consumer group. Bolts fail, forget to
ack, finish in any order, or fail after their transaction. A broker is down, and an offset store loses requests and
answers. Retention and compaction remove messages, a log is truncated and grows again, and the topic is deleted and
created again. Some batches of the log cannot be decoded. A service that a bolt needs is down, and the dead-letter topic
refuses letters.

The oracle in spout_world.py knows every message. At each write of progress, everything that the progress passes is
applied, among the dead letters or refused by their topic, and only the last owner writes. In the end this is so for
each message that the log still has, everything is committed, and another run sees no message again.

A failure prints the command that replays it; FLAKELOG_SEEDS takes a seed, or a range such as 0-9999.
"""

import asyncio
import os
import random
from collections import Counter
from dataclasses import replace

import pytest

from flakelog.testing import MemoryLog, TopologyDriver
from partition_manager.config import AT_MOST_ONCE
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import Fenced, LoadOffset, SaveOffset
from partition_manager.progress import Progress
from spout.api import Bolt, Unavailable
from spout.bolts import BatchBolt
from spout.config import SpoutConfig, TopologyConfig
from spout.log_spout import LogSpout
from spout.topology import Topology
from tests.simulation.spout_group import GroupOfRuns, WorldOfRun
from tests.simulation.spout_world import TOPIC, SimulatedWorld

PARTITIONS = 3
STEPS = 150
CALM_MS = 40_000  # longer than five attempts that time out, and than the longest pause after a failure
LIVES_AT_ONCE_MAX = 3
SOAK_SEEDS, SOAK_CHUNK = 10_000, 100
SPOUT = SpoutConfig(
    spout_fetch_max_records=7,
    spout_max_uncommitted=25,
    spout_done_ranges_max=3,
    spout_commit_interval_ms=300,
    spout_refresh_interval_ms=2_000,
    spout_outage_after_messages=5,
    spout_outage_probe_max_ms=2_000,
    spout_handover_ms=200,
)
TOPOLOGY = TopologyConfig(
    topology_max_spout_pending=9, topology_executor_receive_buffer_size=4, topology_message_timeout_secs=5
)


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
        if self.simulation.outage:
            raise self.simulation.outage
        dice = self.simulation.dice()
        if dice < 0.1:
            raise RuntimeError("on purpose")
        self.emit((tup["id"], tup["value"]))
        if dice > 0.13:
            self.ack(tup)


class AnyOrder(Bolt):
    """An async bolt that finishes its tuples in any order, and sometimes takes longer than the message timeout."""

    output_fields = ("id", "value")
    max_concurrent = 4

    def __init__(self, simulation):
        self.simulation = simulation

    async def execute(self, tup):
        dice = self.simulation.dice()
        if dice < 0.99:
            await asyncio.sleep(dice * 0.3)
        elif dice < 1:
            await asyncio.sleep(60)
        self.emit(tuple(tup))


class Apply(BatchBolt):
    """A bolt that applies tuples, and sometimes fails after its transaction is done."""

    batch_size = 4

    def __init__(self, simulation):
        self.simulation = simulation

    def process_batch(self, batch):
        self.simulation.world.applied.update(tup["id"] for tup in batch)
        if self.simulation.dice() < 0.05:
            raise ConnectionError("the answer to the commit got lost")


class Simulation:
    def __init__(self, seed, world=SimulatedWorld, **config):
        self.config = replace(SPOUT, **config)
        self.chance = random.Random(seed)
        self.world = world(PARTITIONS)
        self.group = GroupOfRuns(self.world)
        self.store = self.chance.choice(("directory", "kafka"))
        self.now_ms = 0
        self.calm = False
        self.outage = None
        self.drivers = []
        self.lives = self.rivals = 0
        self.done = Counter()  # how often each kind of thing was done

    def dice(self):
        """Return a random number for the bolts, or 1.0 in the calm phase, in which nothing fails."""
        return 1.0 if self.calm else self.chance.random()

    # --- runs of the topology

    def begin(self):
        """Start another run of the topology; the runs before it go on until they are killed or stopped."""
        self.lives += 1
        self.rivals += bool(self.drivers)
        tasks = self.chance.randint(1, 3)
        topology = Topology("sim")
        topology.spout("log", LogSpout(TOPIC, store=self.store, config=self.config), parallelism=tasks)
        topology.bolt("flaky", lambda: Flaky(self), parallelism=2).shuffle("log")
        topology.bolt("any-order", lambda: AnyOrder(self), parallelism=2).shuffle("flaky")
        topology.bolt("apply", lambda: Apply(self), parallelism=2).fields("any-order", "value")
        run_id, seed = f"life-{self.lives}", self.chance.getrandbits(64)
        world = WorldOfRun(self.world, self.group)
        driver = TopologyDriver(
            topology, world, now_ms=self.now_ms, config=TOPOLOGY, run_id=run_id, seed=seed
        )
        self.drivers.append(driver)
        return driver

    def kill(self):
        """Kill a run while it works: it is not stepped again."""
        driver = self.drivers.pop(self.chance.randrange(len(self.drivers)))
        for _ in range(self.chance.randint(0, 5)):
            driver.executor.step(self.now_ms)
        driver.kill()
        self.group.leave(driver.world.member)

    def stop(self):
        driver = self.drivers.pop(self.chance.randrange(len(self.drivers))).stop()
        self.group.leave(driver.world.member)

    def lose(self):
        """Let a run lose its session with the consumer group."""
        self.group.lose(self.chance.choice(self.drivers).world.member)

    def advance(self):
        ms = self.chance.randint(0, 400)
        self.chance.shuffle(self.drivers)
        for driver in self.drivers:
            driver.advance(ms)
            self.group.rebalance()
        self.now_ms += ms

    def step(self):
        self.chance.choice(self.drivers).executor.step(self.now_ms)

    # --- the log

    def append(self):
        partition = self.chance.choice(list(self.world.log.kept))
        if self.chance.random() < 0.02:
            self.world.append_poison(partition)
            return
        self.world.append(b"poison" if self.chance.random() < 0.02 else b"%d" % len(self.world.written), partition)

    def retain(self):
        log, partition = self.world.log, self.chance.choice(list(self.world.log.kept))
        log.retain_from(partition, self.chance.randint(log.starts[partition], log.ends[partition]))

    def compact(self):
        log, partition = self.world.log, self.chance.choice(list(self.world.log.kept))
        for record in log.records(partition):
            if self.chance.random() < 0.2:
                log.compact(partition, record.offset)

    def truncate(self):
        log, partition = self.world.log, self.chance.choice(list(self.world.log.kept))
        start, end = log.starts[partition], log.ends[partition]
        log.truncate(partition, self.chance.randint(max(start, end - 8), end))
        for _ in range(self.chance.choice((0, 0, 3, 12))):
            self.world.append(b"%d" % len(self.world.written), partition)

    def recreate(self):
        self.world.log.recreate(partitions=self.chance.randint(1, PARTITIONS))

    # --- the world around

    def disturb(self):
        """Break or heal a part of the world."""
        world, dice = self.world, self.chance.randrange(10)
        if dice == 0:
            world.session.lose_answers = self.chance.randint(1, 2)
        elif dice == 1:
            world.session.lose_requests = self.chance.randint(1, 2)
        elif dice == 2:
            world.log.down = "broker down"
        elif dice == 3:
            world.dead.down = "broker down"
        elif dice == 4:
            world.dead.refuses = None if world.dead.refuses else "too large"
        elif dice == 5:
            self.done["outage"] += 1
            self.outage = self.chance.choice((Unavailable("service down"), ConnectionError("service down")))
        else:
            self.heal()

    def heal(self):
        self.outage = self.world.log.down = self.world.dead.down = None
        self.world.session.lose_answers = self.world.session.lose_requests = 0

    # --- a history

    KINDS = {
        append: 50, advance: 24, step: 5, disturb: 8, kill: 4, stop: 3, begin: 2, lose: 2,
        retain: 1, compact: 1, truncate: 1, recreate: 0.3,
    }  # fmt: skip

    def run(self):
        kinds, weights = list(self.KINDS), [w * self.chance.choice((0.3, 1, 4)) for w in self.KINDS.values()]
        for _ in range(STEPS):
            if not self.drivers:
                self.begin()
            kind = self.chance.choices(kinds, weights)[0]
            name = kind.__name__
            if name == "begin" and len(self.drivers) == LIVES_AT_ONCE_MAX or name == "stop" and self.world.log.down:
                continue
            if name == "lose" and self.store != "kafka":
                continue
            kind(self)
            self.done[name] += 1
        self.calm = True
        self.heal()
        self.world.dead.refuses = self.chance.choice((None, None, "too large"))
        while self.drivers:
            self.stop()
        last = self.begin().advance(CALM_MS).stop()
        self.group.leave(last.world.member)
        self.applied_before_the_last_life = self.world.applied.total()
        self.begin().advance(CALM_MS // 4).kill()

    def verdict(self):
        """Return the violations by kind; `lost` is Jepsen's term."""
        world = self.world
        held, poison = world.in_the_log(), {id for id, value in world.written.items() if value in (None, b"poison")}
        wrong = {
            # A message that fails its five attempts by chance is in the dead letters, so it is not lost.
            "lost": sorted(held - world.settled),
            "poison applied": sorted(poison & world.applied.keys()),
            "invented": sorted(world.settled - world.written.keys()),
            "not committed": self.not_committed(),
            "seen again": world.applied.total() - self.applied_before_the_last_life,
            "buried by an outage": [letter for letter in world.dead.letters if letter.error.startswith("Unavailable")],
            "while it ran": world.wrong,
        }
        return {name: violations for name, violations in wrong.items() if violations}

    def verdict_at_most_once(self):
        """Return the violations of a run that stores progress before it emits: it may lose, and must not repeat."""
        world = self.world
        wrong = {
            "duplicate": [id for id, times in world.applied.items() if times > 1],
            "invented": sorted(world.settled - world.written.keys()),
            "not committed": self.not_committed(),
            "fenced owner wrote": [violation for violation in world.wrong.values() if "claimed" in violation],
        }
        return {name: violations for name, violations in wrong.items() if violations}

    def not_committed(self):
        ends = self.world.log.ends
        documents = [OffsetDocument.decode(data) for data in self.world.documents().values()]
        committed = {document.partition: document.progress.offset for document in documents}
        return [n for n in self.world.log.kept if committed.get(n) != ends[n]]


def seeds():
    first, _, last = os.environ.get("FLAKELOG_SEEDS", "0-11").partition("-")
    return range(int(first), int(last or first) + 1)


def play(seed, world=SimulatedWorld, **config):
    simulation = Simulation(seed, world, **config)
    simulation.run()
    return simulation


def check(seed):
    report(seed, play(seed).verdict())


def check_at_most_once(seed):
    report(seed, play(seed, spout_guarantee=AT_MOST_ONCE).verdict_at_most_once())


def report(seed, wrong):
    replay = f"FLAKELOG_SEEDS={seed} .venv/bin/python -m pytest {os.path.relpath(__file__)}"
    assert not wrong, f"{wrong}\nreplay: {replay}"


@pytest.mark.parametrize("seed", seeds())
def test_nothing_is_lost_and_nothing_invented(seed):
    check(seed)


@pytest.mark.parametrize("seed", seeds()[:3])
def test_at_most_once_repeats_nothing(seed):
    check_at_most_once(seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, SOAK_SEEDS, SOAK_CHUNK))
def test_nothing_is_lost_in_many_histories(first):
    for seed in range(first, first + SOAK_CHUNK):
        check(seed)
        if seed % 10 == 0:
            check_at_most_once(seed)


def test_the_histories_are_busy_ones():
    """The histories contain enough restarts, faults and repeated deliveries to make the absence of loss meaningful."""
    histories = [play(seed) for seed in range(8)]
    worlds = [history.world for history in histories]
    done = sum((history.done for history in histories), Counter())
    assert all(done[kind.__name__] for kind in Simulation.KINDS), done
    assert sum(history.rivals for history in histories) > 20
    assert sum(history.group.moved for history in histories) > 100, "hardly any partition changed its member"
    assert sum(len(world.written) for world in worlds) > 500
    assert done["outage"] > 5 and any(world.dead.refused for world in worlds)
    assert any(world.buried_batches for world in worlds), "no batch that cannot be decoded became a letter"
    again = sum(world.applied.total() - len(world.applied) for world in worlds)
    assert again > 50, "hardly any message was delivered twice"


# --- planted bugs: the simulation can fail


class AheadOfTheWork(SimulatedWorld):
    """A world with a planted bug: the stored progress covers every message written, whether it was handled or not."""

    def offset_store(self, store, path, access):
        return _Changed(super().offset_store(store, path, access), self._ahead)

    def _ahead(self, request):
        document = OffsetDocument.decode(request.document).at(Progress(self.log.ends[request.partition]))
        return request._replace(document=document.encode())


class _Changed:
    """A store that changes each request to save."""

    def __init__(self, store, change):
        self._store = store
        self._change = change

    def ask(self, request, answer):
        self._store.ask(self._change(request) if isinstance(request, SaveOffset) else request, answer)

    def close(self):
        self._store.close()


class WithoutFencing(SimulatedWorld):
    """A world with a planted bug: a store that writes over another owner's progress."""

    def offset_store(self, store, path, access):
        return _Overwriting(super().offset_store(store, path, access))


class _Overwriting:
    def __init__(self, store):
        self._store = store

    def ask(self, request, answer):
        def forced(reply):
            if isinstance(reply, Fenced):
                self._store.ask(LoadOffset(request.topic, request.partition), overwrite)
            else:
                answer(reply)

        def overwrite(loaded):
            self._store.ask(request._replace(version=loaded.version), answer)

        self._store.ask(request, forced)

    def close(self):
        self._store.close()


class WithoutLeaderEpochs(SimulatedWorld):
    """A world with a planted bug: a log that was truncated and has grown again looks as if nothing had happened."""

    def __init__(self, partitions):
        super().__init__(partitions)
        self.log = self.topics[TOPIC] = _WithoutEpochs(partitions, TOPIC)


class _WithoutEpochs(MemoryLog):
    def truncate(self, partition, end):
        super().truncate(partition, end)
        self.epochs[partition] = [(0, 0)]


@pytest.mark.parametrize("bug", [AheadOfTheWork, WithoutFencing, WithoutLeaderEpochs])
def test_a_planted_bug_is_caught(bug):
    assert any(play(seed, bug).verdict() for seed in range(5))
