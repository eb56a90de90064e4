"""Everyday tasks of users of kcat, rpk and Kafka's tools, done with our commands on a real server."""

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from functools import partial

import pytest
from confluent_kafka import Producer

from broker.client.consumer import Consumer
from broker.client.consumer_config import ConsumerConfig
from flakelog.commands.consume import _polled
from flakelog.commands.terminal import client_of
from flakelog.operations.transactions import describe_producers_of
from tests.compat.server_process import ROOT, ServerProcess
from tests.compat.stock_clients import QUIET
from tests.patience import SECONDS

BY_HAND = ConsumerConfig(auto_commit_interval_ms=None)


@pytest.fixture(scope="module")
def default_broker(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("default-broker") / "data") as server:
        yield server


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def lines(first, end):
    return b"".join(b"%d\n" % n for n in range(first, end))


# --- produce ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", ["", "--show-ids"])
def test_messages_have_headers_keys_tombstones_and_any_delimiter(flakelog, more):
    topic = f"day-headers{more}"
    code, _, errors = flakelog(
        f"produce {topic} -K : -D \\0 -Z -H source=shop -H empty= -H none {more}", b"a:1\n2\0b:\0:3\0"
    )
    assert code == 0, errors
    read = objects(flakelog(f"consume {topic} --json")[1])
    assert [(each["key"], each["value"]) for each in read] == [("a", "1\n2"), ("b", None), (None, "3")]
    headers = [{"name": "source", "value": "shop"}, {"name": "empty", "value": ""}, {"name": "none", "value": None}]
    assert all(each["headers"] == headers for each in read)
    assert flakelog(f"consume {topic} -K = -Z -D ;")[1] == "a=1\n2;b=NULL;NULL=3;"
    assert flakelog(f"consume {topic} -f %k:%S:%h; --count 2")[1] == (
        "a:3:source=shop,empty=,none=NULL;b:-1:source=shop,empty=,none=NULL;"
    )


def test_files_are_read_as_lines_or_as_one_message_each(flakelog, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"1\n2\n")
    two.write_bytes(b"3\n4")
    assert flakelog(f"produce day-files {one} {two}", b"not this")[0] == 0
    assert flakelog("consume day-files")[1] == "1\n2\n3\n4\n"
    assert flakelog(f"produce day-whole --whole {one} {two}")[0] == 0
    assert [each["value"] for each in objects(flakelog("consume day-whole --json")[1])] == ["1\n2\n", "3\n4"]


# --- consume ---------------------------------------------------------------------------------------------------------


def test_the_last_messages_are_those_of_all_partitions(flakelog, broker):
    flakelog("topic create day-last --partitions 3")
    for part in range(3):
        flakelog(f"produce day-last --partition {part} --show-ids", lines(part * 10, part * 10 + 10))
    assert flakelog("consume day-last --from -12")[1] == lines(18, 30).decode()
    assert flakelog("consume day-last --from -1000")[1].count("\n") == 30
    assert flakelog("consume day-last --from -2 --partition 0")[1] == "8\n9\n"
    assert flakelog("consume day-last --from -2 --count 1")[1] == "28\n"


def test_the_last_messages_are_found_behind_markers_of_transactions(flakelog, broker):
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "day-last", **QUIET})
    producer.init_transactions(SECONDS)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("day-marked", str(number))
        producer.commit_transaction(SECONDS) if number < 3 else producer.abort_transaction(SECONDS)
    assert flakelog("consume day-marked --from -2 --committed")[1] == "1\n2\n"


def test_several_topics_are_read_at_once_in_the_order_of_their_ids(flakelog):
    for number in range(6):
        flakelog(f"produce day-topic-{number % 2} --show-ids", b"%d\n" % number)
    out = flakelog("consume day-topic-0 day-topic-1 day-topic-0 -f %t:%s\\n")[1]
    assert out == "".join(f"day-topic-{number % 2}:{number}\n" for number in range(6))
    table = flakelog("consume day-topic-0 day-topic-1 --show-ids")[1].splitlines()
    assert table[0].startswith("day-topic-0  0  0  ")


