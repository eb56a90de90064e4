"""Documents of running topologies, for consoles elsewhere."""

import json
from dataclasses import replace

from spout.figures.document import EXPIRES_MS, PARTITIONS_MAX, VERSION, bolts_lately, document_of, key_of, running
from spout.figures.model import ComponentFigures, MessageFailure, OutageFigures, Snapshot, SpoutPartitionFigures
from spout.task import TaskCounts

LOG = ComponentFigures("log", "spout", 1, {"default": ("id",)}, (), (TaskCounts(emitted=20),), {}, {})
PARTITION = SpoutPartitionFigures("log", 0, "lines", 3, "running", 100, 150, 160, 5, 60, 2_500, 1_500, "")
FIGURES = Snapshot("words", "words-1", "run", "running", 0, 10_000, 12, (LOG,), (PARTITION,), ("lines.dead-letters",))


def document(figures=FIGURES, before=None):
    return json.loads(document_of(before, figures, host="ada", pid=7))


def test_a_document_has_the_graph_the_figures_and_when_it_expires():
    made = document()
    assert (made["v"], made["host"], made["pid"], made["expires_ms"]) == (VERSION, "ada", 7, 10_000 + EXPIRES_MS)
    assert made["components"][0]["streams"] == {"default": ["id"]} and made["partitions"][0]["lag"] == 60
    assert made["rates"]["log"]["emitted"] == 2.0 and made["lag"]["lag_ms"] == 1_500
    assert made["dead_letter_topics"] == ["lines.dead-letters"] and key_of(FIGURES) == b"words-1/run"


def test_rates_are_those_since_the_document_before():
    faster = replace(LOG, tasks=(TaskCounts(emitted=40),))
    after = replace(FIGURES, at_ms=12_000, components=(faster,))
    assert document(after, FIGURES)["rates"]["log"]["emitted"] == 10.0


def test_a_count_that_began_again_has_no_negative_rate():
    again = replace(LOG, tasks=(TaskCounts(emitted=4),))
    after = replace(FIGURES, at_ms=FIGURES.at_ms + 2_000, components=(again,))
    assert FIGURES.component(LOG.name).total("emitted") > 4
    assert document(after, FIGURES)["rates"]["log"]["emitted"] == 0.0


def test_a_document_of_many_partitions_keeps_those_that_need_attention():
    many = [replace(PARTITION, partition=n, lag=n) for n in range(PARTITIONS_MAX + 10)]
    many[3] = replace(many[3], error="unusable")
    made = document(replace(FIGURES, partitions=tuple(many)))
    partitions = {partition["partition"] for partition in made["partitions"]}
    assert made["partitions_left_out"] == 10
    assert 3 in partitions and 4 not in partitions and PARTITIONS_MAX + 9 in partitions


def test_a_process_runs_until_its_document_expires_or_a_tombstone_comes():
    ours, other = (b"words-1/a", document_of(None, FIGURES, host="a", pid=1)), (b"words-1/b", b"no JSON")
    later = replace(FIGURES, at_ms=11_000)
    new = (b"words-1/a", document_of(None, later, host="a", pid=1))
    (newest,) = running([ours, other, new], now_ms=12_000)
    assert newest["at_ms"] == 11_000
    assert running([new], now_ms=11_000 + EXPIRES_MS) == []
    assert running([new, (b"words-1/a", None)], now_ms=12_000) == []


def test_bolts_tell_if_they_hold_tuples_and_why_messages_failed():
    failures = (MessageFailure("lines", 3, 7, "ValueError: bad, in store"),)
    bolt = replace(LOG, name="store", kind="bolt", failures=failures)
    holding = replace(bolt, failures=(), outages=(OutageFigures(0, "Unavailable", 2_000, 1, "3 tuples held"),))
    made = [
        document_of(None, replace(FIGURES, components=(LOG, component)), host="a", pid=1)
        for component in (bolt, holding)
    ]
    why = {("lines", 3, 7): "ValueError: bad, in store"}
    assert bolts_lately(made, "words-1") == (True, why) and bolts_lately(made[:1], "words-1") == (False, why)
    assert bolts_lately(made, "other") == (False, {})


def test_what_is_no_document_of_a_bolt_tells_nothing():
    spout = replace(LOG, outages=(OutageFigures(0, "timeout", 2_000, 1, "an outage"),))
    odd = [
        b'{"topology_id": "words-1", "components": %s}' % components
        for components in (b"5", b"[5]", b'[{"kind": "bolt"}]')
    ]
    made = document_of(None, replace(FIGURES, components=(spout,)), host="a", pid=1)
    assert bolts_lately([made, b"x", b"[]", b"{}", *odd], "words-1") == (False, {})
