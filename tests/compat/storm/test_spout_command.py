"""`flakelog spout` against a real broker: a topology runs, is watched, stopped and started again."""

import json
import os
import pty
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from broker.client.blocking import Client
from broker.client.config_admin import TOPIC, Resource, describe_configs
from broker.record.records import BatchRecord, encode_batch
from coordination.access import Access
from coordination.directory import DirectoryCoordinator
from coordination.port import Create
from coordination.zookeeper import ZooKeeperCoordinator
from flakelog.operations.handled_letters import HandledLetters
from partition_manager.offset_document import OffsetDocument
from partition_manager.progress import Progress
from spout.figures.document import running
from tests.compat.server_process import PYTHONPATH
from tests.compat.tls_files import TlsFiles
from tests.patience import MS, SECONDS, until

ROOT = Path(__file__).resolve().parents[3]

TOKEN = "correct horse battery"
WORDS = """
from flakelog import Bolt, LogSpout, Topology

class Count(Bolt):
    def execute(self, tup):
        if b"bad" in tup["value"]:
            raise ValueError("no good")

def make(topic, servers):
    made = Topology(topic)
    made.spout("lines", LogSpout(topic, servers=servers, store="progress"))
    made.bolt("count", Count()).shuffle("lines")
    return made
"""


class Run:
    """`flakelog spout run` as a process; stderr is a file, or a terminal."""

    def __init__(self, directory, servers, topic, *options, stderr):
        text = f"{WORDS}\ntopology = make({topic!r}, {servers!r})\n"
        (directory / "words.py").write_text(text)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flakelog", "spout", "run", "words:topology", *options],
            cwd=directory,
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "COLUMNS": "150", "LINES": "40"},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.communicate(timeout=SECONDS)
        return self.process.returncode


def say(broker, topic, *values):
    records = [BatchRecord(n, 0, b"k%d" % n, value, ((f"h{n}", b"x"),)) for n, value in enumerate(values)]
    with Client(broker.address) as client:
        client.produce(topic, 0, encode_batch(records, base_timestamp_ms=1_000))


@pytest.fixture
def topic(broker, name):
    with Client(broker.address) as client:
        client.create_topic(name)
    return name


def events_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_topology_runs_with_health_metrics_and_a_log_of_json(broker, topic, tmp_path):
    say(broker, topic, b"a", b"bad", b"c")
    log = tmp_path / "log"
    with open(log, "w") as stderr:
        options = "--log-format json --http-port 0 --every 0.2 --set flakelog.spout.max.attempts=2"
        run = Run(tmp_path, broker.address, topic, *options.split(), stderr=stderr)
        ready = run.process.stdout.readline().strip()
        assert ready.startswith("ready: http=127.0.0.1:")
        address = ready.partition("=")[2]

        def dead():
            with urllib.request.urlopen(f"http://{address}/metrics") as answer:
                text = answer.read().decode()
            return 'flakelog_topology_messages_total{component="lines",outcome="dead_lettered"} 1.0' in text

        until(dead, "the dead letter in the metrics")
        with urllib.request.urlopen(f"http://{address}/health") as answer:
            assert json.loads(answer.read())["healthy"] is True
        until(lambda: any("lag_messages" in event for event in events_of(log)), "a line of figures")
        assert run.stop() == 0
    events = events_of(log)
    (failure,) = [event for event in events if event["level"] == "error" and "traceback" in event]
    assert (failure["component"], failure["error"], failure["messages"][0]["offset"]) == ("count", "ValueError", 1)
    assert "in execute" in failure["traceback"]
    assert events[-1]["message"].startswith(f"topology '{topic}' stopped after")


