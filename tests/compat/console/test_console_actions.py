"""Actions of the web console: each asks for confirmation, is done by the broker's own requests, and is logged."""

import json
import re
import signal
import subprocess
import time

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations import configs, groups
from tests.compat.console.console_visitor import Visitor
from tests.compat.storm.test_spout_command import Run
from tests.patience import until

TIME_MS = 1_700_000_000_000
HOSTILE = '"><script>alert(1)</script>\u202e'


@pytest.fixture(scope="module")
def client(broker):
    with Client(broker.address) as made:
        yield made


@pytest.fixture
def visitor(broker):
    return Visitor(broker.http)


def names(client):
    return {each.name for each in client.topics()}


def own_settings(client, topic):
    values = configs.describe_configs(client, configs.topic_resource(topic))
    return {config.name: config.value for config in values if config.source == configs.TOPIC_SOURCE}


def test_a_topic_is_created_once_it_is_confirmed(broker, visitor, client):
    fields = {"name": "made-orders", "partitions": "3", "settings": "cleanup.policy=compact\nretention.ms = 5000"}
    status, text = visitor.do("create-topic", **fields)
    assert status == 200 and "Create the topic made-orders with 3 partitions." in text and "cleanup.policy" in text
    assert "made-orders" not in names(client), "it was not confirmed yet"
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
    assert hidden["confirmed"] == "yes"
    status, text = visitor.post("/console/do/create-topic", hidden)
    assert status == 200 and "The topic made-orders was created." in text
    assert client.topic("made-orders").partitions == 3
    assert own_settings(client, "made-orders") == {"cleanup.policy": "compact", "retention.ms": "5000"}
    broker.wait_for_log("asked for create-topic (name='made-orders', partitions='3'")


def test_the_brokers_refusal_is_shown_and_logged(broker, visitor):
    status, text = visitor.confirm("create-topic", name="no spaces")
    assert status == 400 and "the broker refused it" in text and "INVALID_TOPIC_EXCEPTION" in text
    assert "failed: " in broker.wait_for_log("name='no spaces'")
    status, text = visitor.confirm("create-topic", name="x", settings="retention.m=5")
    assert status == 400 and "retention.m" in text


@pytest.mark.parametrize(
    "action, fields, wrong",
    [
        ("create-topic", {}, "a topic has a name"),
        ("create-topic", {"name": "x", "partitions": "0"}, "at least one partition"),
        ("create-topic", {"name": "x", "partitions": "many"}, "give a number"),
        ("create-topic", {"name": "x", "replication_factor": "0"}, "at least one copy"),
        ("create-topic", {"name": "x", "replication_factor": "2"}, "larger than available brokers: 1"),
        ("create-topic", {"name": "x", "settings": HOSTILE}, "give NAME=VALUE"),
        ("add-partitions", {"partitions": "3"}, "name the topic"),
        ("add-partitions", {"topic": "nope", "partitions": "3"}, "the broker refused it"),
        ("alter-setting", {"topic": "nope", "setting": "retention.ms", "value": "1"}, "the broker refused it"),
        ("alter-setting", {"topic": "nope"}, "name the setting"),
        ("delete-topic", {"topic": "nope", "typed": "nope"}, "the broker refused it"),
        ("delete-topic", {"topic": HOSTILE, "typed": "x"}, "type the topic's name"),
        ("delete-topic", {"topic": "__consumer_offsets", "typed": "__consumer_offsets"}, "begin with __"),
        ("reset-offsets", {"group": "nope", "to": "earliest"}, "has committed no offsets"),
        ("reset-offsets", {"group": HOSTILE, "to": "nowhere"}, "a group is moved to"),
        ("send-again", {}, "choose the letters"),
        ("pause-mirror", {}, "name the mirror"),
        ("send-again", {"letters": "nope", "place": "0:0"}, "the broker refused it"),
    ],
)
def test_what_cannot_be_done_is_explained(visitor, action, fields, wrong):
    for answer in (visitor.do(action, **fields), visitor.confirm(action, **fields)):
        assert answer[0] == 400 and wrong in answer[1].replace("&#39;", "'") and "<script>alert" not in answer[1]


def test_there_is_no_other_action(visitor):
    assert visitor.do("delete-everything")[0] == visitor.get("/console/do/delete-everything")[0] == 404
    status, page = visitor.get("/console/do/delete-topic?topic=nope")
    assert status == 404 and "there is no topic &#39;nope&#39;" in page


def test_an_action_needs_its_own_pages_token_and_origin(visitor, client):
    body = {"csrf": visitor.csrf(), "name": "forged", "confirmed": "yes"}
    path = "/console/do/create-topic"
    for headers in ({"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": None}):
        assert visitor.post(path, body, **headers)[0] == 403
    assert visitor.post(path, body, Sec_Fetch_Site="cross-site")[0] == 403
    assert visitor.post(path, body | {"csrf": "0" * 64})[0] == 403
    assert Visitor(visitor.address).post(path, body)[0] == 403, "the token is of another session"
    assert visitor.get(f"{path}?name=forged&confirmed=yes&csrf={body['csrf']}")[0] == 200, "only the form"
    assert "forged" not in names(client)


