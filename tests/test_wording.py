"""Docstrings, comments and names say what they are about; phrases and words that readers stumbled over are refused."""

import ast
import io
import re
import tokenize

import pytest

from tests.test_tidy import PACKAGES, ROOT, name_of, sources

LISTED_MAX = 0.03  # of a package's docstrings and comments: a phrase may be clear where it stands

# A clause or a pronoun in place of a noun, an inverted order, a double negative. Each hides what the sentence is about.
PHRASES = (
    r"(?:^|[.;:] |\b(?:for|to|of|by|from|with|than|and|or|but) )[Ww]ho(?:ever)? \w+",  # "who asks waits"
    r"\b(?:[Ww]hom|[Nn]obody|[Ee]verybody|[Ss]omebody|[Aa]nybody)\b",
    r"(?:^|[.;:] )(?:What|That|Of|Those|As|One) ",
    r"\bwhat (?:is|was|are|were|has|had|came|comes|of|stands|goes) ",
    r"\bso (?:many|much|often|late|long)\b(?! (?:as|that))",
    r"\b(?:some at a time|once more|any more|by itself|by themselves|to be had|at hand)\b",
    r"\b(?:is|are) told\b|\bis gone\b|\bgone on\b|\bgoes? on\b",
    r"\b(?:long|short) way\b|\bthe like\b|\bthe other way round\b",
    r"\b(?:there|that) (?:is|are|was|were) none\b|\bwhere there (?:is|are)\b",
    r"\bno(?:ne|t)? but\b|\bbut for\b|\b(?:would|must) else\b|\belse (?:it|they|the|a|an|what|none)\b",
    r"\bit was(?: \w+)? then\b|\bthen\.$|\bof (?:its|their|our) own\b",
)
UNCLEAR = re.compile("|".join(f"(?:{phrase})" for phrase in PHRASES), re.MULTILINE)


def texts_of(source):
    """(line, text) of each docstring, each string under an attribute, and each comment."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else ():
            value = getattr(item, "value", None)
            if isinstance(item, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield item.lineno, value.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks", "examples", "tests"])
def test_sentences_name_their_subject(package):
    read, listed = 0, []
    for path in sources(package):
        for line, text in texts_of(path.read_text()):
            read += 1
            if match := UNCLEAR.search(text):
                shown = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
                listed.append(f"{name_of(path)}:{line}: {shown}")
    assert len(listed) <= LISTED_MAX * read, "\n".join([f"{len(listed)} of {read} texts:", *listed])


@pytest.mark.parametrize(
    "text", ["Who asks waits.", "What is left goes out.", "Nobody waits for it.", "The short way of requests."]
)
def test_a_sentence_without_a_subject_is_found(text):
    assert UNCLEAR.search(text)


@pytest.mark.parametrize("text", ["Return the offset after the last record.", "The client waits for its turn."])
def test_a_sentence_with_a_subject_is_not(text):
    assert not UNCLEAR.search(text)


def test_the_files_that_are_read_exist():
    assert (ROOT / "broker").is_dir() and sources("broker")


# --- names -----------------------------------------------------------------------------------------------------------

PRIVATE_TONGUE = frozenset(
    "each found said told place places judge judged look starve put_aside came_back way_on".split()
)
"""Names that hide what they hold: `partition`, `offsets`, `reason` or `validate` say it."""
PUBLIC_NAMES = {"place": "a user's word: the topic, partition and offset of a message (MessagePlace)"}


ONE_MEANING = frozenset(
    "Coordinator Exchange PartitionFigures Record Refused Run Source Span State Subscription".split()
)
"""Words so general that several classes took each of them; docs/glossary.md says what the one that has it is."""


def bound_names(source):
    """(line, name) of each variable, parameter, attribute, function and class that the source binds."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id if isinstance(node, ast.Name) else node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def hides(name):
    return name.strip("_").lower() in PRIVATE_TONGUE


@pytest.mark.parametrize("package", [*PACKAGES, "benchmarks", "examples"])
def test_a_name_says_which_thing_it_is(package):
    listed = [
        f"{name_of(path)}:{line}: {name}"
        for path in sources(package)
        for line, name in bound_names(path.read_text())
        if hides(name) and name not in PUBLIC_NAMES
    ]
    assert not listed, "\n".join(listed)


def test_a_name_that_hides_its_thing_is_found_wherever_it_is_bound():
    source = "class Judged:\n    def look(self, said):\n        self._told = [each for each in said]\n"
    assert [name for _, name in bound_names(source) if hides(name)] == ["Judged", "look", "said", "_told", "each"]


GENERAL_CLASS = re.compile(rf"^\s*class ({'|'.join(sorted(ONE_MEANING))})\b", re.MULTILINE)


def general_classes():
    """(word, file) of each class that has a general word for its name."""
    return [
        (word, name_of(path))
        for package in PACKAGES
        for path in sources(package)
        for word in GENERAL_CLASS.findall(path.read_text())
    ]


def test_a_general_word_names_one_class_at_most():
    classes = general_classes()
    words = [word for word, _ in classes]
    assert not [(word, path) for word, path in classes if words.count(word) > 1]


def test_the_glossary_says_what_a_general_word_means():
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    assert not [word for word, _ in general_classes() if f"(`{word}`)" not in glossary]
