"""Storm with kill -9, rebalances, the demo's topology, an example, and a packed environment."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.storm.local_cluster import ClusterEnded
from tests.compat.server_process import PYTHONPATH
from tests.compat.storm.cluster import need_storm, storm_of
from tests.patience import PROGRAM_SECONDS, SECONDS, until

pytestmark = pytest.mark.soak
need_storm()

ROOT = Path(__file__).resolve().parents[3]
NUMBERS = "tests.compat.storm.storm_program:numbers"
PARTITIONS = 4


@pytest.fixture
def topic(broker, name):
    with Client(broker.address) as client:
        client.create_topic(name, PARTITIONS)
    return name


@pytest.fixture
def environment(broker, topic):
    return {"FLAKELOG_SERVERS": broker.address, "STORM_TEST_TOPIC": topic}


def say(broker, topic, values):
    """Produce the values to the partitions of the topic in turn."""
    with Client(broker.address) as client:
        for partition in range(PARTITIONS):
            mine = values[partition::PARTITIONS]
            for at in range(0, len(mine), 2_000):
                records = [BatchRecord(n, 0, None, value) for n, value in enumerate(mine[at : at + 2_000])]
                client.produce(topic, partition, encode_batch(records, base_timestamp_ms=0))


def numbers(first, end):
    return [b"%d" % n for n in range(first, end)]


def notes(directory, component="check"):
    """Return the notes of a component's tasks; the last line of a killed process may be cut off."""
    parsed = []
    for file in directory.glob(f"{component}-*.jsonl"):
        for line in file.read_text().splitlines():
            try:
                parsed.append(json.loads(line))
            except ValueError:
                continue
    return parsed


def seen(directory, component="check"):
    return {note["n"] for note in notes(directory, component)}


def components_of(cluster, name=""):
    """Return the process ids of the components, the children of the Java process: of all, or of those of a name."""
    command = ["ps", "--ppid", str(cluster.pid), "-ww", "-o", "pid=,args="]
    listed = subprocess.run(command, capture_output=True, text=True)
    return [int(line.split()[0]) for line in listed.stdout.splitlines() if line.endswith(name)]


def test_a_hundred_thousand_messages_survive_kills_of_components_and_of_storm(broker, topic, environment, tmp_path):
    """A killed component ends the cluster with an exit code, and the next start loses nothing."""
    lives, chance = 5, random.Random(18)
    for life in range(lives):
        before = len(seen(tmp_path))
        say(broker, topic, numbers(life * 20_000, (life + 1) * 20_000))
        with storm_of(NUMBERS, tmp_path, **environment) as cluster:
            if life == lives - 1:
                until(lambda: len(seen(tmp_path)) == 100_000, "each message")
                cluster.stop(seconds=1)
                assert cluster.wait() == 0
                return
            until(lambda: len(seen(tmp_path)) > before + 2_000, f"progress in life {life}")
            if life == lives - 2:
                os.kill(cluster.pid, signal.SIGKILL)
                assert cluster.wait() == -signal.SIGKILL
            else:
                os.kill(chance.choice(components_of(cluster)), signal.SIGKILL)
                assert cluster.wait() not in (0, -signal.SIGTERM)
            with pytest.raises(ClusterEnded):
                cluster.ask("activate")


def test_a_killed_bolt_ends_the_cluster_although_no_tuple_comes(broker, topic, environment, tmp_path):
    log = tmp_path / "storm.log"
    with storm_of(NUMBERS, tmp_path, **environment) as cluster:
        until(lambda: log.read_text().count("Start checking heartbeat") == 4, "two spouts and two bolts")
        os.kill(components_of(cluster, " check")[0], signal.SIGKILL)
        assert cluster.wait(SECONDS) not in (0, -signal.SIGTERM)
    errors = log.read_text().count("Halting process: ShellBolt died")
    assert errors <= 2  # the threads of the bolt that read and write