def test_a_group_goes_on_where_it_was(flakelog, group_broker):
    flakelog = partial(flakelog, FLAKELOG_SERVERS=group_broker.address)
    flakelog("produce day-group", lines(0, 10))
    assert flakelog("consume day-group --group day-readers --count 4")[1] == lines(0, 4).decode()
    assert flakelog("consume day-group -G day-readers")[1] == lines(4, 10).decode()
    (described,) = objects(flakelog("group describe day-readers --json")[1])
    assert [(each["committed"], each["lag"]) for each in described["partitions"]] == [(10, 0)]
    assert flakelog("consume day-group --group day-readers --from -3")[0] == 2


def test_a_new_group_reads_all_on_a_server_with_default_settings(flakelog, default_broker):
    """group.initial.rebalance.delay.ms is three seconds, longer than the time after which nothing seems to come."""
    flakelog = partial(flakelog, FLAKELOG_SERVERS=default_broker.address)
    flakelog("produce day-new", lines(0, 10))
    assert flakelog("consume day-new --group day-new") == (0, lines(0, 10).decode(), "10 messages for group day-new\n")
    assert flakelog("consume day-new --group day-new") == (0, "", "0 messages for group day-new\n")


def test_a_group_commits_nothing_that_could_not_be_printed(flakelog, group_broker):
    """The reader of a pipe may end at any message, and so may a disk that is full."""
    flakelog = partial(flakelog, FLAKELOG_SERVERS=group_broker.address)
    flakelog("produce day-unprinted", lines(0, 10))
    with (
        client_of(group_broker.address) as client,
        closing(Consumer(group_broker.address, "day-unprinted", group="day-halves", config=BY_HAND)) as consumer,
        closing(_polled(client, consumer, "day-halves", ["day-unprinted"], {}, None, records_max=4)) as printed,
    ):
        assert [record.value for record in next(printed)] == [b"0", b"1", b"2", b"3"]
        next(printed)  # and is not printed, for the generator is closed instead
    assert flakelog("consume day-unprinted --group day-halves")[1] == lines(4, 10).decode()


@pytest.mark.parametrize("more", [(), pytest.param(("--group", "day-followers"), marks=pytest.mark.soak)])
def test_follow_goes_on_over_a_restart_of_the_server_and_says_so(tmp_path, more):
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with ServerProcess(tmp_path / "data", settings).keep_ports() as server:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "FLAKELOG_SERVERS": server.address}
        command = [sys.executable, "-m", "flakelog"]

        def produce(value):
            subprocess.run([*command, "produce", "day"], input=value, env=environment, check=True, capture_output=True)

        produce(b"before\n")
        following = subprocess.Popen(
            [*command, "consume", "day", "--follow", *more],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert following.stdout.readline() == "before\n"
        server.kill()
        assert f"no broker answers at {server.address}" in following.stderr.readline()
        server.start()
        produce(b"after\n")
        assert following.stdout.readline() == "after\n", following.stderr.read()
        following.send_signal(signal.SIGINT)
        assert following.wait(SECONDS) == 0


def test_several_topics_are_created_described_and_deleted(flakelog):
    created = flakelog("topic create day-a day-b --partitions 2")[1]
    assert created == "created day-a: 2 partitions\ncreated day-b: 2 partitions\n"
    described = objects(flakelog("topic describe day-a day-b --json")[1])
    assert [each["topic"] for each in described] == ["day-a", "day-b"]
    assert flakelog("topic delete day-a day-b --yes")[1] == "deleted day-a\ndeleted day-b\n"


# --- cluster, partitions, transactions, quotas ---------------------------------------------------------------------


def test_the_cluster_and_its_disks_are_described(flakelog, broker):
    (described,) = objects(flakelog("cluster describe --json")[1])
    (node,) = described["brokers"]
    assert (node["id"], node["address"], node["rack"], node["live"]) == (1, broker.address, None, True)
    assert node["leads"] == described["partitions"] and described["controller"] == 1
    assert described["offline"] == [] and described["all_on_broker"] is None
    (disk,) = objects(flakelog("cluster disks --json")[1])
    assert disk["path"] == str(broker.data_dir) and 0 < disk["usable_bytes"] < disk["total_bytes"]
    assert broker.address in flakelog("cluster describe")[1] and str(broker.data_dir) in flakelog("cluster disks")[1]


def test_partitions_are_listed_and_described(flakelog, broker):
    flakelog("topic create day-parts --partitions 2")
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True, **QUIET})
    for number in range(5):
        producer.produce("day-parts", str(number), partition=1)
    producer.flush(SECONDS)
    rows = objects(flakelog("partitions list day-parts --json")[1])
    assert [(row["partition"], row["leader"], row["begin"], row["end"]) for row in rows] == [(0, 1, 0, 0), (1, 1, 0, 5)]
    assert rows[0]["bytes"] == 0 < rows[1]["bytes"] and rows[1]["in_sync"] == [1]
    assert flakelog("partitions list day-parts --problems")[1] == ""
    (described,) = objects(flakelog("partitions describe day-parts 1 --json")[1])
    assert described["last_stable"] == 5 and len(described["producers"]) == 1
    with client_of(broker.address) as client:
        found = describe_producers_of(client, [("day-parts", 0), ("day-parts", 1)])
        assert {partition: len(producers) for (_, partition), producers in found.items()} == {0: 0, 1: 1}
    assert "last stable: 5" in flakelog("partitions describe day-parts 1")[1]
    assert "has partitions 0 to 1, not 7" in flakelog("partitions describe day-parts 7")[2]


