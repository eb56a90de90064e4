"""Actions ask first, show the form again if they are refused, and tell the log."""

from urllib.parse import urlencode
from zlib import crc32

import pytest

from broker.client.errors import BrokerError
from broker.client.group_protocol import encode_assignment
from broker.record.records import BatchRecord, encode_batch
from flakelog.console.action_pages import LINE_CHARACTERS_MAX
from flakelog.console.draft import HEADERS_BYTES_MAX, KEY_BYTES_MAX, VALUE_BYTES_MAX
from flakelog.console.pages import NotThere
from flakelog.console.visit import BadField, Fields
from flakelog.operations import groups
from flakelog.operations.errors import NotPossible
from flakelog.operations.topics import delete_records
from idgen.http import SmallRequest
from tests.broker.engine_client import WALL_MS
from tests.broker.handlers.consumer_group import Member
from tests.flakelog.console.world import World, fields_of, html_of, now

HOSTILE = '"><script>alert(1)</script>\u202e\n2026 admin did it'


@pytest.fixture
def world():
    return World()


def act(world, action, **fields):
    return now(world.actions.act(fields_of(fields), action, "127.0.0.1:5"))


def with_member(world, group):
    """Let a member join the group and read orders-0."""
    member = Member(world.broker, group=group)
    member.join()
    world.broker.at(world.broker.now_ms + 3_000)  # group.initial.rebalance.delay.ms
    member.joined()
    member.sync([(member, encode_assignment([("orders", 0)]))])


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


@pytest.mark.parametrize(
    "action", ["create-topic", "add-partitions", "alter-setting", "reset-offsets", "delete-topic", "send-message"]
)
def test_a_refused_form_keeps_what_was_given(world, action):
    names = dict.fromkeys(("name", "topic", "typed", "group", "key"), HOSTILE)
    given = names | {"partitions": "x", "value": "12", "to": "time"}
    with pytest.raises((BadField, BrokerError)) as refusal:
        act(world, action, **given)
    view = world.actions.refused(fields_of(given), action, 400, str(refusal.value))
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


@pytest.fixture
def trimmed(world):
    """A world whose topic orders has offsets 2 to 5, and whose group billing has committed 4."""
    world.broker.create("orders")
    records = [BatchRecord(n, 0, None, b"x") for n in range(5)]
    world.client.produce("orders", 0, encode_batch(records, base_timestamp_ms=WALL_MS))
    delete_records(world.client, {("orders", 0): 2})
    groups.commit(world.client, "billing", {("orders", 0): 4})
    return world


def test_a_plan_says_that_a_time_is_after_all_messages(trimmed):
    fields = {"group": "billing", "to": "time", "value": "2099-01-01"}
    html = html_of(act(trimmed, "reset-offsets", **fields))
    assert "no message is so new; this is the end" in html and "In 1 partition, all messages are older" in html
    done = act(trimmed, "reset-offsets", **fields, confirmed="yes")
    assert "In 1 partition, all messages are older" in done.model.sentence
    assert groups.committed(trimmed.client, "billing") == {("orders", 0): 5}


@pytest.mark.parametrize("offset", [1, 99])
@pytest.mark.parametrize("step", [{}, {"confirmed": "yes"}])
def test_an_offset_that_the_log_does_not_have_is_refused(trimmed, offset, step):
    with pytest.raises(NotPossible, match=f"orders-0 has offsets 2 to 5, not {offset}"):
        act(trimmed, "reset-offsets", group="billing", to="offset", value=offset, **step)
    assert groups.committed(trimmed.client, "billing") == {("orders", 0): 4}


def test_the_plan_for_a_running_group_says_that_its_members_must_stop(trimmed):
    with_member(trimmed, "billing")
    html = html_of(act(trimmed, "reset-offsets", group="billing", to="earliest"))
    assert "It is Stable with 1 member; stop them before you confirm." in html
    with pytest.raises(NotPossible, match="group billing is Stable with 1 member; stop them first"):
        act(trimmed, "reset-offsets", group="billing", to="earliest", confirmed="yes")
    assert groups.committed(trimmed.client, "billing") == {("orders", 0): 4}


