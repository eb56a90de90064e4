"""Actions ask first, show the form again if they are refused, and tell the log."""

import pytest

from broker.client import admin
from broker.client.errors import BrokerError
from broker.record.records import Record, encode_batch
from flakelog.console.action_pages import LINE_CHARACTERS_MAX
from flakelog.console.pages import NotThere
from flakelog.console.visit import BadField
from tests.broker.engine_client import WALL_MS
from tests.flakelog.console.world import World, fields_of, html_of, now

HOSTILE = '"><script>alert(1)</script>\u202e\n2026 admin did it'


@pytest.fixture
def world():
    return World()


def act(world, action, **fields):
    return now(world.actions.act(fields_of(fields), action, "127.0.0.1:5"))


def test_an_action_is_planned_and_changes_nothing(world):
    view = act(world, "create-topic", name="orders", partitions=3, settings="retention.ms=5000")
    assert "Create the topic orders with 3 partitions." in html_of(view)
    assert world.broker.services.metadata.topic("orders") is None and world.broker.reported == []


@pytest.mark.parametrize("setting, value", [("retention.ms", "1"), ("cleanup.policy", "compact")])
def test_an_alteration_that_deletes_messages_is_warned_of(world, setting, value):
    world.broker.create("orders")
    view = act(world, "alter-setting", topic="orders", setting=setting, value=value)
    assert "deletes messages by this setting, and that cannot be undone" in html_of(view)
    assert not act(world, "alter-setting", topic="orders", setting="segment.ms", value="5000").model["planned"].warning


def test_the_log_tells_who_did_what(world):
    act(world, "create-topic", name="orders", confirmed="yes")
    with pytest.raises(BrokerError):
        act(world, "create-topic", name="orders", confirmed="yes")
    done, failed = world.broker.reported
    assert done == "console: 127.0.0.1:5 asked for create-topic (name='orders'): done"
    assert failed.startswith("console: 127.0.0.1:5 asked for create-topic (name='orders'): failed: ")


def test_nobody_can_write_lines_of_his_own_into_the_log(world):
    with pytest.raises(BrokerError):
        act(world, "create-topic", name=HOSTILE * 50, confirmed="yes")
    (line,) = world.broker.reported
    assert len(line) == LINE_CHARACTERS_MAX and "\n" not in line and "\u202e" not in line


@pytest.mark.parametrize("action", ["create-topic", "add-partitions", "alter-setting", "reset-offsets"])
def test_a_refused_form_keeps_what_was_given(world, action):
    given = {"name": HOSTILE, "topic": HOSTILE, "group": HOSTILE, "partitions": "x", "value": "12", "to": "time"}
    with pytest.raises((BadField, BrokerError)) as told:
        act(world, action, **given)
    view = world.actions.refused(fields_of(given), action, 400, str(told.value))
    html = html_of(view)
    assert view.status == 400 and 'role="alert"' in html and "<script>alert" not in html
    assert 'value="&#34;&gt;&lt;script&gt;alert(1)' in html


def test_a_refused_action_without_a_form_leads_back(world):
    view = world.actions.refused(fields_of({"letters": "a.dead-letters"}), "send-again", 400, "it was sent")
    assert "it was sent" in html_of(view) and 'href="/console/letters/a.dead-letters"' in html_of(view)


def test_there_is_no_other_action(world):
    with pytest.raises(NotThere):
        act(world, "delete-everything")
    with pytest.raises(NotThere, match="begins on another page"):
        world.actions.form_page(fields_of({}), "send-again")


# --- plans -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "action, fields, wrong",
    [
        ("create-topic", {"name": "orders"}, "TOPIC_ALREADY_EXISTS"),
        ("create-topic", {"name": "no spaces"}, "INVALID_TOPIC_EXCEPTION"),
        ("create-topic", {"name": "new", "settings": "retention.ms=soon"}, "retention.ms"),
        ("add-partitions", {"topic": "orders", "partitions": 500_000}, "new.partitions.max"),
        ("alter-setting", {"topic": "orders", "setting": "retention.ms", "value": "soon"}, "retention.ms"),
    ],
)
def test_the_broker_checks_a_plan_before_it_is_confirmed(world, action, fields, wrong):
    world.broker.create("orders")
    with pytest.raises(BrokerError, match=wrong):
        act(world, action, **fields)
    assert world.broker.reported == []


@pytest.mark.parametrize(
    "to, value, offset, reason",
    [
        ("offset", 1, 2, "1 is before the log&#39;s start"),
        ("offset", 99, 5, "99 is beyond the log&#39;s end"),
        ("time", "2099-01-01", 5, "no message is so new; this is the end"),
    ],
)
def test_a_plan_says_that_an_offset_lies_outside_the_log(world, to, value, offset, reason):
    world.broker.create("orders")
    records = [Record(n, 0, None, b"x") for n in range(5)]
    world.client.produce("orders", 0, encode_batch(records, base_timestamp_ms=WALL_MS))
    world.client.run(admin.delete_records(world.client.core, "orders", 0, 2))
    world.client.run(admin.commit(world.client.core, "billing", {("orders", 0): 4}))
    html = html_of(act(world, "reset-offsets", group="billing", to=to, value=value))
    assert reason in html and "outside the log of 1 partition" in html
    done = act(world, "reset-offsets", group="billing", to=to, value=value, confirmed="yes")
    assert "outside the log of 1 partition" in done.model.sentence
    assert world.client.run(admin.committed(world.client.core, "billing")) == {("orders", 0): offset}


def test_a_plan_within_the_log_says_nothing_of_its_bounds(world):
    world.broker.create("orders")
    world.client.run(admin.commit(world.client.core, "billing", {("orders", 0): 0}))
    assert "outside the log" not in html_of(act(world, "reset-offsets", group="billing", to="latest"))
