"""Actions ask first, show the form again if they are refused, and tell the log."""

import pytest

from broker.client.errors import BrokerError
from flakelog.console.action_pages import LINE_CHARACTERS_MAX
from flakelog.console.pages import NotThere
from flakelog.console.visit import BadField
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
