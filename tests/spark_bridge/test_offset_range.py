"""Half-open ranges of offsets."""

import pytest

from spark_bridge.reading.offset_range import OffsetRange


def test_a_range_is_half_open():
    offset_range = OffsetRange("t", 0, 5, 8)
    assert [offset for offset in range(10) if offset in offset_range] == [5, 6, 7]
    assert offset_range.offsets == 3
    assert str(offset_range) == "t-0[5, 8)"


def test_it_comes_back_from_its_fields():
    offset_range = OffsetRange("t", 2, 5, 8)
    assert OffsetRange.from_dict(offset_range.to_dict()) == offset_range


@pytest.mark.parametrize(
    "fields",
    [("", 0, 0, 0), ("t", -1, 0, 0), ("t", 0, -1, 0), ("t", 0, 5, 4)],
    ids=["topic", "partition", "start", "end"],
)
def test_what_is_no_range_is_refused(fields):
    with pytest.raises(ValueError):
        OffsetRange(*fields)


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"start": "5"}, "start of an offset range is a whole number; got '5'"), ({"offset": 1}, "got .*'offset'")],
)
def test_fields_that_are_none_of_a_range_are_named(changed, says):
    with pytest.raises(ValueError, match=says):
        OffsetRange.from_dict(OffsetRange("t", 2, 5, 8).to_dict() | changed)
