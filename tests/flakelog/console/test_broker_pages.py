"""The pages of the broker's own state, from a broker in memory."""

import pytest

from broker.metadata.change import Change
from broker.metadata.staged import Staged
from flakelog.console import groups
from flakelog.console.pages import NotThere
from flakelog.console.visit import BadField
from tests.broker.engine_client import WALL_MS, EngineBroker
from tests.broker.handlers import consumer_group
from tests.flakelog.console.world import World, fields_of

HOSTILE = "</td><script>alert(1)</script>{{ 7*7 }}\u202e"


@pytest.fixture
def world():
    return World()


# --- overview --------------------------------------------------------------------------------------------------------


def test_the_overview_counts_topics_partitions_and_messages(world):
    world.broker.create("orders", 3)
    world.broker.connect().produce("orders", b"a", b"b")
    now = world.view("overview").model["now"]
    assert (now.topics, now.partitions, now.messages, now.problems) == (1, 3, 2, [])
    assert now.log_bytes > 0 and [row.api for row in now.latencies] == ["Produce"]


def test_rates_begin_with_the_second_sample(world):
    world.broker.create("orders")
    assert world.view("overview").model["now"].rates == (None, None, None)
    world.broker.connect().produce("orders", *[b"x"] * 50)
    world.clock.ms += 2_000
    html, points = world.live(page="overview")
    assert points["throughput"][1] == [25.0] and "25/s" in html


def test_every_page_with_live_figures_continues_the_chart_of_throughput(world):
    world.broker.create("orders")
    world.pages.sample()
    world.broker.connect().produce("orders", *[b"x"] * 50)
    world.clock.ms += 2_000
    world.live(page="transactions")
    world.pages.sample()
    assert world.view("overview").model["throughput"][1] == [25.0]


def test_the_streams_of_several_pages_count_the_partitions_once(world):
    world.broker.create("orders")
    world.live(page="overview")
    world.broker.create("payments")
    assert world.pages.live(fields_of({"page": "overview"}), 0).model.topics == 1
    assert world.view("overview").model["now"].topics == 2, "a page that is loaded is as of now"
    world.broker.create("refunds")
    world.clock.ms += 1_000
    assert world.pages.live(fields_of({"page": "overview"}), 0).model.topics == 3


def test_what_is_wrong_is_said_first(world):
    world.broker.create("orders")
    world.broker.services.logs.get("orders", 0).take_offline("a sync failed")
    world.server.service = None
    assert "orders-0 is offline: a sync failed" in world.html("overview")


# --- topics ----------------------------------------------------------------------------------------------------------


def test_topics_are_shown_a_hundred_at_a_time(world):
    for number in range(205):
        world.broker.create(f"t{number:03}")
    names = [row.name for page in (0, 1, 2) for row in world.view("topics", page=page).model.rows]
    assert names == [f"t{number:03}" for number in range(205)]
    assert [row.name for row in world.view("topics", page=99).model.rows] == names[200:]


def test_a_partition_whose_log_could_not_be_opened_is_shown_as_offline():
    broker = EngineBroker()
    broker.create("orders", 2)
    broker.connect().produce("orders", b"a", partition=1)
    broker.services.logs.close()
    del broker.storage.files[f"orders-1/{0:020}.log"]
    world = World(storage=broker.storage, now_ms=broker.now_ms + 10_000)
    assert [row.offline for row in world.view("topics").model.rows] == [1]
    served, lost = world.view("topic", "orders").model.rows
    assert (served.partition, served.end, served.offline) == (0, 0, "")
    assert world.view("overview").model["now"].partitions == 2, "as a new topic's whose logs are being made"
    assert (lost.partition, lost.end) == (1, None) and f"orders-1/{0:020}.log" in lost.offline
    assert "offline" in world.html("topic", "orders")
    with pytest.raises(NotThere, match="orders-1 is offline: "):
        world.messages.messages_page(fields_of({"partition": 1}), "orders")


def test_topics_are_found_by_a_part_of_their_name(world):
    for name in ("orders.eu", "orders.us", "payments", "__own"):
        world.broker.create(name)
    assert [row.name for row in world.view("topics", search="ORDERS").model.rows] == ["orders.eu", "orders.us"]
    assert [row.name for row in world.view("topics").model.rows] == ["orders.eu", "orders.us", "payments"]
    assert "__own" in [row.name for row in world.view("topics", internal=1).model.rows]


def test_ten_thousand_topics_are_a_list_of_pages(world):
    world.broker.know({f"topic-{number:05}": 1 for number in range(10_000)})
    for fields in ({}, {"sort": "bytes"}, {"search": "topic-0"}, {"page": 99}):
        assert len(world.view("topics", **fields).model.rows) == 100
    assert [row.name for row in world.view("topics", search="7777").model.rows] == ["topic-07777"]
    assert "of 10,000 topics" in world.html("topics")


