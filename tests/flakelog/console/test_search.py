"""A search reads a range part by part, finds a plain text in keys, values and headers, and asks before it goes on."""

from urllib.parse import parse_qsl, urlsplit

import pytest

from broker.record.compression import Codec
from broker.record.records import BatchRecord, encode_batch
from flakelog.console import search
from flakelog.console.pages import NotThere
from flakelog.console.visit import BadField, PageTimeout
from tests.broker.engine_client import WALL_MS
from tests.flakelog.console.test_messages import damage
from tests.flakelog.console.world import World, fields_of, html_of, now


@pytest.fixture
def world():
    made = World()
    made.broker.create("orders", 3)
    return made


def produce(world, *records, partition=0, codec=Codec.NONE):
    """Send (key, value, headers) as one batch; the times of messages are a second apart."""
    made = [BatchRecord(n, n * 1_000, *record) for n, record in enumerate(records)]
    world.client.produce("orders", partition, encode_batch(made, base_timestamp_ms=WALL_MS, codec=codec))


def part(world, **fields):
    answer = world.search.search_page(fields_of(fields), "orders")
    return answer if hasattr(answer, "model") else now(answer)


def following(view):
    return dict(parse_qsl(urlsplit(view.model.following).query, keep_blank_values=True))


def whole(world, **fields):
    """Return all parts of a search, as the page's script asks for them."""
    views = [part(world, **fields)]
    while views[-1].model.goes_on:
        views.append(part(world, **following(views[-1])))
    return views


def positions(*views):
    return [(match.row.partition, match.row.offset) for view in views for match in view.model.matches if match.hits]


def test_a_text_is_found_in_keys_values_and_headers(world):
    produce(world, (b"needle", None), (None, b"a needle b"), (None, b"x", (("h", b"needle"),)))
    others = (None, b"x", (("needle", None),)), (b"Needle", b"nee", (("dle", b""),))
    produce(world, *others, partition=2, codec=Codec.ZSTD)
    view = part(world, text="needle")
    assert positions(view) == [(0, 0), (0, 1), (0, 2), (2, 0)] and view.model.following == ""
    hits = [match.hits[0].part for match in view.model.matches]
    assert hits == ["key", "value", "header h", "header's name"]
    assert "a <mark>needle</mark> b" in html_of(view) and "All is searched" in html_of(view)
    assert positions(part(world, text="needle", partition=2)) == [(2, 0)]


@pytest.mark.parametrize("text", ["n.*e", "%", "NEEDLE", "needle  "])
def test_nothing_in_a_text_is_a_pattern_and_case_differs(world, text):
    produce(world, (None, b"needle"))
    assert positions(part(world, text=text)) == []


def test_bytes_that_are_no_text_are_searched_and_shown_in_part(world):
    produce(world, (None, b"\xff\xfe" + "Z\u00fcrich".encode() + b"\xc3\n<b>" + b"x" * 100))
    (match,) = part(world, text="\u00fc").model.matches
    assert match.hits[0][1:] == ("Z", "\u00fc", "rich <b>" + "x" * 39 + "\u2026")


@pytest.mark.parametrize(
    "range, offsets",
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"start": "offset", "value": 2, "partition": 0}, [2, 3, 4]),
        ({"start": "offset", "value": 1, "end": "offset", "end_value": 3, "partition": 0}, [1, 2]),
        ({"start": "time", "value": WALL_MS + 1_500, "end": "time", "end_value": WALL_MS + 4_000}, [2, 3]),
        ({"end": "offset", "end_value": 99}, [0, 1, 2, 3, 4]),
        ({"start": "time", "value": "2099-01-01"}, []),
    ],
)
def test_only_the_range_is_searched(world, range, offsets):
    produce(world, *[(None, b"x")] * 5)
    assert [offset for _, offset in positions(part(world, text="x", **range))] == offsets


def test_an_offset_counts_in_each_partition(world):
    for partition in range(3):
        produce(world, *[(None, b"x")] * 3, partition=partition)
    view = part(world, text="x", start="offset", value=1, end="offset", end_value=2)
    assert positions(view) == [(0, 1), (1, 1), (2, 1)]


def test_a_large_range_is_searched_part_by_part(world):
    for partition in range(3):
        for _ in range(6):
            produce(world, (None, b"x" * 900_000), (b"needle", b""), partition=partition)
    views = whole(world, text="needle")
    assert len(views) == 4 and all(view.model.counts.bytes for view in views)
    assert positions(*views) == [(partition, 2 * n + 1) for partition in range(3) for n in range(6)]
    counts = views[-1].model.counts
    assert (counts.messages, counts.matches, views[-1].model.percent) == (36, 18, 100)
    assert sorted({view.model.percent for view in views}) == [view.model.percent for view in views]


