"""The manifest: immutable, verified, bound to one log."""

import dataclasses
import json

import pytest

from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.manifest import Manifest, ManifestError, differences, load

RANGES = (OffsetRange("flights", 0, 17, 42), OffsetRange("flights", 1, 0, 9))
MANIFEST = Manifest("cluster-1", {"flights": "topic-1"}, {"by": "id", "start": 5, "end": None}, RANGES, "0.1.0")


def test_it_comes_back_as_it_was_written():
    assert load(MANIFEST.to_json()) == MANIFEST
    assert load(MANIFEST.to_json().encode()).sha256 == MANIFEST.sha256


def test_the_same_selection_has_the_same_hash():
    """The hash contains no time, so a rerun finds its files again, and manifests of earlier versions still load."""
    assert dataclasses.replace(MANIFEST).to_json() == MANIFEST.to_json()
    assert MANIFEST.sha256 == "abb8825f1068d9db04dad6349759b4e44fc58ce66188003f411c587e53c9852d"


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Manifest)])
def test_every_field_is_part_of_the_hash(field):
    other = {
        "cluster_id": "cluster-2",
        "topic_ids": {"flights": "topic-2"},
        "selector": {"by": "id", "start": 6, "end": None},
        "ranges": RANGES[:1],
        "code_version": "0.2.0",
        "columns": ("offset", "value"),
        "read_committed": True,
    }
    assert dataclasses.replace(MANIFEST, **{field: other[field]}).sha256 != MANIFEST.sha256


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"topic_ids": {"big": "topic-2"}, "ranges": ()}, "it is of flights, this run of big"),
        ({"topic_ids": {"flights": "topic-2"}}, "flights was deleted and made again since"),
        ({"cluster_id": "cluster-2"}, "it is of another cluster"),
        ({"ranges": RANGES[:1]}, "the log or the range has changed since"),
        ({"columns": ("value",), "code_version": "0.2.0"}, "it has other columns, and it was made by version 0.1.0"),
    ],
)
def test_what_differs_from_the_manifest_of_another_run_is_named(change, says):
    assert differences(MANIFEST, dataclasses.replace(MANIFEST, **change)) == says
    assert differences(MANIFEST, MANIFEST) == ""


def test_columns_come_back_in_their_order_and_are_checked():
    manifest = dataclasses.replace(MANIFEST, columns=("value", "offset", "headers"))
    assert load(manifest.to_json()) == manifest
    with pytest.raises(ManifestError, match="columns colour asked for"):
        load(dataclasses.replace(MANIFEST, columns=("colour",)).to_json())


def test_the_isolation_comes_back():
    manifest = dataclasses.replace(MANIFEST, columns=("value",), read_committed=True)
    assert load(manifest.to_json()) == manifest
    assert '"flakelog_manifest": 3' in manifest.to_json()


def test_an_edited_manifest_does_not_load():
    edited = MANIFEST.to_json().replace('"end": 42', '"end": 41')
    with pytest.raises(ManifestError, match=f"changed after it was written: it says sha256 {MANIFEST.sha256}"):
        load(edited)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "a manifest is JSON"),
        ("[]", '"flakelog_manifest": 1 to 3; got None'),
        ('{"flakelog_manifest": 4}', '"flakelog_manifest": 1 to 3; got 4'),
        ('{"flakelog_manifest": true}', '"flakelog_manifest": 1 to 3; got True'),
        ('{"flakelog_manifest": 3}', "missing or unknown .*read_committed"),
        ('{"flakelog_manifest": 2}', "missing or unknown .*columns"),
        ('{"flakelog_manifest": 1}', "missing or unknown .*cluster_id"),
    ],
)
def test_what_is_no_manifest_is_named(text, says):
    with pytest.raises(ManifestError, match=says):
        load(text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("ranges", [{"topic": "flights", "partition": 0, "start": 9, "end": 3}]), ("ranges", 5), ("topic_ids", 7)],
)
def test_fields_that_do_not_hold_together_are_refused(field, value):
    with pytest.raises(ManifestError, match="does not hold together"):
        load(json.dumps(json.loads(MANIFEST.to_json()) | {field: value}))


@pytest.mark.parametrize(
    ("ranges", "says"),
    [
        (RANGES[::-1], "sorted"),
        ((OffsetRange("flights", 0, 0, 5), OffsetRange("flights", 0, 4, 8)), "overlap"),
        ((OffsetRange("other", 0, 0, 5),), r"no entry in topic_ids: \['other'\]"),
    ],
)
def test_ranges_that_would_read_twice_or_from_nowhere_are_refused(ranges, says):
    with pytest.raises(ManifestError, match=says):
        dataclasses.replace(MANIFEST, ranges=ranges)


def test_it_counts_its_offsets():
    assert MANIFEST.offsets == 25 + 9


def test_it_runs_against_its_own_log_only():
    """A manifest rejects a topic that was deleted and recreated, and a topic of the same name in another cluster."""
    MANIFEST.check_log("cluster-1", {"flights": "topic-1", "other": "x"})
    with pytest.raises(ManifestError, match="another cluster: id cluster-1, this one has cluster-2"):
        MANIFEST.check_log("cluster-2", {"flights": "topic-1"})
    with pytest.raises(ManifestError, match="deleted and made again"):
        MANIFEST.check_log("cluster-1", {"flights": "topic-9"})
    with pytest.raises(ManifestError, match="is gone"):
        MANIFEST.check_log("cluster-1", {})


def test_ids_that_a_cluster_does_not_tell_are_not_checked():
    """Missing ids are not checked, because Kafka before 2.8 has no topic ids."""
    MANIFEST.check_log(None, {"flights": None})