@pytest.mark.parametrize("store", ["directory", "kafka"])
def test_a_rebalance_hands_partitions_to_new_processes(broker, topic, environment, tmp_path, store):
    if store == "kafka":
        environment["STORM_TEST_STORE"] = "kafka"
    say(broker, topic, numbers(0, 1_000))
    with storm_of(NUMBERS, tmp_path, "--set", "topology.message.timeout.secs=5", **environment) as cluster:
        until(lambda: len(seen(tmp_path)) == 1_000, "the first thousand")
        before = set(components_of(cluster))
        cluster.ask("rebalance numbers=1 check=1")
        until(lambda: len(now := set(components_of(cluster))) == 4 and not now & before, "four new processes")
        say(broker, topic, numbers(1_000, 2_000))
        until(lambda: len(seen(tmp_path)) == 2_000, "the second thousand")
        assert {note["pid"] for note in notes(tmp_path) if note["n"] >= 1_000}.isdisjoint(before)
        cluster.stop(seconds=1)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others-succeed"])
def test_an_outage_longer_than_all_attempts_makes_no_dead_letter(broker, topic, environment, tmp_path, others):
    """A message has 3 attempts of a second; the outage lasts for several more of each."""
    everything, timeout = "tests.compat.storm.storm_program:everything", "topology.message.timeout.secs=1"
    waiting, lucky = set(range(20, 26)), count(1_020, 100)

    def in_vain():
        return sum(note["n"] in waiting for note in notes(tmp_path, "route"))

    (tmp_path / "away").touch()
    say(broker, topic, [b'{"n": %d}' % n for n in waiting])
    with storm_of(everything, tmp_path, "--set", timeout, **environment) as cluster:
        while others and in_vain() < 60:
            n = next(lucky)
            say(broker, topic, [b'{"n": %d}' % n])
            until(lambda: n in seen(tmp_path, "by-key"), "a message that needs no service")
        until(lambda: in_vain() > 30, "executions in vain")
        (tmp_path / "away").unlink()
        until(lambda: waiting <= seen(tmp_path, "by-key"), "each message")
        cluster.stop(seconds=1)
    with Client(broker.address) as client:
        assert f"{topic}.dead-letters" not in [listed.name for listed in client.topics()]


def test_a_bolt_that_prepares_for_longer_than_storm_waits_comes_up(broker, topic, environment, tmp_path):
    """Storm ends a worker whose process is silent for 30 s; here that would end the cluster."""
    environment["STORM_TEST_PREPARE_SECONDS"] = "35"
    say(broker, topic, numbers(0, 100))
    with storm_of(NUMBERS, tmp_path, **environment) as cluster:
        until(lambda: len(seen(tmp_path)) == 100, "each message")
        assert "check[1]: it is being imported and opened for 30 s now" in (tmp_path / "storm.log").read_text()
        cluster.stop()


def test_two_clusters_run_at_once(broker, topic, environment, tmp_path):
    say(broker, topic, numbers(0, 100))
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir(), second.mkdir()
    with (
        storm_of(NUMBERS, first, **environment) as first_cluster,
        storm_of(NUMBERS, second, **environment) as second_cluster,
    ):
        until(lambda: len(seen(first)) == len(seen(second)) == 100, "each message in both")
        first_cluster.stop()
        say(broker, topic, numbers(100, 200))
        until(lambda: len(seen(second)) == 200, "messages after the other cluster's end")
        second_cluster.stop()


def test_the_demos_topology_counts_each_flight_once_through_a_kill(broker, topic, environment, tmp_path):
    pytest.importorskip("pandas", reason="the demo's data needs its extra")
    from flakelog.demo.flights import load_flights, messages
    from flakelog.demo.stream import counted, figures

    flights = load_flights().head(20_000)
    say(broker, topic, [value for _, value in messages(flights)])
    options = ("--set", "flakelog.spout.retry.initial.ms=50", "--set", "flakelog.spout.outage.after.messages=0")
    demo = "tests.compat.storm.storm_program:demo"
    with storm_of(demo, tmp_path, *options, **environment) as cluster:
        until(lambda: counted(tmp_path) > 5_000, "the first flights")
        os.kill(random.Random(18).choice(components_of(cluster)), signal.SIGKILL)
        assert cluster.wait() not in (0, -signal.SIGTERM)
    with storm_of(demo, tmp_path, *options, **environment) as cluster:
        until(lambda: counted(tmp_path) == len(flights), "each flight")
        cluster.stop(seconds=2)
    by_carrier = flights.groupby("carrier")["n"].count().to_dict()
    assert {carrier: figure.flights for carrier, figure in figures(tmp_path).items()} == by_carrier