def test_a_group_is_moved_to_the_last_messages_of_each_partition(world):
    world.broker.create("orders")
    records = [BatchRecord(n, 0, None, b"x") for n in range(5)]
    world.client.produce("orders", 0, encode_batch(records, base_timestamp_ms=WALL_MS))
    groups.commit(world.client, "billing", {("orders", 0): 4})
    act(world, "reset-offsets", group="billing", to="last", value="3", confirmed="yes")
    assert groups.committed(world.client, "billing") == {("orders", 0): 2}


@pytest.mark.parametrize("fields", [{"to": "latest"}, {"to": "last", "value": "1"}])
def test_a_reset_commits_the_offsets_that_the_visitor_confirmed_though_the_log_has_grown(trimmed, fields):
    plan = act(trimmed, "reset-offsets", group="billing", **fields)
    (row,) = plan.model["planned"].rows
    trimmed.client.produce("orders", 0, encode_batch([BatchRecord(0, 0, None, b"x")], base_timestamp_ms=WALL_MS))
    act(trimmed, "reset-offsets", **dict(plan.model["hidden"]), confirmed="yes")
    assert groups.committed(trimmed.client, "billing") == {("orders", 0): int(row[2])}


def test_a_reset_is_refused_if_the_log_has_lost_an_offset_that_the_visitor_confirmed(trimmed):
    plan = act(trimmed, "reset-offsets", group="billing", to="earliest")
    delete_records(trimmed.client, {("orders", 0): 3})
    with pytest.raises(NotPossible, match="orders-0 has offsets 3 to 5, not 2"):
        act(trimmed, "reset-offsets", **dict(plan.model["hidden"]), confirmed="yes")
    assert groups.committed(trimmed.client, "billing") == {("orders", 0): 4}


@pytest.mark.parametrize("offsets", ["orders", "orders*0", "orders*0-x", "orders*0--1", "*0-1", "orders*0-1-2"])
def test_confirmed_offsets_that_no_plan_has_are_refused(trimmed, offsets):
    with pytest.raises(BadField, match="these are no offsets of a plan; begin again"):
        act(trimmed, "reset-offsets", group="billing", to="latest", offsets=offsets, confirmed="yes")


def test_a_reset_of_more_partitions_than_a_form_holds_names_the_command(world):
    topics = [f"{number:0>200}" for number in range(200)]
    for topic in topics:
        world.broker.create(topic)
    groups.commit(world.client, "billing", {(topic, 0): 0 for topic in topics})
    with pytest.raises(BadField, match="the offsets of 200 partitions.*`flakelog group reset-offsets`"):
        act(world, "reset-offsets", group="billing", to="latest")


@pytest.mark.parametrize("to", ["offset", "id", "time", "last"])
def test_a_reset_without_its_value_is_refused_and_never_the_start_of_the_log(world, to):
    world.broker.create("orders")
    groups.commit(world.client, "billing", {("orders", 0): 0})
    with pytest.raises(BadField, match="'' is no "):
        act(world, "reset-offsets", group="billing", to=to, value="")


def test_a_plan_within_the_log_says_nothing_of_its_bounds(world):
    world.broker.create("orders")
    groups.commit(world.client, "billing", {("orders", 0): 0})
    assert "all messages are older" not in html_of(act(world, "reset-offsets", group="billing", to="latest"))


# --- deleting a topic ------------------------------------------------------------------------------------------------


def confirmed(world, action, **fields):
    """Plan an action, and confirm it with the fields that its plan brings back."""
    plan = act(world, action, **fields)
    return act(world, action, **dict(plan.model["hidden"]), confirmed="yes")