def test_over_https_a_topology_shows_its_figures_only_with_the_token(broker, topic, tmp_path):
    files = TlsFiles(tmp_path / "tls")
    (tmp_path / "http.properties").write_text(
        "flakelog.http.ssl.enable=true\nssl.keystore.type=PEM\n"
        f"ssl.keystore.location={files.broker}\nnum.partitions=3\n"
        "flakelog.http.metrics.open=false\nflakelog.http.health.open=false\n"
        "flakelog.console.token=${file:secrets:token}\n"
    )
    (tmp_path / "secrets").write_text(f"token={TOKEN}\n")
    options = "--http-port", "0", "--http-config", "http.properties"
    with open(tmp_path / "log", "w") as stderr:
        run = Run(tmp_path, broker.address, topic, *options, stderr=stderr)
        address = run.process.stdout.readline().strip().partition("=")[2]

        def get(path, **headers):
            request = urllib.request.Request(f"https://{address}{path}", headers=headers)
            try:
                with urllib.request.urlopen(request, context=files.context()) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()

        until(lambda: get("/health/ready") == (200, '{"ready": true}'), "the topology")
        assert (get("/metrics")[0], get("/health")[0], get("/health/live")[0]) == (401, 401, 200)
        token = {"Authorization": f"Bearer {TOKEN}"}
        assert "flakelog_topology_messages_total" in get("/metrics", **token)[1]
        assert json.loads(get("/health", **token)[1])["topology"] == topic
        with pytest.raises(OSError):
            urllib.request.urlopen(f"http://{address}/health/live")
        assert run.stop() == 0
    log = (tmp_path / "log").read_text()
    assert "are used, not num.partitions" in log and "use https:// at the client" in log and TOKEN not in log


def test_on_a_terminal_the_figures_are_shown_live(broker, topic, tmp_path):
    say(broker, topic, b"a", b"b")
    ours, theirs = pty.openpty()
    run = Run(tmp_path, broker.address, topic, stderr=theirs)
    os.close(theirs)
    shown = ""
    while "0 messages, 0 B, 0.0 s" not in shown or f"{topic}-0" not in shown or "WATERMARK" not in shown:
        shown += os.read(ours, 65536).decode()
    assert run.stop(signal.SIGINT) == 0
    os.close(ours)


def test_a_port_that_is_taken_is_named(broker, topic, tmp_path):
    taken = broker.http.rpartition(":")[2]
    run = Run(tmp_path, broker.address, topic, "--http-port", taken, stderr=subprocess.PIPE)
    _, err = run.process.communicate(timeout=SECONDS)
    assert run.process.returncode == 1 and f"Error: --http-port {taken}:" in err


def documents(broker):
    with Client(broker.address) as client:
        records, _ = client.fetch("__flakelog_topologies", 0, 0, max_bytes=1 << 24)
    return [(record.key, record.value) for record in records]


def test_a_process_publishes_its_figures_and_takes_them_back_at_a_clean_stop(broker, topic, tmp_path):
    """Kept in a compacted topic, so that a console that starts later finds each process."""
    say(broker, topic, b"a", b"b")
    run = Run(tmp_path, broker.address, topic, stderr=subprocess.DEVNULL)

    def published():
        with Client(broker.address) as client:
            if "__flakelog_topologies" not in [listed.name for listed in client.topics()]:
                return []
        own_documents = [document for document in running(documents(broker), now_ms=0) if document["topology"] == topic]
        return [document for document in own_documents if document["lag"]["lag"] == 0]

    (document,) = until(published, "the document")
    assert (document["pid"], document["dead_letter_topics"]) == (run.process.pid, [f"{topic}.dead-letters"])
    assert [component["name"] for component in document["components"]] == ["lines", "count"]
    assert run.stop() == 0
    assert documents(broker)[-1] == (f"{topic}/{document['run_id']}".encode(), None)
    with Client(broker.address) as client:
        values = client.run(describe_configs(client.core, Resource(TOPIC, "__flakelog_topologies")))
    assert ("cleanup.policy", "compact") in [(config.name, config.value) for config in values]


def bury(client, topic, offset, reason, value):
    """Write a dead letter of a message, as a spout does."""
    facts = {"reason": reason, "error": "ValueError: no good", "attempts": 5, "topic": topic, "partition": 0}
    facts |= {"offset": offset, "timestamp-ms": 1_000 + offset, "id": 70 + offset}
    facts |= {"value": "left out"} if value is None else {}
    headers = [("own", b"h"), *((f"flakelog-dead-{name}", str(fact).encode()) for name, fact in facts.items())]
    record = BatchRecord(0, 0, b"k%d" % offset, value, tuple(headers))
    client.produce(f"{topic}.dead-letters", 0, encode_batch([record], base_timestamp_ms=1_000))


@pytest.fixture
def letters(broker, topic):
    """Give the topic three dead letters, of which one has lost its value."""
    with Client(broker.address) as client:
        client.create_topic(f"{topic}.dead-letters")
        for offset, (reason, value) in enumerate([("attempts", b"v0"), ("undecodable", b"v1"), ("attempts", None)]):
            bury(client, topic, offset, reason, value)
    return topic


