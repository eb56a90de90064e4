"""The web console in a real browser: Debian's Chromium, driven by Playwright.

Each test also fails if the page reports an error, for example a script that the Content-Security-Policy stops.
FLAKELOG_PICTURES=docs/pictures makes the tests save their screenshots there.
"""

import os
import re

import pytest

from broker.client.blocking import Client
from broker.record.records import BatchRecord, encode_batch
from flakelog.operations import groups
from tests.compat.console.browser_checks import CHROMIUM, CONTRAST, OVERFLOW, picture
from tests.compat.console.console_data import TIME_MS, fill, order
from tests.compat.server_process import ServerProcess
from tests.patience import until

if not CHROMIUM.exists():
    pytest.skip(f"no browser at {CHROMIUM}: the console is not tested in one", allow_module_level=True)
pytest.importorskip("playwright.sync_api", reason="no Playwright: the console is not tested in a browser")

HOSTILE = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"><p hx-get=/x hx-trigger=load>\u202e'
PAGES = {
    "overview": "/", "topics": "/console/topics", "topic": "/console/topics/orders",
    "messages": "/console/topics/orders/messages", "message": "/console/topics/orders/message?partition=0&offset=3",
    "groups": "/console/groups", "group": "/console/group?group=billing", "transactions": "/console/transactions",
    "quotas": "/console/quotas", "ids": "/console/ids?id=2124074378676142081", "topologies": "/console/topologies",
    "topology": "/console/topology?id=order-service", "letters": "/console/letters/orders.dead-letters",
    "mirrors": "/console/mirrors", "mirror": "/console/mirror?name=europe&from=eu-1.example:9092,eu-2.example:9092",
    "replays": "/console/replays", "replay": "/console/replay?key=ab",
    "create": "/console/do/create-topic",
    "partitions": "/console/do/add-partitions?topic=orders", "alter": "/console/do/alter-setting?topic=orders",
    "reset": "/console/do/reset-offsets?group=billing", "delete": "/console/do/delete-topic?topic=orders",
    "send": "/console/do/send-message?topic=orders", "search": "/console/topics/orders/search",
    "searched": "/console/topics/orders/search?text=customer-3",
}  # fmt: skip
PICTURES = {
    ("messages", 1280, "light"), ("topology", 1280, "light"), ("topic", 320, "dark"),
}  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with ServerProcess(tmp_path_factory.mktemp("console") / "data") as running:
        with Client(running.address) as client:
            fill(client)
        yield running


@pytest.fixture
def client(server):
    with Client(server.address) as made:
        yield made


def draw(page, client, name):
    """Save a screenshot with lines in its charts, if the environment asks for pictures."""
    for points in range(3, 12 if "FLAKELOG_PICTURES" in os.environ else 0):
        records = [BatchRecord(n, 0, None, order(n)) for n in range(60 + 40 * (points % 3) + 5 * points)]
        client.produce("orders", 1, encode_batch(records, base_timestamp_ms=TIME_MS))
        until(lambda: page.evaluate(f"document.querySelector('.chart').points[0].length >= {points}"))
    picture(page, name)


# --- every page ------------------------------------------------------------------------------------------------------


def test_every_page_works_wide_and_light_and_at_320_pixels_and_dark(open_page):
    """No page is wider than the window, each has one heading, and all text has the contrast of WCAG AA."""
    page = open_page("/")
    base = re.match(r"http://[^/]+", page.url)[0]
    for name, path in PAGES.items():
        assert page.goto(base + path).status == 200, path
        assert page.locator("h1").count() == 1 and page.locator("main").count() == 1, path
        for width, scheme in ((1280, "light"), (320, "dark")):
            page.set_viewport_size({"width": width, "height": 800})
            page.emulate_media(color_scheme=scheme)
            wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wider <= 0, f"{path} is {wider} pixels wider than {width}"
            assert page.evaluate(CONTRAST) == [], f"{path} in {scheme}"
            if (name, width, scheme) in PICTURES:
                picture(page, name, points=8 if name == "topology" else 0)