def test_the_answer_to_a_form_is_shown_to_its_session_alone(visitor):
    body = {"csrf": visitor.csrf(), "name": "secret-plan"}
    answer, _ = visitor.ask("POST", "/console/do/create-topic", body)
    target = answer.getheader("Location")
    assert answer.status == 303 and "secret-plan" in visitor.get(target)[1]
    status, text = Visitor(visitor.address).get(target)
    assert status == 404 and "is gone" in text and "secret-plan" not in text


def test_partitions_are_added(visitor, client):
    client.create_topic("console-grows", 2)
    status, text = visitor.do("add-partitions", topic="console-grows", partitions="5")
    assert status == 200 and "Give console-grows 5 partitions; it has 2." in text and "This cannot be undone" in text
    assert client.topic("console-grows").partitions == 2
    assert visitor.confirm("add-partitions", topic="console-grows", partitions="5")[0] == 200
    assert client.topic("console-grows").partitions == 5
    assert visitor.do("add-partitions", topic="console-grows", partitions="5")[0] == 400


def test_a_setting_is_altered_and_restored(visitor, client):
    client.create_topic("console-kept")
    status, text = visitor.do("alter-setting", topic="console-kept", setting="retention.ms", value="9000")
    assert status == 200 and "Set retention.ms of console-kept." in text and own_settings(client, "console-kept") == {}
    assert visitor.confirm("alter-setting", topic="console-kept", setting="retention.ms", value="9000")[0] == 200
    assert own_settings(client, "console-kept") == {"retention.ms": "9000"}
    status, text = visitor.confirm("alter-setting", topic="console-kept", setting="retention.ms", value="soon")
    assert status == 400 and own_settings(client, "console-kept") == {"retention.ms": "9000"}
    assert visitor.confirm("alter-setting", topic="console-kept", setting="retention.ms", restore="1")[0] == 200
    assert own_settings(client, "console-kept") == {}


def test_a_topic_is_deleted_once_its_name_is_typed_and_it_is_confirmed(broker, visitor, client):
    client.create_topic("console-gone", 2)
    assert "do/delete-topic?topic=console-gone" in visitor.get("/console/topics/console-gone")[1]
    status, text = visitor.do("delete-topic", topic="console-gone", typed="console-gon")
    assert status == 400 and "type the topic" in text
    status, text = visitor.do("delete-topic", topic="console-gone", typed="console-gone")
    assert status == 200 and "Delete the topic console-gone with 2 partitions" in text
    assert "console-gone" in names(client), "it was not confirmed yet"
    hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', text))
    assert visitor.post("/console/do/delete-topic", hidden)[0] == 200 and "console-gone" not in names(client)
    broker.wait_for_log("asked for delete-topic (topic='console-gone', typed='console-gone', id=")
    status, text = visitor.post("/console/do/delete-topic", hidden)
    assert status == 400 and "the broker refused it" in text


def test_a_stopped_groups_offsets_are_reset(visitor, client):
    client.create_topic("console-read", 2)
    records = [BatchRecord(n, n * 1_000, None, b"x") for n in range(10)]
    client.produce("console-read", 0, encode_batch(records, base_timestamp_ms=TIME_MS))
    groups.commit(client, "console-billing", {("console-read", 0): 4, ("console-read", 1): 0})
    assert "Reset offsets" in visitor.get("/console/group?group=console-billing")[1]
    status, text = visitor.do("reset-offsets", group="console-billing", to="time", value="2023-11-14T22:13:27Z")
    assert status == 200 and "Move the group console-billing to 2023-11-14T22:13:27.000Z in 2 partitions." in text
    for fields, offset in (
        ({"to": "time", "value": "2023-11-14T22:13:27Z"}, 7),
        ({"to": "latest"}, 10),
        ({"to": "earliest", "topic": "console-read"}, 0),
    ):
        assert visitor.confirm("reset-offsets", group="console-billing", **fields)[0] == 200
        committed = groups.committed(client, "console-billing")
        assert committed == {("console-read", 0): offset, ("console-read", 1): 0}
    status, text = visitor.confirm("reset-offsets", group="console-billing", to="offset", value="99")
    assert status == 400 and "console-read-0 has offsets 0 to 10, not 99" in text
    assert groups.committed(client, "console-billing") == {("console-read", 0): 0, ("console-read", 1): 0}


