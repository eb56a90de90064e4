"""Topologies of a broker that asks for TLS and a login, in the embedded engine and in Apache Storm."""

import os
import signal
import subprocess
import sys
import time

import pytest

from broker.client.blocking import Client
from broker.client.security.readable_properties import made_readable
from broker.record.records import BatchRecord, encode_batch
from flakelog.testing import Broker
from flakelog.testing.security import PASSWORD
from spout.figures.document import TOPIC
from spout.multilang.handshake import CLIENT
from spout.topology_source import find_topology
from tests.compat.server_process import PYTHONPATH
from tests.compat.storm.cluster import need_storm
from tests.patience import SECONDS, until
from tests.spout.multilang.storm_side import ProcessDriver, emits

PROGRAM = """
from flakelog import Bolt, LogSink, LogSpout, Topology
from spout.config import SpoutConfig

class Shout(Bolt):
    output_fields = ("key", "value")

    def execute(self, tup):
        if tup["value"] == b"bad":
            raise ValueError("no good")
        self.emit((tup["key"], tup["value"].upper()))

def make(servers, source, target, store, exactly_once):
    made = Topology(target)
    config = SpoutConfig(spout_max_attempts=1)
    made.spout("lines", LogSpout(source, servers=servers, store=store, config=config))
    made.bolt("shout", Shout()).shuffle("lines")
    made.bolt("out", LogSink(target, servers=servers, exactly_once=exactly_once)).shuffle("shout")
    return made
"""


@pytest.fixture(scope="module")
def secure():
    with Broker(security="SASL_SSL") as broker:
        yield broker


@pytest.fixture
def write_program(secure, tmp_path):
    """Return a function that writes the topology to shouts.py. The broker's client properties are beside it."""
    lines = (f"{name}={text}".replace("\n", "\\n") for name, text in secure.client_properties.items())
    (tmp_path / "client.properties").write_text("\n".join(lines))

    def written(*arguments):
        call = f"make({secure.bootstrap_servers!r}, *{arguments})"
        (tmp_path / "shouts.py").write_text(f"{PROGRAM}\ntopology = {call}\n")

    return written


@pytest.fixture
def run(write_program, tmp_path):
    """Return a function that runs the topology as a process. Its output is in the file `output`."""
    processes = []

    def start(*arguments, options):
        write_program(*arguments)
        command = [sys.executable, "-m", "flakelog", "spout", "run", "shouts:topology", *options]
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
        with open(tmp_path / "output", "w") as output:
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    "name, store, exactly_once, options",
    [
        ("plain", "progress", False, []),
        ("exactly-once", "kafka", True, []),
        pytest.param("storm", "kafka", False, ["--storm"], marks=pytest.mark.soak),
    ],
)
def test_a_topology_reads_writes_buries_and_publishes_over_tls_with_a_login(
    secure, run, tmp_path, name, store, exactly_once, options
):
    if options:
        need_storm()
    source, target = f"{name}-lines", f"{name}-shouts"
    for topic in (source, target):
        secure.create_topic(topic, 1)
    write(secure, source, b"hello", b"bad", b"world")
    process = run(source, target, store, exactly_once, options=["--command-config", "client.properties", *options])
    until(lambda: values_of(secure, target) == [b"HELLO", b"WORLD"], "the outputs")
    until(lambda: values_of(secure, f"{source}.dead-letters") == [b"bad"], "the dead letter")
    figures = b"".join(values_of(secure, TOPIC))
    process.send_signal(signal.SIGTERM)
    output = (tmp_path / "output").read_bytes()
    assert process.wait(SECONDS) == 0, output.decode()
    assert target.encode() in figures and b"cannot be published" not in output
    assert PASSWORD.encode() not in figures + output


def test_a_process_of_storm_reads_the_secrets_of_its_own_machine(secure, write_program, tmp_path):
    secure.create_topic("for-storm", 1)
    write(secure, "for-storm", b"hello")
    write_program("for-storm", "nowhere", "kafka", False)
    properties = made_readable(secure.client_properties, "client.properties")
    conf = {CLIENT + name: text for name, text in properties.items()}
    assert PASSWORD not in str(conf)
    plan = find_topology(f"{tmp_path / 'shouts.py'}:topology").plan()
    with ProcessDriver(tmp_path, "shouts:topology", plan, "lines", conf) as driver:
        driver.read()
        driver.command("activate")
        (emit,) = until(lambda: emits(driver.command("next")), "the message")
        assert emit["tuple"][2] == "~bhello"


def write(broker, topic, *values):
    records = [BatchRecord(offset, 0, None, value) for offset, value in enumerate(values)]
    batch = encode_batch(records, base_timestamp_ms=time.time_ns() // 1_000_000)
    with Client(broker.bootstrap_servers, security=broker.client_properties) as client:
        client.produce(topic, 0, batch)


def values_of(broker, topic):
    """Return the values of all records of a topic, [] if there is none."""
    with Client(broker.bootstrap_servers, security=broker.client_properties) as client:
        if topic not in [described.name for described in client.topics()]:
            return []
    return [record.value for record in broker.records(topic) if record.value is not None]
