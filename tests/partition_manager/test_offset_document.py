"""The stored document: 0.9.3's keys (PartitionManager.java, commit()), the added keys, and invalid documents."""

import json

import pytest

from partition_manager import offset_document
from partition_manager.dead_letter import ERROR_BYTES_MAX, dead_letter_headers
from partition_manager.offset_document import BadOffsetDocument, OffsetDocument
from partition_manager.ports import DeadLetter
from partition_manager.progress import Progress
from tests.partition_manager.world import record

DOCUMENT = OffsetDocument("t-1", "t", "flights", 3, Progress(42, ((44, 50), (60, 61))), "h", 9092, "me.1", "u-1", 4)


def test_it_has_the_keys_of_0_9_3_and_its_own():
    assert json.loads(DOCUMENT.encode()) == {
        "topology": {"id": "t-1", "name": "t"},
        "offset": 42,
        "partition": 3,
        "broker": {"host": "h", "port": 9092},
        "topic": "flights",
        "v": 2,
        "done": [[44, 50], [60, 61]],
        "owner": "me.1",
        "topic_id": "u-1",
        "leader_epoch": 4,
    }


def test_what_was_written_is_read():
    assert OffsetDocument.decode(DOCUMENT.encode()) == DOCUMENT


def test_a_document_of_0_9_3_is_read():
    text = '{"topology":{"id":"x","name":"y"},"offset":7,"partition":0,"broker":{"host":"h","port":1},"topic":"f"}'
    assert OffsetDocument.decode(text.encode()).progress == Progress(7)


def test_a_document_of_version_1_is_read_and_compares_neither_topic_ids_nor_epochs():
    document = json.loads(DOCUMENT.encode()) | {"v": 1}
    del document["topic_id"], document["leader_epoch"]
    read = OffsetDocument.decode(json.dumps(document).encode())
    assert read.progress == DOCUMENT.progress and (read.topic_id, read.leader_epoch) == ("", -1)


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"offset": None}, "None is no whole number"),
        ({"offset": -1}, "an offset is 0 or more, got -1"),
        ({"topic_id": 5}, "5 is no text"),
        ({"leader_epoch": "5"}, "'5' is no whole number"),
        ({"v": True}, "version True, this program reads up to 2"),
        ({"v": 9}, "version 9, this program reads up to 2"),
        ({"done": [[50, 44]]}, "not empty, got"),
        ({"done": [[44, 50], [49, 60]]}, "stand apart"),
        ({"done": [[44]]}, "not enough values"),
        ({"topology": 5}, "stored offset document"),
    ],
)
def test_a_document_that_makes_no_sense_is_refused_by_what_is_wrong(change, reason):
    text = json.dumps(json.loads(DOCUMENT.encode()) | change).encode()
    with pytest.raises(BadOffsetDocument, match=reason):
        OffsetDocument.decode(text)


@pytest.mark.parametrize("text", [b"", b"not JSON", b"[]", b"{}", b"\xff"])
def test_what_is_no_document_is_refused(text):
    with pytest.raises(BadOffsetDocument):
        OffsetDocument.decode(text)


def test_another_topics_progress_is_refused():
    with pytest.raises(BadOffsetDocument, match="belongs to flights-3, not trains-3"):
        DOCUMENT.require("trains", 3)


def test_too_many_ranges_lose_the_highest(monkeypatch):
    """The dropped ranges are emitted again: duplicates, never a loss."""
    monkeypatch.setattr(offset_document, "DOCUMENT_BYTES_MAX", 1_000)
    ranges = tuple((n, n + 1) for n in range(100, 5_000, 2))
    done = OffsetDocument.decode(DOCUMENT.at(Progress(42, ranges)).encode()).progress.done
    assert len(done) > 50 and done == ranges[: len(done)]


def test_names_too_long_for_any_document_are_refused(monkeypatch):
    monkeypatch.setattr(offset_document, "DOCUMENT_BYTES_MAX", 100)
    with pytest.raises(BadOffsetDocument, match="names make a document of"):
        DOCUMENT.encode()


def test_a_dead_letter_says_where_it_comes_from_and_why():
    letter = DeadLetter("flights", 3, record(7, headers=(("mine", b"1"),)), 9, "attempts", 5, "ü" * 5_000)
    headers = dict(dead_letter_headers(letter))
    assert headers["mine"] == b"1" and len(headers.pop("flakelog-dead-error")) <= ERROR_BYTES_MAX
    assert {name: value for name, value in headers.items() if name != "mine"} == {
        "flakelog-dead-reason": b"attempts",
        "flakelog-dead-attempts": b"5",
        "flakelog-dead-topic": b"flights",
        "flakelog-dead-partition": b"3",
        "flakelog-dead-offset": b"7",
        "flakelog-dead-timestamp-ms": b"70",
        "flakelog-dead-id": b"1007",
    }
