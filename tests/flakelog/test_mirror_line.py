"""The line of figures that `flakelog mirror run` prints."""

from flakelog.commands.mirror_run import line_of

FIELDS = {
    "from": "a:1", "records": 1_200, "records_per_s": 60.4, "lag": 500, "state": "running", "errors": 0, "stopped": {},
}  # fmt: skip


def test_a_line_has_the_records_their_rate_and_the_lag():
    assert line_of(FIELDS) == "a:1: 1,200 records copied, 60 a second, 500 behind"


def test_a_paused_mirror_says_so_and_a_lag_that_is_not_known_is_not_0():
    paused = FIELDS | {"records": 0, "records_per_s": 0.0, "state": "paused"}
    assert line_of(paused) == "a:1: paused, 0 records copied, 0 a second, 500 behind"
    assert line_of(paused | {"lag": None}) == "a:1: paused, 0 records copied, 0 a second, lag unknown"
