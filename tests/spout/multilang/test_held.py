"""A bolt inside Storm whose service is down: Storm hears of no failure while it waits for the tuple."""

import pytest
from twisted.internet.defer import Deferred

from partition_manager.ports import Failed
from spout.api import Bolt, Unavailable
from spout.background import TwistedBackground
from spout.bolts import BatchBolt
from spout.log_sink import LogSink
from spout.multilang.held import HeldTuples
from spout.multilang.origins import StormTuple
from spout.sink_ports import Counted, CountPartitions, Produced
from tests.spout.multilang.storm_side import HEARTBEAT, SYNC, commands, storm_tuple
from tests.spout.multilang.test_bolt_task import ORIGIN, driver_of, line

CONF = {"topology.message.timeout.secs": 10, "flakelog.storm.unavailable.pause.max.ms": 400}


class Store(Bolt):
    """Stores lines while its service is up; the line "bad" is always refused."""

    output_fields = ("line",)
    up = False

    def prepare(self):
        self.tried = []

    def execute(self, tup):
        self.tried.append(tup["line"])
        self.emit((tup["line"],))
        if tup["line"] == "bad":
            raise ValueError("bad line")
        if not self.up:
            raise Unavailable("no answer")


def settled(answers):
    return [(answer["command"], answer["id"]) for answer in answers if answer["command"] in ("ack", "fail")]


def test_a_tuple_whose_bolt_raises_unavailable_is_executed_again_and_storm_hears_of_no_failure():
    driver = driver_of(Store(), CONF)
    first = driver.send(line("1", "a"))
    assert commands(first) == ["emit", "error"] and "Unavailable: no answer" in first[1]["msg"]
    assert driver.task.next_deadline_ms() == driver.now_ms + 100
    assert driver.work(99) == [] and driver.send(HEARTBEAT) == [SYNC]
    driver.work(1)
    assert driver.instance.tried == ["a", "a"]
    driver.instance.up = True
    answers = driver.work(200)
    assert commands(answers) == ["emit", "ack"] and settled(answers) == [("ack", "1")]
    assert answers[0]["tuple"] == first[0]["tuple"], "the same emit, so that a bolt after it can recognise it"


def test_one_tuple_at_a_time_is_tried_after_growing_pauses_and_all_when_the_service_is_back():
    driver = driver_of(Store(), CONF)
    driver.send(*[line(str(n), str(n)) for n in range(5)])
    driver.instance.tried.clear()
    pauses = []
    for _ in range(5):
        pauses.append(driver.task.next_deadline_ms() - driver.now_ms)
        driver.work(pauses[-1])
    assert pauses == [100, 200, 400, 400, 400] and driver.instance.tried == ["0", "1", "2", "3", "4"]
    driver.instance.up = True
    answers = driver.work(400)
    assert settled(answers) == [("ack", "0")] and driver.task.next_deadline_ms() == driver.now_ms
    answers += driver.work()
    assert sorted(settled(answers)) == [("ack", str(n)) for n in range(5)]
    assert driver.task.next_deadline_ms() > driver.now_ms + 1_000, "nothing is held"


def test_a_tuple_is_failed_when_storm_waits_for_it_no_longer():
    driver = driver_of(Store(), CONF)
    driver.send(line("1", "a"))
    while driver.now_ms < 10_900:
        assert settled(driver.work(100)) == []
    answers = driver.work(100)
    assert settled(answers) == [("fail", "1")]
    assert "held for 10.0 s and given up: Unavailable: no answer" in answers[-1]["msg"]
    assert driver.task.next_deadline_ms() > driver.now_ms + 1_000, "nothing is held"


def test_other_tuples_are_executed_meanwhile_and_a_bad_one_fails_at_once():
    driver = driver_of(Store(), CONF)
    driver.send(line("1", "a"))
    assert settled(driver.send(line("2", "bad"))) == [("fail", "2")]
    driver.instance.up = True
    assert settled(driver.send(line("3", "c"))) == [("ack", "3")]
    assert settled(driver.work(100)) == [("ack", "1")]


def test_the_bolt_cannot_settle_a_tuple_that_is_held():
    class Manual(Bolt):
        auto_ack = False

        def execute(self, tup):
            self.fail(tup, Unavailable("no answer"))
            self.ack(tup)

    driver = driver_of(Manual(), CONF)
    assert settled(driver.send(line("1"))) == [] and settled(driver.work(100)) == []


