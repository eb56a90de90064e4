"""Every `--json` output is as it was: its fields, their order and their values, beside those that each run makes anew.

tests/golden/json_outputs.txt has commands after `$`, in the order in which they run against one server, each followed
by its exit code, stdout, and the error if it fails. A field of VARIES has the type of its value there.

    FLAKELOG_REWRITE=1 .venv/bin/python -m pytest tests/compat/commands/test_json_outputs.py    # if it is right now
"""

import json
import os
import re
import shlex
from contextlib import ExitStack, closing
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer as StockConsumer
from confluent_kafka import Producer as StockProducer
from confluent_kafka import TopicPartition

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from coordination.port import Create
from coordination.sessions import open_session
from flakelog.cli import main
from partition_manager.offset_document import OffsetDocument
from partition_manager.progress import Progress
from tests.compat.conftest import SHORT_SESSIONS
from tests.compat.server_process import ServerProcess
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS
from tests.scenarios.scenario import difference

GOLDEN = Path(__file__).parents[2] / "golden" / "json_outputs.txt"
ERROR_CHARACTERS = 120  # the rest lists settings, of which there may be more some day

VARIES = {
    "address", "bytes", "checksum", "cluster_id", "datacenter", "file_bytes", "high_water", "high_water_ms", "holder",
    "host", "id", "id_str", "id_time", "last_time", "member", "producer_id", "rest_ms", "rows_per_second", "samples",
    "seconds", "sequence", "since", "started", "time", "time_ms", "timestamp", "topic_id", "total_bytes",
    "usable_bytes", "worker",
}  # fmt: skip