def test_dead_letters_are_counted_by_reason_shown_and_sent_back_as_they_were(broker, flakelog, letters):
    topic = letters
    code, out, _ = flakelog(f"spout dead list {topic}")
    assert code == 0 and out.splitlines()[0] == "3 dead letters: 2 attempts, 1 undecodable"
    assert out.splitlines()[2].split() == ["0:0", "attempts", "0:0", "70", "5", "ValueError:", "no", "good"]
    code, out, _ = flakelog(f"spout dead list {topic} --json --reason undecodable")
    assert [json.loads(line)["id"] for line in out.splitlines()] == [71]
    code, out, _ = flakelog(f"spout dead show {topic} 0:1 --json")
    assert (json.loads(out)["key"], json.loads(out)["value"]) == ("k1", "v1")
    code, out, err = flakelog(f"spout dead send {topic} --all", stdin=b"y\n")
    assert code == 0 and out == f"2 messages sent back to {topic}\n" and "letter 0:2 is not sent" in err
    with Client(broker.address) as client:
        records, _ = client.fetch(topic, 0, 0)
    assert [tuple(record[2:6]) for record in records] == [
        (1_000, b"k0", b"v0", (("own", b"h"),)),
        (1_001, b"k1", b"v1", (("own", b"h"),)),
    ]


def listed(flakelog, topic, *more):
    """Return the places of the letters that are listed."""
    out = flakelog(" ".join(["spout dead list --json", topic, *more]))[1]
    return [f"{letter['partition']}:{letter['offset']}" for letter in map(json.loads, out.splitlines())]


def test_a_letter_that_was_sent_back_is_listed_and_sent_no_more(broker, flakelog, letters):
    topic = letters
    flakelog(f"spout dead send {topic} --letter 0:1 --yes")
    assert listed(flakelog, topic) == ["0:0", "0:2"]
    assert "no dead letter has letter 0:1" in flakelog(f"spout dead send {topic} --letter 0:1 --yes")[2]
    assert flakelog(f"spout dead send {topic} --all --yes")[1] == f"1 message sent back to {topic}\n"
    assert flakelog(f"spout dead send {topic} --all --yes")[1] == f"0 messages sent back to {topic}\n"
    assert listed(flakelog, topic) == ["0:2"] and listed(flakelog, topic, "--handled") == ["0:0", "0:1", "0:2"]
    assert json.loads(flakelog(f"spout dead show {topic} 0:0 --json")[1])["is_handled"] is True
    with Client(broker.address) as client:
        bury(client, topic, 7, "attempts", b"v7")
        assert HandledLetters(client, f"{topic}.dead-letters").start(0) == 2, "a listing begins there"
        records, _ = client.fetch(topic, 0, 0)
    assert [record.value for record in records] == [b"v1", b"v0"], "each was sent once"
    assert listed(flakelog, topic) == ["0:2", "0:3"]
    assert flakelog(f"spout dead send {topic} --letter 0:1 --handled --yes")[1] == f"1 message sent back to {topic}\n"


def test_marks_of_a_dead_letter_topic_that_was_deleted_hide_no_letter_of_its_successor(broker, flakelog, letters):
    topic = letters
    flakelog(f"spout dead send {topic} --all --yes")
    with Client(broker.address) as client:
        client.delete_topic(f"{topic}.dead-letters")
        client.create_topic(f"{topic}.dead-letters")
        bury(client, topic, 9, "attempts", b"v9")
    assert listed(flakelog, topic) == ["0:0"]


def test_dead_letters_are_sent_by_id_and_dropped_up_to_an_offset(flakelog, letters):
    topic = letters
    code, out, _ = flakelog(f"spout dead send {topic} --id 71 --yes --json")
    assert [json.loads(line) for line in out.splitlines()] == [
        {"letter": "0:1", "topic": topic, "partition": 0, "offset": 0}
    ]
    assert flakelog(f"spout dead drop {topic} 0:1", stdin=b"n\n")[0] == 1
    assert flakelog(f"spout dead drop {topic} 0:1 --yes")[:2] == (0, "2 dead letters dropped\n")
    assert flakelog(f"spout dead list {topic}")[1].startswith("1 dead letter: 1 attempts\n")
    assert flakelog(f"spout dead drop {topic} --all --yes --json")[1].endswith('"dropped": 1}\n')