def test_a_topic_without_settings_shows_the_brokers_cleanup_policy():
    world = World(log_cleanup_policy="compact")
    world.broker.create("orders")
    assert [row.policy for row in world.view("topics").model.rows] == ["compact"]


def test_topics_can_be_sorted_by_a_figure(world):
    world.broker.create("few")
    world.broker.create("many")
    world.broker.connect().produce("many", b"a")
    assert [row.name for row in world.view("topics", sort="messages").model.rows] == ["many", "few"]
    assert [row.name for row in world.view("topics", sort="__class__").model.rows] == ["few", "many"]


def test_a_topic_shows_its_partitions_and_its_own_settings_first(world):
    world.broker.create("orders", 2, **{"retention.ms": "5000"})
    world.broker.connect().produce("orders", b"a", partition=1)
    topic = world.view("topic", "orders").model
    assert [(row.start, row.end) for row in topic.rows] == [(0, 0), (0, 1)]
    assert (topic.configs[0].name, topic.configs[0].value, topic.configs[0].source) == ("retention.ms", "5000", "topic")
    assert topic.rows[0].last_id is None and topic.rows[1].last_id > 0


@pytest.mark.parametrize("page, path, fields", [("topic", ("nope",), {}), ("group", (), {"group": "nope"})])
def test_what_is_not_there_is_said(world, page, path, fields):
    with pytest.raises(NotThere, match="nope"):
        world.view(page, *path, **fields)


@pytest.mark.parametrize("number", ["-1", "1e3", "x", str(1 << 63), "9" * 40, "٣"])
def test_a_number_that_is_none_is_refused(world, number):
    with pytest.raises(BadField, match="give a number"):
        world.view("topics", page=number)


# --- groups ----------------------------------------------------------------------------------------------------------


def commit(world, group, offset):
    client = world.broker.connect()
    consumer_group.find(client, key=group)
    assert consumer_group.commit(client, offset, topic="orders", group=group) == 0


def test_a_groups_lag_is_counted_and_kept_over_time(world):
    world.broker.create("orders", 2)
    client = world.broker.connect()
    client.produce("orders", *[b"x"] * 10)
    commit(world, "billing", 4)
    (row,) = world.view("groups").model.rows
    assert (row.group_id, row.state, row.topics, row.lag) == ("billing", "Empty", 1, 6)
    world.view("group", group="billing")
    client.produce("orders", b"x")
    world.clock.ms += 2_000
    html, points = world.live(page="group", group="billing")
    assert points["lag"] == [[WALL_MS / 1000, WALL_MS / 1000 + 2], [6, 7]] and "billing" not in html
    assert world.view("topic", "orders").model.groups == ["billing"]


def test_a_list_of_large_groups_does_not_count_all_their_partitions(world, monkeypatch):
    """A page counts on the reactor's thread, so its work is limited; a group's own page has its lag."""
    monkeypatch.setattr(groups, "PARTITIONS_MAX", 1)
    world.broker.create("orders")
    commit(world, "billing", 0)
    commit(world, "shipping", 0)
    assert [(row.group_id, row.lag) for row in world.view("groups").model.rows] == [("billing", 0), ("shipping", None)]
    assert "have it on their own pages" in world.html("groups")
    assert world.view("group", group="shipping").model["now"].lag == 0


def test_a_hostile_group_id_is_text(world):
    world.broker.create("orders")
    commit(world, HOSTILE, 0)
    for html in (world.html("groups"), world.html("group", group=HOSTILE), world.html("topic", "orders")):
        assert "<script>alert" not in html and "\u202e" not in html and "{{ 7*7 }}" in html


# --- transactions, quotas, ids ---------------------------------------------------------------------------------------


def test_there_is_a_page_without_any_transaction_quota_or_worker(world):
    assert "There are no transactional ids" in world.html("transactions")
    assert "No client has a quota" in world.html("quotas")
    assert "Ids are unique in memory" in world.html("ids")


def test_quotas_are_shown_with_what_they_held_back(world):
    entity = (("client-id", None), ("user", HOSTILE))
    world.broker.change(Staged(Change(quotas={entity: {"producer_byte_rate": 1_048_576.0}})))
    world.broker.services.metrics.throttle("producer_byte_rate", 1_500)
    html = world.html("quotas")
    assert "1.0 MB/s" in html and "(all others)" in html and "1.5 s" in html and "<script>alert" not in html


def test_an_id_is_decoded(world):
    html = world.html("ids", id=world.pages.layout.pack(WALL_MS, 35, 7))
    assert "2023-11-14T22:13:20.000Z" in html and "<dd>35</dd>" in html and "<dd>7</dd>" in html


@pytest.mark.parametrize("text", [HOSTILE, "-1", str(1 << 63), "1.5"])
def test_another_text_is_no_id(world, text):
    html = world.html("ids", id=text)
    assert "an id is a decimal number" in html and "<script>alert" not in html