def letter(n, source="orders-in"):
    headers = {"reason": "attempts", "error": f"ValueError: {HOSTILE}", "attempts": "3", "topic": source}
    headers |= {"partition": "0", "offset": str(n), "timestamp-ms": str(TIME_MS + n)}
    made = tuple((f"flakelog-dead-{name}", value.encode()) for name, value in headers.items())
    return BatchRecord(n, 0, b"key", b"message %d" % n, (*made, ("own", b"header")))


def test_chosen_dead_letters_are_sent_again(broker, visitor, client):
    client.create_topic("orders-in")
    client.create_topic("orders-in.dead-letters")
    batch = encode_batch([*map(letter, range(4)), letter(4, "__consumer_offsets")], base_timestamp_ms=TIME_MS)
    client.produce("orders-in.dead-letters", 0, batch)
    status, text = visitor.get("/console/letters/orders-in.dead-letters")
    assert status == 200 and text.count('name="place"') == 5 and "<script>alert" not in text
    chosen = {"letters": "orders-in.dead-letters", "place": ["0:1", "0:3"]}
    status, text = visitor.do("send-again", **chosen)
    assert status == 200 and "Send 2 messages of orders-in.dead-letters to 1 topic again." in text
    assert client.fetch("orders-in", 0, 0, max_wait_ms=0)[0] == []
    assert visitor.confirm("send-again", **chosen)[0] == 200
    records, _ = client.fetch("orders-in", 0, 0)
    assert [(each.value, each.headers) for each in records] == [
        (b"message 1", (("own", b"header"),)), (b"message 3", (("own", b"header"),)),
    ]  # fmt: skip
    places = re.findall(r'name="place" value="([^"]+)"', visitor.get("/console/letters/orders-in.dead-letters")[1])
    assert sorted(places) == ["0:0", "0:2", "0:4"], "those that were sent are not listed any more"
    status, text = visitor.confirm("send-again", letters="orders-in.dead-letters", place="0:1")
    assert status == 400 and "was sent again already" in text
    status, text = visitor.confirm("send-again", letters="orders-in.dead-letters", place="0:4")
    assert status == 400 and "own topic" in text
    broker.wait_for_log("sent 0:1, 0:3 of orders-in.dead-letters to orders-in-0 from 0 on")


# --- topologies, replays and loads -----------------------------------------------------------------------------------


