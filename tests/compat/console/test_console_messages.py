"""Messages in the web console: browsed by offset, time and id, followed, found by id; hostile ones are text."""

import http.client
import json
import re

import pytest

from broker.client.blocking import Client
from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from tests.compat.console.console_visitor import Visitor
from tests.patience import SECONDS

HOSTILE = '</td><script>alert(1)</script><img src=x onerror=alert(1)><p hx-get="/x" hx-trigger="load">{{ "z"*9 }}\u202e'
TIME_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def client(broker):
    with Client(broker.address) as made:
        yield made


@pytest.fixture(scope="module")
def ids(client):
    """The topic "seen-orders": 250 messages a second apart in partition 0 of 3; the ids of the first and the last."""
    client.create_topic("seen-orders", 3)
    records = [BatchRecord(n, n * 1_000, b"key %d" % n, b'{"order": %d}' % n, (("from", b"web"),)) for n in range(250)]
    client.produce("seen-orders", 0, encode_batch(records, base_timestamp_ms=TIME_MS))
    found, _ = client.fetch("seen-orders", 0, 0)
    return found[0].id, found[-1].id


@pytest.fixture
def visitor(broker, ids):
    return Visitor(broker.http)


def offsets(text):
    """Return the offsets of a page's messages, in its order."""
    return [int(each) for each in re.findall(r'offset=(\d+)">\d+</a>', text)]


def messages(visitor, topic="seen-orders", **fields):
    query = "&".join(f"{name}={value}" for name, value in fields.items())
    status, text = visitor.get(f"/console/topics/{topic}/messages?{query}")
    assert status == 200, text
    return text


# --- browsing --------------------------------------------------------------------------------------------------------


def test_the_newest_messages_come_first(visitor):
    assert offsets(messages(visitor)) == list(range(249, 149, -1))


def test_a_page_holds_a_hundred_messages_and_leads_to_the_next(visitor):
    text = messages(visitor, partition=0, start="oldest")
    assert offsets(text) == list(range(100))
    following = re.search(r'rel="next" href="([^"]+)"', text)[1].replace("&amp;", "&")
    text = visitor.get(following)[1]
    assert offsets(text) == list(range(100, 200))
    before = re.search(r'rel="prev" href="([^"]+)"', text)[1].replace("&amp;", "&")
    assert offsets(visitor.get(before)[1]) == list(range(100))


def test_messages_are_browsed_by_offset_time_and_id(visitor, ids):
    assert offsets(messages(visitor, partition=0, start="offset", value=240)) == list(range(240, 250))
    assert offsets(messages(visitor, partition=0, start="time", value="2023-11-14T22:17:20Z")) == list(range(240, 250))
    assert offsets(messages(visitor, start="time", value=TIME_MS + 249_000)) == [249]
    assert offsets(messages(visitor, partition=0, start="id", value=ids[1] - 1)) == [248, 249]
    assert offsets(messages(visitor, partition=1, start="oldest")) == []


def test_a_message_shows_its_key_value_headers_and_id(visitor, ids):
    status, text = visitor.get("/console/topics/seen-orders/message?partition=0&offset=249")
    assert status == 200 and str(ids[1]) in text and "key 249" in text and "{\n  &#34;order&#34;: 249\n}" in text
    assert "from" in text and "web" in text


@pytest.mark.parametrize("place", ["partition=0&offset=250", "partition=2&offset=0", "partition=9&offset=0"])
def test_an_offset_without_a_message_is_said(visitor, place):
    status, text = visitor.get(f"/console/topics/seen-orders/message?{place}")
    assert status == 404 and "has no message" in text


def test_a_message_is_found_by_its_id(visitor, ids):
    answer, _ = visitor.ask("GET", f"/console/find?id={ids[1]}")
    assert answer.status == 303
    assert answer.headers["Location"] == "/console/topics/seen-orders/message?partition=0&offset=249"
    status, text = visitor.get(f"/console/find?id={ids[1] + 1}")
    assert status == 404 and f"no message has the id {ids[1] + 1}" in text


def test_a_value_is_downloaded_as_it_is(visitor):
    answer, text = visitor.ask("GET", "/console/topics/seen-orders/raw?partition=0&offset=7&part=value")
    assert (answer.status, text) == (200, '{"order": 7}')
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="seen-orders-0-7.value"'


# --- hostile and large messages --------------------------------------------------------------------------------------