@pytest.mark.soak
def test_every_page_works_without_its_script(open_page):
    page = open_page("/", script=False)
    for path in (PAGES["topics"], PAGES["messages"], PAGES["group"], PAGES["topology"], PAGES["create"]):
        assert page.goto(re.match(r"http://[^/]+", page.url)[0] + path).status == 200
        assert page.locator("h1").is_visible()


def test_the_console_works_by_keyboard(open_page):
    page = open_page("/console/topics")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    links = set()
    for _ in range(20):
        page.keyboard.press("Tab")
        links.add(page.evaluate("document.activeElement.getAttribute('href') || document.activeElement.name || ''"))
    assert {"/console/do/create-topic", "search", "/console/topics/orders"} <= links
    page.goto(page.url.partition("#")[0] + "/orders/messages?partition=0&start=oldest")
    page.locator("td.value summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("td.value pre").first.inner_text().startswith('{\n  "order": 1000')


# --- layout ----------------------------------------------------------------------------------------------------------

# The first two cells of a row, after its table was scrolled to its right end: are they in sight, above all others?
IN_SIGHT = """(table) => {
  const box = table.closest(".scroll");
  table.scrollIntoView();
  box.scrollLeft = box.scrollWidth;
  const shown = [...table.querySelectorAll("tbody tr:first-child > :nth-child(-n+2)")].map((cell) => {
    const { left, right, top } = cell.getBoundingClientRect();
    return left >= 0 && right <= innerWidth && cell.contains(document.elementFromPoint(left + 6, top + 8));
  });
  return [box.scrollLeft > 0, ...shown];
}"""


def test_long_names_widen_no_page_and_push_no_column_out(open_page, client):
    """A long group id made a topic's page 9,111 pixels wide."""
    topic, group = "t" * 249, "g" * 1_200
    client.create_topic(topic)
    groups.commit(client, group, {(topic, 0): 0})
    page = open_page("/console/topics?search=tttt")
    base = re.match(r"http://[^/]+", page.url)[0]
    paths = (f"/console/topics/{topic}", "/console/topics?search=tttt", f"/console/topics/{topic}/messages",
             "/console/groups?search=gggg", f"/console/group?group={group}",
             f"/console/do/add-partitions?topic={topic}", f"/console/do/reset-offsets?group={group}")  # fmt: skip
    for path in paths:
        page.goto(base + path)
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            whole, *tables = page.evaluate(OVERFLOW)
            scrolled = max(tables, default=0) if width == 1280 else 0
            assert whole <= 0 and scrolled <= 0, f"{path[:40]} at {width}: {whole, tables}"


def test_on_a_phone_the_values_of_messages_are_in_sight(open_page):
    page = open_page(PAGES["messages"], width=390)
    for name in ("key", "value"):
        box = page.locator(f"td.{name} .data, td.{name} summary").first.bounding_box()
        assert 0 <= box["x"] and box["x"] + box["width"] <= 390 and box["width"] > 60
    assert page.evaluate(OVERFLOW) == [0, 0]
    assert page.get_by_role("table").get_by_role("row").first.get_by_role("columnheader").count() == 6


@pytest.mark.parametrize("name, table", [("letters", "Dead letters"), ("topology", "Components")])
def test_on_a_phone_wide_tables_keep_their_first_two_columns_in_sight(open_page, name, table):
    page = open_page(PAGES[name], width=390)
    assert page.get_by_role("region", name=table).locator("table").evaluate(IN_SIGHT) == [True, True, True]


def test_too_many_messages_are_told_of_while_they_come(open_page, client):
    """The sentence used to stay until the next message came."""
    client.create_topic("fast")
    page = open_page("/console/topics/fast/messages")
    state = page.locator("#live-state")
    until(lambda: state.inner_text() == "live")
    page.clock.install()
    client.produce(
        "fast", 0, encode_batch([BatchRecord(n, 0, None, b"x") for n in range(300)], base_timestamp_ms=TIME_MS)
    )
    until(lambda: state.inner_text() == "200 messages came too fast to be shown")
    page.clock.fast_forward(4_000)
    until(lambda: state.inner_text() == "live")


# --- live figures ----------------------------------------------------------------------------------------------------


def test_figures_and_charts_move_unless_they_are_selected_or_paused(open_page, client):
    page = open_page("/")
    until(lambda: page.evaluate("document.getElementById('live-state').textContent === 'live'"))
    before = page.locator(".fact", has_text="Messages").nth(1).inner_text()
    # Text that is replaced every two seconds cannot be copied, and a screen reader would read warnings again.
    page.evaluate("""() => {
      window.told = document.querySelector("#live-problems p");
      window.head = document.querySelector("#live-head");
      getSelection().selectAllChildren(document.querySelector("#live-head dd"));
    }""")
    client.create_topic("moving")
    client.produce(
        "moving", 0, encode_batch([BatchRecord(n, 0, None, b"x") for n in range(77)], base_timestamp_ms=TIME_MS)
    )
    until(lambda: page.evaluate("document.querySelector('.chart').points[0].length >= 2"))
    assert page.evaluate("window.head.isConnected && window.told.isConnected && !getSelection().isCollapsed")
    assert page.locator(".fact", has_text="Messages").nth(1).inner_text() == before
    page.evaluate("getSelection().removeAllRanges()")
    until(lambda: page.evaluate("!window.head.isConnected && window.told.isConnected"))
    assert page.locator(".fact", has_text="Messages").nth(1).inner_text() != before
    assert page.locator(".chart canvas").count() == 2
    page.get_by_role("button", name="Pause").click()
    assert page.locator("#live-state").inner_text() == "paused"
    page.get_by_role("button", name="Pause").click()
    until(lambda: page.locator("#live-state").inner_text() == "live")
    draw(page, client, "overview")


@pytest.mark.soak
def test_a_page_without_live_figures_says_why(open_page, tmp_path, allowed):
    allowed.append("503 (Service Unavailable)")
    with ServerProcess(tmp_path / "data", {"flakelog.console.max.streams": "0"}) as full:
        page = open_page("/", address=full.http)
        until(lambda: "too many pages get live figures" in page.locator("#live-state").inner_text())


def test_lag_is_drawn_over_time(open_page, client):
    page = open_page(PAGES["group"])
    client.produce("orders", 0, encode_batch([BatchRecord(0, 0, None, b"{}")], base_timestamp_ms=TIME_MS))
    until(lambda: page.evaluate("((lags) => lags.at(-1) > lags[0])(document.querySelector('.chart').points[1])"))
    draw(page, client, "group")


def test_new_messages_are_followed_and_hostile_ones_are_text(open_page, client):
    client.create_topic("hostile")
    hostile = HOSTILE.encode()
    page = open_page("/console/topics/hostile/messages")
    until(lambda: page.evaluate("document.getElementById('live-state').textContent === 'live'"))
    records = [
        BatchRecord(0, 0, hostile, hostile, ((HOSTILE, hostile),)),
        BatchRecord(1, 0, b"\xff", b"\xc3("),
        BatchRecord(2, 0, None, b"x" * 1_000_000),
    ]
    client.produce("hostile", 0, encode_batch(records, base_timestamp_ms=TIME_MS))
    until(lambda: page.evaluate("document.querySelectorAll('#tail tr').length === 3"))
    assert page.locator("#tail tr").last.inner_text().count("<script>window.hacked") >= 2
    for path in ("messages", "message?partition=0&offset=0"):
        page.goto(re.match(r"http://[^/]+", page.url)[0] + f"/console/topics/hostile/{path}")
        for each in page.locator("details").all():
            each.evaluate("(e) => e.open = true")
        assert page.evaluate("window.hacked === undefined && !document.querySelector('main [hx-get], main img')")


# --- finding and acting ----------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_among_ten_thousand_topics_one_is_found_while_its_name_is_typed(open_page, tmp_path):
    with ServerProcess(tmp_path / "data", {"flakelog.max.partitions": "20000"}) as many:
        with Client(many.address) as client:
            for start in range(0, 10_000, 1_000):
                create_many(client, [f"topic-{number:05}" for number in range(start, start + 1_000)])
        page = open_page("/console/topics", address=many.http)
        assert page.locator("#rows tbody tr").count() == 100
        assert "1–100 of 10,000 topics" in page.locator(".pager").inner_text()
        page.get_by_label("Search").fill("topic-07777")
        until(lambda: page.evaluate("document.querySelectorAll('#rows tbody tr').length === 1"))
        page.get_by_role("link", name="topic-07777").click()
        assert page.locator("h1").inner_text() == "topic-07777"


def create_many(client, names):
    from broker.client.api_versions import CREATE_TOPICS

    def steps():
        address = yield from client.core.controller()
        topics = [{"name": name, "num_partitions": 1, "replication_factor": -1, "assignments": (), "configs": ()}
                  for name in names]  # fmt: skip
        answer = yield from client.core.ask(address, CREATE_TOPICS, {"topics": topics, "timeout": 60_000})
        assert not any(each.error_code for each in answer.topics)

    client.run(steps())


@pytest.mark.soak
def test_a_message_is_found_by_its_id(open_page, client):
    (record, *_), _ = client.fetch("orders", 2, 5, max_bytes=1)
    page = open_page("/console/ids")
    page.get_by_label("Decode an id").fill(str(record.id))
    page.get_by_role("button", name="Decode").click()
    page.get_by_role("link", name="Find its message").click()
    assert page.locator("h1").inner_text() == "Offset 5" and "orders-2" in page.locator("main").inner_text()


def test_every_action_asks_first_and_is_done_then(open_page, client):
    page = open_page("/console/topics")
    base = re.match(r"http://[^/]+", page.url)[0]
    page.get_by_role("link", name="Create a topic").click()
    page.get_by_label("Name").fill("shipments")
    page.get_by_label("Partitions").fill("2")
    page.get_by_role("button", name="Create…").click()
    assert "shipments" not in {each.name for each in client.topics()}
    picture(page, "confirm")
    page.get_by_role("button", name="Create it").click()
    page.get_by_role("link", name="Show it").click()
    assert page.locator("h1").inner_text() == "shipments"

    page.get_by_role("link", name="Add partitions").click()
    page.get_by_label("Partitions in all").fill("5")
    page.get_by_role("button", name="Add…").click()
    page.get_by_role("button", name="Add them").click()
    page.get_by_role("link", name="Show it").click()
    assert client.topic("shipments").partitions == 5

    page.get_by_role("link", name="Alter a setting").click()
    page.get_by_label("Setting").select_option("retention.ms")
    page.get_by_label("Value").fill("86400000")
    page.get_by_role("button", name="Alter…").click()
    page.get_by_role("button", name="Alter it").click()
    page.get_by_role("link", name="Show it").click()
    assert "86400000" in page.locator("tr.own").inner_text()

    page.goto(base + PAGES["group"])
    page.get_by_role("link", name="Reset offsets").click()
    page.get_by_label("Move to").select_option("earliest")
    page.get_by_role("button", name="Reset…").click()
    page.get_by_role("button", name="Reset its offsets").click()
    assert set(groups.committed(client, "billing").values()) == {0}

    page.goto(base + PAGES["letters"])
    picture(page, "letters")
    end = client.find_offset("orders", 0, -1)
    page.get_by_label("choose all").check()
    assert page.locator("tbody input:checked").count() == 4
    page.get_by_label("choose all").uncheck()
    page.get_by_label("Letter 0:2").check()
    page.get_by_role("button", name="Send the chosen ones again…").click()
    page.get_by_role("button", name="Send again").dblclick()
    page.get_by_role("link", name="Show it").click()
    assert client.find_offset("orders", 0, -1) == end + 1 and page.get_by_label("Letter 0:2").count() == 0


def test_a_topic_is_deleted_when_its_name_is_typed(open_page, client, allowed):
    allowed.append("400 (Bad Request)")
    client.create_topic("returns", 2)
    groups.commit(client, "returning", {("returns", 0): 0})
    page = open_page("/console/topics/returns", width=390)
    page.get_by_role("link", name="Delete").click()
    page.get_by_label("Type the topic's name").fill("orders")
    page.get_by_role("button", name="Delete…").click()
    assert "type the topic's name, returns" in page.get_by_role("alert").inner_text()
    page.get_by_label("Type the topic's name").fill("returns")
    page.get_by_role("button", name="Delete…").click()
    assert "Group returning" in page.get_by_role("region", name="Details").inner_text()
    assert page.evaluate(OVERFLOW)[0] <= 0 and "returns" in {each.name for each in client.topics()}
    page.get_by_role("button", name="Delete it").dblclick()
    page.get_by_role("link", name="Show it").click()
    assert "returns" not in {each.name for each in client.topics()}
    assert page.locator("h1").inner_text() == "Topics"


def test_a_message_is_sent_as_it_was_typed(open_page, client, allowed):
    allowed.append("400 (Bad Request)")
    client.create_topic("mail", 3)
    page = open_page("/console/topics/mail", width=390)
    page.get_by_role("link", name="Send a message").click()
    value = "\n" + HOSTILE + '\n{"n": 1}\n'
    page.get_by_label("Partition").fill("3")
    page.get_by_label("Key").fill("customer 7")
    page.get_by_label("Value", exact=True).fill(value)
    page.get_by_label("Headers").fill("source=web\nempty")
    page.get_by_role("button", name="Send…").click()
    assert "mail has partitions 0 to 2, not 3" in page.get_by_role("alert").inner_text()
    assert page.locator("textarea[name=value]").input_value() == value
    page.get_by_label("Partition").fill("1")
    page.get_by_role("button", name="Send…").click()
    assert "Header source" in page.get_by_role("region", name="Details").inner_text()
    assert page.evaluate(OVERFLOW)[0] <= 0 and client.find_offset("mail", 1, -1) == 0
    page.get_by_role("button", name="Send it").dblclick()
    assert "mail-1, offset 0; its id is" in page.get_by_role("status").inner_text()
    page.get_by_role("link", name="Show it").click()
    assert page.locator("h1").inner_text() == "Offset 0" and page.evaluate("window.hacked === undefined")
    (record,), _ = client.fetch("mail", 1, 0)
    assert (record.key, record.value.decode()) == (b"customer 7", value)
    assert record.headers == (("source", b"web"), ("empty", None)) and client.find_offset("mail", 1, -1) == 1


def test_a_tombstone_is_sent_if_it_is_chosen(open_page, client):
    client.create_topic("tombs")
    page = open_page("/console/do/send-message?topic=tombs")
    page.get_by_label("Key").fill("k")
    page.get_by_label("a tombstone").check()
    page.get_by_role("button", name="Send…").click()
    assert "null: a tombstone" in page.locator("table").inner_text()
    page.get_by_role("button", name="Send it").click()
    page.get_by_role("link", name="Show it").click()
    (record,), _ = client.fetch("tombs", 0, 0)
    assert (record.key, record.value) == (b"k", None)


@pytest.mark.soak
def test_a_form_that_is_refused_keeps_what_was_given(open_page, allowed):
    allowed.append("400 (Bad Request)")
    page = open_page("/console/do/create-topic")
    page.get_by_label("Name").fill("retained")
    page.get_by_label("Settings").fill("retention.m=5")
    page.get_by_role("button", name="Create…").click()
    assert "retention.m" in page.get_by_role("alert").inner_text()
    assert page.get_by_label("Name").input_value() == "retained"
    assert page.get_by_label("Settings").input_value() == "retention.m=5"


def test_with_a_token_a_visitor_logs_in_and_out(open_page, tmp_path):
    settings = {"flakelog.console.token": "correct horse battery"}
    with ServerProcess(tmp_path / "data", settings) as locked:
        page = open_page("/console/groups", address=locked.http)
        assert page.locator("h1").inner_text() == "Log in"
        page.get_by_label("Token").fill("correct horse battery")
        page.get_by_role("button", name="Log in").click()
        assert page.locator("h1").inner_text() == "Consumer groups"
        assert page.evaluate("document.cookie") == "", "scripts cannot read the session"
        page.goto(f"http://{locked.http.replace('127.0.0.1', 'localhost')}/")
        assert page.locator("h1").inner_text() == "Log in", "it is another site"
        page.evaluate(f"location.href = 'http://{locked.http}/console/groups'")
        page.get_by_role("heading", name="Consumer groups").wait_for()
        page.get_by_role("button", name="Log out").click()
        assert page.locator("h1").inner_text() == "Log in"
