"""A place in a store that speaks S3: moto's server, reached by pyarrow and by obstore as Amazon's is."""

import pickle
import socket
import subprocess
import sys
import threading

import boto3
import pytest
from deltalake import DeltaTable

from spark_bridge.load.delta_sink import DeltaSink
from spark_bridge.load.driver import Driver
from spark_bridge.load.ledger import LoadOptions
from spark_bridge.load.load import Layout
from spark_bridge.load.verify import verify
from spark_bridge.output.storage import Storage, store_config
from spark_bridge.reading.row import DEFAULT, arrow_schema
from tests.patience import until
from tests.spark_bridge.load.tables import offsets
from tests.spark_bridge.load.world import TOPIC, Attempts, MemoryLog, Topics, Watcher, in_order


@pytest.fixture(scope="module")
def address():
    """A server in a process of its own, because delta-rs holds Python's lock while it reads a table's history."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.compat.spark.s3_server", "127.0.0.1", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        until(lambda: is_open(port), "moto's server")
        yield f"127.0.0.1:{port}"
        server.terminate()


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def storage(address, monkeypatch, request):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bucket = request.node.name.replace("_", "-")[:60]
    boto3.client("s3", endpoint_url=f"http://{address}", region_name="us-east-1").create_bucket(Bucket=bucket)
    return Storage.at(f"s3://{bucket}/loads/flights?scheme=http&endpoint_override={address}&region=us-east-1")


def test_of_many_writers_one_creates_an_object(storage):
    """S3 refuses a PUT with If-None-Match: * if the object is there."""
    created, refused = [], []

    def create(number):
        try:
            storage.create("_receipt.json", b"%d" % number)
            created.append(b"%d" % number)
        except FileExistsError:
            refused.append(number)

    threads = [threading.Thread(target=create, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(created), len(refused)) == (1, 3)
    assert storage.read("_receipt.json") == created[0]


def test_a_file_of_several_parts_is_written_whole_or_not_at_all(storage):
    with storage.write("data/a.parquet") as file:
        file.write(bytes(12 << 20))
    with pytest.raises(RuntimeError), storage.write("data/b.parquet") as file:
        file.write(bytes(12 << 20))
        raise RuntimeError
    assert (storage.names(), storage.size("data/a.parquet")) == (["data/a.parquet"], 12 << 20)


def test_a_delta_table_in_a_store_gets_each_message_once(storage):
    log = Topics(5, 2)

    def sink():
        return DeltaSink(storage, TOPIC, Attempts(), arrow_schema(DEFAULT), lambda: 1_700_000_000_000)

    for _ in range(2):
        options = LoadOptions(TOPIC, layout=Layout("delta"))
        Driver(options, sink(), MemoryLog(log), in_order, Watcher(), "code").run()
        log.append(1, 3)
    uri, store = store_config(storage.uri)
    table = DeltaTable(uri, storage_options=store).to_pyarrow_table()
    log.ends[1] -= 3  # came after the last load
    assert sorted(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True)) == offsets(log)
    assert verify(sink()).problems == ()


def test_a_place_goes_to_other_processes_and_has_places_below(storage):
    below = pickle.loads(pickle.dumps(storage.under("data")))
    below.create("a", b"1")
    assert storage.read("data/a") == b"1" and below.names() == ["a"]
    below.delete("a")
    assert storage.names() == []