def test_hostile_messages_are_text(visitor, client):
    client.create_topic("seen-hostile")
    hostile = HOSTILE.encode()
    records = [
        BatchRecord(0, 0, hostile, hostile, ((HOSTILE, hostile), ("bytes", b"\xff\xfe"))),
        BatchRecord(1, 0, b"\xff\x00", b"\xc3(" * 100),
        BatchRecord(2, 0, None, None),
        BatchRecord(3, 0, b"", json.dumps({HOSTILE: ["\ud800", HOSTILE]}).encode()),
    ]
    client.produce("seen-hostile", 0, encode_batch(records, base_timestamp_ms=TIME_MS))
    texts = [messages(visitor, "seen-hostile")]
    texts += [visitor.get(f"/console/topics/seen-hostile/message?partition=0&offset={each}")[1] for each in range(4)]
    for text in texts:
        assert "<script>alert" not in text and "<img" not in text.replace('<img src="/console/static/icon.svg"', "")
        assert "\u202e" not in text and "zzzzzzzzz" not in text and "<p hx-" not in text
    assert "{{ &#34;z&#34;*9 }}" in texts[0] and "hx-disable" in texts[0]


@pytest.mark.soak
def test_a_page_holds_a_mebibyte_and_names_larger_batches(visitor, client):
    client.create_topic("seen-large", 1, {"max.message.bytes": str(4 << 20)})
    for value in (b"a" * (1 << 20), b"b" * (1 << 20), b"c" * (1 << 20)):
        client.produce("seen-large", 0, encode_batch([BatchRecord(0, 0, None, value)], base_timestamp_ms=TIME_MS))
    bomb = encode_batch([BatchRecord(0, 0, None, b"\0" * (64 << 20))], base_timestamp_ms=TIME_MS, codec=Codec.ZSTD)
    client.produce("seen-large", 0, bomb)
    text = messages(visitor, "seen-large", partition=0, start="oldest")
    assert offsets(text) == [0] and len(text) < 20_000, "one message of 1 MiB fills a page"
    text = messages(visitor, "seen-large", partition=0, start="offset", value=3)
    assert "This batch is not shown" in text
    answer, raw = visitor.ask("GET", "/console/topics/seen-large/raw?partition=0&offset=1")
    assert answer.status == 200 and raw == "b" * (1 << 20)


# --- the live tail ---------------------------------------------------------------------------------------------------


def test_new_messages_come_to_the_page(broker, visitor, client):
    client.create_topic("seen-live", 2)
    text = messages(visitor, "seen-live")
    stream = re.search(r'data-stream="([^"]+)"', text)[1].replace("&amp;", "&")
    client.produce("seen-live", 1, encode_batch([BatchRecord(0, 0, None, b"<b>new</b>")], base_timestamp_ms=TIME_MS))
    rows, place = tail(broker, f"/console/events?page={stream}")
    assert "&lt;b&gt;new" in rows and place == "0-0.1-1"
    client.produce("seen-live", 0, encode_batch([BatchRecord(0, 0, None, b"next")], base_timestamp_ms=TIME_MS))
    rows, place = tail(broker, f"/console/events?page={stream}", {"Last-Event-ID": place})
    assert "next" in rows and "new" not in rows.replace("next", "") and place == "0-1.1-1"


def test_a_tail_that_cannot_keep_up_says_what_it_leaves_out(broker, visitor, client):
    client.create_topic("seen-fast")
    records = [BatchRecord(n, 0, None, b"%d" % n) for n in range(1_000)]
    client.produce("seen-fast", 0, encode_batch(records, base_timestamp_ms=TIME_MS))
    connection = http.client.HTTPConnection(broker.http, timeout=SECONDS)
    connection.request("GET", "/console/events?page=tail&topic=seen-fast&at=0-0")
    told = next(json.loads(line[6:]) for line in connection.getresponse() if line.startswith(b"data: "))
    assert told["left_out"] == 900 and told["rows"].count("<tr") == 100 and ">999<" in told["rows"]
    connection.close()


def tail(broker, path, headers=()):
    """Return the first (rows, place) of a stream that has rows."""
    connection = http.client.HTTPConnection(broker.http, timeout=SECONDS)
    connection.request("GET", path, headers=dict(headers))
    place = ""
    for line in connection.getresponse():
        if line.startswith(b"id: "):
            place = line[4:].decode().strip()
        elif line.startswith(b"data: ") and (rows := json.loads(line[6:])["rows"]):
            connection.close()
            return rows, place
    raise AssertionError("the stream ended")
