"""Public names in their old spellings: each is a TypeError that names the new one.

tests/broker/client/test_wrong_arguments.py has those of the clients, producers and consumers.
"""

import pytest

from flakelog.admin import Admin
from spout.run import BackgroundRun

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("call", "right"),
    [
        (lambda: Admin(NOBODY, timeout=30.0), r"Admin\(\) takes no `timeout` any more: give timeout_ms="),
        (lambda: Admin(NOBODY, 30.0), r"Admin\(\) takes no `timeout` any more: give timeout_ms="),
        (lambda: BackgroundRun.wait(None, 1.0), r"BackgroundRun\.wait\(\) .* give timeout_ms="),
        (lambda: BackgroundRun.snapshot(None, timeout=1.0), r"BackgroundRun\.snapshot\(\) .* give timeout_ms="),
    ],
)
def test_an_old_spelling_names_the_new_one(call, right):
    with pytest.raises(TypeError, match=right):
        call()
