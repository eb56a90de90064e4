"""Patterns of transactional ids: RE2's syntax, matched against the whole id in linear time.

https://github.com/google/re2/wiki/Syntax. Python's `re` is the reference for all patterns that mean the same in both.
"""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.txn.id_pattern import PROGRAM_MAX, BadPattern, IdPattern, TooMuchWork

STEPS = 100_000


def matches(pattern, text):
    return IdPattern(pattern, STEPS).matches(text)


TEXTS = [
    "", "a", "b", "ab", "abc", "aab", "abab", "payments-1", "payments-42", "Payments-1", "a.b", "x\ny", "é", "a]", "-",
]  # fmt: skip
SAME_IN_PYTHON = [
    "", "a", "ab", "a*", "a+b", "a?b?", "(ab)+", "(?:ab)*", "a|b", "a|", "(a|b)*c", "payments-[0-9]+",
    r"payments-\d{1,2}", "payments-.*", "[^a]", "[a-c]+", r"[\w.]+", r"\D+", r"\S*", ".*", "^ab$", r"\Aab",
    "(?i)PAYMENTS-1", "(?i:P)ayments-1",
    "a{2}b", "a{2,}b", "(ab){0,1}", "(?s)x.y", "x.y", r"a\.b", "[]a]+", r"[a\]]+", "[a-]*", "-", r"\x61b", "é",
    "(?P<name>a)b", "a*?b", "a+?", "[^\n]*", "^$", "(a*)*", "(a|a)*b", "((a)(b))?", r"[\d-]*",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SAME_IN_PYTHON)
def test_what_a_pattern_matches(pattern):
    matched = {text for text in TEXTS if matches(pattern, text)}
    assert matched == {text for text in TEXTS if re.fullmatch(pattern, text, re.ASCII)}


@pytest.mark.parametrize(
    "pattern, text",
    [
        (r"a\z", "a"),
        (r"\Qa.b\E+", "a.bb"),
        (r"\Qa.b", "a.b"),
        (r"[[:alpha:]]+[[:digit:]]", "ab1"),
        (r"[[:^digit:]]+", "ab"),
        (r"[^[:digit:]a]", "b"),
        (r"[\D]", "x"),
        (r"\x{e9}", "é"),
        (r"\141", "a"),
        (r"(?<name>a)", "a"),
        (r"(?i)É", "é"),
        (r"(?U)a+", "aa"),
        (r"(?is-s:A.)c", "abc"),
        ("a{,2}", "a{,2}"),
        ("a{x", "a{x"),
        (r"\a\f\t\n\r\v", "\a\f\t\n\r\v"),
    ],
)
def test_what_only_re2_writes_so(pattern, text):
    assert matches(pattern, text) and not matches(pattern, text + "\n7?")


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "a)", "[", "[a", "[b-a]", "*", "a**", "a{2}{3}", "a{1001}", "a{3,2}", "a{99999}", "(?a)b", "(?m)^a",
        "(?=a)", "(?!a)", "(?<=a)", r"(a)\1", r"\b", r"\B", r"\pL", r"\C", r"\Z", "\\", r"\x", r"\xzz", r"\x{110000}",
        "[[:none:]]", "[z-[:alpha:]]", "(?P<a", "(?P<1>a)", "a|*", "(" * 101 + ")" * 101,
    ],
)  # fmt: skip
def test_what_is_no_pattern_or_not_served_is_refused_by_what_is_wrong(pattern):
    with pytest.raises(BadPattern) as refused:
        IdPattern(pattern, STEPS)
    assert "at character" in str(refused.value)


def test_a_program_that_would_grow_too_large_is_refused():
    with pytest.raises(BadPattern, match="too large"):
        IdPattern("(a{1000}){1000}", STEPS)
    assert matches(f"a{{{PROGRAM_MAX // 4}}}", "a" * (PROGRAM_MAX // 4))


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(.*)(.*)(.*)(.*)(.*)(.*)b", "(a+)+b"])
def test_what_keeps_a_backtracking_matcher_busy_for_ever_takes_few_steps(pattern):
    assert not matches(pattern, "a" * 5_000)


def test_all_texts_together_have_so_many_steps():
    pattern = IdPattern("(x+x+)+y", 1_000)
    assert [pattern.matches("x" * 100) for _ in range(5)] == [False] * 5
    with pytest.raises(TooMuchWork):
        for _ in range(10):
            pattern.matches("x" * 100)


def test_a_wide_state_costs_what_it_is_wide():
    pattern = IdPattern("(.*1.{300})*", STEPS)
    with pytest.raises(TooMuchWork):
        pattern.matches(bin(3**5_000)[2:])


LETTERS = st.sampled_from("abc")
PATTERNS = st.recursive(
    LETTERS | st.sampled_from([".", "[ab]", "[^a]", "^", "$", ""]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}", "{2}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.text("abc", max_size=8))
def test_any_pattern_matches_what_pythons_own_does(pattern, text):
    assert matches(pattern, text) == bool(re.fullmatch(pattern, text))
