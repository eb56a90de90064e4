"""Positions in the log: their text, and what a position means within a log's bounds."""

import pickle

import pytest

from broker.client.offset_spec import (
    KINDS,
    AtId,
    AtOffset,
    AtTime,
    Bounds,
    Earliest,
    Last,
    Latest,
    parse_offset_spec,
    parse_value,
    position_of,
)

LOG = Bounds(100, 200)
NEW_YEAR_2013_MS = 1_356_998_400_000


@pytest.mark.parametrize(
    "spec, match_offset, offset, wanted",
    [
        (Earliest(), None, 100, 100),
        (Latest(), None, 200, 200),
        (AtOffset(120), None, 120, 120),
        (AtOffset(5), None, 100, 5),
        (AtOffset(500), None, 200, 500),
        (AtTime(5), 150, 150, 150),
        (AtTime(5), None, 200, None),
        (AtId(5), 150, 150, 150),
        (AtId(5), None, 200, None),
        (AtId(5), 203, 200, 203),
        (Last(10), None, 190, 190),
        (Last(500), None, 100, 100),
    ],
)
def test_a_position_lies_within_the_log_and_says_where_it_would_lie_otherwise(spec, match_offset, offset, wanted):
    assert position_of(spec, LOG, match_offset) == (offset, LOG, wanted)


def test_positions_of_two_kinds_are_never_equal():
    specs = [Earliest(), Latest(), AtOffset(5), AtTime(5), AtId(5), Last(5)]
    assert len(set(specs)) == 6 and Earliest() != Latest() and AtTime(5) != AtId(5)
    assert pickle.loads(pickle.dumps(specs)) == specs


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, spec",
    [
        ("earliest", Earliest()),
        ("latest", Latest()),
        ("17", AtOffset(17)),
        ("-10", Last(10)),
        ("@2013-01-01", AtTime(NEW_YEAR_2013_MS)),
        ("@1356998400000", AtTime(NEW_YEAR_2013_MS)),
        ("id:285898127569846272", AtId(285898127569846272)),
    ],
)
def test_a_place_to_begin_is_one_of_six(text, spec):
    assert parse_offset_spec(text) == spec


@pytest.mark.parametrize("text", ["", "newest", "-0", "-x", "id:", "id:x", "id:9223372036854775808", "@noon", "1.5"])
def test_what_is_no_place_to_begin_is_refused(text):
    with pytest.raises(ValueError, match="give"):
        parse_offset_spec(text)


def test_now_is_a_position_for_a_caller_with_a_clock():
    assert parse_offset_spec("@now", now_ms=7) == AtTime(7)
    with pytest.raises(ValueError, match="'now' is no time"):
        parse_offset_spec("@now")


def test_an_error_quotes_the_beginning_of_a_long_text():
    with pytest.raises(ValueError, match="'x{60}'... is no place to begin"):
        parse_offset_spec("x" * 5_000)


def test_a_form_gives_a_position_as_its_kind_and_a_value():
    values = {"time": "2013-01-01", "offset": "17", "id": "18", "last": "10"}
    specs = [parse_value(kind, values.get(kind, "")) for kind in KINDS]
    assert specs == [Earliest(), Latest(), AtTime(NEW_YEAR_2013_MS), AtOffset(17), AtId(18), Last(10)]


@pytest.mark.parametrize(
    "kind, value, right",
    [
        ("offset", "", "'' is no offset; give a number from 0 to"),
        ("offset", "-1", "'-1' is no offset"),
        ("id", "9223372036854775808", "is no id; give a number from 0 to 2"),
        ("last", "0", "'0' is no number of messages; give a number from 1 to"),
        ("time", "noon", "'noon' is no time; give 2013-01-01T12:30:00Z"),
        ("newest", "", "'newest' is no kind of position; give earliest, latest"),
    ],
)
def test_a_value_that_its_kind_cannot_have_is_refused(kind, value, right):
    with pytest.raises(ValueError, match=right):
        parse_value(kind, value)
