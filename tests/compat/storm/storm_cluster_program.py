"""A real Storm cluster on one machine: Nimbus and a supervisor in their own network and process namespaces.

    unshare -rnpf --mount-proc --kill-child python storm_cluster_program.py DIRECTORY

Storm's daemons listen at all addresses without authentication, so they get a network namespace that no other machine
reaches. The program starts a broker and a ZooKeeper, puts DIRECTORY/environment.pex into Storm's blobstore, submits the
`numbers` topology of storm_program.py by Flux, kills a component with SIGKILL, and prints process ids as JSON.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from coordination.embedded_zookeeper import EmbeddedZooKeeper
from flakelog.storm.jars import find_storm
from tests.compat.server_process import ServerProcess
from tests.compat.storm.cluster import write_flux
from tests.patience import until

HERE = Path(__file__).parent
NIMBUS = "org.apache.storm.daemon.nimbus.Nimbus"
SUPERVISOR = "org.apache.storm.daemon.supervisor.Supervisor"
FLUX = "org.apache.storm.flux.Flux"
MEMORY = "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
LOG = """<Configuration><Appenders><Console name="c"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
<Loggers><Root level="warn"><AppenderRef ref="c"/></Root></Loggers></Configuration>"""


class Storm:
    """The daemons, each with its log in the directory `home`."""

    def __init__(self, home, zookeeper_port):
        self.home = home
        self.storm = find_storm(fetch=False)
        jars = (self.storm.directory / "classpath").read_text().strip().split(os.pathsep)
        for name in ("conf", "lib-worker", "log4j2", "logs"):
            (home / name).mkdir()
        for jar in jars:
            (home / "lib-worker" / Path(jar).name).symlink_to(jar)
        (home / "log4j2" / "worker.xml").write_text(LOG)
        settings = {
            "storm.zookeeper.servers": ["127.0.0.1"],
            "storm.zookeeper.port": zookeeper_port,
            "storm.local.hostname": "127.0.0.1",
            "storm.local.dir": str(home / "local"),
            "storm.log4j2.conf.dir": str(home / "log4j2"),
            "nimbus.seeds": ["127.0.0.1"],
            "nimbus.monitor.freq.secs": 1,
            "supervisor.slots.ports": [6700],
            "supervisor.monitor.frequency.secs": 1,
            "worker.childopts": MEMORY,
            "worker.profiler.enabled": False,
        }
        (home / "conf" / "storm.yaml").write_text(json.dumps(settings))  # JSON is YAML
        self.classpath = os.pathsep.join([str(home / "conf"), *jars])

    def command(self, *arguments):
        options = [*MEMORY.split(), f"-Dstorm.home={self.home}", f"-Dstorm.log.dir={self.home / 'logs'}"]
        options.append(f"-Dlog4j2.configurationFile={self.home / 'log4j2' / 'worker.xml'}")
        return [str(self.storm.java), *options, "-cp", self.classpath, *map(str, arguments)]

    def start(self, name, daemon):
        with open(self.home / "logs" / f"{name}.log", "w") as log:
            return subprocess.Popen(self.command(daemon), cwd=self.home, stdout=log, stderr=log)

    def run(self, *arguments):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True)
        return done.returncode == 0 or print(done.stdout, done.stderr, file=sys.stderr)


def say(broker, first, end):
    with Client(broker.address) as client:
        if "numbers" not in [topic.name for topic in client.topics()]:
            client.create_topic("numbers", 2)
        for partition in (0, 1):
            numbers = range(first + partition, end, 2)
            records = [BatchRecord(at, 0, None, b"%d" % n) for at, n in enumerate(numbers)]
            client.produce("numbers", partition, encode_batch(records, base_timestamp_ms=0))


def notes(directory):
    files = directory.glob("check-*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def main(directory):
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    home = directory / "storm"
    home.mkdir()
    with EmbeddedZooKeeper(directory / "zookeeper") as zookeeper, ServerProcess(directory / "data") as broker:
        storm = Storm(home, zookeeper.port)
        storm.start("nimbus", NIMBUS)
        storm.start("supervisor", SUPERVISOR)
        until(lambda: storm.run(HERE / "CreateBlob.java", "packed", directory / "environment.pex"), "the blob")
        variables = {
            "FLAKELOG_SERVERS": broker.address,
            "STORM_TEST_TOPIC": "numbers",
            "STORM_TEST_STORE": "kafka",
            "STORM_TEST_DIRECTORY": str(directory),
            "PEX_ROOT": str(directory / "pex-root"),
            "PYTHONPATH": "",
        }
        os.environ.update(variables)
        sys.path.insert(0, str(directory / "source"))
        options = [f"--env={name}={value}" for name, value in variables.items()]
        python = os.path.realpath(sys.executable)
        flux = directory / "topology.yaml"
        write_flux("program_for_storm:numbers", flux, "--environment", "packed", "--python", python, *options)
        (flux_jar,) = (jar for jar in (home / "lib-worker").glob("flux-wrappers*"))
        submit = ["-Dstorm.jar=" + str(flux_jar.resolve()), FLUX, "--remote", flux]
        assert storm.run(*submit)
        say(broker, 0, 100)
        until(lambda: {note["n"] for note in notes(directory)} == set(range(100)), "the first messages")
        killed = notes(directory)[0]["pid"]
        os.kill(killed, signal.SIGKILL)
        say(broker, 100, 200)
        until(lambda: {note["n"] for note in notes(directory)} == set(range(200)), "the others")
        after = {note["pid"] for note in notes(directory) if note["n"] >= 100} - {killed}
        print(json.dumps({"killed": killed, "after": sorted(after)}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
