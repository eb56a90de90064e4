"""Dead letters at a real broker whose topic refuses them: none is tried for ever, and each names its message."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.client.blocking import Client
from broker.record.compression import Codec
from tests.compat.server_process import PYTHONPATH
from tests.patience import SECONDS

PROGRAM = Path(__file__).with_name("bury_program.py")
FUTURE_MS = 4_000_000_000_000  # in the year 2096, which topics refuse as too far in the future


def bury(broker, topic, size, codec=Codec.NONE, timestamp_ms=1_600_000_000_000):
    """Write a dead letter of a message with `size` bytes: (answer, error, letters without value)."""
    argv = [sys.executable, PROGRAM, broker.address, topic, *(str(int(value)) for value in (size, codec, timestamp_ms))]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def topic(broker, request):
    """Create a topic with the settings of the test's parameter; return its name and a function that reads it."""
    name = f"dead-{request.node.name.replace('[', '-').strip(']')}"[:100]
    with Client(broker.address) as client:
        client.create_topic(name, configs=getattr(request, "param", None))
        yield name, lambda: client.fetch(name, 0, 0)[0]


SMALL = pytest.mark.parametrize("topic", [{"max.message.bytes": "2000"}], indirect=True, ids=["small"])


@SMALL
def test_a_compressed_message_stays_compressed_and_fits(broker, topic):
    name, read = topic
    assert bury(broker, name, 5_000, Codec.GZIP) == ["Buried", "", 0]
    assert [(len(letter.value), letter.codec) for letter in read()] == [(5_000, Codec.GZIP)]


@SMALL
def test_a_plain_message_that_is_too_large_is_compressed(broker, topic):
    name, read = topic
    assert bury(broker, name, 5_000) == ["Buried", "", 0]
    assert [(len(letter.value), letter.codec) for letter in read()] == [(5_000, Codec.ZSTD)]


@pytest.mark.parametrize("topic", [{"max.message.bytes": "500"}], indirect=True, ids=["tiny"])
@pytest.mark.parametrize("codec", (Codec.NONE, Codec.SNAPPY), ids=str)
def test_a_letter_that_is_still_too_large_is_written_without_its_value(broker, topic, codec):
    name, read = topic
    assert bury(broker, name, 5_000, codec) == ["Buried", "", 1]
    (letter,) = read()
    headers = dict(letter.headers)
    assert letter.value is None and headers["flakelog-dead-value"] == b"left out"
    assert (headers["flakelog-dead-offset"], headers["flakelog-dead-value-bytes"]) == (b"7", b"5000")


@pytest.mark.parametrize("topic", [{"max.message.bytes": "100"}], indirect=True, ids=["none"])
def test_a_letter_that_the_topic_never_takes_is_refused_once_and_for_all(broker, topic):
    name, read = topic
    kind, error, without_value = bury(broker, name, 5_000)
    assert (kind, without_value) == ("LetterRefused", 0) and "MESSAGE_TOO_LARGE" in error
    assert read() == []


def test_a_time_that_the_topic_refuses_is_kept_in_a_header(broker, topic):
    name, read = topic
    assert bury(broker, name, 10, timestamp_ms=FUTURE_MS) == ["Buried", "", 0]
    (letter,) = read()
    assert letter.timestamp_ms < FUTURE_MS
    assert dict(letter.headers)["flakelog-dead-timestamp-ms"] == str(FUTURE_MS).encode()


def test_a_wrong_name_of_the_topic_is_not_a_reason_to_lose_a_letter(broker):
    kind, error, without_value = bury(broker, "no such name!", 10)
    assert (kind, without_value) == ("Failed", 0)
    assert "INVALID_TOPIC" in error and "flakelog.spout.dead.letter.topic" in error
