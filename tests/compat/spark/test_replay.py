"""`flakelog replay` without Spark on a real server: into a directory, and into a store that speaks S3 (moto)."""

import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import boto3
import pyarrow.parquet as pq
import pytest
from moto.server import ThreadedMotoServer

from broker.client.blocking import Client
from broker.client.core import LATEST
from broker.record.records import BatchRecord, encode_batch
from spark_bridge.output.replay_topic import TOPIC
from spark_bridge.output.storage import ObjectStorage, Storage
from spark_bridge.replay.arrow_job import replay
from spark_bridge.replay.job import make_manifest
from spark_bridge.replay.publication import MANIFEST_FILE, RECEIPT_FILE, Damaged, Differs, LocationRefused, verify
from spark_bridge.replay.receipt import ReplayError
from spark_bridge.selection import manifest as manifests
from tests.patience import PROGRAM_SECONDS
from tests.poison import PASSES_LENGTHS, RECORDS

T0 = 1_700_000_000_000


@pytest.fixture
def servers(broker):
    return broker.address


@pytest.fixture
def topic(servers):
    """Return a topic of two partitions with 100 messages each."""
    name = f"flights-{uuid.uuid4().hex[:8]}"
    with Client(servers) as client:
        client.create_topic(name, partitions=2, configs={"retention.ms": "-1"})
    fill(servers, name)
    return name


def fill(servers, topic, batches=10):
    with Client(servers) as client:
        for number in range(batches):
            records = [
                BatchRecord(n, n, b"key", b"%d of %d" % (n, number), (("h", b"1"),) * (n % 2)) for n in range(20)
            ]
            client.produce(topic, number % 2, encode_batch(records, base_timestamp_ms=T0 + number))


@pytest.fixture(scope="module")
def store():
    """Run a store that speaks S3, and yield the query of its URIs."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    address = "{}:{}".format(*server.get_host_and_port())
    yield f"scheme=http&endpoint_override={address}&region=us-east-1"
    server.stop()


@pytest.fixture
def bucket(store, monkeypatch):
    """Return a function from a name to a URI in a new bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"bucket-{uuid.uuid4().hex[:8]}"
    address = store.split("endpoint_override=")[1].split("&")[0]
    boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1").create_bucket(Bucket=name)
    return lambda path: f"s3://{name}/{path}?{store}"


@pytest.fixture(params=["directory", "store"])
def storage(request, tmp_path):
    if request.param == "directory":
        return Storage.at(tmp_path / "out")
    return Storage.at(request.getfixturevalue("bucket")("out"))


def manifest_of(servers, topic, **options):
    return make_manifest({"kafka.bootstrap.servers": servers, "subscribe": topic, **options})


def content(storage):
    return {name: storage.read(name) for name in storage.names()}


def data_of(storage):
    return {name: data for name, data in content(storage).items() if name.endswith(".parquet")}


# --- the job ---------------------------------------------------------------------------------------------------------


def test_a_replay_has_all_rows_and_a_receipt_of_them(servers, topic, storage):
    manifest = manifest_of(servers, topic, minPartitions="4", includeHeaders="true")
    receipt = replay(servers, manifest, storage)
    assert (receipt.rows, len(receipt.files)) == (200, 4)
    assert verify(storage) == receipt
    rows = [pq.read_table(storage.open(name)) for name in sorted(receipt.files)]
    assert sum(table.num_rows for table in rows) == 200
    assert rows[0]["headers"].to_pylist()[1] == [{"key": "h", "value": b"1"}]


def test_a_rerun_gives_the_same_bytes_though_the_log_went_on(servers, topic, storage, tmp_path):
    manifest = manifest_of(servers, topic)
    first = replay(servers, manifest, storage)
    before = content(storage)
    fill(servers, topic)
    assert replay(servers, manifest, storage) == first
    assert content(storage) == before
    other = Storage.at(tmp_path / "other")
    assert replay(servers, manifest, other) == first
    assert data_of(other) == data_of(storage)