class Command:
    """`flakelog spout run --storm` on the count_words example, from its file."""

    def __init__(self, broker, directory):
        name = f"{ROOT / 'examples' / 'count_words.py'}:count_words"
        self.log = directory / "log"
        options = ["--http-port", "0", "--every", "0.5"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flakelog", "spout", "run", "--storm", *options, name],
            cwd=directory,
            env={**os.environ, "FLAKELOG_SERVERS": broker.address, "PYTHONPATH": PYTHONPATH},
            stdout=subprocess.PIPE,
            stderr=open(self.log, "a"),
            text=True,
        )
        self.site = self.process.stdout.readline().removeprefix("ready: http=").strip()
        assert self.process.stdout.readline() == "ready: topology=count-words\n"

    def metric(self, name):
        with urlopen(f"http://{self.site}/metrics", timeout=SECONDS) as answer:
            values = [line.split()[-1] for line in answer.read().decode().splitlines() if line.startswith(name)]
        return float(values[0]) if values else None

    def until(self, line):
        until(lambda: line in self.log.read_text(), line)

    def stop(self, how):
        self.process.send_signal(how)
        self.process.communicate(timeout=SECONDS)
        return self.process.returncode


def test_the_command_runs_an_example_in_storm_and_goes_on_where_it_stopped(broker, tmp_path):
    def say_lines(*lines):
        with Client(broker.address) as client:
            if "lines" not in [topic.name for topic in client.topics()]:
                client.create_topic("lines")
            records = [BatchRecord(n, 0, None, line) for n, line in enumerate(lines)]
            client.produce("lines", 0, encode_batch(records, base_timestamp_ms=0))

    with Client(broker.address) as client:
        if "lines" in [topic.name for topic in client.topics()]:
            client.delete_topic("lines")
    say_lines(b"the quick fox", b"the dog")
    command = Command(broker, tmp_path)
    command.until("5 words")
    until(lambda: command.metric('flakelog_topology_acked_total{component="lines"}') == 2, "the acked lines")
    until(lambda: command.metric("flakelog_topology_running") == 1, "the figures of each task")
    command.until("acked ")
    assert command.stop(signal.SIGTERM) == 0
    say_lines(b"over")
    command = Command(broker, tmp_path)
    command.until("6 words")
    assert command.stop(signal.SIGINT) == 0
    assert "7 words" not in command.log.read_text()


def test_the_command_says_that_a_killed_component_ended_the_cluster(broker, tmp_path):
    with Client(broker.address) as client:
        if "lines" not in [topic.name for topic in client.topics()]:
            client.create_topic("lines")
    command = Command(broker, tmp_path)
    command.until("Launched subprocess with pid")
    (pid, *_) = [line.split()[-1] for line in command.log.read_text().splitlines() if "Launched subprocess" in line]
    os.kill(int(pid), signal.SIGKILL)
    assert command.process.wait(SECONDS) == 1
    assert "Error: a component's process ended, so the local cluster ended (exit code" in command.log.read_text()


NAMESPACES = ("unshare", "-rnpf", "--mount-proc", "--kill-child")


def test_a_packed_environment_comes_from_the_blobstore_and_storm_starts_a_killed_worker_again(tmp_path):
    """Nimbus, a supervisor and Flux's own main program; see storm_cluster_program.py."""
    if shutil.which("unshare") is None or subprocess.run([*NAMESPACES, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make namespaces (unshare), so Storm's daemons would listen to the network")
    source = tmp_path / "source"
    source.mkdir()
    shutil.copy(ROOT / "tests" / "compat" / "storm" / "storm_program.py", source / "program_for_storm.py")
    pex = [sys.executable, "-m", "pex", ROOT, "-D", source, "-o", "environment.pex"]
    made = run([*pex, "--python", os.path.realpath(sys.executable)], tmp_path)
    if made.returncode:
        pytest.skip(f"pex could not get the packages: {made.stderr.splitlines()[-1:]}")
    done = run([*NAMESPACES, sys.executable, "-m", "tests.compat.storm.storm_cluster_program", tmp_path], ROOT)
    assert done.returncode == 0, done.stderr
    pids = json.loads(done.stdout.splitlines()[-1])
    assert pids["after"] and pids["killed"] not in pids["after"]


def run(command, directory):
    command = list(map(str, command))
    return subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
