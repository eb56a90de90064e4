"""Failing requests in the log: when they begin to fail, a reminder now and then, and when they work again."""

from partition_manager.failing_requests import REMINDER_EVERY, REMINDER_FIRST, FailingRequests
from partition_manager.notes import Notes


def test_a_request_that_goes_on_failing_is_named_again_with_what_it_meets_now():
    notes = Notes()
    failing = FailingRequests(notes)
    for failures in range(1, REMINDER_FIRST + REMINDER_EVERY):
        failing.failed(("words", "ListPartitions"), "no broker" if failures < 3 else "no topic", failures)
        failing.failed(("other", "ListPartitions"), "no broker", failures)
    failing.succeeded(("words", "ListPartitions"))
    assert [note.text for note in notes.take()] == [
        "words ListPartitions failed: no broker; it is asked again",
        "words ListPartitions still fails: no topic; it is asked again",
    ]
