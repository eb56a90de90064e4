"""`flakelog bench` against a real server."""

import json
import re
import signal
import subprocess
import sys

import pytest

from broker.client.blocking import Client
from broker.client.core import EARLIEST, LATEST
from tests.compat.server_process import ROOT
from tests.patience import SECONDS

LATENCIES = ["average", "p50", "p95", "p99", "p99.9", "max"]


def figures(result):
    code, out, errors = result
    assert code == 0, errors
    return json.loads(out)


@pytest.fixture
def topic(flakelog):
    assert flakelog("topic create bench --partitions 3")[0] == 0
    yield "bench"
    assert flakelog("topic delete bench --yes")[0] == 0


def stored(broker, topic):
    with Client(broker.address) as client:
        return sum(
            client.find_offset(topic, partition, LATEST) - client.find_offset(topic, partition, EARLIEST)
            for partition in range(3)
        )


@pytest.mark.parametrize("acks", ("all", "1", "0"))
def test_messages_are_sent_with_sizes_and_keys_as_asked_and_measured(flakelog, broker, topic, acks):
    more = f"--size 20..180 --keys 7 --acks {acks} --compression lz4 --batch-messages 50 --linger-ms 1"
    found = figures(flakelog(f"bench produce {topic} --count 500 {more} --json"))
    assert (found["topic"], found["messages"]) == (topic, 500) and found["messages_per_second"] > 0
    assert list(found["latency_ms"]) == LATENCIES
    percentiles = [found["latency_ms"][name] for name in LATENCIES[1:]]
    assert percentiles == sorted(percentiles)
    code, out, errors = flakelog(f"consume {topic} --follow --count 500 --json")  # of acks=0, some may come late
    read = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and len(read) == 500, errors
    assert {each["key"] for each in read} == {f"key-{number}" for number in range(7)}
    assert all(20 <= len(each["value"]) <= 180 for each in read)
    assert found["bytes"] == sum(len(each["key"]) + len(each["value"]) for each in read)


def test_a_topic_is_read_to_its_end_alone_or_by_a_group_that_commits_nothing(flakelog, topic):
    sent = figures(flakelog(f"bench produce {topic} --count 300 --json"))
    for more in ("", "--group measured", "--group measured", "--count 300"):
        found = figures(flakelog(f"bench consume {topic} {more} --json"))
        assert (found["messages"], found["bytes"]) == (300, sent["bytes"])
        assert 0 < found["first_message_seconds"] <= found["seconds"]
    code, out, _ = flakelog(f"bench consume {topic} --count 100")
    assert code == 0 and out.startswith("100 messages, ") and "MB/s" in out and "first message after" in out


def test_a_message_of_the_largest_size_is_sent_and_one_of_no_bytes(flakelog, topic):
    for size in (999_000, 0):
        found = figures(flakelog(f"bench produce {topic} --count 2 --size {size} --keys 1 --json"))
        assert found["bytes"] == 2 * (size + len("key-0"))


def test_an_empty_topic_is_read_at_once(flakelog, topic):
    found = figures(flakelog(f"bench consume {topic} --json"))
    assert (found["messages"], found["first_message_seconds"]) == (0, None)


def test_a_run_for_more_messages_than_come_ends_after_its_timeout(flakelog, topic):
    figures(flakelog(f"bench produce {topic} --count 10 --json"))
    code, out, errors = flakelog(f"bench consume {topic} --count 11 --timeout 1 --json")
    assert code == 1 and json.loads(out)["messages"] == 10
    assert "no message came for 1 s (--timeout) after 10 messages" in errors


def test_ids_are_asked_for_in_batches_on_connections(flakelog):
    found = figures(flakelog("bench ids --count 1050 --batch 100 --connections 3 --json"))
    assert found["ids"] == 1_050 and found["ids_per_second"] > 0
    assert list(found["latency_ms"]) == LATENCIES
    assert flakelog("bench ids --seconds 0.2")[1].count("ids/s") == 1


@pytest.mark.parametrize("command", ("produce nowhere --count 1", "consume nowhere"))
def test_a_missing_topic_is_refused_with_the_command_that_makes_it(flakelog, command):
    code, out, errors = flakelog(f"bench {command}")
    assert (code, out) == (1, "")
    assert errors == "Error: there is no topic nowhere; make it by: flakelog topic create nowhere\n"
    assert flakelog("topic describe nowhere")[0] == 1


@pytest.mark.parametrize(
    "command", ("produce t --count 1 --servers", "consume t --servers", "ids --count 1 --server")
)
def test_a_server_that_is_not_there_is_named(flakelog, command):
    code, out, errors = flakelog(f"bench {command} 127.0.0.1:1 --timeout 2")
    assert (code, out) == (3, "") and "127.0.0.1:1" in errors


@pytest.mark.parametrize(
    "command", ("produce bench --seconds 600", "consume bench --count 100000000", "ids --seconds 600")
)
def test_ctrl_c_ends_a_run_with_the_figures_so_far(flakelog, broker, topic, command):
    figures(flakelog(f"bench produce {topic} --count 10 --json"))
    where = ["--server", broker.ids] if command.startswith("ids") else ["--servers", broker.address]
    argv = [sys.executable, "-m", "flakelog", "bench", *command.split(), *where, "--json"]
    with subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not re.match(r"[1-9][\d,]* (messages|ids), |$", process.stderr.readline()):
            pass  # librdkafka's lines about connections, and progress of nothing
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=SECONDS)
    found = json.loads(out)
    done = found.get("messages", found.get("ids"))
    assert process.returncode == 130 and done > 0
    assert "Error: ended by Ctrl-C: after" in errors
    if command.startswith("produce"):
        assert stored(broker, topic) >= done
