"""Times that people write have one meaning in every face: command line and console."""

import click
import pytest

from broker.client.offset_spec import AtTime, parse_offset_spec
from broker.client.times import TIME_MS_MAX, parse_time
from flakelog.commands.load import SinceType
from flakelog.commands.terminal import TimeType, iso
from flakelog.console.actions import BadField
from flakelog.console.messages import TIME, query_of

NEW_YEAR_2013_MS = 1_356_998_400_000
WRITTEN = ["2013-01-01", "20130101", "2013-01-01T00:00Z", "2013-01-01 00:00:00.000", "2013-01-01T01:00:00+01:00",
           "1356998400000", " 2013-01-01 "]  # fmt: skip
REFUSED = {
    "yesterday": "'yesterday' is no time; give 2013-01-01T12:30:00Z",
    "": "'' is no time",
    "2013": "'2013' is no time",
    "20131301": "'20131301' is no time",
    "1969-12-31T23:59:59.999Z": "is before 1970",
    "1969-12-31T23:59:59.9999Z": "is before 1970",
    "0001-01-01T00:00+23:59": "is before 1970",
    "-1": "'-1' is before 1970",
    "9999-12-31T23:59:59.999-00:01": "is after the year 9999",
    str(TIME_MS_MAX + 1): "is after the year 9999",
    "9" * 19: "is after the year 9999",
    "9" * 5_000: f"'{'9' * 40}' is after the year 9999",
}


@pytest.mark.parametrize("text", WRITTEN)
def test_a_time_is_iso_8601_or_unix_ms_and_utc_where_no_zone_is_named(text):
    assert parse_time(text) == NEW_YEAR_2013_MS


@pytest.mark.parametrize("text", REFUSED)
def test_another_text_is_no_time_and_the_error_says_why(text):
    """To Kafka's ListOffsets, -1 and -2 are the log's end and its start."""
    with pytest.raises(ValueError) as caught:
        parse_time(text)
    assert REFUSED[text] in str(caught.value)
    assert len(str(caught.value)) < 160


def test_the_first_and_the_last_millisecond_of_the_calendar_are_times():
    assert parse_time("1970-01-01") == 0
    assert parse_time("9999-12-31T23:59:59.999Z") == parse_time(str(TIME_MS_MAX)) == TIME_MS_MAX
    assert iso(TIME_MS_MAX) == "9999-12-31T23:59:59.999Z"


def test_now_is_the_callers_time():
    assert parse_time("now", now_ms=7) == 7


def by_time_type(text):
    return TimeType().convert(text, None, None)


def by_consume_from(text):
    start = parse_offset_spec(f"@{text}")
    assert isinstance(start, AtTime)
    return start.timestamp_ms


def by_load_since(text):
    start = SinceType().convert(text, None, None)
    assert isinstance(start, AtTime)
    return start.timestamp_ms


def by_console(text):
    return query_of("topic", "", TIME, text).value


FACES = [by_time_type, by_consume_from, by_load_since, by_console]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("text", WRITTEN)
def test_a_text_is_the_same_time_in_every_face(face, text):
    assert face(text) == NEW_YEAR_2013_MS


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("text", REFUSED)
def test_every_face_says_why_a_text_is_no_time(face, text):
    with pytest.raises((ValueError, click.BadParameter, BadField)) as caught:
        face(text)
    reason = REFUSED[text] if text else "is no time"
    assert reason in str(caught.value), "the reason is the parser's"