def test_what_is_not_there_is_named_with_what_is(flakelog, letters):
    for command, refusal in (
        (f"send {letters}", "name what to send: --all, --reason, --id or --letter"),
        (f"send {letters} --reason tired", "the reasons are: attempts, undecodable"),
        (f"send {letters} --id 9", "no dead letter has id 9"),
        (f"show {letters} 0:9", "there is no 0:9 in"),
        (f"drop {letters} 0:9", "partition 0 has letters 0 to 2, not 9"),
        ("list no-such-topic", "there is no topic no-such-topic.dead-letters"),
    ):
        code, _, err = flakelog(f"spout dead {command}")
        assert code in (1, 2) and refusal in err, err


def test_stored_progress_is_shown_exported_and_moved_while_the_topology_is_stopped(broker, flakelog, topic, tmp_path):
    say(broker, topic, b"a", b"b", b"c")
    store, id = f"--store {tmp_path / 'progress'}", f"{topic}.lines"
    run = Run(tmp_path, broker.address, topic, stderr=subprocess.DEVNULL)
    shown = f"spout progress show {id} {store} --json"
    until(lambda: flakelog(shown)[0] == 0 and json.loads(flakelog(shown)[1])["lag"] == 0, "the stored progress")
    until(
        lambda: any(document["topology"] == topic for document in running(documents(broker), now_ms=0)),
        "the document",
    )
    code, _, err = flakelog(f"spout progress move {id} --to earliest --execute {store}")
    assert code == 1 and f"topology {topic} runs on" in err and f"process {run.process.pid}: stop it first" in err
    assert run.stop() == 0

    code, out, _ = flakelog(f"spout progress show {store}")
    assert code == 0 and out.splitlines()[1].split() == [id, topic, "0", "3", "0", "3", "0", "-"]
    (exported,) = [json.loads(line) for line in flakelog(f"spout progress export {id} {store}")[1].splitlines()]
    assert (exported["id"], exported["document"]["offset"]) == (id, 3)
    code, out, err = flakelog(f"spout progress move {id} --to 1 --json {store}")
    assert json.loads(out) == {"topic": topic, "partition": 0, "before": 3, "after": 1} and "nothing is changed" in err
    assert json.loads(flakelog(shown)[1])["watermark"] == 3
    assert flakelog(f"spout progress move {id} --to 1 --execute {store}")[0] == 0
    assert json.loads(flakelog(shown)[1])["watermark"] == 1


def test_progress_in_a_protected_zookeeper_is_moved_with_the_servers_settings(
    broker, flakelog, topic, zookeeper, tmp_path
):
    say(broker, topic, b"a", b"b", b"c")
    (tmp_path / "secret").write_text("spouts:secret")
    access = Access(credentials_file=str(tmp_path / "secret"), set_acl=True)
    session = ZooKeeperCoordinator(f"{zookeeper.hosts}/{topic}", access, connect_timeout_ms=MS)
    document = OffsetDocument("t", "t", topic, 0, Progress(3), owner="another-1-2.0.1")
    session.execute(Create("/flakelog-spouts/t.lines/partition_0", document.encode()))
    session.close()
    move = f"spout progress move t.lines --to 1 --execute --store zookeeper://{zookeeper.hosts}/{topic}"
    code, _, err = flakelog(move)
    assert code == 1 and "Set /flakelog-spouts/t.lines/partition_0" in err
    (tmp_path / "config").write_text(f"flakelog.ids.zookeeper.credentials.file={tmp_path / 'secret'}\n")
    assert flakelog(f"{move} --config {tmp_path / 'config'}")[0] == 0
    code, out, _ = flakelog(
        f"spout progress show t.lines --json --store zookeeper://{zookeeper.hosts}/{topic} "
        f"--set flakelog.ids.zookeeper.credentials.file={tmp_path / 'secret'}"
    )
    assert code == 0 and json.loads(out)["watermark"] == 1


def test_a_store_and_a_spout_that_are_not_there_are_named(flakelog, tmp_path):
    assert "there is no directory /nowhere" in flakelog("spout progress show --store /nowhere")[2]
    (tmp_path / "empty").mkdir()
    wanted = f"{tmp_path / 'empty'} has no progress of any spout"
    assert wanted in flakelog(f"spout progress show x --store {tmp_path / 'empty'}")[2]
    assert not list((tmp_path / "empty").iterdir()), "a command that reads writes nothing"
    DirectoryCoordinator(tmp_path / "store").close()
    assert "has no progress of 'x'; it has that of: no spout" in flakelog(
        f"spout progress show x --store {tmp_path / 'store'}"
    )[2]
    assert "flakelog group describe" in flakelog("spout progress show --store kafka")[2]