def test_the_deletion_of_a_topic_shows_what_it_concerns_and_is_done_then(world):
    world.broker.create("orders", 3)
    records = [BatchRecord(n, 0, None, b"x") for n in range(7)]
    world.client.produce("orders", 1, encode_batch(records, base_timestamp_ms=WALL_MS))
    groups.commit(world.client, "billing", {("orders", 0): 0})
    html = html_of(act(world, "delete-topic", topic="orders", typed="orders"))
    assert "Delete the topic orders with 3 partitions and all its messages." in html and "cannot be undone" in html
    rows = act(world, "delete-topic", topic="orders", typed="orders").model["planned"].rows
    assert rows[0] == ["Messages", "7"] and rows[-1] == ["Group billing", "has committed offsets"]
    assert world.broker.services.metadata.topic("orders") is not None
    id = str(world.client.topic("orders").id)
    assert "orders was deleted" in confirmed(world, "delete-topic", topic="orders", typed="orders").model.sentence
    assert world.broker.services.metadata.topic("orders") is None
    (line,) = world.broker.reported
    fields = f"topic='orders', typed='orders', id='{id}'"
    assert line == f"console: 127.0.0.1:5 asked for delete-topic ({fields}): done"


@pytest.mark.parametrize("typed", ["", "order", "Orders", "orders2"])
@pytest.mark.parametrize("step", [{}, {"confirmed": "yes"}])
def test_a_topic_whose_name_was_not_typed_is_not_deleted(world, typed, step):
    world.broker.create("orders")
    id = world.client.topic("orders").id
    with pytest.raises(BadField, match="type the topic's name, orders, to delete it"):
        act(world, "delete-topic", topic="orders", typed=typed, id=id, **step)
    assert world.broker.services.metadata.topic("orders") is not None


@pytest.mark.parametrize("step", [{}, {"confirmed": "yes"}])
def test_topics_of_flakelog_itself_are_not_deleted(world, step):
    world.broker.create("__consumer_offsets")
    with pytest.raises(BadField, match="deletes none that begin with __"):
        act(world, "delete-topic", topic="__consumer_offsets", typed="__consumer_offsets", **step)
    assert world.broker.services.metadata.topic("__consumer_offsets") is not None


def test_a_topic_that_was_made_again_since_its_plan_is_not_deleted(world):
    world.broker.create("orders")
    hidden = dict(act(world, "delete-topic", topic="orders", typed="orders").model["hidden"])
    world.client.delete_topic("orders")
    world.client.create_topic("orders")
    with pytest.raises(NotPossible, match="was deleted and made again"):
        act(world, "delete-topic", **hidden, confirmed="yes")
    assert world.broker.services.metadata.topic("orders") is not None


def test_a_topic_with_an_offline_partition_can_be_deleted(world):
    world.broker.create("orders")
    world.broker.services.logs.get("orders", 0).take_offline("a sync failed")
    assert confirmed(world, "delete-topic", topic="orders", typed="orders").status == 200


def test_a_deletion_names_the_groups_that_read_the_topic_without_a_commit(world):
    world.broker.create("orders")
    assert groups.committed(world.client, "audit") == {}, "the coordinator is there now"
    with_member(world, "audit")
    html = html_of(act(world, "delete-topic", topic="orders", typed="orders"))
    assert "Group audit" in html and "1 member reads it now" in html


# --- sending a message -----------------------------------------------------------------------------------------------


def only_record(world, topic, partition=0):
    (record,), _ = world.client.fetch(topic, partition, 0, max_wait_ms=0)
    return record


def test_a_message_is_shown_and_is_sent_once_it_is_confirmed(world):
    world.broker.create("orders", 3)
    fields = {"topic": "orders", "partition": "2", "key": "c-7", "value": "a\r\nb\r\n"}
    fields |= {"headers": "source=web\r\nempty"}
    html = html_of(act(world, "send-message", **fields))
    assert "Send a message to orders." in html and "c-7 (3 B)" in html and "Header source" in html
    assert world.client.fetch("orders", 2, 0, max_wait_ms=0)[0] == [] and world.broker.reported == []
    done = confirmed(world, "send-message", **fields).model
    record = only_record(world, "orders", 2)
    assert (record.key, record.value) == (b"c-7", b"a\nb\n") and record.headers == (("source", b"web"), ("empty", None))
    assert done.sentence == f"The message was sent to orders-2, offset 0; its id is {record.id}."
    assert done.target == "/console/topics/orders/message?partition=2&offset=0"


