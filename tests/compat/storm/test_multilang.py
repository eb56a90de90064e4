"""The command that Storm starts, as a real process with Storm's side of its pipes played by the test."""

import fcntl
import signal
import subprocess
import sys
import termios

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from spout.topology_source import find_topology
from tests.patience import SECONDS, until
from tests.spout.multilang.storm_side import HEARTBEAT, ROOT, SYNC, ProcessDriver, commands, emits, storm_tuple, written

TOPOLOGY = '''
import ctypes
import os
import subprocess
import sys
import time

from spout.api import Bolt
from spout.engine_spout import EngineSpout
from spout.topology import Topology


class Numbers(EngineSpout):
    output_fields = ("number", "value")
    number = 0

    def open(self):
        print("opened in", self.context.index)

    def next_tuple(self):
        self.number += 1
        if self.number == 1:
            print("x" * 199 + "\\n", end="", flush=True)
            sys.stderr.write("y" * 200_000 + "\\n")
            os.write(1, b"from the system\\n")
            subprocess.run(["echo", "from a child"])
            ctypes.CDLL(None).puts(b"from C")
            ctypes.CDLL(None).fflush(None)
            assert input_is_empty()
        if os.path.exists("exit"):
            sys.exit(7)
        if self.number == 4:
            raise RuntimeError("on purpose")
        self.emit((self.number, b"\\xff"), id=self.number)

    def deactivate(self):
        print("deactivated")

    def finish(self, now_ms):
        with open("progress", "w") as file:
            file.write(str(self.number))

    def close(self):
        open("closed", "w").close()


def input_is_empty():
    return sys.stdin.read() == ""


class Shout(Bolt):
    output_fields = ("text",)
    tick_interval_ms = 20
    ticks = 0

    def execute(self, tup):
        self.emit((str(tup["value"]),))

    def tick(self):
        self.ticks += 1
        if self.ticks == 3:
            self.emit(("third tick",))


class AsyncShout(Shout):
    tick_interval_ms = None

    async def execute(self, tup):
        import asyncio
        await asyncio.sleep(0.001)
        self.emit((str(tup["value"]),))


class ThreadShout(Shout):
    tick_interval_ms = None
    threads = 2


class Exits(Shout):
    def execute(self, tup):
        if tup["number"] == 7:
            sys.exit(7)
        while tup["number"] == 8:
            open("blocked", "w").close()
            time.sleep(1_000)
        super().execute(tup)


class AsyncExits(Exits):
    async def execute(self, tup):
        super().execute(tup)


class Unready(Shout):
    def prepare(self):
        raise OSError("no disk")


def make():
    made = Topology("process")
    made.spout("numbers", Numbers(), parallelism=2)
    made.bolt("shout", Shout()).shuffle("numbers")
    made.bolt("async", AsyncShout()).shuffle("numbers")
    made.bolt("thread", ThreadShout()).shuffle("numbers")
    made.bolt("exits", Exits()).shuffle("numbers")
    made.bolt("async-exits", AsyncExits()).shuffle("numbers")
    made.bolt("unready", Unready()).shuffle("numbers")
    return made
'''
ONE_ANSWER_BYTES = 61_000  # and not two: a pipe takes 64 KiB
ONE_EACH = {"flakelog.storm.emits.per.next": 1}


@pytest.fixture
def start(tmp_path):
    (tmp_path / "shouting.py").write_text(TOPOLOGY)
    plan = find_topology(f"{tmp_path / 'shouting.py'}:make").plan()
    running = []

    def begin(component, conf=ONE_EACH, name="shouting:make", **options):
        driver = ProcessDriver(tmp_path, name, plan, component, conf, **options)
        running.append(driver)
        return driver

    yield begin
    for driver in running:
        driver.__exit__()


def lines_of(driver, answers, wanted):
    """Send `next` until the log has a line that begins with `wanted`; return all texts."""
    texts = [answer["msg"] for answer in answers if answer["command"] == "log"]
    while not any(text.startswith(wanted) for text in texts):
        texts += [answer["msg"] for answer in driver.command("deactivate") if answer["command"] == "log"]
    return texts


def test_a_spouts_session_from_the_handshake_to_the_end_of_input(start, tmp_path):
    driver = start("numbers", index=1)
    (pid,) = driver.read().values()
    assert pid == driver.process.pid and [path.name for path in (tmp_path / "pids").iterdir()] == [str(pid)]
    answers = driver.command("activate") + driver.command("next")
    (emit,) = emits(answers)
    assert emit["tuple"][:2] == [1, "~x/w=="]
    answers += driver.command("ack", emit["id"]) + driver.command("fail", 99)
    texts = lines_of(driver, answers, "deactivated")
    for printed in ("opened in 1", "x" * 199, "y" * 8_192, "from the system", "from a child", "from C"):
        assert any(text.startswith(printed) for text in texts), printed
    code, _ = driver.ended()
    assert code == 0 and (tmp_path / "progress").read_text() == "1" and (tmp_path / "closed").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.soak)])