def test_the_values_come_again_as_they_were():
    class Change(Store):
        def execute(self, tup):
            self.tried.append(repr(tup.values))
            tup["line"].append("more")
            raise Unavailable("no answer")

    driver = driver_of(Change(), CONF)
    driver.send(storm_tuple("1", ['~j["a"]', 1, '[[1,"~f1.0"]]\n' + ORIGIN]))
    driver.work(100)
    assert driver.instance.tried == ["(['a'], 1.0)"] * 2


def test_a_batch_is_held_and_comes_again():
    class StoreAll(BatchBolt):
        batch_size = 2
        up = False

        def process_batch(self, batch):
            if not self.up:
                raise Unavailable("no answer")

    driver = driver_of(StoreAll(), CONF)
    assert settled(driver.send(line("1"), line("2"))) == []
    driver.instance.up = True
    driver.work(100)
    settlements = [settlement for _ in range(5) for settlement in settled(driver.work(100))]
    assert sorted(settlements) == [("ack", "1"), ("ack", "2")]


def test_a_coroutine_that_raises_unavailable_is_started_again():
    class Ask(Bolt):
        def prepare(self):
            self.answers = []

        async def execute(self, tup):
            self.answers.append(Deferred())
            await self.answers[-1]

    driver = driver_of(Ask(), CONF, TwistedBackground())
    driver.send(line("1"))
    driver.instance.answers[0].errback(Unavailable("no answer"))
    assert settled(driver.work()) == []
    driver.work(100)
    driver.instance.answers[1].callback(None)
    assert settled(driver.work()) == [("ack", "1")]


class Broker:
    """The world of a sink: a broker that is away until it is `up`."""

    def __init__(self):
        self.up = False
        self.written = []

    def producer(self, servers, *, security=None):
        return self

    def ask(self, request, answer):
        if not self.up:
            answer(Failed("no broker"))
        elif isinstance(request, CountPartitions):
            answer(Counted(1))
        else:
            self.written += [output.value for output in request.outputs]
            answer(Produced())


def test_a_sink_whose_broker_is_away_writes_each_record_when_it_is_back():
    broker = Broker()
    driver = driver_of(LogSink("out", value="line"), CONF, world=broker)
    assert settled(driver.send(*[line(str(n), f"record {n}") for n in range(3)])) == []
    assert settled(driver.work(1_000)) == []
    broker.up = True
    answers = driver.work(400) + driver.work()
    assert sorted(settled(answers)) == [("ack", str(n)) for n in range(3)]
    assert sorted(broker.written) == [b"record 0", b"record 1", b"record 2"]


def test_too_many_held_tuples_stop_the_reading():
    driver = driver_of(Store(), {**CONF, "topology.executor.receive.buffer.size": 3})
    driver.send(*[line(str(n)) for n in range(3)])
    assert driver.task.is_full and SYNC in driver.work(500)


@pytest.mark.parametrize("pause_max_ms", [1, 50, 5_000])
def test_what_is_held_is_due_once(pause_max_ms):
    held = HeldTuples(1_000, pause_max_ms)
    for n in range(20):
        assert held.keep(StormTuple((), None, str(n), None, {}, came_ms=n), Unavailable("no"), now_ms=20)
    seen, now_ms = [], 20
    while held:
        now_ms = max(now_ms, held.next_deadline_ms(now_ms))
        again, expired = held.due(now_ms)
        seen += [tup.anchors for tup in again] + [tup.anchors for tup, _ in expired]
    assert sorted(seen, key=int) == [str(n) for n in range(20)] and now_ms <= 1_119


def test_the_figures_keep_the_time_and_the_error_of_an_outage_while_other_tuples_are_acked():
    held = HeldTuples(10_000, 400)
    held.keep(StormTuple((), None, "1", None, {}, came_ms=5_000), Unavailable("no answer"), now_ms=5_000)
    held.settled(StormTuple((), None, "2", None, {}, came_ms=5_100))
    outage = held.outage(5_500, task=0)
    assert outage.lasted_ms == 500 and "no answer" in outage.text
