"""The spout over the log, in a topology with a simulated clock."""

import json

import pytest

from broker.client.offset_spec import AtId, AtTime, Latest
from flakelog.testing import TopologyDriver
from partition_manager.task_partition import Phase
from spout.config import SpoutConfig, TopologyConfig
from spout.log_spout import LogSpout
from spout.scheme import JsonScheme, StringScheme
from spout.topology import Topology
from tests.spout.worlds import Collect, SpoutWorld

FAST = SpoutConfig(spout_retry_jitter=0.0, spout_max_attempts=3)


def topology_of(bolt=None, *, id=None, parallelism=1, **spout):
    spout.setdefault("config", FAST)
    topology = Topology("t", id=id)
    topology.spout("flights", LogSpout("flights", **spout), parallelism=parallelism)
    topology.bolt("collect", bolt or Collect()).global_("flights")
    return topology


def values_of(driver):
    return [values[-1] for values in driver.tasks("collect")[0].seen]


def spout_of(driver):
    return driver.tasks("flights")[0]


def stored(world, partition=0):
    node = world.ensemble.nodes[f"/flakelog-spouts/t.flights/partition_{partition}"]
    return json.loads(node.data)


def test_every_message_of_every_partition_arrives_with_its_snowflake_id():
    world = SpoutWorld(partitions=3)
    for n in range(9):
        world.log.append(b"%d" % n, partition=n % 3)
    driver = TopologyDriver(topology_of(), world).run()
    assert sorted(driver.tasks("collect")[0].seen)[:2] == [(1000, None, b"0"), (1001, None, b"3")]
    assert sorted(values_of(driver)) == [b"%d" % n for n in range(9)]
    assert spout_of(driver).counts.acked == 9


def test_messages_appended_later_arrive_without_being_asked_for_again():
    world = SpoutWorld()
    driver = TopologyDriver(topology_of(), world).run()
    world.log.append(b"late")
    assert values_of(driver.run()) == [b"late"]


def test_two_tasks_share_the_partitions_and_read_each_message_once():
    world = SpoutWorld(partitions=5)
    for n in range(20):
        world.log.append(b"%d" % n, partition=n % 5)
    driver = TopologyDriver(topology_of(parallelism=2), world).run()
    assert sorted(values_of(driver)) == sorted(b"%d" % n for n in range(20))
    assert [[s.partition for s in spout.status()] for spout in driver.tasks("flights")] == [[0, 2, 4], [1, 3]]


def test_a_failed_message_comes_again_after_its_delay():
    world = SpoutWorld()
    world.log.append(b"a")
    driver = TopologyDriver(topology_of(Collect(lambda tup, seen: seen == 0)), world).run()
    assert values_of(driver.advance(99)) == [b"a"]
    assert values_of(driver.advance(1)) == [b"a", b"a"]
    counts = spout_of(driver).counts
    assert (counts.acked, counts.failed, counts.retried) == (1, 1, 1)


def test_a_poison_message_goes_to_the_dead_letters_with_its_error_and_the_rest_goes_on():
    world = SpoutWorld()
    for value in (b"a", b"poison", b"b"):
        world.log.append(value)
    driver = TopologyDriver(topology_of(Collect(lambda tup, seen: tup["value"] == b"poison")), world).advance(10_000)
    (letter,) = world.dead.letters
    assert (letter.record.offset, letter.reason, letter.attempts) == (1, "attempts", 3)
    assert letter.error == "RuntimeError: on purpose, in collect"
    assert values_of(driver).count(b"poison") == 3
    assert world.dead_topic == "flights.dead-letters"
    assert stored(world)["offset"] == 3


def test_a_dead_letter_is_confirmed_before_its_message_is_settled():
    world = SpoutWorld()
    world.dead.slow = True
    world.log.append(b"poison")
    driver = TopologyDriver(topology_of(Collect(lambda tup, seen: True)), world).advance(10_000)
    assert len(world.dead.letters) == 1 and stored(world)["offset"] == 0
    world.dead.confirm()
    driver.advance(10_000)
    assert stored(world)["offset"] == 1 and spout_of(driver).counts.dead_lettered == 1


def test_dead_letters_wait_for_a_broker_that_is_down():
    world = SpoutWorld()
    world.dead.down = "broker down"
    world.log.append(b"poison")
    driver = TopologyDriver(topology_of(Collect(lambda tup, seen: True)), world).advance(10_000)
    assert stored(world)["offset"] == 0
    world.dead.down = None
    driver.advance(30_000)
    assert len(world.dead.letters) == 1 and stored(world)["offset"] == 1


def test_a_message_that_the_scheme_cannot_read_becomes_a_dead_letter_immediately():
    world = SpoutWorld()
    for value in (b'{"carrier": "UA"}', b"no JSON", b'{"carrier": "AA"}'):
        world.log.append(value)
    driver = TopologyDriver(topology_of(scheme=JsonScheme("carrier")), world).run()
    assert [values[1:] for values in driver.tasks("collect")[0].seen] == [("UA",), ("AA",)]
    assert [letter.reason for letter in world.dead.letters] == ["undecodable"]


