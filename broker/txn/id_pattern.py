r"""Regular expressions over transactional ids, in RE2's syntax and in linear time (KIP-1152).

Python's `re` backtracks: a pattern of ten characters can block it, and the broker, for hours. This matcher follows all
alternatives at once, as RE2 does (https://swtch.com/~rsc/regexp/regexp1.html). It compiles the pattern to a program; a
state is the set of instructions in the program that the text read so far can lead to. The matcher caches the transition
of each state and character, so most characters of most ids cost one table look-up.

A pattern must match the whole id. RE2's features that are useless for ids are refused by name: word boundaries (\b),
Unicode classes (\p), multi-line mode (?m). The size of the program and the number of steps are limited, because RE2
guarantees time linear in the text, but not a small factor.
"""

from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

PROGRAM_MAX = 2_000  # instructions; x{3} takes three times as many as x
REPEAT_MAX = 1_000  # as in RE2
DEPTH_MAX = 100  # nested groups
REMEMBERED_MAX = 10_000

_DIGIT, _SPACE = (("0", "9"),), (("\t", "\n"), ("\f", "\r"), (" ", " "))
_LOWER, _UPPER = (("a", "z"),), (("A", "Z"),)
_ALNUM = _DIGIT + _UPPER + _LOWER
_WORD = (*_ALNUM, ("_", "_"))
_PERL = {"d": _DIGIT, "s": _SPACE, "w": _WORD}
_CONTROL = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_POSIX = {
    "alnum": _ALNUM,
    "alpha": _UPPER + _LOWER,
    "ascii": (("\0", "\x7f"),),
    "blank": (("\t", "\t"), (" ", " ")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": _DIGIT,
    "graph": (("!", "~"),),
    "lower": _LOWER,
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (("\t", "\r"), (" ", " ")),
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": (*_DIGIT, ("A", "F"), ("a", "f")),
}
_LAST = chr(0x10FFFF)

Ranges: TypeAlias = tuple[tuple[str, str], ...]


class BadPattern(ValueError):
    """An invalid pattern, or an unsupported feature; the message names the place."""


class TooMuchWork(Exception):
    """The allowed number of steps is used up."""


class _Set(NamedTuple):
    """A character class: matches one character in the ranges, or one outside them if `negated`."""

    ranges: Ranges
    negated: bool
    folded: bool

    def has(self, char: str) -> bool:
        same = {char, char.lower(), char.upper()} if self.folded else (char,)
        return any(low <= code <= high for code in same for low, high in self.ranges) != self.negated


class _Repeat(NamedTuple):
    node: "Node"
    least: int
    most: int | None


class _Sequence(NamedTuple):
    nodes: "list[Node]"


class _Either(NamedTuple):
    nodes: "list[Node]"


class _Begin(NamedTuple):
    """The beginning of the text."""


class _End(NamedTuple):
    """The end of the text."""


Node: TypeAlias = _Set | _Repeat | _Sequence | _Either | _Begin | _End


class IdPattern:
    """A compiled pattern. Raises BadPattern if it is invalid.

    `steps_max` limits the steps for all texts together. Any step beyond it raises TooMuchWork.
    """

    def __init__(self, pattern: str, steps_max: int) -> None:
        self._program = _Program()
        start = self._program.add(_Parser(pattern).parse(), self._program.matched)
        self._steps_left = steps_max
        self._following: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._start = self._reach((start,), at_begin=True)

    def matches(self, text: str) -> bool:
        """Return True if the pattern matches the whole text."""
        self._spend(len(text))
        state = self._start
        for char in text:
            following = self._following.get((state, char))
            if following is None:
                following = self._follow(state, char)
            if not following:
                return False
            state = following
        return self._program.matched in self._reach(state, at_begin=not text, at_end=True)

    def _follow(self, state: frozenset[int], char: str) -> frozenset[int]:
        sets, targets = self._program.sets, self._program.targets
        self._spend(len(state))
        following = self._reach([targets[at][0] for at in state if at in sets and sets[at].has(char)])
        if len(self._following) >= REMEMBERED_MAX:
            self._following.clear()
        self._following[state, char] = following
        return following

    def _reach(self, instructions: Iterable[int], at_begin: bool = False, at_end: bool = False) -> frozenset[int]:
        """Return the instructions reachable from `instructions` without reading a character.

        Splits are followed, begins if `at_begin`, ends if `at_end`. The result has no splits and no begins.
        """
        program, seen, todo = self._program, set[int](), list(instructions)
        while todo:
            at = todo.pop()
            if at in seen:
                continue
            seen.add(at)
            if at in program.splits or (at in program.begins and at_begin) or (at in program.ends and at_end):
                todo += program.targets[at]
        self._spend(len(seen))
        return frozenset(seen - program.splits - program.begins)

    def _spend(self, steps: int) -> None:
        self._steps_left -= steps
        if self._steps_left < 0:
            raise TooMuchWork("the pattern takes too many steps")


class _Program:
    """A compiled pattern: numbered instructions, each with the instructions it leads to."""

    def __init__(self) -> None:
        self.targets: list[list[int]] = []
        self.sets: dict[int, _Set] = {}
        self.splits: set[int] = set()
        self.begins: set[int] = set()
        self.ends: set[int] = set()
        self.matched = self._add_instruction([])

    def _add_instruction(self, targets: list[int]) -> int:
        if len(self.targets) >= PROGRAM_MAX:
            raise BadPattern("the pattern is too large")
        self.targets.append(targets)
        return len(self.targets) - 1

    def add(self, node: Node, then: int) -> int:
        """Add a node that leads to the instruction `then`; return the node's first instruction."""
        if isinstance(node, _Sequence):
            for part in reversed(node.nodes):
                then = self.add(part, then)
            return then
        if isinstance(node, _Repeat):
            return self._add_repeat(node, then)
        if isinstance(node, _Either):
            return self._split([self.add(part, then) for part in node.nodes])
        at = self._add_instruction([then])
        if isinstance(node, _Set):
            self.sets[at] = node
        else:
            (self.begins if isinstance(node, _Begin) else self.ends).add(at)
        return at

    def _split(self, targets: list[int]) -> int:
        at = self._add_instruction(targets)
        self.splits.add(at)
        return at

    def _add_repeat(self, repeat: _Repeat, then: int) -> int:
        at = then
        if repeat.most is None:
            at = self._split([then])
            self.targets[at].append(self.add(repeat.node, at))
        else:
            for _ in range(repeat.most - repeat.least):
                at = self._split([self.add(repeat.node, at), then])
        for _ in range(repeat.least):
            at = self.add(repeat.node, at)
        return at


# --- the syntax ------------------------------------------------------------------------------------------------------


class _Flags(NamedTuple):
    folded: bool = False
    dot_is_all: bool = False


class _Parser:
    """A parser of RE2's syntax (https://github.com/google/re2/wiki/Syntax)."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0
        self._flags = _Flags()

    def parse(self) -> Node:
        node = self._either()
        if self._at < len(self._pattern):
            raise self._bad("a ) that nothing opens")
        return node

    def _bad(self, flaw: str) -> BadPattern:
        return BadPattern(f"{flaw}, at character {self._at} of {self._pattern!r}")

    def _peek(self, text: str) -> bool:
        return self._pattern.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        if not self._peek(text):
            return False
        self._at += len(text)
        return True

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise self._bad("it ends too soon")
        self._at += 1
        return self._pattern[self._at - 1]

    def _either(self) -> Node:
        nodes = [self._sequence()]
        while self._take("|"):
            nodes.append(self._sequence())
        return nodes[0] if len(nodes) == 1 else _Either(nodes)

    def _sequence(self) -> Node:
        nodes: list[Node] = []
        while self._at < len(self._pattern) and not self._peek("|") and not self._peek(")"):
            if self._take(r"\Q"):
                end = self._pattern.find(r"\E", self._at)
                end = len(self._pattern) if end < 0 else end
                nodes += [self._of(char) for char in self._pattern[self._at : end]]
                self._at = min(end + 2, len(self._pattern))
                if not nodes:
                    continue
                node: Node = nodes.pop()
            else:
                node = self._one()
            nodes.append(self._repeated(node))
        return _Sequence(nodes)

    def _repeated(self, node: Node) -> Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        self._take("?")  # non-greedy: it makes no difference when the whole text must match
        if self._bounds() is not None:
            raise self._bad("a repetition of a repetition")
        least, most = bounds
        if max(least, most or 0) > REPEAT_MAX or (most is not None and most < least):
            raise self._bad(f"a repetition has 0 to {REPEAT_MAX} times, the smaller number first")
        return _Repeat(node, least, most)

    def _bounds(self) -> tuple[int, int | None] | None:
        """Return the (least, most) times of a repetition, or None if none follows: a { may be a plain character."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        end = self._pattern.find("}", self._at)
        if not self._peek("{") or end < 0:
            return None
        least, comma, most = self._pattern[self._at + 1 : end].partition(",")
        if not _is_number(least) or not (_is_number(most) or (most == "" and len(least) > 0)):
            return None
        self._at = end + 1
        return int(least), int(most) if most else None if comma else int(least)

    def _one(self) -> Node:
        char = self._next()
        if char == "(":
            return self._group()
        if char == "[":
            return self._class()
        if char == ".":
            return _Set((), True, False) if self._flags.dot_is_all else _Set((("\n", "\n"),), True, False)
        if char == "^":
            return _Begin()
        if char == "$":
            return _End()
        if char in "*+?":
            raise self._bad("a repetition of nothing")
        return self._escaped() if char == "\\" else self._of(char)

    def _of(self, char: str) -> _Set:
        return _Set(((char, char),), False, self._flags.folded)

    def _group(self) -> Node:
        before = self._flags
        if self._take("?") and not self._named():
            self._flags = self._new_flags()
            if self._take(")"):
                return _Sequence([])  # the flags apply to the rest of the enclosing group
            if not self._take(":"):
                raise self._bad("there is no such group")
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._bad("groups in too many groups")
        node = self._either()
        self._depth -= 1
        if not self._take(")"):
            raise self._bad("a ( that nothing closes")
        self._flags = before
        return node

    def _named(self) -> bool:
        if not self._take("P<") and not self._take("<"):
            return False
        name, sign, _ = self._pattern[self._at :].partition(">")
        if not sign or not name.isidentifier():
            raise self._bad("a group's name is one of letters, digits and _")
        self._at += len(name) + 1
        return True

    def _new_flags(self) -> _Flags:
        flags, on = self._flags, True
        while not self._peek(")") and not self._peek(":"):
            char = self._next()
            if char == "-" and on:
                on = False
            elif char == "i":
                flags = flags._replace(folded=on)
            elif char == "s":
                flags = flags._replace(dot_is_all=on)
            elif char != "U":  # non-greedy: see `_repeated`
                raise self._bad(f"(?{char}) is not served")
        return flags

    def _escaped(self) -> Node:
        if self._take("A"):
            return _Begin()
        if self._take("z"):
            return _End()
        perl = self._perl()
        return self._of(self._escape()) if perl is None else perl

    def _perl(self) -> _Set | None:
        char = self._pattern[self._at : self._at + 1]
        if char.lower() not in _PERL:
            return None
        self._at += 1
        return _Set(_PERL[char.lower()], char.isupper(), False)

    def _escape(self) -> str:
        """Return the character of an escape sequence, whose backslash was read."""
        char = self._next()
        if char in _CONTROL:
            return _CONTROL[char]
        if char == "x":
            return self._hexadecimal()
        if char in "01234567":
            return self._octal(char)
        if not char.isascii() or char.isalnum():
            raise self._bad(rf"\{char} is not served")
        return char

    def _hexadecimal(self) -> str:
        if self._take("{"):
            digits, sign, _ = self._pattern[self._at :].partition("}")
            self._at += len(digits) + len(sign)
        else:
            digits = self._next() + self._next()
        try:
            return chr(int(digits, 16))
        except (ValueError, OverflowError):
            raise self._bad(f"{digits} is no character in hexadecimal") from None

    def _octal(self, first: str) -> str:
        following = self._pattern[self._at : self._at + 2]
        more = following[: len(following) - len(following.lstrip("01234567"))]
        if first != "0" and not more:
            raise self._bad("what a group has matched cannot be asked for again")
        self._at += len(more)
        return chr(int(first + more, 8))

    def _class(self) -> Node:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._take("]"):
            first = False
            ranges += self._in_class()
        return _Set(tuple(ranges), negated, self._flags.folded)

    def _in_class(self) -> Iterable[tuple[str, str]]:
        if self._take("[:"):
            name, sign, _ = self._pattern[self._at :].partition(":]")
            ranges = _POSIX.get(name.removeprefix("^"))
            if not sign or ranges is None:
                raise self._bad("there is no such class")
            self._at += len(name) + 2
            return _others(ranges) if name.startswith("^") else ranges
        low = self._next()
        if low == "\\":
            perl = self._perl()
            if perl is not None:
                return _others(perl.ranges) if perl.negated else perl.ranges
            low = self._escape()
        if not self._peek("-") or self._peek("-]"):
            return [(low, low)]
        self._at += 1
        high = self._next()
        high = self._escape() if high == "\\" else high
        if high < low:
            raise self._bad(f"{low}-{high} goes backwards")
        return [(low, high)]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def _others(ranges: Ranges) -> Ranges:
    """Return the ranges of all other characters."""
    others, begin = [], "\0"
    for low, high in sorted(ranges):
        if begin < low:
            others.append((begin, chr(ord(low) - 1)))
        begin = chr(ord(high) + 1)
    return (*others, (begin, _LAST))
