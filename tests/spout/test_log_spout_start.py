"""LogSpout refuses a wrong start, topic, address, store or scheme at once, and names a right one."""

import re
from datetime import date, datetime, timedelta, timezone

import pytest

from broker.client.offset_spec import AtId, AtOffset, AtTime, Earliest, Last, Latest
from spout.config import SpoutConfig
from spout.log_spout import LogSpout
from spout.scheme import JsonScheme


@pytest.mark.parametrize(
    "start, right",
    [
        ("earliest", "give Earliest()"),
        (" Latest", "give Latest()"),
        ("yesterday", "give Earliest(), Latest(), AtOffset(n), AtId(n), Last(n) or AtTime("),
        (Earliest, "give Earliest(), this is the class"),
        (AtOffset, "give AtOffset(...), this is the class"),
        (0, "give AtOffset(0), AtId(0) or AtTime(0)"),
        (True, "give Earliest()"),
        (None, "give Earliest()"),
        (date(2026, 1, 1), "give AtTime(...)"),
        (datetime(2026, 1, 1), "give AtTime(...)"),
        (AtTime(datetime(2026, 1, 1)), "the time has no zone"),
        (AtTime("2026-01-01"), "is no whole number"),
        (AtOffset(-1), "-1 is no whole number of 0 or more"),
        (AtId(1.5), "1.5 is no whole number"),
        (Last(0), "0 is no whole number of 1 or more"),
    ],
)
def test_a_start_that_is_no_position_is_refused(start, right):
    with pytest.raises(ValueError, match=re.escape(right)) as refused:
        LogSpout("flights", start=start)
    assert "start=" in str(refused.value)


def test_every_position_is_accepted_and_a_time_may_be_a_datetime_with_a_zone():
    for start in (Earliest(), Latest(), AtTime(0), AtId(7), AtOffset(0), Last(1)):
        assert LogSpout("flights", start=start).start == start
    time = datetime(1970, 1, 1, 1, 0, 1, tzinfo=timezone(timedelta(hours=1)))
    assert LogSpout("flights", start=AtTime(time)).start == AtTime(1_000)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ({"topic": ""}, "topic='': a topic's name has 1 to 249 of the characters"),
        ({"topic": "two words"}, "topic='two words': a topic's name"),
        ({"topic": ".."}, "topic='..': a topic's name"),
        ({"topic": "t" * 250}, "a topic's name has 1 to 249"),
        ({"topic": 7}, "topic=7: give a topic's name"),
        ({"topic": "t", "servers": "localhost"}, "servers='localhost': 'localhost' is no address; give host:port"),
        ({"topic": "t", "servers": "localhost:99999"}, "servers='localhost:99999'"),
        ({"topic": "t", "servers": ""}, "servers='': no address given"),
        ({"topic": "t", "servers": ["localhost:9092"]}, "give host:port as text"),
        ({"topic": "t", "store": ""}, "store='': give a directory"),
        ({"topic": "t", "store": None}, "store=None: give a directory"),
        ({"topic": "t", "config": {"x": 1}}, "config={'x': 1}: give a SpoutConfig, such as SpoutConfig()"),
        ({"topic": "t", "group": None}, "group=None: give a GroupMemberConfig, such as GroupMemberConfig()"),
        ({"topic": "t", "store": "zookeper://localhost:2181"}, "store='zookeper://localhost:2181': give a directory"),
        ({"topic": "t", "store": "zookeeper://localhost"}, "store='zookeeper://localhost': 'localhost' is no address"),
        ({"topic": "t", "store": "zookeeper://localhost:2181/a//b"}, "'/a//b' is no node's path"),
        ({"topic": "t", "id": ""}, "id='': "),
        ({"topic": "t", "id": "../x"}, "id='../x': "),
        ({"topic": "t", "scheme": JsonScheme}, "scheme=JsonScheme is the class: give JsonScheme(...)"),
        ({"topic": "t", "scheme": "json"}, "scheme='json': a scheme has `fields`"),
        (
            {"topic": "t", "config": SpoutConfig(spout_dead_letter_topic="{topic}")},
            "its dead letters would go to the topic itself",
        ),
    ],
)
def test_an_argument_that_cannot_work_is_refused_by_its_name(arguments, reason):
    with pytest.raises(ValueError, match=re.escape(reason)):
        LogSpout(**arguments)


@pytest.mark.parametrize(
    "store", ["progress", "/var/lib/progress", "zookeeper://a:2181,b:2181", "zookeeper://[::1]:2181/flakelog", "kafka"]
)
def test_every_kind_of_store_is_accepted(store):
    assert LogSpout("flights", store=store).store == store
