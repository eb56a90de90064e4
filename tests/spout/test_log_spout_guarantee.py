"""The guarantees of `flakelog.spout.guarantee`: at most once, and none. At least once is all other tests' matter."""

import json

from flakelog.testing import TopologyDriver
from spout.config import SpoutConfig, TopologyConfig
from spout.log_spout import LogSpout
from spout.topology import Topology
from tests.spout.worlds import Collect, SpoutWorld


def driver_of(world, guarantee, bolt=None, *, run_id="first", pending=5_000, **config):
    topology = Topology("t")
    settings = SpoutConfig(spout_guarantee=guarantee, **config)
    topology.spout("log", LogSpout("flights", config=settings))
    topology.bolt("collect", bolt or Collect()).global_("log")
    return TopologyDriver(topology, world, run_id=run_id, config=TopologyConfig(topology_max_spout_pending=pending))


def world_of(messages):
    world = SpoutWorld()
    for n in range(messages):
        world.log.append(b"%d" % n)
    return world


def values_of(driver):
    return [int(values[-1]) for values in driver.tasks("collect")[0].seen]


def counts_of(driver):
    return driver.tasks("log")[0].counts


def stored(world):
    return json.loads(world.ensemble.nodes["/flakelog-spouts/t.log/partition_0"].data)["offset"]


def test_at_most_once_progress_is_stored_before_a_message_is_emitted():
    world = world_of(10)
    driver = driver_of(world, "at-most-once", spout_fetch_max_records=4)
    for _ in range(100):
        driver.executor.step(0)
        assert stored(world) > max(values_of(driver), default=-1)
    assert values_of(driver) == list(range(10))


def test_at_most_once_nothing_comes_again_after_a_kill():
    world = world_of(10)
    first = driver_of(world, "at-most-once", pending=3, spout_fetch_max_records=5)
    first.executor.step(0)
    first.executor.step(0)
    assert values_of(first)
    second = driver_of(world, "at-most-once", run_id="second").run()
    assert not set(values_of(first)) & set(values_of(second))


def test_at_most_once_emits_nothing_while_the_store_is_down():
    world = world_of(3)
    driver = driver_of(world, "at-most-once").run()
    world.session.lose_requests = 3
    world.log.append(b"3")
    assert values_of(driver.run()) == [0, 1, 2]
    assert values_of(driver.advance(30_000)) == [0, 1, 2, 3]


def test_at_most_once_a_failed_message_is_counted_and_not_repeated():
    world = world_of(3)
    driver = driver_of(world, "at-most-once", Collect(lambda tup, seen: tup["value"] == b"1")).run().advance(60_000)
    counts = counts_of(driver)
    assert values_of(driver) == [0, 1, 2] and not world.dead.letters
    assert (counts.acked, counts.failed, counts.dropped, counts.retried) == (2, 1, 1, 0)


def test_at_most_once_a_clean_stop_loses_nothing_that_was_not_emitted():
    world = world_of(10)
    first = driver_of(world, "at-most-once", pending=2)
    first.executor.step(0)
    first.executor.deactivate(0)
    first.executor.finish(0)
    first.executor.step(0)
    emitted = first.executor.counts()["log"][0].emitted
    assert 0 < emitted < 10 and stored(world) == emitted
    second = driver_of(world, "at-most-once", run_id="second").run()
    assert values_of(second) == list(range(emitted, 10))


def test_without_a_guarantee_tuples_have_no_ids_and_progress_is_the_position_of_each_commit():
    world = world_of(5)
    driver = driver_of(world, "none", Collect(lambda tup, seen: True)).run()
    assert values_of(driver) == [0, 1, 2, 3, 4]
    assert driver.executor.in_flight == 0 and counts_of(driver).failed == 0 and stored(world) == 0
    driver.advance(60_000)
    assert values_of(driver) == [0, 1, 2, 3, 4] and stored(world) == 5


def test_without_a_guarantee_what_was_emitted_since_the_last_commit_comes_again_after_a_kill():
    world = world_of(5)
    driver_of(world, "none").advance(2_000)
    world.log.append(b"5")
    assert values_of(driver_of(world, "none", run_id="second").run()) == [5]


def test_under_either_guarantee_a_message_that_cannot_be_decoded_is_dropped_without_a_dead_letter_topic():
    class Broken:
        fields = ("value",)

        def tuples(self, record, partition):
            raise KeyError("x")

    for guarantee in ("at-most-once", "none"):
        world = world_of(2)
        topology = Topology("t")
        config = SpoutConfig(spout_guarantee=guarantee, spout_dead_letter_topic="")
        topology.spout("log", LogSpout("flights", scheme=Broken(), config=config))
        topology.bolt("collect", Collect()).global_("log")
        driver = TopologyDriver(topology, world).run().advance(10_000)
        assert counts_of(driver).dropped == 2 and driver.tasks("log")[0].status()[0].watermark == 2