def test_a_signal_ends_the_process_with_its_progress_stored(start, tmp_path, number):
    driver = start("numbers")
    driver.read()
    driver.command("activate")
    driver.command("next")
    driver.process.send_signal(number)
    assert driver.process.wait(SECONDS) == 0
    assert (tmp_path / "progress").read_text() == "1"


def test_a_signal_ends_a_bolt_whose_answers_storm_takes_no_longer(start):
    driver = start("shout")
    driver.read()
    driver.process.stdin.write(written(storm_tuple("1", [1, "~b" + "v" * 60_000, None], "numbers")) * 3)
    driver.process.stdin.flush()
    until(lambda: unread(driver.process.stdout) > ONE_ANSWER_BYTES, "a full pipe")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(SECONDS) == 0


def unread(pipe):
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def test_an_exception_of_a_spout_is_an_error_of_storms_and_ends_the_process(start):
    driver = start("numbers", {"flakelog.storm.emits.per.next": 3})
    driver.read()
    driver.command("activate")
    driver.command("next")
    driver.write({"id": "", "command": "next"})
    (error,) = [answer for answer in driver.rest() if answer["command"] == "error"]
    assert error["msg"].startswith("numbers[0]: RuntimeError: on purpose") and "shouting.py" in error["msg"]
    code, stderr = driver.ended()
    assert code == 1 and "RuntimeError: on purpose" in stderr


def test_a_bolts_session(start):
    driver = start("shout")
    driver.read()
    driver.write(HEARTBEAT)
    assert driver.until_sync() == []
    driver.write(storm_tuple("-5", [1, "~bvalue", None], "numbers"))
    answers = [driver.read() for _ in range(3)]
    by_text = {emit["tuple"][0]: emit["anchors"] for emit in emits(answers)}
    assert by_text == {"b'value'": ["-5"], "third tick": []} and commands(answers).count("ack") == 1
    assert driver.ended()[0] == 0


@pytest.mark.parametrize("component", ["async", pytest.param("thread", marks=pytest.mark.soak)])
def test_a_bolt_in_coroutines_or_threads(start, component):
    driver = start(component)
    driver.read()
    for number in range(20):
        driver.write(storm_tuple(str(number), [1, "~bvalue", None], "numbers"))
    answers = [driver.read() for _ in range(40)]
    assert {answer["id"] for answer in answers if answer["command"] == "ack"} == {str(number) for number in range(20)}
    driver.write(HEARTBEAT)
    assert driver.read() == SYNC
    assert driver.ended()[0] == 0


@pytest.mark.parametrize("component", ["exits", "async-exits"])
def test_an_exit_in_a_bolt_ends_the_process_with_its_code_and_what_was_acked_stays_acked(start, component):
    driver = start(component)
    driver.read()
    for number in (1, 7):
        driver.write(storm_tuple(str(number), [number, "~bvalue", None], "numbers"))
    answers = driver.rest()
    assert [answer["id"] for answer in answers if answer["command"] == "ack"] == ["1"]
    (message,) = [answer["msg"] for answer in answers if answer["command"] == "error"]
    reason = "execute raised SystemExit(7): the process of this task ends with exit code 7"
    assert message.startswith(f"{component}[0]: {reason}")
    assert "fail" not in commands(answers) and driver.ended()[0] == 7


def test_an_exit_in_a_spout_ends_the_process_with_its_code_and_its_progress(start, tmp_path):
    driver = start("numbers", {"flakelog.storm.emits.per.next": 1})
    driver.read()
    driver.command("activate")
    (tmp_path / "exit").touch()
    driver.write({"id": "", "command": "next"})
    (message,) = [answer["msg"] for answer in driver.rest() if answer["command"] == "error"]
    assert message == "numbers[0]: it raised SystemExit(7): the process of this task ends with exit code 7"
    assert driver.ended()[0] == 7 and (tmp_path / "progress").exists() and (tmp_path / "closed").exists()


def test_a_signal_ends_a_process_whose_bolt_blocks(start, tmp_path):
    driver = start("exits", {"flakelog.storm.stop.ms": 200})  # taken for seconds, it ends after SECONDS
    driver.read()
    driver.write(storm_tuple("8", [8, "~bvalue", None], "numbers"))
    until((tmp_path / "blocked").exists, "the tuple that blocks")
    driver.process.send_signal(signal.SIGTERM)
    assert driver.process.wait(SECONDS) == 143