def test_a_rerun_that_differs_changes_nothing_and_says_what_differs(servers, topic, storage, monkeypatch):
    manifest = manifest_of(servers, topic)
    replay(servers, manifest, storage)
    before = content(storage)
    monkeypatch.setattr("spark_bridge.output.parquet_file.ROWS_PER_GROUP", 7)  # as another pyarrow might
    with pytest.raises(Differs, match="has other content"):
        replay(servers, manifest, storage)
    assert content(storage) == before


def test_a_place_that_holds_something_else_is_refused_before_anything_is_written(servers, topic, storage):
    with storage.write("notes.txt") as file:
        file.write(b"mine")
    with pytest.raises(LocationRefused, match="is there and is no replay"):
        replay(servers, manifest_of(servers, topic), storage)
    assert storage.names() == ["notes.txt"]


def test_the_replay_of_another_manifest_is_refused_with_a_way_on(servers, topic, storage):
    replay(servers, manifest_of(servers, topic), storage)
    before = content(storage)
    fill(servers, topic)
    with pytest.raises(LocationRefused, match="the log or the range has changed since.*--manifest"):
        replay(servers, manifest_of(servers, topic), storage)
    assert content(storage) == before


def test_two_runs_at_once_publish_one_result(servers, topic, storage):
    manifest = manifest_of(servers, topic, minPartitions="8")
    receipts = []
    runs = [threading.Thread(target=lambda: receipts.append(replay(servers, manifest, storage))) for _ in range(3)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert len(receipts) == 3 and receipts[0] == receipts[1] == receipts[2] == verify(storage)


def test_a_file_that_is_gone_or_changed_is_found(servers, topic, storage):
    receipt = replay(servers, manifest_of(servers, topic), storage)
    name = sorted(receipt.files)[0]
    data = storage.read(name)
    with storage.write(name) as file:
        file.write(data + b"\0")
    with pytest.raises(Damaged, match=f"{name}.* was changed after it was written"):
        verify(storage)
    storage.delete(name)
    with pytest.raises(Damaged, match=f"{name}.* is gone"):
        verify(storage)


def test_a_run_that_fails_publishes_nothing(servers, topic, storage):
    with Client(servers) as client:
        client.produce(topic, 1, PASSES_LENGTHS)
    manifest = manifest_of(servers, topic)
    with pytest.raises(ValueError, match="onPoison=skip leaves such batches out"):
        replay(servers, manifest, storage)
    assert not storage.exists(RECEIPT_FILE)
    with pytest.raises(ReplayError, match="no replay, or one that did not end"):
        verify(storage)
    receipt = replay(servers, manifest, storage, on_poison="skip")
    assert [skipped[:4] for skipped in receipt.poison] == [(topic, 1, 100, 100 + RECORDS - 1)]
    assert verify(storage) == receipt


def test_columns_without_the_offset_are_proven_too(servers, topic, tmp_path):
    storage = Storage.at(tmp_path / "out")
    receipt = replay(servers, manifest_of(servers, topic, columns="value"), storage)
    assert receipt.offset_sum == 2 * sum(range(100))
    assert pq.read_schema(storage.open(min(receipt.files))).names == ["value"]


def test_a_replay_is_in_the_topic_of_replays(servers, topic, tmp_path):
    manifest = manifest_of(servers, topic)
    replay(servers, manifest, Storage.at(tmp_path / "out"))
    documents = documents_of(servers, f"{tmp_path / 'out'}/{manifest.sha256}")
    assert [(document["kind"], document["state"], document["place"]) for document in documents] == [
        ("replay", "planned", str(tmp_path / "out")), ("replay", "done", str(tmp_path / "out")),
    ]  # fmt: skip
    assert documents[0]["receipt"] is None and documents[1]["receipt"]["rows"] == 200
    assert manifests.load(json.dumps(documents[1]["manifest"])) == manifest


def test_a_replay_that_is_done_stays_done_there_if_a_second_run_is_refused(servers, topic, storage):
    manifest = manifest_of(servers, topic)
    storage.delete(min(replay(servers, manifest, storage).files))
    with pytest.raises(Damaged, match="is gone"):
        replay(servers, manifest, storage)
    documents = documents_of(servers, f"{storage}/{manifest.sha256}")
    assert [(document["state"], document["receipt"] is None) for document in documents] == [
        ("planned", True), ("done", False),
    ]  # fmt: skip


def test_replays_of_a_range_into_two_places_are_both_there(servers, topic, tmp_path):
    manifest = manifest_of(servers, topic)
    for name in ("one", "two"):
        replay(servers, manifest, Storage.at(tmp_path / name))
    for name in ("one", "two"):
        newest = documents_of(servers, f"{tmp_path / name}/{manifest.sha256}")[-1]
        assert (newest["state"], newest["place"]) == ("done", str(tmp_path / name))


def test_a_load_is_in_the_topic_of_replays_too(flakelog, servers, topic, tmp_path):
    code, _, errors = flakelog(f"load {topic} --to {tmp_path / 'loads'}")
    assert code == 0, errors
    key = str(tmp_path / "loads" / topic / "0")  # other tests let other programs publish to this broker
    documents = documents_of(servers, key)
    states = [(document["kind"], document["state"]) for document in documents]
    assert states == [("load", "planned"), ("load", "done")]
    assert documents[-1]["receipt"]["load_sha256"] == documents[-1]["manifest"]["sha256"]


def test_a_replay_goes_on_without_that_topic_and_warns_once(servers, topic, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("spark_bridge.output.replay_topic.TOPIC", "no/topic")
    assert replay(servers, manifest_of(servers, topic), Storage.at(tmp_path / "out")).rows == 200
    assert [record.levelname for record in caplog.records if "is not published" in record.message] == ["WARNING"]


def documents_of(servers, key):
    return [json.loads(record.value) for record in records_of(servers, TOPIC) if record.key == key.encode()]


def records_of(servers, name):
    fetched, offset = [], 0
    with Client(servers) as client:
        end = client.find_offset(name, 0, LATEST)
        while offset < end:
            records, offset = client.fetch(name, 0, offset)
            fetched += records
    return fetched


# --- a store of objects ----------------------------------------------------------------------------------------------


def test_in_a_store_the_receipt_is_the_last_object(servers, topic, bucket, monkeypatch):
    """A run that ends before its receipt leaves no result. The next one finishes it."""
    storage = Storage.at(bucket("out"))
    manifest = manifest_of(servers, topic)

    def lose(*_):
        for name in storage.names():
            if name.endswith(".parquet"):
                storage.delete(name)

    with pytest.raises(Damaged, match="is gone"):
        replay(servers, manifest, storage, on_written=lose)
    assert MANIFEST_FILE in storage.names() and RECEIPT_FILE not in storage.names()
    for name, value in (("AWS_ACCESS_KEY_ID", "key"), ("AWS_SECRET_ACCESS_KEY", "secret")):
        monkeypatch.setenv(name, value)
    assert replay(servers, manifest, storage) == verify(storage)


def test_in_a_store_a_run_of_another_writer_is_refused(servers, topic, bucket):
    """Files of an unfinished run could have other bytes if another pyarrow wrote them."""
    storage = Storage.at(bucket("out"))
    manifest = manifest_of(servers, topic)
    storage.create(MANIFEST_FILE, manifest.to_json().encode())
    storage.create("_writer.json", b'{"pyarrow": "1.0"}')
    with pytest.raises(LocationRefused, match='begun by a run with another _writer.json, {"pyarrow": "1.0"}'):
        replay(servers, manifest, storage)


def test_a_store_without_an_exclusive_create_needs_the_word_of_the_user(servers, topic, bucket):
    original = Storage.at(bucket("out"))
    storage = ObjectStorage(original.uri, original._system, original._root, None)
    manifest = manifest_of(servers, topic)
    with pytest.raises(LocationRefused, match="--single-writer"):
        replay(servers, manifest, storage)
    assert storage.names() == []
    assert replay(servers, manifest, storage, single_writer=True) == verify(storage)


# --- the command -----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_range_and_says_how_to_repeat_it(flakelog, servers, topic, tmp_path):
    out = tmp_path / "out"
    code, stdout, errors = flakelog(f"replay {topic} --out {out}")
    assert (code, stdout) == (0, f"200 messages in 2 files in {out}/\n")
    assert "rows/s" in errors
    assert (tmp_path / "out.manifest.json").read_bytes() == (out / MANIFEST_FILE).read_bytes()
    assert flakelog(f"replay --verify {out}")[:2] == (0, f"{out} is as it was written: 200 messages in 2 files\n")
    assert flakelog(f"replay --manifest {out}.manifest.json --out {out}")[0] == 0
    fill(servers, topic)
    before = sorted(os.listdir(tmp_path))
    code, _, errors = flakelog(f"replay {topic} --out {out}")
    assert code == 5
    assert "the log or the range has changed since" in errors and f"--manifest {out / MANIFEST_FILE}" in errors
    assert sorted(os.listdir(tmp_path)) == before


def test_the_command_writes_into_a_store(flakelog, servers, topic, bucket):
    uri = bucket("flights")
    code, stdout, errors = flakelog(f"replay {topic} --json --out {uri}")
    figures = json.loads(stdout)
    assert (code, figures["rows"], figures["files"], figures["out"]) == (0, 200, 2, uri), errors
    assert (figures["report"]["rows"], figures["report"]["samples"][-1][1]) == (200, 200)
    assert flakelog(f"replay --verify {uri}")[0] == 0
    fill(servers, topic)
    code, _, errors = flakelog(f"replay {topic} --out {uri}")
    manifest = errors.split("--manifest ")[1].strip()
    assert code == 5 and manifest == Storage.at(uri).under(MANIFEST_FILE).uri
    assert flakelog(f"replay --manifest {manifest} --out {uri}")[:2] == (0, f"200 messages in 2 files in {uri}\n")


@pytest.mark.parametrize("spoil", ["file", "directory", "unwritable"])
def test_a_place_that_cannot_be_used_leaves_nothing_behind(flakelog, topic, tmp_path, spoil):
    out = tmp_path / "out"
    if spoil == "file":
        out.write_text("mine")
    elif spoil == "directory":
        out.mkdir()
    else:
        out = tmp_path / "file" / "out"
        out.parent.write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    code, _, errors = flakelog(f"replay {topic} --out {out}")
    assert code in (5, 8) and str(out) in errors
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_shows_ranges_rows_and_bytes_and_writes_nothing(flakelog, servers, topic, tmp_path):
    code, stdout, _ = flakelog(f"replay {topic} --plan --json")
    lines = [json.loads(line) for line in stdout.splitlines()]
    assert code == 0
    assert [(line["partition"], line["start"], line["end"], line["rows"]) for line in lines] == [
        (0, 0, 100, 100), (1, 0, 100, 100),
    ]  # fmt: skip
    assert all(500 < line["bytes"] < 50_000 for line in lines)
    code, stdout, _ = flakelog(f"replay {topic} --plan --out {tmp_path / 'out'}")
    assert "200 rows at most in 2 ranges, about" in stdout
    assert list(tmp_path.iterdir()) == []


def test_a_plot_of_the_run_is_a_png(flakelog, topic, tmp_path):
    code, _, errors = flakelog(f"replay {topic} --out {tmp_path / 'out'} --plot {tmp_path / 'run.png'}")
    assert code == 0, errors
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_causes_have_exit_codes_of_their_own(flakelog, servers, topic, tmp_path):
    with Client(servers) as client:
        client.produce(topic, 1, PASSES_LENGTHS)
    out = tmp_path / "out"
    assert flakelog(f"replay {topic} --servers 127.0.0.1:1 --out {out}")[0] == 3
    assert flakelog(f"replay {topic}")[0] == flakelog(f"replay {topic} --out {out} --manifest none")[0] == 2
    assert flakelog(f"replay no-such-topic --out {out}")[0] == 1
    assert list(tmp_path.iterdir()) == []
    code, _, errors = flakelog(f"replay {topic} --out {out}")
    assert code == 7 and "--on-poison" in errors or "onPoison" in errors
    code, stdout, _ = flakelog(f"replay --manifest {out}.manifest.json --out {out} --on-poison skip")
    left_out = "without 20 offsets of batches that cannot be decoded"
    assert (code, stdout) == (0, f"200 messages in 2 files in {out}/, {left_out}\n")
    (out / "more.parquet").write_bytes(b"")
    code, _, errors = flakelog(f"replay --verify {out}")
    assert code == 6 and f"{out}/more.parquet is a file that the replay did not write" in errors
    (out / "more.parquet").unlink()
    (out / "_receipt.json").rename(tmp_path / "kept")
    (out / "_receipt.json").write_text("{")
    code, _, errors = flakelog(f"replay --verify {out}")
    assert code == 7 and f"{out}/_receipt.json is damaged" in errors and errors.count("\n") == 1
    (tmp_path / "kept").rename(out / "_receipt.json")
    next(out.glob("*.parquet")).unlink()
    assert flakelog(f"replay --verify {out}")[0] == 6
    with Client(servers) as client:
        client.delete_topic(topic)
        client.create_topic(topic, partitions=2)
    code, _, errors = flakelog(f"replay --manifest {out}.manifest.json --out {tmp_path / 'other'}")
    assert code == 5 and "deleted and made again" in errors


def test_lost_data_is_named_with_its_code(flakelog, servers, topic, tmp_path):
    out = tmp_path / "out"
    flakelog(f"replay {topic} --out {out}")
    flakelog(f"topic delete-records {topic} --partition 0 --before 50 --yes")
    code, _, errors = flakelog(f"replay --manifest {out}.manifest.json --out {tmp_path / 'other'}")
    assert code == 4 and f"{topic}-0 does not have offset 0" in errors, errors
    assert sorted(os.listdir(tmp_path)) == ["out", "out.manifest.json"]


def test_the_help_has_the_exit_codes(flakelog):
    assert "7 the log's data is damaged, or a plan or receipt" in flakelog("replay --help")[1]


# --- kills -----------------------------------------------------------------------------------------------------------

PROGRAM = Path(__file__).with_name("replay_program.py")
STEPS = ("before the first file", "in a file", "after a file", "after all files", "before the receipt")


@pytest.mark.soak
@pytest.mark.parametrize("step", [*STEPS, "before the rename", "after the result"])
def test_a_replay_killed_at_any_step_is_finished_by_the_next_into_a_directory(servers, topic, tmp_path, step):
    _killed_and_finished(servers, topic, str(tmp_path / "out"), str(tmp_path / "out.manifest.json"), step)
    assert sorted(os.listdir(tmp_path)) == ["out", "out.manifest.json"]


@pytest.mark.soak
@pytest.mark.parametrize("step", [*STEPS, "after the receipt"])
def test_a_replay_killed_at_any_step_is_finished_by_the_next_into_a_store(servers, topic, bucket, step):
    uri = bucket("out")
    storage = Storage.at(uri)
    _killed_and_finished(servers, topic, uri, storage.under(MANIFEST_FILE).uri, step)


def _killed_and_finished(servers, topic, out, manifest, step):
    """Kill a run at a step; then the log goes on, and a run with the manifest writes what the first planned."""
    program = [sys.executable, str(PROGRAM), step, "replay", "--servers", servers, "--out", out]
    killed = subprocess.run([*program, topic], capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert killed.returncode == -9, killed.stderr
    storage = Storage.at(out)
    is_there = step.startswith("after the re")
    assert storage.exists(RECEIPT_FILE) == is_there
    fill(servers, topic)
    command = [sys.executable, "-m", "flakelog", "replay", "--servers", servers, "--out", out, "--manifest", manifest]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_SECONDS)
    assert done.returncode == 0, done.stderr
    assert verify(storage).rows == 200
    assert len(data_of(storage)) == 2