# Commands whose output is held elsewhere, or measures the machine.
ELSEWHERE = {
    "acl add": "it needs an authorizer; tests/compat/kafka_tools/test_acl_tool.py",
    "acl list": "it needs an authorizer; tests/compat/kafka_tools/test_acl_tool.py",
    "acl remove": "it needs an authorizer; tests/compat/kafka_tools/test_acl_tool.py",
    "bench consume": "figures of a machine; tests/compat/commands/test_bench_commands.py",
    "bench ids": "figures of a machine; tests/compat/commands/test_bench_commands.py",
    "bench produce": "figures of a machine; tests/compat/commands/test_bench_commands.py",
    "cluster zookeeper-acl": "it needs a ZooKeeper; tests/compat/server/test_zookeeper_access.py",
    "check": "it needs a stopped server; tests/flakelog/test_check.py",
    "compat": "docs/compat.md has it; tests/flakelog/test_compat.py",
    "idgen": "it is `server` with fewer parts",
    "mirror list": "it needs a mirror; tests/compat/mirror/test_mirror_command.py",
    "mirror pause": "it needs a mirror; tests/compat/mirror/test_mirror_command.py",
    "mirror resume": "it needs a mirror; tests/compat/mirror/test_mirror_command.py",
    "mirror run": "it copies between two clusters; tests/compat/mirror/test_mirror_command.py",
    "registry copy": "it needs a ZooKeeper; tests/compat/commands/test_registry_commands.py",
    "registry describe": "it needs a ZooKeeper; tests/compat/commands/test_registry_commands.py",
    "registry move": "it needs a ZooKeeper; tests/compat/commands/test_registry_commands.py",
    "registry remove": "it needs a ZooKeeper; tests/compat/commands/test_registry_commands.py",
    "registry show": "it needs a ZooKeeper; tests/compat/commands/test_registry_commands.py",
    "settings": "docs/settings.md has it; tests/test_papers.py",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run a server of this file's own, because lists name all topics, groups and quotas of a server.

    It takes batches of transactions that no coordinator knows, so that one hangs.
    """
    settings = SHORT_SESSIONS | {"transaction.partition.verification.enable": "false"}
    with ServerProcess(tmp_path_factory.mktemp("json") / "data", settings) as server:
        yield server


def fill(address):
    """Make messages, dead letters, transactions and groups, with times that are always the same."""
    with Client(address) as client:
        client.create_topic("json-numbers", 2)
        for number in range(10):
            record = BatchRecord(0, 0, b"k%d" % number, b"%d" % number, (("n", b"%d" % number),))
            batch = encode_batch([record], base_timestamp_ms=1_000 + number)
            client.produce("json-numbers", number % 2, batch)
        client.create_topic("json-numbers.dead-letters", 1)
        for offset, reason in enumerate(("attempts", "undecodable", "attempts", "poison")):
            bury(client, "json-numbers", offset, reason)
        client.create_topic("json-hangs", 1)
        batch = encode_batch(
            [BatchRecord(0, 0, None, b"lost")], base_timestamp_ms=1_000, producer_id=7_000, producer_epoch=3,
            base_sequence=0, transactional=True,
        )  # fmt: skip
        address = client.run(client.core.leader("json-hangs", 0))
        client.run(
            client.core.produce_in_transaction(address, "json-lost", [("json-hangs", 0, batch)])
        )


def bury(client, topic, offset, reason):
    """Write a dead letter of a message, as a spout does."""
    facts = {"reason": reason, "error": "ValueError: no good", "attempts": 5, "topic": topic, "partition": 0}
    facts |= {"offset": offset, "timestamp-ms": 1_000 + offset, "id": 70 + offset}
    headers = [("own", b"h"), *((f"flakelog-dead-{name}", str(fact).encode()) for name, fact in facts.items())]
    record = BatchRecord(0, 0, b"k%d" % offset, b"v%d" % offset, tuple(headers))
    client.produce(f"{topic}.dead-letters", 0, encode_batch([record], base_timestamp_ms=1_000))


def store(directory):
    """Store the progress of a spout."""
    document = OffsetDocument("words", "words", "json-numbers", 0, Progress(2, ((3, 4),)), owner="another-1-2.0.1")
    with closing(open_session(directory=str(directory))) as session:
        session.execute(Create("/flakelog-spouts/words.lines/partition_0", document.encode()))


@pytest.fixture
def begun(server):
    """Fill the server; keep a member in a group, and a transaction open."""
    fill(server.address)
    stock = {"bootstrap.servers": server.address, **QUIET}
    producer = StockProducer({**stock, "transactional.id": "json-open"})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("json-numbers", b"open", partition=0, timestamp=2_000)
    producer.flush(SECONDS)
    groups = {"group.id": "json-members", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = StockConsumer({**stock, **groups, "client.id": "reader"})
    consumer.subscribe(["json-numbers"])
    with ExitStack() as ends:
        ends.callback(consumer.close)
        assert len(consumer.consume(1, SECONDS)) == 1
        offsets = [TopicPartition("json-numbers", 0, 4), TopicPartition("json-numbers", 1, 5)]
        consumer.commit(offsets=offsets, asynchronous=False)
        yield


def settled(value, key=None):
    """Return a JSON value with the type of each field of VARIES in place of its value."""
    if key in VARIES and value is not None:
        return f"<{type(value).__name__}>"
    if isinstance(value, dict):
        return {name: settled(field, name) for name, field in value.items()}
    if isinstance(value, list):
        return [settled(item) for item in value]
    return value


def run(command, paths, env):
    """Return a command's exit code and output as the golden file has them."""
    words = [word.format(**paths) for word in shlex.split(command)]
    result = CliRunner().invoke(main, words, env=env)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    lines = [json.dumps(settled(json.loads(line)), ensure_ascii=False) for line in result.stdout.splitlines()]
    if "--group" in words:  # a member reads its partitions in any order
        lines.sort()
    errors = [line[:ERROR_CHARACTERS] for line in result.stderr.splitlines()] if result.exit_code else []
    text = "\n".join([f"exit {result.exit_code}", *lines, *errors])
    for name, path in paths.items():
        text = text.replace(str(path), f"{{{name}}}")
    return text


@pytest.mark.usefixtures("begun")
def test_every_json_output_is_as_it_was(server, tmp_path):
    (tmp_path / "lines").write_text("a:1\nb:2\n")
    (tmp_path / "server.properties").write_text("log.segment.bytes=1048576\nno.such=1\nbroker.rack=r\n")
    (tmp_path / "progress").mkdir()
    store(tmp_path / "progress")
    paths = {"tmp": tmp_path, "data": server.data_dir}
    env = {"FLAKELOG_SERVERS": server.address, "FLAKELOG_IDS": server.ids}
    golden = GOLDEN.read_text()
    commands = re.findall(r"^\$ flakelog (.+)$", golden, re.MULTILINE)
    printed = "".join(f"$ flakelog {command}\n{run(command, paths, env)}\n\n" for command in commands)
    if os.environ.get("FLAKELOG_REWRITE"):
        GOLDEN.write_text(printed)
        pytest.skip("rewritten, not judged: read what has changed")
    assert golden == printed, difference(golden, printed, GOLDEN.name)


def commands_of(command, path=()):
    """Yield the words of each command that has --json."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            yield from commands_of(command.get_command(click.Context(command), name), (*path, name))
    elif any("--json" in param.opts for param in command.params):
        yield " ".join(path)


def test_no_command_with_json_is_left_out():
    text = GOLDEN.read_text()
    missing = {name for name in commands_of(main) if f"$ flakelog {name} " not in text}
    assert missing == set(ELSEWHERE)