def test_a_message_of_several_tuples_is_settled_when_all_of_them_are():
    class Words(StringScheme):
        fields = ("word",)

        def tuples(self, record, partition):
            return [(word,) for word in record.value.decode().split()]

    world = SpoutWorld()
    world.log.append(b"a b c")
    world.log.append(b"")
    fails_once = Collect(lambda tup, seen: tup["word"] == "b" and seen == 0)
    driver = TopologyDriver(topology_of(fails_once, scheme=Words()), world)
    assert values_of(driver.run()) == ["a", "b", "c"]
    assert values_of(driver.advance(200)) == ["a", "b", "c", "a", "b", "c"]
    counts = spout_of(driver).counts
    assert (counts.acked, counts.filtered, counts.failed) == (1, 1, 1)


def test_after_a_kill_it_goes_on_from_stored_progress_and_only_what_was_not_stored_comes_again():
    world = SpoutWorld()
    for n in range(10):
        world.log.append(b"%d" % n)
    failing = Collect(lambda tup, seen: tup["value"] == b"4")
    TopologyDriver(topology_of(failing, config=SpoutConfig(spout_max_attempts=0)), world, run_id="first").advance(2_000)
    assert stored(world)["offset"] == 4 and stored(world)["done"] == [[5, 10]]
    world.log.append(b"10")
    second = TopologyDriver(topology_of(), world, run_id="second").run()
    assert values_of(second) == [b"4", b"10"]


def test_a_clean_stop_stores_everything_so_nothing_comes_again():
    world = SpoutWorld(partitions=2)
    for n in range(10):
        world.log.append(b"%d" % n, partition=n % 2)
    driver = TopologyDriver(topology_of(), world, run_id="first").run().stop()
    assert driver.executor.idle
    assert values_of(TopologyDriver(topology_of(), world, run_id="second").run()) == []


def test_a_second_run_fences_the_first_which_stops_and_says_so():
    """A second run fences the first by versioned sets, so two owners cannot overwrite each other."""
    world = SpoutWorld()
    world.log.append(b"a")
    first = TopologyDriver(topology_of(), world, run_id="first").run()
    second = TopologyDriver(topology_of(), world, run_id="second").run()
    world.log.append(b"b")
    first.advance(3_000)
    assert [s.phase for s in spout_of(first).status()] == [Phase.FENCED]
    assert any("was written by run second" in text for _, text in first.reports)
    second.advance(3_000)
    assert [s.phase for s in spout_of(second).status()] == [Phase.RUNNING]
    assert stored(world)["offset"] == 2


def test_a_start_at_latest_stays_there_though_killed_before_its_first_commit():
    world = SpoutWorld()
    world.log.append(b"old")
    TopologyDriver(topology_of(start=Latest()), world, run_id="first").run()
    world.log.append(b"new")
    assert values_of(TopologyDriver(topology_of(start=Latest()), world, run_id="second").run()) == [b"new"]


@pytest.mark.parametrize("start", [AtId(1003), AtTime(30)])
def test_it_can_start_at_an_id_or_a_time(start):
    world = SpoutWorld()
    for n in range(5):
        world.log.append(b"%d" % n)
    assert values_of(TopologyDriver(topology_of(start=start), world).run()) == [b"3", b"4"]


def test_what_retention_removed_is_counted_and_told():
    world = SpoutWorld()
    for n in range(10):
        world.log.append(b"%d" % n)
    config = SpoutConfig(spout_fetch_max_records=2)
    driver = TopologyDriver(topology_of(config=config), world, config=TopologyConfig(topology_max_spout_pending=1))
    driver.executor.step(0)
    world.log.retain_from(0, 7)
    driver.run()
    assert spout_of(driver).counts.lost > 0
    assert any("messages lost" in text for _, text in driver.reports)
    assert values_of(driver)[-3:] == [b"7", b"8", b"9"]


def test_while_the_broker_is_down_it_asks_again_and_tells_once():
    world = SpoutWorld()
    world.log.down = "connection refused"
    world.log.append(b"a")
    driver = TopologyDriver(topology_of(), world).advance(5_000)
    assert [text for _, text in driver.reports if "refused" in text] == [
        "flights ListPartitions failed: connection refused; it is asked again"
    ]
    world.log.down = None
    assert values_of(driver.advance(10_000)) == [b"a"]


def test_progress_of_another_topic_under_the_same_id_is_refused_and_left_alone():
    world = SpoutWorld()
    world.log.append(b"a")
    TopologyDriver(topology_of(), world, run_id="first").advance(2_000).stop()
    topology = Topology("t")
    topology.spout("flights", LogSpout("trains"))
    topology.bolt("collect", Collect()).shuffle("flights")
    driver = TopologyDriver(topology, world, run_id="second").advance(3_000)
    (status,) = spout_of(driver).status()
    assert status.phase is Phase.BROKEN and "belongs to flights-0" in status.error
    assert stored(world)["topic"] == "flights"


def test_a_lost_answer_of_the_offset_store_neither_fences_nor_loses():
    world = SpoutWorld()
    driver = TopologyDriver(topology_of(), world).run()
    for n in range(4):
        world.log.append(b"%d" % n)
        driver.run()
        if n % 2:
            world.session.lose_requests = 1
        else:
            world.session.lose_answers = 1
        driver.advance(4_000)
    assert stored(world)["offset"] == 4
    assert [s.phase for s in spout_of(driver).status()] == [Phase.RUNNING]
