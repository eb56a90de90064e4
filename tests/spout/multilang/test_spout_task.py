"""A spout's task inside Storm: commands in, emits and `sync` out."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spout.api import Bolt, Spout
from spout.figures.document import BoltsLately
from spout.multilang.frames import BadFrame
from spout.multilang.handshake import BadHandshake, check_streams, handshake_of
from spout.topology import Topology, TopologyError
from tests.spout.multilang.storm_side import SYNC, CoreDriver, commands, emits, handshake


class Numbers(Spout):
    """Emits the numbers below `end`, each once."""

    output_fields = ("number",)
    end = 10**9

    def open(self):
        self.number = 0
        self.heard = ["open"]

    def next_tuple(self):
        if self.number < self.end:
            self.emit_number()
            self.number += 1

    def emit_number(self):
        self.emit((self.number,), id=("n", self.number))

    def activate(self):
        self.heard.append("activate")

    def deactivate(self):
        self.heard.append("deactivate")

    def ack(self, id):
        self.heard.append(("ack", id))

    def fail(self, id):
        self.heard.append(("fail", id, self.context.failure))
        self.unavailable = self.context.unavailable


class Take(Bolt):
    def execute(self, tup):
        pass


def topology_of(spout, parallelism=1, group=lambda inputs: inputs.shuffle("numbers")):
    topology = Topology("counting")
    topology.spout("numbers", spout, parallelism=parallelism)
    group(topology.bolt("take", Take(), parallelism=3))
    return topology


def driver_of(spout, conf=None, **options):
    conf = {"flakelog.storm.emits.per.next": 2, **(conf or {})}
    return CoreDriver(topology_of(spout, **options), "numbers", conf=conf)


def test_each_command_is_answered_by_one_sync_at_the_end():
    driver = driver_of(Numbers())
    assert driver.activate() == [SYNC]
    assert commands(driver.next()) == ["emit", "emit", "sync"]
    assert driver.deactivate() == [SYNC]
    assert driver.instance.heard == ["open", "activate", "deactivate"]


def test_a_golden_emit():
    driver = driver_of(Numbers(), {"flakelog.storm.emits.per.next": 1})
    driver.activate()
    assert driver.next() == [
        {
            "command": "emit",
            "id": 1,
            "tuple": [0, r'[[["numbers","numbers",0,"~j{\"~\":[\"tuple\",[\"n\",0]]}",null,null]],[["numbers",0]]]'],
            "need_task_ids": False,
        },
        SYNC,
    ]


def test_the_spout_hears_of_acks_and_fails_with_the_very_id_it_emitted():
    driver = driver_of(Numbers())
    driver.activate()
    first, second = emits(driver.next())
    assert driver.fail(second) == [SYNC]
    assert driver.ack(first) == [SYNC]
    why = "failed inside Storm, which gives no reason: see the errors of the bolts in its log or UI"
    assert driver.instance.heard[2:] == [("fail", ("n", 1), why), ("ack", ("n", 0))]
    assert (driver.task.task.counts.acked, driver.task.task.counts.failed) == (1, 1)


def test_a_failure_as_late_as_the_message_timeout_is_a_timeout_and_no_fault_of_the_message_if_none_was_acked_since():
    driver = driver_of(Numbers(), {"topology.message.timeout.secs": 10})
    driver.activate()
    first, second = emits(driver.next())
    driver.now_ms += 5_000
    third, fourth = emits(driver.next())
    driver.fail(second)
    assert driver.instance.unavailable is False and driver.task.task.counts.timed_out == 0
    driver.ack(third)
    driver.now_ms += 5_000
    driver.fail(first)
    assert driver.instance.heard[-1][2].startswith("timeout: not acked inside Storm within 10 s")
    assert driver.instance.unavailable is False, "another message was acked meanwhile"
    (last, _) = emits(driver.next())
    driver.now_ms += 10_000
    driver.fail(last)
    assert driver.instance.unavailable is True and driver.task.task.counts.timed_out == 2


@pytest.mark.parametrize("is_held", [False, True])
def test_a_timeout_while_others_are_acked_counts_unless_a_bolt_says_that_it_holds_tuples(is_held):
    driver = driver_of(Numbers(), {"topology.message.timeout.secs": 10})
    callbacks = []
    driver.task.read_bolts = callbacks.append
    driver.activate()
    first, second = emits(driver.next())
    driver.now_ms += 10_000
    (third, _) = emits(driver.next())
    driver.ack(third)
    assert driver.fail(first) == driver.fail(second) == [SYNC]
    assert driver.instance.heard[-1] == ("ack", ("n", 2))
    assert len(callbacks) == 1, "the spout hears of it with the answer"
    callbacks.pop()(BoltsLately(is_held, {}))
    assert driver.wakes
    driver.work()
    assert [heard[:2] for heard in driver.instance.heard[-2:]] == [("fail", ("n", 0)), ("fail", ("n", 1))]
    assert driver.instance.unavailable is is_held


@pytest.mark.parametrize("id", [99, "", None, ["n", 0], "1", True])
def test_a_stale_or_unknown_id_is_harmless(id):
    driver = driver_of(Numbers())
    driver.activate()
    (emit, _) = emits(driver.next())
    driver.ack(emit)
    for command in ("ack", "fail"):
        assert driver.send({"id": id, "command": command}) == [SYNC]
        assert driver.send({"id": emit["id"], "command": command}) == [SYNC]
    assert len(driver.instance.heard) == 3


def test_a_tuple_without_an_id_is_not_tracked():
    class Loose(Numbers):
        def emit_number(self):
            self.emit((self.number,))

    driver = driver_of(Loose())
    driver.activate()
    emit, _ = emits(driver.next())
    assert "id" not in emit and emit["tuple"] == [0, '[[],[["numbers",0]]]']


def test_max_spout_pending_of_storm_is_not_exceeded_by_several_emits_to_one_next():
    driver = driver_of(Numbers(), {"flakelog.storm.emits.per.next": 10, "topology.max.spout.pending": 12})
    driver.activate()
    assert len(emits(driver.next())) == 10
    second = emits(driver.next())
    assert len(second) == 2
    driver.ack(second[0])
    assert len(emits(driver.next())) == 1


def test_without_max_spout_pending_only_the_setting_limits_the_emits_of_one_next():
    driver = driver_of(Numbers(), {"topology.max.spout.pending": None})
    driver.activate()
    assert [len(emits(driver.next())) for _ in range(3)] == [2, 2, 2]


def test_the_answer_of_emit_is_empty_unless_the_spout_asks_for_task_ids():
    class Asking(Numbers):
        def emit_number(self):
            self.heard.append(self.emit((self.number,), id=self.number))

    driver = driver_of(Asking(), {"flakelog.storm.emits.per.next": 1})
    driver.next()
    assert driver.instance.heard[-1] == []

    Asking.needs_task_ids = True
    driver = driver_of(Asking(), {"flakelog.storm.emits.per.next": 1})
    driver.pipe.answers = [[[4]]]
    (emit, _) = driver.next()
    assert driver.instance.heard[-1] == [4] and "need_task_ids" not in emit


def test_acks_that_come_before_the_task_ids_are_answered_at_once_and_told_afterwards():
    """Without ackers Storm acks a tuple inside its emit, and waits for the answer."""

    class Asking(Numbers):
        needs_task_ids = True

        def emit_number(self):
            super().emit_number()
            self.heard.append("emitted")

    driver = driver_of(Asking(), {"flakelog.storm.emits.per.next": 1})
    driver.pipe.answers = [[{"id": 1, "command": "ack"}], [[4]]]
    assert commands(driver.next()) == ["emit", "sync", "sync"]
    assert driver.instance.heard == ["open", "emitted", ("ack", ("n", 0))]


def test_a_direct_emit_names_the_task_beyond_32_bits_because_storm_takes_no_smaller_number():
    class Direct(Numbers):
        def declare_output_fields(self, declarer):
            declarer.declare("number", direct=True)

        def emit_number(self):
            tasks = self.context.tasks_of("take")
            self.heard.append(self.emit((self.number,), id=1, task=tasks[1]))

    driver = driver_of(Direct(), {"flakelog.storm.emits.per.next": 1}, group=lambda inputs: inputs.direct("numbers"))
    (emit, _) = driver.next()
    assert emit["task"] == 3 + 2**32 and driver.instance.heard[-1] == [3]


@pytest.mark.parametrize(
    "emit, fault",
    [
        (lambda spout: spout.emit((1, 2)), "stream 'default' has the fields .number., got 2 values"),
        (lambda spout: spout.emit((1,), stream="other"), "numbers emits to stream 'other' and declares: default"),
        (lambda spout: spout.emit((1,), task=3), "stream 'default' is not declared direct: emit without a task"),
        (lambda spout: spout.emit((1j,)), "numbers emits to stream 'default' a field 'number' that Storm does not"),
        (lambda spout: spout.emit(("x" * 70_000,)), "numbers emits 7.* characters .*flakelog.storm.frame.max.bytes"),
        (lambda spout: spout.emit((1,), id=object()), "object"),
    ],
)
def test_an_emit_that_cannot_be_is_refused_by_name_and_sends_nothing(emit, fault):
    class Wrong(Numbers):
        def next_tuple(self):
            emit(self)

    driver = driver_of(Wrong(), {"flakelog.storm.frame.max.bytes": 65_536})
    with pytest.raises((ValueError, TypeError), match=fault):
        driver.next()
    assert emits(driver.answers()) == []


def test_a_value_to_group_by_reaches_storm_in_one_type_and_the_bolt_in_its_own():
    class Floats(Numbers):
        def emit_number(self):
            self.emit((float(self.number),), id=self.number)

    driver = driver_of(Floats(), group=lambda inputs: inputs.fields("numbers", "number"))
    number, message = emits(driver.next())[0]["tuple"]
    assert number == 0 and message.splitlines()[0] == '[[0,"~f0.0"]]'


def test_each_emit_of_one_message_has_its_number():
    class Twice(Numbers):
        def emit_number(self):
            for _ in range(2):
                self.emit((self.number,), id=self.number)

    driver = driver_of(Twice(), {"flakelog.storm.emits.per.next": 4})
    paths = [json.loads(emit["tuple"][1])[1] for emit in emits(driver.next())]
    assert paths == [[["numbers", 0]], [["numbers", 1]], [["numbers", 0]], [["numbers", 1]]]


def test_a_spout_may_emit_when_it_is_opened_acked_or_failed_as_storms_own_tester_does():
    class Tester(Numbers):
        def open(self):
            super().open()
            self.emit(("opening",))

        def ack(self, id):
            self.emit(("acked",))

        def fail(self, id):
            self.emit(("again",), id=id)

    driver = driver_of(Tester(), {"flakelog.storm.emits.per.next": 1})
    opening, sync = driver.activate()
    assert opening["tuple"][0] == "opening" and sync == SYNC
    (emit, _) = driver.next()
    again, sync = driver.fail(emit)
    assert again["tuple"][0] == "again" and again["id"] != emit["id"] and sync == SYNC
    acked, sync = driver.ack(again)
    assert acked["tuple"][0] == "acked" and "id" not in acked and sync == SYNC


# --- idle spouts


def test_a_spout_with_nothing_to_emit_holds_its_answer_for_a_while():
    class Empty(Numbers):
        end = 0

    driver = driver_of(Empty())
    assert driver.next() == []
    assert driver.task.next_deadline_ms() == driver.now_ms + 1  # when a spout is asked again by default
    elapsed_ms = []
    while not (answers := driver.work()):
        elapsed_ms.append(driver.now_ms - 1_000)
        driver.now_ms = driver.task.next_deadline_ms()
    assert elapsed_ms == [0, 1, 2, 4, 8] and answers == [SYNC] and driver.now_ms == 1_010


def test_an_idle_spout_holds_nothing_if_the_setting_says_so():
    class Empty(Numbers):
        end = 0

    assert driver_of(Empty(), {"flakelog.storm.idle.ms": 0}).next() == [SYNC]


def test_a_tuple_that_comes_meanwhile_is_emitted_at_once():
    driver = driver_of(Numbers(), {"flakelog.storm.emits.per.next": 1})
    driver.instance.end = 0
    assert driver.next() == []
    driver.instance.end = 1
    assert commands(driver.work(3)) == ["emit", "sync"]


def test_an_idle_spout_with_tuples_in_flight_answers_at_once_so_that_their_acks_come():
    driver = driver_of(Numbers(), {"flakelog.storm.emits.per.next": 1})
    driver.next()
    driver.instance.end = 0
    assert driver.next() == [SYNC]


# --- the log, errors


def test_lines_for_the_log_wait_for_the_next_command_because_storm_reads_nothing_before():
    driver = driver_of(Numbers())
    driver.instance.context.log("hello", "warn")
    assert driver.work() == []
    assert driver.activate() == [{"command": "log", "msg": "numbers[0]: hello", "level": 3}, SYNC]


def test_lines_past_the_limit_are_counted():
    driver = driver_of(Numbers(), {"flakelog.storm.log.lines.max": 10})
    for _ in range(12):
        driver.task.wire.say("printed", 2)
    answers = driver.activate()
    assert len(answers) == 12 and answers[-2]["msg"].startswith("2 lines were dropped")


def test_a_reported_error_becomes_one_of_storms_with_its_traceback():
    driver = driver_of(Numbers())
    try:
        raise RuntimeError("on purpose")
    except RuntimeError as error:
        driver.instance.collector.report_error(error)
    (report, _) = driver.activate()
    assert report["command"] == "error"
    assert report["msg"].startswith("numbers[0]: RuntimeError: on purpose\nTraceback")
    assert "test_spout_task" in report["msg"]


def test_an_exception_of_the_spout_comes_out_because_the_process_ends_by_it():
    class Broken(Numbers):
        def next_tuple(self):
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        driver_of(Broken()).next()


@pytest.mark.parametrize("message", [{"command": "dance"}, {}, [4], "next"])
def test_what_is_no_command_of_a_spout_is_refused(message):
    with pytest.raises(BadFrame, match="Storm sent "):
        driver_of(Numbers()).send(message)


COMMANDS = st.sampled_from(["next", "ack", "fail", "activate", "deactivate", "dance", None, 7])
IDS = st.none() | st.integers(0, 9) | st.text(max_size=2) | st.lists(st.integers(), max_size=2) | st.booleans()


@given(st.lists(st.fixed_dictionaries({"command": COMMANDS}, optional={"id": IDS}), max_size=30))
def test_any_commands_have_one_sync_each_until_one_is_none(messages):
    driver = driver_of(Numbers(), {"topology.max.spout.pending": None})
    answers = []
    for number, message in enumerate(messages):
        try:
            answers += driver.send(message)
        except BadFrame:
            return
        assert commands(answers).count("sync") == number + 1


# --- metrics


def test_only_metrics_that_are_registered_in_storm_are_sent():
    driver = driver_of(Numbers(), {"flakelog.storm.metrics": "seen, depth"})
    for name in ("seen", "unknown"):
        driver.instance.context.counter(name).add(2)
    driver.instance.context.gauge("depth").set(7)
    driver.now_ms += 5_000
    assert driver.activate() == [
        {"command": "metrics", "name": "seen", "params": 2},
        {"command": "metrics", "name": "depth", "params": 7},
        SYNC,
    ]
    driver.instance.context.counter("seen").add(1)
    driver.now_ms += 1_000
    assert driver.deactivate() == [{"command": "metrics", "name": "seen", "params": 1}, SYNC]


# --- the place in the topology


def test_the_context_is_that_of_the_task_in_storm():
    driver = CoreDriver(topology_of(Numbers(), parallelism=4), "numbers", index=2)
    context = driver.instance.context
    assert (context.component, context.task, context.index, context.parallelism) == ("numbers", 3, 2, 4)
    assert context.tasks_of("take") == (5, 6, 7) and context.topology == "counting"
    with pytest.raises(TopologyError, match="there is no component 'nobody'"):
        context.tasks_of("nobody")


def test_settings_come_from_the_topologys_configuration_in_storm():
    driver = driver_of(Numbers(), {"topology.message.timeout.secs": 7, "flakelog.storm.idle.ms": 3, "nimbus.x": [1]})
    assert driver.instance.context.config.message_timeout_ms == 7_000
    assert driver.setup.config.storm_idle_ms == 3


def test_a_topology_that_was_written_with_other_fields_is_refused():
    message = handshake(topology_of(Numbers()).plan(), "numbers")
    message["context"]["stream->outputfields"] = {"default": ["id", "number", "__message"]}
    with pytest.raises(BadHandshake, match=r"default \(number\), and the topology in Storm has default"):
        check_streams(handshake_of(message), {"default": ("number", "__message")})


@pytest.mark.parametrize("message", [{}, [], {"context": {}, "conf": {}, "pidDir": ""}, {"command": "next"}])
def test_a_first_message_that_is_no_handshake_is_refused(message):
    with pytest.raises(BadHandshake, match="the first message is no handshake of Storm's"):
        handshake_of(message)
