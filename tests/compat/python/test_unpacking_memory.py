"""Batches of a few kB that hold 100 MB each, read in every way: a process has memory for a few of them, not for all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.blocking import Client
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from flakelog.admin import Admin
from tests.compat.server_process import PYTHONPATH, ServerProcess
from tests.patience import PROGRAM_SECONDS

PROGRAM = Path(__file__).with_name("unpacking_program.py")
BATCHES, MESSAGES, MESSAGE_BYTES = 30, 100, 1_000_000
BATCH_BYTES = MESSAGES * MESSAGE_BYTES
# What a process takes before it reads, and its prefetch limit or what is in flight (64 MiB at most). All batches take
# 3 GB.
BESIDE_BATCHES_BYTES = 200_000_000 + (64 << 20)

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server with a topic of BATCHES batches, each in a partition of its own."""
    records = [BatchRecord(number, 0, None, bytes(MESSAGE_BYTES)) for number in range(MESSAGES)]
    batch = encode_batch(records, base_timestamp_ms=1, codec=Codec.ZSTD)
    with ServerProcess(tmp_path_factory.mktemp("bombs") / "data") as server:
        with Admin(server.address) as admin:
            admin.create_topic("flights", BATCHES)
        with Client(server.address) as client:
            for number in range(BATCHES):
                client.retry(lambda number=number: client.core.produce("flights", number, bytearray(batch)))
        yield server


@pytest.mark.parametrize(("reader", "copies"), [("consumer", 2), ("asyncio", 2), ("spout", 2), ("read", 5)])
def test_a_process_has_memory_for_few_of_the_batches_that_it_reads(server, tmp_path, reader, copies):
    """A batch takes memory twice: unpacked, and as messages. The threads of a read take turns."""
    topic = server.address, "flights", str(BATCHES * MESSAGES)
    argv = [sys.executable, PROGRAM, reader, *topic, str(tmp_path / "progress")]
    environment = os.environ | {"PYTHONPATH": PYTHONPATH}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=PROGRAM_SECONDS, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    messages, peak_kib = map(int, done.stdout.split())
    print(f"{reader}: {peak_kib >> 10} MiB")
    assert messages == BATCHES * MESSAGES
    assert peak_kib * 1024 < BESIDE_BATCHES_BYTES + copies * BATCH_BYTES
