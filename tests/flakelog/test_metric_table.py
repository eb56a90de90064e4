"""The table of metrics keeps to Prometheus' conventions, and docs/ names only metrics that it has.

The conventions are those that `promtool check metrics` knows, and https://prometheus.io/docs/practices/naming/.
"""

import re
from importlib.util import module_from_spec, spec_from_file_location

import pytest

from flakelog.metric_table import ALL, COUNTER, HISTOGRAM, TABLES, family
from tests.test_papers import PAPERS, ROOT, names

ROWS = list(ALL.values())
BASE_UNITS = {"seconds", "bytes", "ratio"}
OTHER_UNITS = set(
    "s sec secs ms us ns milliseconds microseconds nanoseconds minutes hours days weeks b kb mb gb kib mib gib bits "
    "kilobytes megabytes gigabytes percent percentage".split()
)
TYPES = {"counter", "gauge", "histogram", "summary", "untyped"}
RESERVED_LABELS = {"le", "quantile", "job", "instance"}
FIXTURES = {"flakelog_broker", "flakelog_nodes", "flakelog_security", "flakelog_settings", "flakelog_topic"}  # pytest's
PAGES = [paper for paper in PAPERS if paper.name != "CHANGELOG.md"]  # which names former metrics too


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_name_follows_the_conventions(row):
    assert re.fullmatch(r"flakelog(_[a-z]+)+", row.name)
    words = row.name.removesuffix("_total").split("_")
    assert row.name.endswith("_total") == (row.kind == COUNTER), "counters end in _total, and nothing else does"
    assert words[-1] not in ("count", "sum", "bucket"), "these are the samples of a histogram"
    assert not set(words) & TYPES, "the type is no part of a name"
    assert not set(words) & OTHER_UNITS, f"take a base unit: {', '.join(sorted(BASE_UNITS))}"
    assert not set(words[:-1]) & BASE_UNITS, "the unit comes last"
    if row.kind == HISTOGRAM:
        assert words[-1] in BASE_UNITS
    if "since" in row.meaning and "1970" in row.meaning:
        assert row.name.endswith("_timestamp_seconds")
    if "; the label is" in row.meaning:
        assert row.name.endswith("_info")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_metric_says_what_it_is(row):
    assert len(row.meaning.split()) >= 2 and row.meaning[0] in "1ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert not row.meaning.endswith(".")
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", label) for label in row.labels)
    assert not set(row.labels) & RESERVED_LABELS


def test_a_family_has_the_type_and_the_words_of_its_row():
    for row in ROWS:
        made = family(row.name)
        assert (made.type, made.documentation) == (row.kind, row.meaning)
        assert made.name + ("_total" if row.kind == COUNTER else "") == row.name


def test_no_metric_is_twice_in_the_table():
    rows = [row.name for sections in TABLES for rows in sections.values() for row in rows]
    assert len(rows) == len(set(rows)) == len(ALL)


# --- the pages ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page():
    """The hook of MkDocs that makes docs/metrics.md."""
    spec = spec_from_file_location("metrics_page", ROOT / "docs" / "metrics_page.py")
    hook = module_from_spec(spec)
    spec.loader.exec_module(hook)
    return hook


def test_the_page_has_every_metric_once(page):
    tables = "".join(map(page.tables, page.TABLES))
    assert sorted(re.findall(r"^\| `(flakelog_\w+)` \|", tables, re.MULTILINE)) == sorted(ALL)
    assert all(line.count(" | ") == 3 for line in tables.splitlines() if line.startswith("| `"))
    written = (ROOT / "docs" / page.PAGE).read_text()
    assert re.findall(r"<!-- metrics: (\w+) -->", written) == list(page.TABLES)


def metrics_in(text):
    """Return the names of metrics in a text, without the suffixes of a histogram's samples."""
    sample_names = re.findall(r"(?<!\w)flakelog_[a-z_]+[a-z]", text)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in sample_names}


@pytest.mark.parametrize("paper", PAGES, ids=names(PAGES))
def test_a_page_names_only_metrics_of_the_table(paper):
    unknown = metrics_in(paper.read_text()) - ALL.keys() - FIXTURES
    assert not unknown, f"there are no such metrics: {', '.join(sorted(unknown))}"
