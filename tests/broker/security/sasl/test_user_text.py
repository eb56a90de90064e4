"""Names and messages of others in lines of the log and in errors: short, visible, and cut between words."""

from broker.security.sasl.user_text import MESSAGE_CHARACTERS_MAX, NAME_CHARACTERS_MAX, quoted, quoted_message


def test_a_name_is_in_quotes_and_cannot_begin_another_line():
    assert quoted("eve\nroot logs in \x1b[0m") == r"'eve\nroot logs in \x1b[0m'"


def test_a_long_name_is_cut_where_the_limit_is():
    name = "x" * NAME_CHARACTERS_MAX
    assert quoted(name) == f"'{name}'" and quoted(name + "y") == f"'{name}'..."


def test_a_long_text_is_cut_between_words():
    assert quoted("tell " * 30) == repr("tell " * 19 + "tell") + "..."
    word = "w" * MESSAGE_CHARACTERS_MAX
    assert quoted_message(f"a {word}") == f"'a {word[:-2]}'..."  # a word alone would be shown without its half


def test_a_message_that_ends_a_word_at_the_limit_keeps_that_word():
    exact = "refused: " + "w" * (MESSAGE_CHARACTERS_MAX - len("refused: "))
    assert quoted_message(exact) == repr(exact) and quoted_message(exact + " again") == f"{exact!r}..."
