"""`flakelog load` against a real broker: to its end, killed with SIGKILL at its steps, and twice at the same time."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter

import duckdb
import polars
import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations.topics import delete_records
from spark_bridge.load.destination import Destination
from spark_bridge.load.job import LoadJob
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.reading.settings import ReadSettings
from tests.compat.server_process import ROOT
from tests.spark_bridge.load.world import Watcher

HOUR_MS = 3_600_000


class Topic:
    """A topic of the broker whose records have the value `partition/number`, three of them in an hour."""

    def __init__(self, broker, name, partitions=2):
        self.name, self.address = name, broker.address
        self.written = []
        self.ends = [0] * partitions
        self.client = Client(broker.address)
        self.client.create_topic(name, partitions)

    def append(self, partition, number):
        first = self.ends[partition]
        numbers = range(first, first + number)
        records = [BatchRecord(n - first, (n - first) * HOUR_MS // 3, b"k", b"%d/%d" % (partition, n)) for n in numbers]
        self.client.produce(self.name, partition, encode_batch(records, base_timestamp_ms=first * HOUR_MS // 3))
        self.written += [f"{partition}/{n}" for n in numbers]
        self.ends[partition] += number


@pytest.fixture
def topic(broker, request):
    made = Topic(broker, "load-" + str(abs(hash(request.node.name)) % 10**9))
    made.append(0, 20)
    made.append(1, 9)
    yield made
    made.client.close()


@pytest.fixture(scope="module")
def program():
    """Return a function that starts runs of the command at once, and returns how each ended."""
    argv = [sys.executable, "-m", "tests.compat.spark.load_program"]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def run(*runs):
            requests = [{"args": args, "kill_at": kill_at} for args, kill_at in runs]
            process.stdin.write(json.dumps(requests) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield run
        process.stdin.close()


def args(topic, out, *more):
    return ["load", topic.name, "--servers", topic.address, "--to", str(out), "--file-rows", "8", *more]


def values(out):
    """Return the values that plain readers of a directory see."""
    files = f"{out}/**/*.parquet"
    rows = duckdb.sql(f"select value::varchar from read_parquet('{files}', hive_partitioning=true)").fetchall()
    assert polars.scan_parquet(files, hive_partitioning=True).select(polars.len()).collect().item() == len(rows)
    return sorted(value for (value,) in rows)


def verified(flakelog, topic, out):
    code, shown, _ = flakelog(f"load {topic.name} --to {out} --verify --json")
    assert code == 0, shown
    return json.loads(shown)


def test_a_load_takes_the_new_messages_and_says_so(flakelog, topic, tmp_path):
    out = tmp_path / "out"
    assert flakelog(f"load {topic.name} --to {out}")[:2] == (0, f"29 messages in 2 files in {out}\n")
    topic.append(1, 3)
    code, shown, _ = flakelog(f"load {topic.name} --to {out} --json")
    figures = json.loads(shown)
    assert (code, figures["loads"], figures["rows"], figures["files"]) == (0, [1], 3, 1)
    again = flakelog(f"load {topic.name} --to {out}")
    assert again == (0, f"no new messages of {topic.name} since the last load\n", "")
    assert values(out) == sorted(topic.written)
    assert verified(flakelog, topic, out)["rows"] == 32


def test_loads_are_published_in_the_topic_of_replays(flakelog, topic, tmp_path):
    flakelog(f"load {topic.name} --to {tmp_path}/out")
    published = map(json.loads, flakelog("consume __flakelog_replays --json")[1].splitlines())
    key = f"{tmp_path}/out/{topic.name}/0"  # other tests let other programs publish to this broker
    ours = [json.loads(record["value"]) for record in published if record["key"] == key]
    assert [(document["kind"], document["state"]) for document in ours] == [("load", "planned"), ("load", "done")]
    assert (ours[1]["manifest"]["number"], ours[1]["receipt"]["rows"]) == (0, 29)


def test_a_plan_shows_the_parts_and_writes_nothing(flakelog, topic, tmp_path):
    code, shown, _ = flakelog(f"load {topic.name} --to {tmp_path}/out --file-rows 10 --plan")
    assert code == 0
    assert [line.split() for line in shown.splitlines()] == [
        ["partition", "start", "end", "rows", "bytes"],
        ["0", "0", "10", "10", "-"],
        ["0", "10", "20", "10", "-"],
        ["1", "0", "9", "9", "-"],
        ["load", "0:", "at", "most", "29", "messages", "in", "3", "parts"],
    ]
    assert not (tmp_path / "out").exists()


def test_the_bytes_of_a_large_partition_are_estimated_and_bound_its_files(flakelog, topic, tmp_path):
    topic.append(0, 5_000)
    plan = json.loads(flakelog(f"load {topic.name} --to {tmp_path}/out --file-bytes 20000 --plan --json")[1])
    parts = [part for part in plan["parts"] if part["partition"] == 0]
    assert len(parts) > 2
    assert all(part["bytes"] <= 20_000 for part in parts)


@pytest.mark.parametrize("by", ["day", "hour", "key"])
def test_readers_see_directories_as_columns(flakelog, topic, tmp_path, by):
    out = tmp_path / "out"
    assert flakelog(f"load {topic.name} --to {out} --partition-by {by}")[0] == 0
    counted = duckdb.sql(
        f"select {by}::varchar, count(*) from read_parquet('{out}/**/*.parquet', hive_partitioning=true) group by 1"
    ).fetchall()
    expected = {
        "day": {"1970-01-01": 29},
        "key": {"k": 29},
        "hour": Counter(f"1970-01-01-{int(value.split('/')[1]) // 3:02d}" for value in topic.written),
    }
    assert dict(counted) == expected[by]


def test_many_directories_need_no_more_files_than_the_system_allows(topic, tmp_path):
    """Each value of --partition-by has an open file."""
    records = [BatchRecord(n, 0, b"k%d" % n, b"2/%d" % n) for n in range(100)]
    topic.client.produce(topic.name, 0, encode_batch(records, base_timestamp_ms=0))
    command = ["prlimit", "--nofile=64:4096", sys.executable, "-m", "flakelog", "load", topic.name]
    more = ["--servers", topic.address, "--to", str(tmp_path / "out"), "--partition-by", "key"]
    subprocess.run([*command, *more], cwd=ROOT, check=True, capture_output=True)
    assert len(values(tmp_path / "out")) == 129


def test_messages_of_open_transactions_wait_for_the_next_load(flakelog, topic, tmp_path):
    from confluent_kafka import Producer

    out = tmp_path / "out"
    producer = Producer({"bootstrap.servers": topic.address, "transactional.id": topic.name})
    producer.init_transactions()
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic.name, b"0/in it", partition=0)
        producer.flush()
        assert flakelog(f"load {topic.name} --to {out}")[0] == 0
        assert values(out) == sorted(topic.written)
        outcome()
    flakelog(f"load {topic.name} --to {out}")
    assert values(out) == sorted([*topic.written, "0/in it"])


def test_errors_have_an_exit_code_by_their_cause(flakelog, topic, tmp_path):
    out = tmp_path / "out"
    flakelog(f"load {topic.name} --to {out}")
    codes = {
        f"load none-{topic.name} --to {tmp_path}/other": 1,
        f"load {topic.name} --to gopher://there": 8,
        f"load {topic.name}": 2,
        f"load {topic.name} --to {out} --since yesterday": 2,
        f"load {topic.name} --to {out} --since earliest": 5,
        f"load {topic.name} --to {out} --partition-by day": 5,
        f"load {topic.name} --to {tmp_path}/mistyped --verify": 1,
    }
    assert {command: flakelog(command)[0] for command in codes} == codes
    (file, *_) = out.glob("*.parquet")
    file.write_bytes(file.read_bytes() + b"more")
    code, shown, errors = flakelog(f"load {topic.name} --to {out} --verify")
    assert (code, errors) == (6, "Error: 1 problem\n")
    assert shown.startswith(f"{file.name} was changed after it was written\n")


def test_topics_whose_names_begin_alike_share_a_place(flakelog, topic, broker, tmp_path):
    other = Topic(broker, f"{topic.name}-eu")
    other.append(0, 3)
    with other.client:
        for name, rows in ((other.name, 3), (topic.name, 29)):
            assert flakelog(f"load {name} --to {tmp_path}")[0] == 0
            assert verified(flakelog, topic if name == topic.name else other, tmp_path)["rows"] == rows


def test_the_error_of_a_part_ends_the_reads_of_the_others(topic, broker, tmp_path):
    """The broker is stopped, so other threads wait in their sockets. A Ctrl-C does not wait for their timeouts."""

    def interrupted(rows, size):
        os.kill(broker.pid, signal.SIGSTOP)
        raise KeyboardInterrupt

    def job(settings):
        options = LoadOptions(topic.name, file_rows=5)
        return LoadJob(topic.address, Destination(str(tmp_path), "parquet"), options, settings=settings)

    try:
        with pytest.raises(KeyboardInterrupt):
            job(ReadSettings(fetch_bytes=100, request_timeout_ms=600_000)).run(Watcher(), interrupted)
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert job(ReadSettings()).run(Watcher()).rows == 29


@pytest.mark.soak
def test_a_server_that_is_not_there_has_its_exit_code(flakelog, tmp_path):
    """It takes the time of all attempts to reach the server."""
    assert flakelog(f"load flights --to {tmp_path}/out --servers 127.0.0.1:1")[0] == 3


def test_a_topic_made_again_is_refused_by_name(flakelog, topic, tmp_path):
    flakelog(f"load {topic.name} --to {tmp_path}/out")
    topic.client.delete_topic(topic.name)
    topic.client.create_topic(topic.name, 2)
    code, _, errors = flakelog(f"load {topic.name} --to {tmp_path}/out")
    assert code == 5
    assert "deleted and made again" in errors and "name a new place" in errors


def test_lost_messages_are_named_and_the_loss_can_be_accepted(flakelog, topic, tmp_path):
    out = tmp_path / "out"
    flakelog(f"load {topic.name} --to {out}")
    topic.append(0, 10)
    delete_records(topic.client, {(topic.name, 0): 25})
    code, _, errors = flakelog(f"load {topic.name} --to {out}")
    assert code == 4
    assert f"{topic.name}-0[20, 25) (5 offsets)" in errors and "--accept-loss" in errors
    assert flakelog(f"load {topic.name} --to {out} --accept-loss")[:2] == (0, f"5 messages in 1 file in {out}\n")
    assert verified(flakelog, topic, out)["lost"] == [{"topic": topic.name, "partition": 0, "start": 20, "end": 25}]


def test_a_load_killed_at_its_steps_is_finished_by_the_next(flakelog, program, topic, tmp_path):
    """One destination; before each kill messages come, and each run is killed at another of its steps."""
    steps = program((args(topic, tmp_path / "counted"), None))[0]["steps"]
    chance, out = random.Random(1), tmp_path / "out"
    for part in range(6):
        topic.append(part % 2, 5)
        kill_at = steps * part // 6 + chance.randint(1, steps // 6)
        (ended,) = program((args(topic, out), kill_at))
        assert ended["code"] in (-9, 0)
        assert len(values_so_far(out)) == len(set(values_so_far(out)))
    assert program((args(topic, out), None))[0]["code"] == 0
    assert values(out) == sorted(topic.written)
    assert verified(flakelog, topic, out)["rows"] == len(topic.written)


def test_two_loads_at_once_bring_each_message_in_once(flakelog, program, topic, tmp_path):
    chance, out = random.Random(2), tmp_path / "out"
    for _ in range(3):
        topic.append(chance.randrange(2), 20)
        ended = program((args(topic, out), None), (args(topic, out), chance.choice((None, chance.randint(1, 60)))))
        assert ended[0]["code"] == 0 and ended[1]["code"] in (-9, 0)
        assert values(out) == sorted(topic.written)
    assert verified(flakelog, topic, out)["rows"] == len(topic.written)


@pytest.mark.soak
def test_a_load_may_be_killed_at_each_of_its_steps(flakelog, program, topic, tmp_path):
    more = ("--partition-by", "hour")
    steps = program((args(topic, tmp_path / "counted", *more), None))[0]["steps"]
    for kill_at in range(1, steps + 1):
        out = tmp_path / f"out-{kill_at}"
        assert program((args(topic, out, *more), kill_at))[0]["code"] in (-9, 0)
        assert program((args(topic, out, *more), None))[0]["code"] == 0
        assert values(out) == sorted(topic.written)
        assert verified(flakelog, topic, out)["rows"] == len(topic.written)


@pytest.mark.soak
def test_three_loads_at_once_with_random_kills(flakelog, program, topic, tmp_path):
    chance, out = random.Random(3), tmp_path / "out"
    for _ in range(60):
        topic.append(chance.randrange(2), chance.randint(1, 30))
        program(*((args(topic, out), chance.choice((None, chance.randint(1, 120)))) for _ in range(3)))
        seen = values_so_far(out)
        assert len(seen) == len(set(seen))
    assert program((args(topic, out), None))[0]["code"] == 0
    assert values(out) == sorted(topic.written)
    assert verified(flakelog, topic, out)["rows"] == len(topic.written)


def values_so_far(out):
    return values(out) if list(out.rglob("*.parquet")) else []


def test_a_load_that_runs_again_and_again_begins_once(topic, tmp_path):
    """--since names where the first load begins; the others go on after it."""
    argv = [sys.executable, "-m", "flakelog", *args(topic, tmp_path / "out", "--since", "earliest", "--every", "0.1")]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout.readline, "")
        assert "29 messages" in next(lines)
        topic.append(1, 3)
        assert next(line for line in lines if "no new messages" not in line).startswith("3 messages")
        process.send_signal(signal.SIGINT)
