"""Times that people write: on the command line, in the console, and wherever else one is typed."""

from datetime import UTC, datetime, timedelta

TIME_MS_MAX = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the end of the calendar in which times are shown
MS_DIGITS_MIN = 9  # eight digits are a date: 20130101
QUOTED_CHARACTERS = 40
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FORMS = "give 2013-01-01T12:30:00Z, 2013-01-01, or Unix ms"


def parse_time(text: str, now_ms: int | None = None) -> int:
    """Return the Unix ms of an ISO 8601 time, of a number of ms with nine digits or more, or of "now".

    The zone is UTC if none is named; a part of a millisecond is cut off. "now" is a time if the caller gives `now_ms`.
    Raises ValueError for any other text, and for times before 1970 or after 9999. Negative numbers are refused because
    they have other meanings in Kafka's ListOffsets: -1 is the log's end.
    """
    text = text.strip()
    quoted = repr(text[:QUOTED_CHARACTERS])
    if text == "now" and now_ms is not None:
        return now_ms
    is_negative, digits = text[:1] == "-", text.removeprefix("-")
    if digits.isascii() and digits.isdigit() and (is_negative or len(digits) >= MS_DIGITS_MIN):
        return _within(_capped(digits) * (-1 if is_negative else 1), quoted)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{quoted} is no time; {_FORMS}") from None
    return _within(((when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH) // timedelta(milliseconds=1), quoted)


def _within(time_ms: int, quoted: str) -> int:
    if time_ms < 0:
        raise ValueError(f"{quoted} is before 1970; {_FORMS} from 1970 on")
    if time_ms > TIME_MS_MAX:
        raise ValueError(f"{quoted} is after the year 9999; {_FORMS} up to {TIME_MS_MAX}")
    return time_ms


def _capped(digits: str) -> int:
    """Return a number, or one above the limit in its place, because int() refuses thousands of digits."""
    return int(digits) if len(digits) <= len(str(TIME_MS_MAX)) else TIME_MS_MAX + 1
