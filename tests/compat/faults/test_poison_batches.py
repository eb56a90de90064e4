"""Batches in a real log whose records cannot be decoded: our readers skip each by name and go on after it.

The broker checks the lengths of records when they come, so the fields inside a record can still be wrong.
"""

import json
import os
import subprocess
import sys

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS
from tests.poison import PASSES_LENGTHS, RECORDS


@pytest.fixture(scope="module")
def topic(broker):
    """A topic with a message, a poison batch and another message."""
    name = "poison-batches"
    with Client(broker.address) as client:
        client.create_topic(name)
        for batch in (good(b"before"), bytearray(PASSES_LENGTHS), good(b"after")):
            client.produce(name, 0, batch)
    return name


def good(value):
    return encode_batch([BatchRecord(0, 0, None, value)], base_timestamp_ms=0)


def test_the_client_skips_the_batch_counts_it_and_hands_it_to_the_callback(broker, topic, caplog):
    seen = []
    with Client(broker.address, on_poison=seen.append) as client:
        records, following = client.fetch(topic, 0, 0)
        assert client.poison_batches == 1
    assert [record.value for record in records] == [b"before", b"after"] and following == 2 + RECORDS
    assert (seen[0].base_offset, seen[0].last_offset) == (1, RECORDS)
    assert records[0].id < seen[0].first_id < records[1].id
    assert seen[0].data[16:] == PASSES_LENGTHS[16:], "offset and leader epoch are the log's, all else is as it came"
    assert f"{topic}-0, batch of offsets 1 to {RECORDS}" in caplog.text


def test_the_command_says_on_stderr_which_batch_it_skipped(flakelog, topic):
    code, out, errors = flakelog(f"consume {topic}")
    assert (code, out) == (0, "before\nafter\n")
    (line,) = errors.splitlines()
    assert line.startswith(f"skipped {topic}-0, batch of offsets 1 to {RECORDS}: ")


PROGRAM = """
import json, sys
from twisted.internet import reactor
from broker.client.twisted import TwistedClient
seen = []
client = TwistedClient(sys.argv[1], reactor, on_poison=seen.append)
def fetched(answer):
    values = [record.value.decode() for record in answer[0]]
    print(json.dumps([values, answer[1], client.poison_batches, [str(batch) for batch in seen]]))
def begin():
    client.fetch(sys.argv[2], 0, 0).addCallback(fetched).addBoth(lambda _: reactor.callLater(0, end))
def end():
    client.close()
    reactor.stop()
reactor.callWhenRunning(begin)
reactor.run()
"""


def test_the_twisted_client_skips_it_too(broker, topic):
    argv = [sys.executable, "-c", PROGRAM, broker.address, topic]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS)
    values, following, skipped, (seen,) = json.loads(done.stdout)
    assert (values, following, skipped) == (["before", "after"], 2 + RECORDS, 1)
    assert seen.startswith(f"{topic}-0, batch of offsets 1 to {RECORDS}: ")
