"""A bolt's task inside Storm: tuples, ticks and heartbeats in, and emits, acks and fails out."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.defer import Deferred

from spout.api import Bolt, Spout
from spout.background import TwistedBackground
from spout.bolts import BatchBolt
from spout.multilang.frames import BadFrame
from spout.multilang.wire import PipeClosed
from spout.once import OncePerMessage
from spout.origin import MessagePlace, Origin
from spout.topology import Topology
from tests.spout.multilang.storm_side import HEARTBEAT, SYNC, TICK, CoreDriver, commands, storm_tuple

ORIGIN = '[[["lines","topic-id",3,41,40,"topic"]],[["lines",0]]]'


class Lines(Spout):
    output_fields = ("line", "n")

    def next_tuple(self):
        pass


class Shout(Bolt):
    output_fields = ("word",)

    def prepare(self):
        self.seen = []

    def execute(self, tup):
        self.seen.append(tup)
        self.emit((tup["line"].upper(),))


def driver_of(bolt, conf=None, background=None, world=None):
    topology = Topology("shouting")
    topology.spout("lines", Lines())
    topology.bolt("shout", bolt).shuffle("lines")
    options = {} if background is None else {"background": background}
    return CoreDriver(topology, "shout", conf=conf, world=world, **options)


def line(id="-5", text="a line", message=ORIGIN):
    return storm_tuple(id, [text, 1, message])


def test_a_tuple_is_executed_and_acked_after_its_emits():
    driver = driver_of(Shout())
    assert driver.send(line()) == [
        {
            "command": "emit",
            "anchors": ["-5"],
            "tuple": ["A LINE", '[[["lines","topic-id",3,41,40,"topic"]],[["lines",0],["shout",0]]]'],
            "need_task_ids": False,
        },
        {"command": "ack", "id": "-5"},
    ]


def test_a_tuple_has_its_values_its_emitter_and_its_origin():
    driver = driver_of(Shout())
    driver.send(line())
    (tup,) = driver.instance.seen
    assert tuple(tup) == tup.values == ("a line", 1) and tup["n"] == 1 and len(tup) == 2
    assert (tup.component, tup.stream, tup.task) == ("lines", "default", 1)
    assert tup.messages == (MessagePlace("topic-id", 3, 41),)
    assert tup.origin == Origin((MessagePlace("topic-id", 3, 41),), (("lines", 0),))
    assert driver.instance.context.watermarks() == {("lines", "topic-id", 3): 40}


def test_an_exception_fails_the_tuple_and_becomes_an_error_of_storms_that_names_the_message():
    class Broken(Shout):
        def execute(self, tup):
            raise ValueError("no good")

    fail, error = driver_of(Broken()).send(line())
    assert fail == {"command": "fail", "id": "-5"}
    assert error["command"] == "error"
    assert error["msg"].startswith("shout[0]: ValueError: no good; topic-3 offset 41\nTraceback")


def test_an_error_that_repeats_is_counted_and_summed_up_after_a_minute():
    class Broken(Shout):
        def execute(self, tup):
            raise ValueError("no good")

    driver = driver_of(Broken())
    driver.send(line("1"))
    assert commands(driver.send(line("2"))) == ["fail"]
    (summed,) = driver.work(60_000)
    assert "1 time more in the last 60 s" in summed["msg"]


def test_a_heartbeat_is_answered_by_sync():
    assert driver_of(Shout()).send(HEARTBEAT) == [SYNC]


def test_lines_for_the_log_need_no_command_because_storm_always_reads_a_bolt():
    driver = driver_of(Shout())
    driver.instance.context.log("hello")
    assert driver.work() == [{"command": "log", "msg": "shout[0]: hello", "level": 2}]


def test_a_tuple_is_settled_once():
    class Manual(Shout):
        auto_ack = False

        def execute(self, tup):
            self.ack(tup)
            self.ack(tup)
            self.fail(tup)

    assert driver_of(Manual()).send(line()) == [{"command": "ack", "id": "-5"}]


def test_an_emit_anchored_to_a_settled_tuple_is_refused_because_storm_would_end_the_worker():
    class Late(Shout):
        def execute(self, tup):
            self.ack(tup)
            self.emit(("late",), anchors=[tup])

    answers = driver_of(Late()).send(line())
    assert commands(answers) == ["ack", "error"] and "acked or failed before" in answers[1]["msg"]


def test_anchors_are_those_given():
    class Choose(Shout):
        def execute(self, tup):
            self.emit(("to none",), anchors=())
            self.emit(("twice",), anchors=[tup, tup])

    loose, twice, _ = driver_of(Choose()).send(line())
    assert loose["anchors"] == [] and loose["tuple"] == ["to none", None]
    assert twice["anchors"] == ["-5"]


def test_a_batch_gives_the_messages_of_all_and_the_path_of_the_first():
    class Pair(BatchBolt):
        output_fields = ("n",)
        batch_size = 3

        def process_batch(self, batch):
            self.emit((len(batch),))

    driver = driver_of(Pair())
    other = '[[["lines","topic-id",3,42,41,"topic"]],[["lines",7]]]'
    assert driver.send(line("1"), line("2", message=other)) == []
    emit, *acks = driver.send(line("3"))
    assert emit["anchors"] == ["1", "2", "3"] and [ack["id"] for ack in acks] == ["1", "2", "3"]
    messages, path = json.loads(emit["tuple"][1])
    assert messages == [["lines", "topic-id", 3, 41, 40, "topic"], ["lines", "topic-id", 3, 42, 41, "topic"]]
    assert path == [["lines", 0], ["shout", 0]]


def test_the_origin_after_several_bolts_is_that_of_the_embedded_engine():
    driver = driver_of(Shout())
    (emit, _) = driver.send(line())
    (again, _) = driver.send(storm_tuple("-6", ["B", 2, emit["tuple"][1]]))
    tup = driver.instance.seen[-1]
    assert tup.origin == Origin((MessagePlace("topic-id", 3, 41),), (("lines", 0), ("shout", 0)))
    assert json.loads(again["tuple"][1])[1] == [["lines", 0], ["shout", 0], ["shout", 0]]


def test_emits_for_one_input_are_numbered():
    class Split(Shout):
        def execute(self, tup):
            for word in tup["line"].split():
                self.emit((word,))

    answers = driver_of(Split()).send(line())
    assert [json.loads(emit["tuple"][1])[1][-1] for emit in answers[:2]] == [["shout", 0], ["shout", 1]]


def test_a_tuple_that_comes_from_no_message_has_no_origin():
    driver = driver_of(Shout())
    (emit, _) = driver.send(line(message=None))
    assert driver.instance.seen[0].origin == Origin((), ()) and emit["tuple"] == ["A LINE", None]


def test_values_that_storm_has_in_another_type_come_back_in_their_own():
    driver = driver_of(Shout())
    driver.send(storm_tuple("1", ["~~a", 1, '[[1,"~f1.0"]]\n' + ORIGIN]))
    (tup,) = driver.instance.seen
    assert repr(tup.values) == "('~a', 1.0)" and tup.messages == (MessagePlace("topic-id", 3, 41),)
    driver.send(storm_tuple("2", ["a", 1, "[[1,true]]\n"]))
    assert repr(driver.instance.seen[-1].values) == "('a', True)" and driver.instance.seen[-1].messages == ()


@pytest.mark.parametrize(
    "message",
    [
        {"tuple": []},
        [1],
        storm_tuple("1", ["a"], component="strangers"),
        storm_tuple("1", ["~?", 1, None]),
        storm_tuple("1", ["~x*", 1, "[[9,1]]\n"]),
    ],
)
def test_what_is_no_tuple_is_refused(message):
    with pytest.raises(BadFrame):
        driver_of(Shout()).send(message)


NAMES = st.sampled_from(["lines", "default", "comp", "tuple", "~"])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("~bj[]{}:,\"\n1", max_size=8) | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TUPLE = st.fixed_dictionaries(dict.fromkeys(("comp", "stream", "task", "id", "tuple"), ANYTHING))
NEARLY = st.builds(lambda row, task: storm_tuple("1", row, task=task), st.lists(ANYTHING, max_size=4), ANYTHING)


@given(st.lists(ANYTHING | TUPLE | NEARLY, max_size=5))
def test_whatever_comes_is_executed_or_refused_as_a_bad_frame(messages):
    class Quiet(Shout):
        def execute(self, tup):
            self.seen.append(tup)

    driver = driver_of(Quiet())
    try:
        driver.send(*messages)
    except BadFrame:
        pass


# --- task ids


class Asking(Shout):
    needs_task_ids = True

    def execute(self, tup):
        self.seen.append((tup["line"], self.emit((tup["line"],))))


def test_task_ids_may_come_after_other_messages_which_wait():
    driver = driver_of(Asking())
    driver.pipe.answers = [[line("2", "second"), HEARTBEAT], [line("3", "third"), [8]], [[9]], [[10]]]
    answers = driver.send(line("1", "first"))
    assert driver.instance.seen == [("first", [8]), ("second", [9]), ("third", [10])]
    assert commands(answers) == ["emit", "sync", "ack", "emit", "emit", "ack", "ack"]
    assert "need_task_ids" not in answers[0]


def test_without_asking_an_emit_returns_no_task_ids():
    Plain = type("Plain", (Asking,), {"needs_task_ids": False})
    driver = driver_of(Plain())
    driver.send(line())
    assert driver.instance.seen == [("a line", [])]


def test_a_pipe_that_closes_while_an_emit_waits_is_no_failure_of_the_tuple():
    driver = driver_of(Asking())
    driver.pipe.exchange = closed
    with pytest.raises(PipeClosed):
        driver.send(line())
    assert "fail" not in commands(driver.answers())


def closed(data):
    raise PipeClosed


# --- as Storm's own tester does


def test_a_bolt_may_emit_when_it_is_prepared_and_keep_tuples_without_an_ack():
    class Tester(Shout):
        auto_ack = False

        def prepare(self):
            self.emit(("bolt initializing",))

        def execute(self, tup):
            if tup["line"] == "skip":
                self.context.log("skip randomly skipped!")
            else:
                self.emit((tup["line"] + "lalala",), anchors=[tup])
                self.ack(tup)

    driver = driver_of(Tester())
    (first,) = driver.answers()
    assert first["tuple"] == ["bolt initializing", None] and first["anchors"] == []
    emit, ack = driver.send(line("1", "nathan"))
    assert emit["tuple"][0] == "nathanlalala" and ack == {"command": "ack", "id": "1"}
    assert driver.send(line("2", "skip")) == [
        {"command": "log", "msg": "shout[0]: skip randomly skipped!", "level": 2}
    ]


# --- ticks


class Ticking(Shout):
    tick_interval_ms = 2_000

    def tick(self):
        self.seen.append("tick")


def test_storms_ticks_call_tick_and_are_acked():
    driver = driver_of(Ticking(), {"topology.tick.tuple.freq.secs": 2})
    assert driver.send(TICK) == [{"command": "ack", "id": "-78"}]
    assert driver.instance.seen == ["tick"]
    driver.work(10_000)
    assert driver.instance.seen == ["tick"] and driver.task.next_deadline_ms() is None


def test_a_bolt_without_an_interval_is_ticked_if_the_topology_in_storm_says_so():
    class Patient(Ticking):
        tick_interval_ms = None

    driver = driver_of(Patient(), {"topology.tick.tuple.freq.secs": 5})
    driver.send(TICK)
    assert driver.instance.seen == ["tick"]


def test_an_interval_that_storm_does_not_keep_is_kept_by_the_process():
    class Fast(Ticking):
        tick_interval_ms = 100

    driver = driver_of(Fast(), {"topology.tick.tuple.freq.secs": 1})
    assert driver.send(TICK) == [{"command": "ack", "id": "-78"}]
    assert driver.instance.seen == [] and driver.task.next_deadline_ms() == driver.now_ms + 100
    driver.work(100)
    driver.work(100)
    assert driver.instance.seen == ["tick", "tick"]


# --- coroutines and threads


class Wait(Shout):
    max_concurrent = 2

    def prepare(self):
        self.seen, self.answers = [], []

    async def execute(self, tup):
        self.seen.append(tup["line"])
        answer = Deferred()
        self.answers.append(answer)
        await answer
        self.emit((tup["line"],))


def test_coroutines_work_on_several_tuples_and_are_acked_in_the_order_they_end():
    driver = driver_of(Wait(), background=TwistedBackground())
    assert driver.send(line("1", "a"), line("2", "b"), line("3", "c")) == []
    assert driver.instance.seen == ["a", "b"] and not driver.task.is_waiting_for_storm
    driver.instance.answers[1].callback(None)
    assert driver.wakes
    answers = driver.work()
    assert commands(answers) == ["emit", "ack"] and answers[0]["anchors"] == ["2"] and answers[1]["id"] == "2"
    assert driver.instance.seen == ["a", "b", "c"]


def test_a_coroutine_is_given_up_after_the_message_timeout():
    driver = driver_of(Wait(), {"topology.message.timeout.secs": 1}, TwistedBackground())
    driver.send(line("1"))
    assert driver.task.next_deadline_ms() == driver.now_ms + 1_000
    answers = driver.work(1_000)
    assert commands(answers) == ["fail", "error"] and "its coroutine took longer than 1000 ms" in answers[1]["msg"]


def test_a_full_inbox_stops_the_reading_and_keeps_storm_informed():
    driver = driver_of(Wait(), {"topology.executor.receive.buffer.size": 3}, TwistedBackground())
    assert driver.send(*[line(str(n)) for n in range(5)]) == [SYNC]
    assert driver.task.is_full
    assert driver.work(499) == []
    assert driver.work(1) == [SYNC]
    for answer in driver.instance.answers:
        answer.callback(None)
    driver.work()
    assert not driver.task.is_full


class Threads:
    """A background that calls at once what a thread would call."""

    def run_in_thread(self, pool, threads, call, done):
        call()
        done(None)

    def close(self):
        pass


def test_what_a_thread_emits_is_sent_when_its_work_has_ended():
    class Blocking(Shout):
        threads = 2

        def execute(self, tup):
            self.seen.append(self.emit((tup["line"],)))

    driver = driver_of(Blocking(), background=Threads())
    assert commands(driver.send(line())) == ["emit", "ack"]
    assert driver.instance.seen == [[]]


# --- once per message


class CountLines(OncePerMessage):
    schema = "CREATE TABLE IF NOT EXISTS lines (line TEXT)"
    batch_size = 1

    def apply(self, tup):
        self.db.execute("INSERT INTO lines VALUES (?)", (tup["line"],))


def test_a_message_that_comes_again_is_applied_once(tmp_path):
    driver = driver_of(CountLines(tmp_path / "lines.db"))
    assert commands(driver.send(line("1")) + driver.send(line("2"))) == ["ack", "ack"]
    assert driver.instance.db.execute("SELECT count(*) FROM lines").fetchone() == (1,)
    origins = driver.instance.db.execute("SELECT * FROM flakelog_origins").fetchall()
    assert origins == [("lines", "topic-id", 3, 41, "[0]")]


def test_origins_below_the_watermark_that_tuples_bring_are_forgotten_and_late_tuples_are_not_applied(tmp_path):
    driver = driver_of(CountLines(tmp_path / "lines.db"))
    driver.send(line("1"))
    driver.now_ms += 2_000
    driver.send(line("2", "next", ORIGIN.replace("41,40", "50,45")))
    driver.now_ms += 2_000
    driver.send(line("3", "third", ORIGIN.replace("41,40", "51,45")))
    positions = driver.instance.db.execute("SELECT position FROM flakelog_origins").fetchall()
    assert positions == [(50,), (51,)]
    assert commands(driver.send(line("4"))) == ["ack"]  # of an attempt that has ended
    assert driver.instance.db.execute("SELECT count(*) FROM lines").fetchone() == (3,)


@pytest.mark.parametrize("error, code", [(SystemExit(3), 3), (KeyboardInterrupt(), 130)])
def test_an_exit_leaves_the_tuple_unsettled_and_is_an_error_of_storms_that_names_the_message(error, code):
    class Exits(Shout):
        def execute(self, tup):
            raise error

    driver = driver_of(Exits())
    (answer,) = driver.send(line())
    assert answer["command"] == "error" and driver.task.wire.exit is error
    text = f"shout[0]: execute raised {error!r}: the process of this task ends with exit code {code}; the message stays"
    assert answer["msg"].startswith(text) and "topic-3 offset 41" in answer["msg"]


def test_a_base_exception_fails_the_tuple():
    class Cancelled(Shout):
        def execute(self, tup):
            raise asyncio.CancelledError("by the user")

    assert commands(driver_of(Cancelled()).send(line())) == ["fail", "error"]