def test_the_log_tells_neither_the_value_nor_the_headers_of_a_message(world):
    world.broker.create("orders")
    secret = {"value": "s3cret", "headers": "token=s3cret"}
    confirmed(world, "send-message", topic="orders", key="c-7", **secret)
    for wrong in ({"tombstone": "1"}, {"headers": "=s3cret"}, {"partition": "9"}):
        with pytest.raises(BadField):
            act(world, "send-message", **{"topic": "orders"} | secret | wrong, confirmed="yes")
    lines = world.broker.reported
    assert lines[:2] == [
        "console: 127.0.0.1:5 asked for send-message (topic='orders', key='c-7'): done",
        "console: sent a message to orders-0, offset 0",
    ]
    assert len(lines) == 5 and "s3cret" not in "".join(lines)


@pytest.mark.parametrize(
    "fields, key, value",
    [
        ({}, None, b""),
        ({"key": "k", "tombstone": "1"}, b"k", None),
        ({"key": "k\u00e9", "value": "\u20ac"}, "k\u00e9".encode(), "\u20ac".encode()),
        ({"value": "\r\n x \r\n"}, None, b"\n x \n"),
    ],
)
def test_an_empty_key_is_none_and_only_a_tombstone_has_no_value(world, fields, key, value):
    world.broker.create("orders")
    confirmed(world, "send-message", topic="orders", **fields)
    record = only_record(world, "orders")
    assert (record.key, record.value) == (key, value)


def test_a_tombstone_without_a_key_is_warned_of(world):
    world.broker.create("orders")
    html = html_of(act(world, "send-message", topic="orders", tombstone="1"))
    assert "null: a tombstone" in html and "a tombstone deletes nothing" in html


def test_the_key_selects_the_partition(world):
    world.broker.create("orders", 5)
    partition = crc32(b"c-7") % 5
    assert f"{partition}, by its key" in html_of(act(world, "send-message", topic="orders", key="c-7"))
    assert f"orders-{partition}, offset 0" in confirmed(world, "send-message", topic="orders", key="c-7").model.sentence


@pytest.mark.parametrize(
    "fields, wrong",
    [
        ({"topic": "__consumer_offsets"}, "sends to none that begin with __"),
        ({"partition": "3"}, "orders has partitions 0 to 2, not 3"),
        ({"partition": "x"}, "give a number"),
        ({"value": "x", "tombstone": "1"}, "a tombstone has no value"),
        ({"headers": "a=b\r\n=c"}, "line 2 of the headers has no name"),
        ({"key": "x" * (KEY_BYTES_MAX + 1)}, "key has 1,025 bytes; a form sends at most 1,024 bytes"),
        ({"value": "\u20ac" * 6_000}, "value has 18,000 bytes; a form sends at most 16,384 bytes"),
        ({"headers": "x" * (HEADERS_BYTES_MAX + 1)}, "headers has 4,097 bytes"),
        ({"value": "a\0b"}, "value is no UTF-8 text without NULs; `flakelog produce` sends any bytes"),
    ],
)
@pytest.mark.parametrize("step", [{}, {"confirmed": "yes"}])
def test_a_message_that_cannot_be_sent_is_explained(world, fields, wrong, step):
    world.broker.create("orders", 3)
    with pytest.raises(BadField, match=wrong):
        act(world, "send-message", **{"topic": "orders"} | fields | step)


def test_bytes_that_are_no_utf_8_are_not_sent_as_other_ones(world):
    world.broker.create("orders")
    fields = Fields({b"topic": [b"orders"], b"value": [b"\xff"], b"confirmed": [b"yes"]})
    with pytest.raises(BadField, match="value is no UTF-8"):
        now(world.actions.act(fields, "send-message", "127.0.0.1:5"))


def test_the_largest_message_of_a_form_fits_the_http_port(world):
    form = {"csrf": "0" * 64, "confirmed": "yes", "topic": "t" * 249, "partition": "0" * 19, "tombstone": "1"}
    form |= {"key": "\xff" * (KEY_BYTES_MAX // 2), "headers": "\xff" * (HEADERS_BYTES_MAX // 2)}
    form |= {"value": "\r\n" * (VALUE_BYTES_MAX // 2)}
    assert len(urlencode(form)) <= SmallRequest.BODY_BYTES_MAX
