"""Each row is in a destination once, or the load fails clearly, whatever is killed and whoever runs beside.

Each seed is one history: drivers start, take steps by turns and are killed; records are appended, expire, or the topic
is truncated or made again. After each step a reader that knows nothing of loads sees no row twice. At the end a run
that is left alone brings every row in, or names the lost offsets.

A failure prints the command that replays it; FLAKELOG_SEEDS takes a seed, or a range such as 0-9999.
"""

import os
import random

import pytest

from spark_bridge.load.file_ledger import FileLedger
from spark_bridge.load.ledger import LostData, OtherLog
from spark_bridge.load.load import Layout
from spark_bridge.load.parquet_sink import ParquetSink
from spark_bridge.load.receipt import receipt_of
from spark_bridge.load.sink import LoadState, StoredLoad
from spark_bridge.load.verify import verify
from spark_bridge.reading.range_cursor import DataLoss
from tests.simulation.loads_world import World
from tests.spark_bridge.load.world import plain_reader

SEEDS = range(40)
SOAK_SEEDS = range(5_000)


class History:
    """A random history of one destination."""

    def __init__(self, seed, sink=ParquetSink):
        self.chance = chance = random.Random(seed)
        exclusive = chance.random() < 0.9
        ends = [chance.randint(0, 6) for _ in range(chance.randint(1, 3))]
        self.world = World(*ends, renames=chance.random() < 0.6, exclusive=exclusive, sink=sink)
        self.drivers_max = chance.choice((1, 2, 2, 3)) if exclusive else 1
        self.options = {"layout": Layout(partition_by=chance.choice((None, None, "hour", "key")))}
        self.loses = chance.random() < 0.4
        self.errors = []

    def run(self):
        try:
            for _ in range(self.chance.randint(20, 250)):
                self.event()
            self.finish()
        finally:
            self.world.stop()

    def event(self):
        world, dice = self.world, self.chance.random()
        if dice < 0.04:
            world.topics.append(self.chance.randrange(len(world.topics.ends)), self.chance.randint(1, 6))
        elif dice < 0.05 and self.loses:
            self.lose()
        elif dice < 0.06 and world.running:
            world.kill(self.chance.choice(world.running))
        elif len(world.running) < self.drivers_max and dice < 0.15 or not world.running:
            self.start()
        else:
            self.step(self.chance.choice(world.running))

    def lose(self):
        topics, partition = self.world.topics, self.chance.randrange(len(self.world.topics.ends))
        dice = self.chance.random()
        if dice < 0.8:
            topics.expire(partition, self.chance.randint(0, topics.ends[partition]))
        elif dice < 0.9:
            topics.truncate(partition, self.chance.randint(topics.starts[partition], topics.ends[partition]))
        else:
            topics.recreate(*topics.ends)

    def start(self, **more):
        options = self.options | {"file_rows": self.chance.randint(1, 4)} | more
        return self.world.start(accept_loss=self.chance.random() < 0.3, **options)

    def step(self, runner):
        self.world.step(runner)
        if runner.error is not None:
            self.accept(runner)

    def accept(self, runner):
        """Accept errors that name what the log lost; anything else is a fault."""
        assert isinstance(runner.error, (LostData, OtherLog, DataLoss)), repr(runner.error)
        assert self.loses, f"{runner.error!r}, but nothing was lost"
        if runner.options["accept_loss"]:
            assert not isinstance(runner.error, LostData), "the loss was accepted"

    def finish(self):
        """Kill all drivers, run one undisturbed, and compare the destination with the log."""
        world = self.world
        for runner in list(world.running):
            world.kill(runner)
        last = world.run(accept_loss=True, **self.options)
        verification = verify(world.sink_now())
        assert not verification.problems, verification.problems
        seen = {value for _, value in plain_reader(world.objects)}
        if last.error is not None:
            assert isinstance(last.error, OtherLog) and self.loses, repr(last.error)
            return
        lost = {
            f"{world.topics.life}/{lost_range.partition}/{n}"
            for lost_range in verification.lost
            for n in range(lost_range.start, lost_range.end)
        }
        assert verification.unfinished is None
        first = world.sink_now().find(0)
        begin = first.load.starts if first else dict(enumerate(world.topics.starts))  # expired before the first load
        early = {f"{world.topics.life}/{p}/{n}" for p, start in begin.items() for n in range(start)}
        assert seen == world.topics.values() - lost - early, "lost: rows of the log that no load has"
        assert not seen & lost, "a row is loaded and called lost"
        assert verification.rows == len(seen), "receipts have other rows than the files"


