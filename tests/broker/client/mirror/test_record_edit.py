"""The headers that a mirror adds to records: the source's id, and the clusters where a record has been."""

from broker.client.mirror.record_edit import record_edit
from broker.record.records import StoredRecord


def record(*headers):
    return StoredRecord(0, 0, None, b"v", headers)


def edit_of(source="A", target="B", **options):
    return record_edit(source, target, **{"source_id": False, "two_way": False} | options)


def test_without_options_records_stay_as_they_are():
    assert edit_of() is None


def test_the_sources_id_becomes_a_header_in_place_of_an_older_one():
    edit = edit_of(source_id=True)
    assert edit(record(("h", b"1")), 42).headers == (("h", b"1"), ("flakelog-source-id", b"42"))
    assert edit(record(("flakelog-source-id", b"7")), 42).headers == (("flakelog-source-id", b"42"),)


def test_a_source_without_ids_may_have_them_in_the_header_of_its_producers():
    edit = edit_of(source_id=True)
    assert edit(record(("flakelog-id", b"9")), None).headers[-1] == ("flakelog-source-id", b"9")
    assert edit(record(), None).headers == ()


def test_two_mirrors_in_opposite_directions_copy_each_record_once():
    forth, back = edit_of("A", "B", two_way=True), edit_of("B", "A", two_way=True)
    copy = forth(record(("h", b"1")), None)
    assert copy.headers == (("h", b"1"), ("flakelog-clusters", b"A"))
    assert back(copy, None) is None
    assert back(record(), None).headers == (("flakelog-clusters", b"B"),)


def test_a_record_goes_round_a_ring_of_clusters_once():
    copy = record()
    for source, target in (("A", "B"), ("B", "C")):
        copy = edit_of(source, target, two_way=True)(copy, None)
    assert copy.headers == (("flakelog-clusters", b"A,B"),)
    assert edit_of("C", "A", two_way=True)(copy, None) is None
