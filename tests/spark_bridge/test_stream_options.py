"""The options of a stream: the connector's names, defaults and refusals."""

import pytest

from broker.client.offset_spec import AtId, Latest
from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.selector import OffsetBound, TimeBound
from spark_bridge.selection.stream_limits import StreamLimits
from spark_bridge.selection.stream_options import parse_stream

FLIGHTS = {"kafka.bootstrap.servers": "one:9092", "subscribe": "flights"}


def test_a_stream_starts_at_latest_without_limits():
    options = parse_stream(FLIGHTS)
    assert (options.start, options.limits) == (Latest(), StreamLimits(0, 0, 900_000))


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"startingOffsets": '{"flights": {"0": -1, "1": 5}}'}, OffsetBound({"flights": {0: -1, 1: 5}})),
        ({"startingOffsets": "earliest", "startingTimestamp": "7"}, TimeBound(7)),
        ({"startingId": "7"}, AtId(7)),
    ],
)
def test_where_a_stream_starts(more, start):
    assert parse_stream(FLIGHTS | more).start == start


@pytest.mark.parametrize(
    ("text", "ms"),
    [("15m", 900_000), ("15min", 900_000), ("500", 500), ("500ms", 500), ("30s", 30_000), ("1H", 3_600_000)],
)
def test_a_delay_is_a_time_as_spark_writes_it(text, ms):
    assert parse_stream(FLIGHTS | {"maxTriggerDelay": text}).limits.max_delay_ms == ms


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets is refused for a streaming read: a stream has no end"),
        ({"endingTimestamp": "5"}, "endingTimestamp is refused for a streaming read"),
        ({"flakelog.binding": "late"}, "flakelog.binding is refused for a streaming read"),
        ({"manifest": "m.json"}, "manifest is refused for a streaming read"),
        ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger is a whole number from 1"),
        ({"maxTriggerDelay": "soon"}, "maxTriggerDelay is a time like 500ms, 30s, 15m, 1h; got 'soon'"),
        ({"maxTriggerDelay": "1fortnight"}, "maxTriggerDelay is a time like"),
        (
            {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
            "minOffsetsPerTrigger is 10, more than maxOffsetsPerTrigger, which is 5",
        ),
    ],
)
def test_what_a_stream_cannot_have_is_refused(more, says):
    with pytest.raises(OptionError, match=says):
        parse_stream(FLIGHTS | more)