def seeds(default):
    text = os.environ.get("FLAKELOG_SEEDS")
    if text is None:
        return default
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def replay(chosen, sink=ParquetSink):
    for seed in chosen:
        try:
            History(seed, sink).run()
        except AssertionError as error:
            error.add_note(f"FLAKELOG_SEEDS={seed} python -m pytest {__file__} -k each_row")
            raise


def test_each_row_is_loaded_once_in_every_history():
    replay(seeds(SEEDS))


@pytest.mark.soak
def test_each_row_is_loaded_once_in_many_histories():
    replay(seeds(SOAK_SEEDS))


@pytest.mark.parametrize("renames, by", [(True, None), (False, "hour")], ids=["rename", "copy"])
def test_a_driver_may_be_killed_before_each_of_its_steps(renames, by):
    options = {"file_rows": 2, "layout": Layout(partition_by=by)}
    whole = World(5, 2, renames=renames).run(**options)
    for step in range(whole.steps):
        world = World(5, 2, renames=renames)
        runner = world.start(**options)
        for _ in range(step + 1):
            world.step(runner)
        world.kill(runner)
        assert world.run(**options).error is None
        assert sorted(value for _, value in plain_reader(world.objects)) == sorted(world.topics.values())


def race(sink=ParquetSink, stride=1):
    """Stop a driver at each of its steps while another runs up to each of its own; finish the first, then the other.

    Records come between the two beginnings, so the two plan loads that overlap.
    """
    world = World(2, sink=sink)
    steps = world.run().steps
    for first_stop in range(0, steps, stride):
        for second_stop in range(0, steps, stride):
            world = World(2, sink=sink)
            first = advanced(world, first_stop)
            world.topics.append(0, 1)
            second = advanced(world, second_stop)
            for runner in (first, second):
                while not runner.over:
                    world.step(runner)
                assert runner.error is None, repr(runner.error)
            values = [value for _, value in plain_reader(world.objects)]
            assert world.topics.values() - {"1/0/2"} <= set(values) <= world.topics.values()
            assert not verify(world.sink_now()).problems


def advanced(world, steps):
    runner = world.start()
    for _ in range(steps + 1):
        if not runner.over:
            world.step(runner)
    return runner


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.soak)])
def test_two_drivers_may_meet_at_any_two_steps(stride):
    race(stride=stride)


# --- faults that the simulation must find -------------------------------------------------------------------------


class OverwritingLedger(FileLedger):
    """Looks whether a file is there and then writes it, as a store without exclusive creation does."""

    def _create(self, name, text):
        if self._storage.exists(name):
            return False
        with self._storage.write(name) as file:
            file.write(text.encode())
        return True


class OverwritingSink(ParquetSink):
    def __init__(self, storage, topic, new_attempt):
        super().__init__(storage, topic, new_attempt)
        self._ledger = OverwritingLedger(storage, topic)


class DirectSink(ParquetSink):
    """Writes files at their place before the decision."""

    def _staged(self, load, attempt):
        return lambda name: name


class ForgetfulSink(ParquetSink):
    """Takes a saved plan for a published load."""

    def find(self, number):
        stored = super().find(number)
        return (
            StoredLoad(stored.load, LoadState.PUBLISHED, stored.receipt)
            if stored and stored.state is LoadState.PLANNED
            else stored
        )


class HastySink(ParquetSink):
    """Creates the receipt before the files are in place."""

    def publish(self, load, parts):
        self._ledger.put_receipt(self._ledger.decide(receipt_of(load, parts)))
        return super().publish(load, parts)


class RenumberedSink(ParquetSink):
    """Publishes its own parts, not those of the first decision."""

    def publish(self, load, parts):
        receipt = receipt_of(load, parts)
        self._ledger.decide(receipt)
        for part in receipt.parts:
            for name, file in part.files.items():
                self._move(self._staged(load, part.attempt)(name), f"{part.attempt}-{name}", file)
        self._ledger.put_receipt(receipt)
        return receipt


@pytest.mark.parametrize("sink", [OverwritingSink, DirectSink, ForgetfulSink, HastySink, RenumberedSink])
def test_the_simulation_finds_a_sink_that_breaks_a_promise(sink):
    with pytest.raises(AssertionError):
        replay(range(5), sink)
        race(sink)
