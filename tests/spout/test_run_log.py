"""The log of a run: errors at once, repetitions summed up, messages named."""

from spout.api import Report
from spout.run_log import BURST_MAX, KINDS_MAX, REPEAT_MS, Line, RunLog, text_of


def failed(error=ValueError("bad"), component="count", messages=()):
    return Report("error", component, 0, f"{type(error).__name__}: {error}", error, messages)


def message(offset):
    return {"topic": "lines", "partition": 2, "offset": offset, "id": 7, "attempt": 1}


def test_the_first_error_of_a_type_is_shown_with_its_traceback_and_its_message():
    line = RunLog().line(failed(messages=[message(41)]), now_ms=0)
    assert line.text == "count[0]: ValueError: bad; lines-2 offset 41 (id 7, attempt 1)"
    assert line.traceback == "ValueError: bad\n"
    assert line.facts == {"component": "count", "task": 0, "error": "ValueError", "messages": [message(41)]}


def test_repetitions_are_summed_up_after_a_minute_and_again_after_the_next():
    log = RunLog()
    log.line(failed(), now_ms=0)
    assert [log.line(failed(KeyError(n)), now_ms=n) is None for n in range(3)] == [False, True, True]
    assert [log.line(failed(ValueError(n)), now_ms=n) for n in range(1_000)] == [None] * 1_000
    assert log.next_deadline_ms() == REPEAT_MS
    assert log.due(REPEAT_MS - 1) == []
    texts = [line.text for line in log.due(REPEAT_MS)]
    assert texts == [
        "1,000 times more in the last 60 s; the latest: count[0]: ValueError: 999",
        "2 times more in the last 60 s; the latest: count[0]: KeyError: 2",
    ]
    assert log.line(failed(), now_ms=REPEAT_MS + 1) is None, "it goes on, so it is summed up again"
    assert [line.facts["repeated"] for line in log.due(2 * REPEAT_MS)] == [1]


def test_an_error_that_comes_back_after_a_quiet_minute_is_shown_at_once():
    log = RunLog()
    log.line(failed(), now_ms=0)
    assert log.next_deadline_ms() is None
    assert isinstance(log.line(failed(), now_ms=REPEAT_MS), Line)


def test_errors_of_other_types_and_components_are_shown_beside_it():
    log = RunLog()
    lines = [log.line(report, now_ms=0) for report in (failed(), failed(KeyError("x")), failed(component="split"))]
    assert None not in lines


def test_notes_that_differ_in_numbers_only_are_of_one_kind():
    log = RunLog()
    notes = [Report("info", "log", 0, f"t-{n} begins at offset 0: nothing stored") for n in range(50)]
    assert sum(log.line(note, now_ms=0) is not None for note in notes) == BURST_MAX
    (line,) = log.end(now_ms=1_000)
    assert line.text == "40 times more in the last 1 s; the latest: log[0]: t-49 begins at offset 0: nothing stored"


def test_a_line_names_three_messages_of_a_batch():
    text = text_of(failed(messages=[message(n) for n in range(10)]))
    assert text.endswith("lines-2 offset 2 (id 7, attempt 1) and 7 more messages")


def test_kinds_are_limited_and_further_ones_are_all_shown():
    log = RunLog()
    for n in range(KINDS_MAX + 10):
        log.line(failed(component=f"c{n}"), now_ms=0)
    assert log.line(failed(component=f"c{KINDS_MAX + 5}"), now_ms=1) is not None
    assert log.line(failed(component="c5"), now_ms=1) is None
