"""Names of files: of a range, and no longer than file systems allow."""

from spark_bridge.output.file_name import file_name, is_file_of
from spark_bridge.output.storage import LocalStorage
from spark_bridge.reading.offset_range import OffsetRange

LONGEST = "t" * 249  # Kafka's limit of a topic's name
OFFSET_MAX = (1 << 63) - 1


def test_a_name_has_topic_partition_and_offsets():
    name = "flights-00003-00000000000000000017-00000000000000000042.parquet"
    assert file_name(OffsetRange("flights", 3, 17, 42)) == name
    assert is_file_of("flights", name)


def test_a_long_topic_fits_into_a_name_also_while_the_file_is_written(tmp_path):
    """A load adds an ending to the name while it writes the file."""
    name = file_name(OffsetRange(LONGEST, 9_999_999, 0, OFFSET_MAX))
    storage = LocalStorage(tmp_path)
    for path in (name, f"{name}.staged", f"{name}.json"):
        with storage.write(path) as file:
            file.write(b"rows")
    assert len(storage.names()) == 3 and is_file_of(LONGEST, name)


def test_long_topics_that_begin_alike_have_names_of_their_own():
    others = [OffsetRange(LONGEST[:-1] + letter, 0, 0, 1) for letter in "ab"]
    assert len({file_name(offset_range) for offset_range in others}) == 2
    assert not is_file_of(others[1].topic, file_name(others[0]))


def test_files_of_a_topic_whose_name_begins_alike_are_not_taken_for_its_own():
    for other in ("flights-eu", "flights-00003", "flight"):
        assert not is_file_of("flights", file_name(OffsetRange(other, 3, 17, 42)))