NAME, SOAK = "flakelog.storm.idle.ms", pytest.mark.soak


@pytest.mark.parametrize(
    "component, options, fault",
    [
        ("unready", {}, "unready[0]: OSError: no disk"),
        pytest.param("shout", {"name": "nowhere:make"}, "NoTopology: there is no module 'nowhere'", marks=SOAK),
        pytest.param("shout", {"conf": {NAME: "soon"}}, NAME, marks=SOAK),
    ],
)
def test_a_process_that_cannot_begin_says_why_to_storm_and_ends(start, component, options, fault):
    driver = start(component, **options)
    assert "pid" in driver.read()
    (error,) = driver.rest()
    assert error["command"] == "error" and fault in error["msg"]
    assert driver.ended()[0] == 1


@pytest.mark.soak
def test_standard_streams_may_be_files_and_an_end_of_input_before_the_handshake_is_a_clean_end():
    argv = [sys.executable, "-m", "spout.multilang", "shouting:make", "shout"]
    nothing = subprocess.DEVNULL
    assert subprocess.run(argv, stdin=nothing, stdout=nothing, stderr=nothing, cwd=ROOT).returncode == 0


def test_the_command_says_how_it_is_used():
    done = subprocess.run([sys.executable, "-m", "spout.multilang"], capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 2 and "MODULE:TOPOLOGY COMPONENT" in done.stderr


# --- a spout over a real topic, and a bolt


COUNTING = """
from flakelog import Bolt, LogSpout, SpoutConfig, Topology


class Count(Bolt):
    output_fields = ("value", "offset")

    def execute(self, tup):
        (place,) = tup.messages
        self.emit((tup["value"], place.offset))


def make():
    import os
    made = Topology("storm-%s" % os.environ["STORE"].partition("/")[0])
    config = SpoutConfig(spout_commit_interval_ms=50)
    where = {name.lower(): os.environ[name] for name in ("TOPIC", "SERVERS", "STORE")}
    made.spout("log", LogSpout(**where, config=config))
    made.bolt("count", Count()).shuffle("log")
    return made
"""
MESSAGES = 300
GROUP = {"flakelog.storm.stop.ms": 10_000}


def emits_until(driver, number):
    """Send `next` until this many tuples are emitted, and return the emits."""
    emitted = []
    while len(emitted) < number:
        emitted += emits(driver.command("next"))
    return emitted


@pytest.mark.parametrize("store", ["kafka", pytest.param("progress", marks=pytest.mark.soak)])
def test_messages_of_a_real_topic_go_through_both_processes_and_progress_is_kept(
    group_broker, tmp_path, monkeypatch, store
):
    broker = group_broker
    topic = f"multilang-{store}"
    with Client(broker.address) as client:
        client.create_topic(topic, 2)
        for partition in range(2):
            records = [BatchRecord(n, 0, None, b"%d \xff" % n) for n in range(MESSAGES // 2)]
            client.produce(topic, partition, encode_batch(records, base_timestamp_ms=1_000))
    environment = {"TOPIC": topic, "SERVERS": broker.address, "STORE": store}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "counting.py").write_text(COUNTING)
    plan = find_topology(f"{tmp_path / 'counting.py'}:make").plan()

    with ProcessDriver(tmp_path, "counting:make", plan, "log", GROUP) as spout:
        spout.read()
        spout.command("activate")
        emitted = emits_until(spout, MESSAGES)
        with ProcessDriver(tmp_path, "counting:make", plan, "count") as bolt:
            bolt.read()
            for emit in emitted:
                bolt.write(storm_tuple(str(emit["id"]), emit["tuple"], "log"))
            outputs = [bolt.read() for _ in range(2 * MESSAGES)]
            assert {emit["tuple"][0] for emit in emits(outputs)} == {emit["tuple"][2] for emit in emitted}
            acked = [output["id"] for output in outputs if output["command"] == "ack"]
            assert bolt.ended()[0] == 0
        for id in acked[:-1]:
            spout.command("ack", int(id))
        code, stderr = spout.ended()
        assert code == 0 and "could not be stored" not in stderr

    last = next(emit for emit in emitted if emit["id"] == int(acked[-1]))
    with ProcessDriver(tmp_path, "counting:make", plan, "log", GROUP) as again:
        again.read()
        again.command("activate")
        (emit,) = emits_until(again, 1)
        assert emit["tuple"][:3] == last["tuple"][:3]
        again.command("ack", emit["id"])
        assert again.ended()[0] == 0
