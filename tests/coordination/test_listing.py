"""Lists of names in lines for people."""

import pytest

from coordination.listing import listed


@pytest.mark.parametrize(
    "names, text",
    [
        ("", ""),
        ("a", "a"),
        ("ab", "a, b"),
        ("abc", "a, b and 1 more"),
        ("a" * 2_002, "a, a and 2,000 more"),
    ],
)
def test_a_long_list_has_its_first_names_and_how_many_more_there_are(names, text):
    assert listed(names, 2) == text


def test_names_that_have_commas_are_separated_by_something_else():
    assert listed(["CN=a, O=b", "CN=c, O=d"], 2, "; ") == "CN=a, O=b; CN=c, O=d"
