"""Answers to forms are kept for their session, for a while, and within a limit of bytes."""

import pytest

from flakelog.console.kept_pages import KEPT_BYTES_MAX, KEPT_MS, KeptPages
from flakelog.console.pages import NotThere


@pytest.fixture
def pages():
    made = KeptPages()
    made.keep("key", "ann", 400, b"<p>no", now_ms=1_000)
    return made


def is_there(pages, key, session_id="ann", now_ms=1_000):
    try:
        return bool(pages.page(key, session_id, now_ms).html)
    except NotThere as error:
        return "is gone" not in str(error)


def test_a_page_is_shown_again_to_its_session_alone(pages):
    assert pages.page("key", "ann", now_ms=1_000)[2:] == (400, b"<p>no")
    assert is_there(pages, "key") and not is_there(pages, "key", "bob") and not is_there(pages, "other")


def test_a_page_is_gone_after_a_while(pages):
    assert is_there(pages, "key", now_ms=1_000 + KEPT_MS - 1) and not is_there(pages, "key", now_ms=1_000 + KEPT_MS)


def test_the_oldest_pages_make_room_for_new_ones(pages):
    for number in range(5):
        pages.keep(f"{number}", "ann", 200, bytes(KEPT_BYTES_MAX // 4), now_ms=2_000)
    assert [is_there(pages, key) for key in ("key", "0", "1", "4")] == [False, False, True, True]
    pages.keep("large", "ann", 200, bytes(KEPT_BYTES_MAX * 2), now_ms=2_000)
    assert is_there(pages, "large") and not is_there(pages, "4")
    pages.keep("next", "ann", 200, b"<p>", now_ms=2_000)
    assert is_there(pages, "next") and not is_there(pages, "large")
