"""The user of a client's certificate: `ssl.principal.mapping.rules` (KIP-371), and the name without a rule.

    RULE:pattern/replacement/[LU]   a name that the pattern matches as a whole becomes the replacement, in lower (L) or
                                    upper (U) case
    DEFAULT                         the distinguished name as it is (RFC 2253)

The first rule that matches counts. Patterns are Java's; those that Python reads in the same way are accepted.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

ANONYMOUS = "ANONYMOUS"
"""Kafka's name for the user of a connection that has proved nothing."""
_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)|(DEFAULT)")
_GROUP = re.compile(r"\$(\d)|\\(.)")
_CASES: dict[str, Callable[[str], str]] = {"": str, "L": str.lower, "U": str.upper}


class Rule(NamedTuple):
    """A rule; without a pattern it is DEFAULT."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """Return the name that the rule makes of a distinguished name, None if it does not match."""
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None

        def text_of(part: "re.Match[str]") -> str:
            return (match[int(part[1])] or "") if part[1] else part[2]

        return _CASES[self.case](_GROUP.sub(text_of, self.replacement))


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Parse "RULE:pattern/replacement/,...,DEFAULT". Raise ValueError, which gives the right form."""
    rules, at = [], 0
    text = text.strip() or "DEFAULT"
    while at < len(text):
        match = _RULE.match(text, at)
        end = at if match is None else match.end()
        if match is None or (end < len(text) and text[end] != ","):
            raise ValueError(f"{text[at:]!r}: must be RULE:pattern/replacement/ with L or U behind it, or DEFAULT")
        rules.append(Rule(None) if match[4] else _rule(match[1], match[2], match[3]))
        at = end + 1 + len(text[end + 1 :]) - len(text[end + 1 :].lstrip())
    return tuple(rules)


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        compiled = re.compile(pattern.replace("\\/", "/"))
    except re.error as error:
        raise ValueError(f"RULE:{pattern}/ is no pattern: {error}") from None
    groups = [int(group[1]) for group in _GROUP.finditer(replacement) if group[1]]
    if max(groups, default=0) > compiled.groups:
        raise ValueError(f"RULE:{pattern}/{replacement}/ names group {max(groups)}; the pattern has {compiled.groups}")
    return Rule(compiled, replacement, case)


def user_of(distinguished_name: str, rules: tuple[Rule, ...]) -> str | None:
    """Return the user that a certificate's subject stands for, None if no rule matches it."""
    return next((user for rule in rules if (user := rule.apply(distinguished_name)) is not None), None)
