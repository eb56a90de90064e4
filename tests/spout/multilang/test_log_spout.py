"""A LogSpout inside Storm: progress, retries and dead letters are those of the embedded engine."""

import json

import pytest
from twisted.internet.task import Clock

from spout.config import SpoutConfig
from spout.figures.document import BoltsLately
from spout.log_spout import LogSpout
from spout.multilang.named_letters import WAIT_SECONDS, LetterLines, NamedLetters
from spout.multilang.origins import StormTuple
from spout.multilang.wire import PipeClosed
from spout.topology import Topology
from tests.spout.multilang.storm_side import SYNC, CoreDriver, commands, emits
from tests.spout.worlds import Collect, SpoutWorld

FAST = SpoutConfig(spout_retry_jitter=0.0, spout_max_attempts=2, spout_commit_interval_ms=1_000)


def topology_of(parallelism=1, **options):
    topology = Topology("t")
    topology.spout("flights", LogSpout("flights", config=FAST, **options), parallelism=parallelism)
    topology.bolt("collect", Collect()).shuffle("flights")
    return topology


def driver_of(world, index=0, conf=None, **options):
    driver = CoreDriver(topology_of(**options), "flights", index=index, conf=conf, world=world)
    driver.activate()
    driver.work()
    return driver


def world_of(*values, partitions=1):
    world = SpoutWorld(partitions)
    for number, value in enumerate(values):
        world.log.append(value, partition=number % partitions)
    return world


def stored(world, partition=0):
    node = world.ensemble.nodes.get(f"/flakelog-spouts/t.flights/partition_{partition}")
    return None if node is None else json.loads(node.data)["offset"]


def test_the_default_raw_scheme_emits_ids_keys_and_values_in_bytes():
    world = world_of(b"text", b"\xff")
    world.log.append(b"value", key=b"key")
    rows = [emit["tuple"][:3] for emit in emits(driver_of(world).next())]
    assert rows == [[1000, None, "~btext"], [1001, None, "~x/w=="], [1002, "~bkey", "~bvalue"]]


def test_the_message_names_its_place_its_topic_and_the_stored_watermark():
    world = world_of(b"a", b"b")
    driver = driver_of(world)
    first, second = emits(driver.next())
    messages, path = json.loads(second["tuple"][-1])
    assert path == [["flights", 0]] and messages == [["flights", messages[0][1], 0, 1, 0, "flights"]]
    driver.ack(first)
    driver.work(2_000)
    world.log.append(b"c")
    driver.work(1)
    (third,) = emits(driver.next())
    assert json.loads(third["tuple"][-1])[0][0][3:5] == [2, 1]


def test_acked_messages_are_stored_after_the_commit_interval_and_before_a_deactivate_is_answered():
    world = world_of(b"a", b"b", b"c")
    driver = driver_of(world)
    first, second, third = emits(driver.next())
    driver.ack(first)
    assert stored(world) != 1
    driver.work(2_000)
    assert stored(world) == 1
    driver.ack(second)
    assert driver.deactivate() == [SYNC] and stored(world) == 2
    driver.ack(third)
    driver.work(2_000)
    assert stored(world) == 3


def test_finish_stores_the_progress_and_releases_the_partitions():
    world = world_of(b"a", b"b")
    driver = driver_of(world)
    driver.ack(emits(driver.next())[0])
    driver.task.finish(driver.now_ms)
    while not driver.task.idle:
        driver.work(1)
    driver.task.close(driver.now_ms)
    assert stored(world) == 1


def test_a_failed_message_comes_again_after_its_backoff_and_becomes_a_dead_letter_after_its_attempts():
    world = world_of(b"poison")
    driver = driver_of(world)
    (emit,) = emits(driver.next())
    driver.fail(emit)
    assert driver.next() == []  # held
    assert commands(driver.work(50)) == ["sync"]
    driver.now_ms += 50
    (again,) = emits(driver.next())
    driver.fail(again)
    driver.work(1)
    (letter,) = world.dead.letters
    assert letter.record.value == b"poison" and "inside Storm" in letter.error


def test_an_outage_longer_than_all_attempts_makes_no_dead_letter():
    """A bolt holds what it cannot process until the message timeout."""
    world = world_of(b"a", b"b")
    driver = driver_of(world, conf={"topology.message.timeout.secs": 10})
    attempts = 0
    for _ in range(20_000):
        emitted = emits(driver.next() + driver.work(10))
        attempts += len(emitted)
        for emit in emitted:
            driver.now_ms += 10_000
            driver.fail(emit)
    assert attempts > 6 and world.dead.letters == []
    while not (emitted := emits(driver.next() + driver.work(10))):
        pass
    driver.ack(emitted[0])
    assert driver.instance.counts.acked == 1