def test_a_transaction_is_listed_described_found_hanging_and_aborted(flakelog, broker):
    producer = Producer({"bootstrap.servers": broker.address, "transactional.id": "day-open", **QUIET})
    producer.init_transactions(SECONDS)
    producer.begin_transaction()
    producer.produce("day-hangs", "x")
    producer.flush(SECONDS)
    ongoing = objects(flakelog("transactions list --state Ongoing --json")[1])
    (listed,) = (each for each in ongoing if each["transactional_id"] == "day-open")
    (described,) = objects(flakelog("transactions describe day-open --json")[1])
    assert described["producer_id"] == listed["producer_id"] and described["partitions"] == ["day-hangs-0"]
    assert described["state"] == "Ongoing" and described["started"].startswith("20")
    code, out, errors = flakelog("transactions find-hanging day-hangs --older-than 0")
    assert (code, out, errors) == (0, "", "no transaction hangs\n"), "its coordinator will end it"
    assert "none from offset 5; they begin at 0" in flakelog("transactions abort day-hangs 0 --start-offset 5 --yes")[2]
    assert flakelog("consume day-hangs --committed")[1] == ""
    assert flakelog("transactions abort day-hangs 0 --start-offset 0 --yes")[0] == 0
    (place,) = objects(flakelog("partitions describe day-hangs 0 --json")[1])
    assert place["last_stable"] == place["end"] == 2
    assert "there is no transactional id day-nothing" in flakelog("transactions describe day-nothing")[2]


def test_quotas_are_set_listed_described_and_removed(flakelog):
    assert flakelog("quotas alter --client-id day --set producer_byte_rate=1000 --set consumer_byte_rate=2e3")[0] == 0
    wanted = {"entity": {"client-id": "day"}, "quotas": {"consumer_byte_rate": 2000.0, "producer_byte_rate": 1000.0}}
    assert wanted in objects(flakelog("quotas list --json")[1])
    assert objects(flakelog("quotas describe --client-id day --json")[1]) == [wanted]
    assert flakelog("quotas describe --user day")[1] == ""
    table = flakelog("quotas alter --client-id day --unset producer_byte_rate")[1].splitlines()
    assert [line.split() for line in table[1:]] == [["client-id", "day", "consumer_byte_rate", "2000"]]
    assert flakelog("quotas alter --client-id day --unset consumer_byte_rate")[1] == ""
    assert flakelog("quotas alter --client-id day --set speed=1")[0] == 1
