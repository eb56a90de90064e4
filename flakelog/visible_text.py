"""Text for people: numbers with their nouns, and names of strangers, such as group ids, in which nothing is hidden."""

import re

# Controls but tab and line feed, format characters, lone surrogates.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def visible(text: str) -> str:
    """Return a text whose hidden characters are written as \\u{...}."""
    return _HIDDEN.sub(lambda match: f"\\u{{{ord(match[0]):x}}}", text)


def visible_line(text: str) -> str:
    """Return a text as one line, in which nothing is hidden."""
    return visible(text).replace("\n", "\\n").replace("\t", " ")


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, as in "1 message" or "2,000 messages"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
