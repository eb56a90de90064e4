"""Figures over time are sampled while a page is open."""

from flakelog.console.history import GAP_MS, POINTS_MAX, SERIES_MAX, RateSeries, Series, SeriesByName


def test_rates_are_those_between_two_samples():
    series = RateSeries(("a", "b"))
    series.count(1_000, (10, 5))
    series.count(3_000, (14, 5))
    assert series.columns() == [[3.0], [2.0], [0.0]]


def test_a_counter_that_begins_anew_is_no_negative_rate():
    series = RateSeries(("a",))
    series.count(1_000, (10,))
    series.count(2_000, (3,))
    assert series.columns()[1] == [0]


def test_a_time_without_a_page_is_a_gap():
    series = Series(("a",))
    series.add(1_000, (1,))
    series.add(2_000 + GAP_MS, (2,))
    assert series.columns()[1] == [1, None, 2]
    rates = RateSeries(("a",))
    rates.count(1_000, (1,))
    rates.count(2_000 + GAP_MS, (500,))
    assert rates.columns() == [[], []]


def test_several_pages_share_samples():
    series = Series(("a",))
    assert series.is_due(0)
    series.add(0, (1,))
    assert not series.is_due(999) and series.is_due(1_000)


def test_only_new_points_are_sent():
    series = Series(("a",))
    for second in range(5):
        series.add(second * 1_000, (second,))
    assert series.columns(2_000) == [[3.0, 4.0], [3, 4]]


def test_what_is_kept_is_limited():
    series = Series(("a",))
    for at in range(POINTS_MAX + 10):
        series.add(at * 1_000, (at,))
    assert len(series.columns()[0]) == POINTS_MAX
    names = SeriesByName(("a",))
    first = names.of("0")
    for at in range(1, SERIES_MAX + 1):
        names.of(str(at))
    assert names.of("0") is not first and names.of(str(SERIES_MAX)) is names.of(str(SERIES_MAX))