def publish(client, topic, documents):
    if topic not in names(client):
        client.create_topic(topic, 1, {"cleanup.policy": "compact"})
    records = [
        BatchRecord(n, 0, key.encode(), value if isinstance(value, bytes | None) else json.dumps(value).encode())
        for n, (key, value) in enumerate(documents.items())
    ]
    client.produce(topic, 0, encode_batch(records, base_timestamp_ms=time.time_ns() // 1_000_000))


def test_topologies_that_run_are_shown_with_their_graph(visitor, client):
    spout = {"name": "orders", "kind": "spout", "parallelism": 2, "inputs": [], "tasks": [],
             "messages": {"dead_lettered": 7}}  # fmt: skip
    bolt = {"name": HOSTILE, "kind": "bolt", "parallelism": 1, "tasks": [{"errors": 3}], "messages": {},
            "inputs": [{"component": "orders", "stream": "default", "grouping": "shuffle", "fields": []}]}  # fmt: skip
    document = {
        "v": 1, "topology": "order-service", "topology_id": "order-service", "run_id": "r", "state": "running",
        "expires_ms": 1 << 50, "components": [spout, bolt], "in_flight": 5, "lag": {"lag": 12, "lag_ms": 3_000},
        "rates": {"orders": {"emitted": 10.0, "acked": 9.0, "failed": 1.0}},
        "dead_letter_topics": ["orders.dead-letters"],
        "partitions": [{"topic": "orders", "partition": 0, "lag": 12, "error": "it stopped", "phase": "broken"}],
    }  # fmt: skip
    odd = {"v": 1, "expires_ms": 1 << 50, "components": [None, 5], "partitions": "x"}
    others = {"b": b"not json", "c": b"[1]", "d": odd}
    publish(client, "__flakelog_topologies", {"a": document} | others)
    text = visitor.get("/console/topologies")[1]
    assert "order-service" in text and "9/s" in text
    status, text = visitor.get("/console/topology?id=order-service")
    assert status == 200 and "<svg" in text and "it stopped" in text and "<script>alert" not in text
    assert "/console/letters/orders.dead-letters" in text
    assert visitor.get("/console/topology?id=")[0] == 200, "a document without names is shown as far as it goes"
    assert visitor.get("/console/topology?id=nope")[0] == 404
    publish(client, "__flakelog_topologies", dict.fromkeys(["a", *others]))  # other tests use the same broker


def test_mirrors_are_shown_paused_and_resumed(visitor, client):
    topics = [{"topic": "orders", "records": 30, "records_per_s": 5.0, "lag": 7, "errors": 1}]
    document = {
        "v": 1, "name": "eu", "from": "far:9092", "to": "near:9092", "state": "running", "expires_ms": 1 << 50,
        "records": 30, "records_per_s": 5.0, "bytes_per_s": 500.0, "lag": 7, "errors": 1, "topics": topics,
        "partitions": [{"topic": "orders", "partition": 0, "copied": 30, "end": 37, "lag": 7}],
        "stopped": {"orders": HOSTILE}, "host": "h", "pid": 7, "run_id": "r",
    }  # fmt: skip
    odd = {"v": 1, "expires_ms": 1 << 50, "topics": [None, 5], "partitions": "x", "stopped": 3}
    others = {"b": b"not json", "c": odd}
    publish(client, "__flakelog_mirrors", {"a": document} | others)
    text = visitor.get("/console/mirrors")[1]
    assert "far:9092" in text and "5/s" in text
    status, text = visitor.get("/console/mirror?name=eu&from=far:9092")
    assert status == 200 and "orders-0" in text and "<script>alert" not in text and "Pause it" in text
    assert visitor.get("/console/mirror?name=&from=")[0] == 200, "a document without names is shown as far as it goes"
    assert visitor.get("/console/mirror?name=nope&from=far:9092")[0] == 404
    status, text = visitor.do("pause-mirror", mirror="eu")
    assert status == 200 and "Let the mirror eu copy nothing more" in text
    assert visitor.confirm("pause-mirror", mirror="eu")[0] == 200
    status, text = visitor.do("pause-mirror", mirror="eu")
    assert status == 400 and "is paused already" in text
    status, text = visitor.confirm("resume-mirror", mirror="eu")
    assert status == 200 and "The mirror eu was resumed." in text
    assert "is not paused" in visitor.do("resume-mirror", mirror="eu")[1]
    assert "no mirror us copies into this cluster now" in visitor.confirm("pause-mirror", mirror="us")[1]
    publish(client, "__flakelog_mirrors", dict.fromkeys(["a", *others]))


@pytest.mark.soak
def test_a_topology_that_is_killed_is_listed_as_lost_until_it_runs_again(broker, visitor, client, tmp_path):
    client.create_topic("watched")
    client.produce("watched", 0, encode_batch([BatchRecord(0, 0, None, b"a")], base_timestamp_ms=TIME_MS))
    lost = "Ended without a clean stop"

    def shown():
        now, _, ended = visitor.get("/console/topologies")[1].partition(lost)
        return "id=watched" in now, "id=watched" in ended

    run = Run(tmp_path, broker.address, "watched", stderr=subprocess.DEVNULL)
    until(lambda: shown() == (True, False), "the topology")
    assert "count" in visitor.get("/console/topology?id=watched")[1]
    run.stop(signal.SIGKILL)
    until(lambda: shown() == (False, True), "the lost topology")
    assert "It does not run" in visitor.get("/console/topology?id=watched")[1]
    run = Run(tmp_path, broker.address, "watched", stderr=subprocess.DEVNULL)
    until(lambda: shown() == (True, False), "the topology again")
    assert run.stop() == 0
    until(lambda: shown() == (False, False), "the end")


def test_replays_and_loads_are_shown_with_their_receipts(visitor, client):
    ranges = [{"topic": "orders", "partition": n, "start": 0, "end": 100 * n} for n in range(3)]
    replay = {
        "v": 1, "kind": "replay", "state": "done", "at_ms": TIME_MS, "place": f"/data/{HOSTILE}",
        "manifest": {"flakelog_manifest": 3, "ranges": ranges, "sha256": "ab"},
        "receipt": {"rows": 300, "checksum": "crc32c:5f0c", "files": {"orders-0.parquet": {"rows": 300}}},
    }  # fmt: skip
    load = {"v": 1, "kind": "load", "state": "planned", "at_ms": TIME_MS, "place": "/lake", "receipt": None,
            "manifest": {"topic": "orders", "number": 3, "manifest": {"ranges": ranges}}}  # fmt: skip
    others = {"x": b"{", "y": {"v": 1, "manifest": 5}}
    publish(client, "__flakelog_replays", {"ab": replay, "/lake/orders/3": load} | others)
    text = visitor.get("/console/replays")[1]
    assert "load 3" in text and "replay" in text and "300" in text and "<script>alert" not in text
    status, text = visitor.get("/console/replay?key=ab")
    assert status == 200 and "crc32c:5f0c" in text and "orders-0.parquet" in text and 'class="bar"' in text
    status, text = visitor.get("/console/replay?key=/lake/orders/3")
    assert status == 200 and "it has no receipt yet" in text
    assert visitor.get("/console/replay?key=y")[0] == 200 and visitor.get("/console/replay?key=nope")[0] == 404
    publish(client, "__flakelog_replays", dict.fromkeys(["ab", "/lake/orders/3", *others]))
