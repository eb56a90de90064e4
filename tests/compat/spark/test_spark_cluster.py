"""Reads on a standalone cluster of Spark whose executors have a Python of their own (docs/spark-cluster.md)."""

import os
import subprocess
import sys
import tarfile

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.testing.authority import Authority
from spark_bridge.packages import EXECUTOR_PACKAGES, explain
from tests.compat.commands.test_wheel import ROOT
from tests.compat.spark.standalone_spark import (
    StandaloneSpark,
    environment,
    executor_packages,
    install,
    link_packages,
    zip_of_packages,
)

SPARK = {"pyspark", "py4j"}  # on a worker of a cluster, Spark brings them

READ = """
import json, sys
from spark_bridge.session import spark_session
from spark_bridge.source.datasource import register
master, servers, topic, code, archive = sys.argv[1:]
settings = {"spark__executor__memory": "512m"}
if archive:
    settings["spark__archives"] = archive
spark = spark_session("cluster", master=master, **settings)
if code:
    spark.sparkContext.addPyFile(code)
    register(spark)

def place(_):
    import sys, spark_bridge
    missing = []
    for name in ("twisted", "kazoo", "klein", "confluent_kafka"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    return sys.executable, spark_bridge.__file__, missing

rows = spark.read.format("flakelog").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
rows = rows.option("minPartitions", "4").load()
found = [[row["partition"], row["offset"], row["id"], bytes(row["value"]).decode()] for row in rows.collect()]
places = spark.sparkContext.parallelize(range(4), 4).map(place).collect()
print()
print(json.dumps({"rows": sorted(found), "places": places}))
"""

IMPORTS = "import spark_bridge.source.datasource, spark_bridge.reading.range_reader"


def importing(packages, distributions, code=ROOT, program=IMPORTS):
    """Run imports where only these distributions are installed; return the last line of errors, or ""."""
    link_packages(packages, distributions)
    environment = {**os.environ, "PYTHONPATH": f"{packages}{os.pathsep}{code}"}
    command = [sys.executable, "-S", "-c", program]  # without the site-packages of this test
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    return done.stderr.strip().rpartition("\n")[2]


def test_a_task_needs_the_packages_of_the_extra_only(tmp_path):
    """Twisted, kazoo, klein and librdkafka are for servers, spouts and producers."""
    assert not {"twisted", "kazoo", "klein", "confluent-kafka"} & executor_packages()
    assert importing(tmp_path, executor_packages() | SPARK) == ""


def test_the_packages_work_as_a_zip(tmp_path):
    """`datasource.schema()` asked the package metadata for the version, which a zip does not have."""
    code = zip_of_packages(tmp_path / "flakelog.zip")
    (tmp_path / "packages").mkdir()
    assert importing(tmp_path / "packages", executor_packages() | SPARK, code) == ""


def test_a_task_speaks_tls_with_the_packages_of_the_extra(tmp_path):
    authorities = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": Authority().pem()}
    program = (
        "from broker.client.security.client_security import ClientSecurity\n"
        f"ClientSecurity.of({({'security.protocol': 'SSL'} | authorities)!r})"
    )
    assert importing(tmp_path, executor_packages() | SPARK, program=program) == ""


@pytest.mark.parametrize("name", sorted(set(EXECUTOR_PACKAGES) - {"pyarrow"}))
def test_a_missing_package_is_named_in_one_line_with_the_recipe(tmp_path, name):
    error = importing(tmp_path, executor_packages() - {name} | SPARK)
    assert error.startswith(f"ImportError: {sys.executable} has no {name}, which a read of Flakelog needs: install")
    assert "pip install 'flakelog[executor]'" in error


def test_the_extra_is_what_is_checked():
    assert set(EXECUTOR_PACKAGES) <= executor_packages()


@pytest.mark.parametrize("name", ["spark_bridge", "pyarrow", "cryptography"])
def test_a_worker_that_fails_before_our_code_runs_is_explained_in_one_line(name):
    """pyspark itself imports pyarrow, and unpickles our classes. TLS alone needs cryptography."""
    advice = explain(f"Traceback ...\n  File\nModuleNotFoundError: No module named '{name}.source'\n\n SQLSTATE: 38000")
    assert advice.startswith(f"the Python of Spark's workers has no {name}: install it there with: pip install")
    assert "\n" not in advice


def test_another_error_is_its_last_line():
    assert explain("Traceback ...\nValueError: other\n") == "ValueError: other"


# --- a real cluster ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with StandaloneSpark(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def topic(broker):
    """A topic, and its rows as a read has them."""
    expected = []
    with Client(broker.address) as client:
        client.create_topic("on-a-cluster", 2)
        for partition in range(2):
            values = [f"{partition} {n}" for n in range(1_000)]
            records = [BatchRecord(n, 0, None, value.encode()) for n, value in enumerate(values)]
            runs = client.produce("on-a-cluster", partition, encode_batch(records, base_timestamp_ms=1_000)).runs
            ids = [first + n for first, count in runs for n in range(count)]
            expected += ([partition, n, id, value] for n, (id, value) in enumerate(zip(ids, values, strict=True)))
    return "on-a-cluster", expected


def check(result, expected, python, code):
    """Check the rows, and that the tasks ran in the other Python with its packages only."""
    assert result["rows"] == expected
    for executable, home, missing in result["places"]:
        assert executable == str(python) and str(code) in home
        assert missing == ["twisted", "kazoo", "klein", "confluent_kafka"]


@pytest.mark.soak
def test_installed_in_the_environment_of_the_workers(cluster, broker, topic, tmp_path):
    name, expected = topic
    python = environment(tmp_path / "installed")
    install(python)
    check(cluster.run(READ, python, broker.address, name, "", ""), expected, python, tmp_path / "installed")


@pytest.mark.soak
def test_sent_as_a_zip_to_an_environment_with_the_other_packages(cluster, broker, topic, tmp_path):
    name, expected = topic
    python = environment(tmp_path / "bare")
    code = zip_of_packages(tmp_path / "flakelog.zip")
    check(cluster.run(READ, python, broker.address, name, code, ""), expected, python, "flakelog.zip")


@pytest.mark.soak
def test_packed_as_an_archive(cluster, broker, topic, tmp_path):
    """The archive is unpacked beside each executor, and beside the driver, whose planner runs the same Python."""
    name, expected = topic
    install(environment(tmp_path / "packed"))
    archive = tmp_path / "packed.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(tmp_path / "packed", ".")
    (tmp_path / "driver").mkdir()
    (tmp_path / "driver" / "environment").symlink_to(tmp_path / "packed")
    python = "./environment/bin/python"
    named = f"{archive}#environment"
    result = cluster.run(READ, python, broker.address, name, "", named, directory=tmp_path / "driver")
    assert result["rows"] == expected
    assert all(home.startswith(str(cluster.directory)) for _, home, _ in result["places"]), result["places"]
