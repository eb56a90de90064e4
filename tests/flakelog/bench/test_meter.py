"""The meter of a measured run: its lines of progress, and its figures at the end."""

from flakelog.bench.latencies import Latencies
from flakelog.bench.meter import TELL_SECONDS, Figures, Meter


def test_a_line_is_due_every_five_seconds_and_has_what_was_done_since_the_last():
    meter = Meter(100.0)
    meter.count(10, 2_000_000, 101.0)
    meter.took(0.002)
    assert not meter.is_due(104.9) and meter.is_due(100.0 + TELL_SECONDS)
    first = meter.take_window(105.0)
    assert (first.things, first.things_per_second, first.mb_per_second) == (10, 2.0, 0.4)
    meter.count(20, 0, 106.0)
    meter.took(0.004)
    assert not meter.is_due(109.0)
    second = meter.take_window(110.0)
    assert (second.things, second.bytes, second.seconds, second.latencies.max_us) == (20, 0, 5.0, 4_000)


def test_the_end_has_everything_until_the_last_thing_done():
    meter = Meter(100.0)
    for second in (101.0, 104.0):
        meter.count(5, 500, second)
        meter.took(second - 100.0)
        meter.take_window(second)
    total = meter.total()
    assert (total.things, total.bytes, total.seconds, total.latencies.number) == (10, 1_000, 4.0, 2)
    assert total.latency_ms()["average"] == 2_500.0


def test_a_run_in_which_nothing_was_done_has_no_rate():
    total = Meter(7.0).total()
    assert (total.things_per_second, total.mb_per_second) == (0.0, 0.0)


def test_figures_for_programs_name_their_units():
    described = Figures(1_000, 2_000_000, 2.0, Latencies()).described("messages", has_bytes=True)
    assert described == {
        "messages": 1_000, "seconds": 2.0, "messages_per_second": 500.0, "bytes": 2_000_000, "mb_per_second": 1.0,
    }  # fmt: skip
    assert "bytes" not in Figures(1, 0, 1.0, Latencies()).described("ids", has_bytes=False)