def test_an_ack_of_an_earlier_attempt_is_harmless():
    world = world_of(b"a")
    driver = driver_of(world)
    (emit,) = emits(driver.next())
    driver.fail(emit)
    driver.now_ms += 100
    (again,) = emits(driver.next())
    assert driver.ack(emit) == [SYNC] and driver.instance.counts.acked == 0
    assert driver.ack(again) == [SYNC] and driver.instance.counts.acked == 1


def test_a_message_with_a_value_that_storm_cannot_carry_is_undecodable():
    class Odd:
        fields = ("value",)

        def tuples(self, record, partition):
            return ((object(),),)

    world = world_of(b"a")
    driver = driver_of(world, scheme=Odd())
    assert emits(driver.next()) == []
    driver.work(1)
    (letter,) = world.dead.letters
    assert "flights emits to stream 'default' a field 'value' that Storm does not take" in letter.error


def test_a_message_whose_emit_meets_the_end_of_the_pipe_comes_again_and_is_no_dead_letter():
    class Asking(LogSpout):
        needs_task_ids = True

    def closed(data):
        raise PipeClosed

    topology = Topology("t")
    topology.spout("flights", Asking("flights", config=FAST))
    topology.bolt("collect", Collect()).shuffle("flights")
    world = world_of(b"a")
    driver = CoreDriver(topology, "flights", world=world)
    driver.activate()
    driver.pipe.exchange = closed
    with pytest.raises(PipeClosed):
        driver.next()
    driver.task.finish(driver.now_ms)
    driver.work(1)
    assert world.dead.letters == [] and stored(world) == 0


def test_a_message_of_several_tuples_is_acked_when_all_are_and_each_has_its_number():
    class Words:
        fields = ("word",)

        def tuples(self, record, partition):
            return [(word,) for word in record.value.split()]

    driver = driver_of(world_of(b"two words"), scheme=Words())
    first, second = emits(driver.next())
    assert [json.loads(emit["tuple"][-1])[1] for emit in (first, second)] == [[["flights", 0]], [["flights", 1]]]
    driver.ack(first)
    assert driver.instance.counts.acked == 0
    driver.ack(second)
    assert driver.instance.counts.acked == 1


@pytest.mark.parametrize("index, partitions", [(0, [0, 2, 4]), (1, [1, 3])])
def test_partitions_divide_by_the_index_of_the_task_in_storm(index, partitions):
    world = world_of(*[b"v"] * 10, partitions=5)
    driver = driver_of(world, index=index, parallelism=2)
    assert [status.partition for status in driver.instance.status()] == partitions
    assert {json.loads(emit["tuple"][-1])[0][0][2] for emit in emits(driver.next())} == set(partitions)


def test_a_message_that_comes_while_next_is_held_is_emitted_at_once():
    world = world_of()
    driver = driver_of(world)
    assert driver.next() == []
    world.log.append(b"late")
    assert driver.wakes
    assert commands(driver.work(1)) == ["emit", "sync"]


def test_an_inactive_spout_wakes_for_its_own_deadlines_and_not_more_often():
    driver = driver_of(world_of(b"a"))
    driver.deactivate()
    at_ms = driver.task.next_deadline_ms()
    assert at_ms is None or at_ms >= driver.now_ms + 10


def test_the_tuple_of_a_bolt_has_the_origin_that_the_embedded_engine_gives():
    driver = driver_of(world_of(b"a"))
    (emit,) = emits(driver.next())
    tup = StormTuple((), None, "1", emit["tuple"][-1], {})
    (message,) = tup.messages
    assert (message.partition, message.offset) == (0, 0) and tup.origin.path == (("flights", 0),)
    assert tup.link.details(1) == [{"topic": "flights", "partition": 0, "offset": 0}]


def test_the_logs_line_about_a_dead_letter_has_the_exception_that_the_bolt_told():
    world, clock, lines = world_of(b"poison"), Clock(), LetterLines()
    inner = world.dead

    class Bolts:
        def read(self, answer, *, again=False):
            answer(BoltsLately(False, {("flights", 0, 0): "ValueError: bad, in collect"}))

    world.dead_letters = lambda servers, topic, security: NamedLetters(inner, Bolts(), lines, clock)
    driver = driver_of(world)
    lines.say, driver.task.context.keeps = driver.task.context.log_now, lines.keeps
    for _ in range(2):
        emitted = []
        while not emitted:
            driver.now_ms += 50
            emitted = emits(driver.next() + driver.work(10))
        driver.fail(emitted[0])
    driver.work(1)
    assert "dead letters" not in str(driver.next())
    clock.advance(WAIT_SECONDS)
    answers = driver.next() + driver.work(10_000) + driver.next()
    (line,) = [answer["msg"] for answer in answers if "goes to" in str(answer)]
    text = "flights-0 offset 0 failed 2 times and goes to the dead letters (attempts): ValueError: bad, in collect"
    assert line == f"flights[0]: {text}" and inner.letters[0].error == "ValueError: bad, in collect"
