"""The documents of replays and loads in their topic: whole, or without their long lists."""

import json

from spark_bridge.output.replay_topic import VALUE_BYTES_MAX, value_of

HEAD = {"v": 1, "kind": "replay", "state": "done", "at_ms": 1_700_000_000_000, "place": "s3://bucket/flights"}


def test_a_document_has_manifest_and_receipt():
    document = json.loads(value_of(HEAD, {"sha256": "aa", "ranges": [1]}, {"rows": 5, "files": {}}))
    assert document == HEAD | {"manifest": {"sha256": "aa", "ranges": [1]}, "receipt": {"rows": 5, "files": {}}}


def test_a_large_document_goes_without_its_long_lists_and_says_so():
    """A manifest of 100,000 ranges has ten megabytes; a topic takes one."""
    ranges = [{"topic": "flights", "partition": n, "start": 0, "end": 9} for n in range(100_000)]
    value = value_of(HEAD, {"sha256": "aa", "manifest": {"ranges": ranges, "columns": ["id"]}}, {"rows": 5})
    assert len(value) < VALUE_BYTES_MAX
    document = json.loads(value)
    assert document["manifest"] == {"sha256": "aa", "manifest": {"columns": ["id"]}}
    assert (document["receipt"], "ranges" in document["left_out"]) == ({"rows": 5}, True)
