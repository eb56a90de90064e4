"""A stream whose driver is killed again and again reads each record once, and its programs start in several ways."""

import os
import re
import signal
import subprocess
import sys
import uuid
import zipfile
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from coordination.java import find_java
from spark_bridge.session import java_home
from tests.compat.server_process import ROOT
from tests.patience import PROGRAM_SECONDS
from tests.test_tidy import PACKAGES

SUBMIT = Path(pyspark.__file__).parent / "bin" / "spark-submit"
REGISTER = "from spark_bridge.source.datasource import register; register(spark)"
COUNT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.getOrCreate()
{register}
rows = spark.read.format("flakelog").option("kafka.bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2])
print("rows:", rows.load().count())
copy = rows.load().write.format("flakelog").option("kafka.bootstrap.servers", sys.argv[1]).option("topic", sys.argv[2])
copy.mode("append").save()
print("rows:", rows.load().count())
"""


def fill(servers, topic, count):
    with Client(servers) as client:
        for partition in range(2):
            batch = encode_batch([BatchRecord(n, 0, None, b"%d" % n) for n in range(count)], base_timestamp_ms=1)
            client.produce(topic, partition, batch)


@pytest.fixture
def topic(broker):
    name = f"killed-{uuid.uuid4().hex[:8]}"
    with Client(broker.address) as client:
        client.create_topic(name, partitions=2)
    return name


@pytest.mark.soak
def test_a_stream_whose_driver_is_killed_at_each_step_reads_each_record_once(broker, topic, tmp_path):
    command = [sys.executable, "-m", "tests.compat.spark.spark_stream_program", broker.address, topic, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for step in ("0:before", "0:after", "2:before", "3:after", ""):
        fill(broker.address, topic, 120)
        with open(tmp_path / "log", "ab") as log:
            run = subprocess.run(
                [*command, step], cwd=ROOT, env=environment, stdout=log, stderr=log, start_new_session=True,
                timeout=PROGRAM_SECONDS,
            )  # fmt: skip
        assert run.returncode == (-signal.SIGKILL if step else 0), (tmp_path / "log").read_text()
    read = Counter()
    for path in (tmp_path / "out").glob("*/*.parquet"):
        table = pq.read_table(path, partitioning=None)
        read.update(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert read == Counter((partition, offset) for partition in range(2) for offset in range(600))


def submitted(environment, tmp_path, arguments, options=(), register=""):
    """Run a program by spark-submit, with Spark's defaults and this Python first on PATH; return its numbers."""
    program = tmp_path / "count.py"
    program.write_text(COUNT.format(register=register))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHONPATH"))}
    clean["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    clean["JAVA_HOME"] = str(java_home(find_java(), tmp_path))
    command = [SUBMIT, "--master", "local[1]", "--conf", "spark.ui.enabled=false", *options, program, *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env=clean | environment, capture_output=True, text=True, timeout=PROGRAM_SECONDS
    )
    assert done.returncode == 0, done.stdout[-3000:]
    return re.findall(r"^rows: (\d+)$", done.stdout, re.MULTILINE)


@pytest.mark.soak
def test_a_submitted_program_finds_the_format_by_itself(broker, topic, tmp_path):
    fill(broker.address, topic, 50)
    assert submitted({"PYTHONPATH": str(ROOT)}, tmp_path, [broker.address, topic]) == ["100", "200"]


@pytest.mark.soak
def test_a_program_registers_the_format_of_a_zip_of_the_packages(broker, topic, tmp_path):
    """Spark (4.2) looks for sources before it adds --py-files to the path, so the program registers the format."""
    packed = tmp_path / "flakelog.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for package in PACKAGES:
            for path in (ROOT / package).rglob("*.py"):
                archive.write(path, path.relative_to(ROOT))
    fill(broker.address, topic, 50)
    assert submitted(
        {}, tmp_path, [broker.address, topic], ["--py-files", str(packed)], REGISTER
    ) == ["100", "200"]