def test_a_search_of_many_partitions_goes_on_with_the_next_one(world):
    world.broker.create("wide", search.PARTITIONS_MAX + 5)
    for number in range(search.PARTITIONS_MAX + 5):
        batch = encode_batch([BatchRecord(0, 0, None, b"needle")], base_timestamp_ms=WALL_MS)
        world.client.produce("wide", number, batch)
    spans = world.messages.spans("wide")
    query = search.search_of("wide", fields_of({"text": "needle"}))
    first = search.search_slice(world.client, query, None, spans, 1_000)
    second = search.search_slice(world.client, query, first.remainder, spans, 1_000)
    numbers = [match.row.partition for match in (*first.matches, *second.matches)]
    assert numbers == list(range(search.PARTITIONS_MAX + 5)) and second.remainder is None


def test_a_search_waits_when_it_has_read_as_much_as_a_round_may():
    world = World(search_bytes=1_500_000)
    world.broker.create("orders")
    for _ in range(12):
        produce(world, (None, b"x" * 900_000))
    views = whole(world, text="needle")
    assert len(views) == 1 and views[-1].model.following and "The search waits here" in html_of(views[-1])
    while views[-1].model.following:
        views += whole(world, **following(views[-1]))
    assert views[-1].model.counts.messages == 12


def test_a_search_waits_when_a_page_of_messages_is_found():
    world = World(page_records=10)
    world.broker.create("orders")
    produce(world, *[(None, b"x")] * 25)
    first = part(world, text="x")
    assert len(positions(first)) == 10 and not first.model.goes_on
    second = part(world, **following(first))
    third = part(world, **following(second))
    assert [offset for _, offset in positions(first, second, third)] == list(range(25))
    assert third.model.counts.matches == third.model.counts.messages == 25 and third.model.following == ""


def test_a_search_waits_when_its_time_is_over(world):
    for _ in range(6):
        produce(world, (None, b"x" * 900_000))
    since = world.clock.ms
    world.clock.ms += 60_000
    late = part(world, text="x", since=since)
    assert late.model.following and not late.model.goes_on
    assert "since" not in following(late), "the next round has its own time"


def test_an_address_made_by_hand_finds_no_more_at_once():
    world = World(page_records=10)
    world.broker.create("orders")
    produce(world, *[(None, b"x")] * 25)
    assert len(positions(part(world, text="x", round=1 << 60))) == 10


def test_what_cannot_be_read_is_told_and_the_rest_is_searched(world):
    for value in (b"needle", b"lost", b"needle"):
        produce(world, (None, value))
    produce(world, (None, b"needle"), partition=1)
    produce(world, (None, b"needle"), partition=2)
    damage(world, 1)
    world.broker.services.logs.get("orders", 1).take_offline("a sync failed")
    view = part(world, text="needle")
    assert positions(view) == [(0, 0), (0, 2), (2, 0)]
    wrong = [(match.row.partition, match.row.offset) for match in view.model.matches if match.row.wrong]
    assert wrong == [(0, 1), (1, 0)] and view.model.counts.matches == 3
    assert "This batch was not searched: CRC" in html_of(view) and "KAFKA_STORAGE_ERROR" in html_of(view)


def test_a_part_that_the_pages_time_ends_has_what_was_read(world):
    for partition in range(3):
        produce(world, (None, b"needle"), partition=partition)
    spans, query = world.messages.spans("orders"), search.search_of("orders", fields_of({"text": "needle"}))
    first = search.search_slice(Ends(world.client, after=2), query, None, spans, 100)
    second = search.search_slice(world.client, query, first.remainder, spans, 100)
    assert [[match.row.partition for match in portion.matches] for portion in (first, second)] == [[0, 1], [2]]
    assert second.remainder is None
    with pytest.raises(PageTimeout):
        search.search_slice(Ends(world.client, after=0), query, None, spans, 100)


class Ends:
    """A client whose page's time is over after some calls."""

    def __init__(self, client, after):
        self._client, self._runs_left, self.core = client, after, client.core

    def run(self, steps):
        self._runs_left -= 1
        if self._runs_left < 0:
            raise PageTimeout("it took too long")
        return self._client.run(steps)


def test_a_search_without_a_text_is_a_form(world):
    html = html_of(part(world, partition=1))
    assert "upper and lower case differ" in html and "search-state" not in html
    assert '<option value="1" selected>' in html


@pytest.mark.parametrize(
    "fields, wrong",
    [
        ({"text": "x" * 1_001}, "the text has 1,001 bytes"),
        ({"text": "x", "start": "nowhere"}, "messages begin at"),
        ({"text": "x", "end": "time", "end_value": "soon"}, "is no time"),
    ],
)
def test_a_range_that_is_refused_is_explained_beside_its_form(world, fields, wrong):
    view = part(world, **fields)
    html = html_of(view)
    assert view.status == 400 and wrong in html and "search-state" not in html
    assert f'value="{fields["text"]}"' in html and f'value="{fields.get("end_value", "")}"' in html


@pytest.mark.parametrize("at", ["0-1", "0-1-x"])
def test_an_address_without_a_place_is_refused(world, at):
    with pytest.raises(BadField, match="is no place of a search"):
        part(world, text="x", at=at)


def test_a_partition_that_is_not_here_is_named(world):
    with pytest.raises(NotThere, match="orders-7 is not here"):
        part(world, text="x", partition=7)
