"""Names that strangers choose, such as group ids, steer no terminal: tables, questions and errors write escapes out."""

import click
import pytest
from click.testing import CliRunner

from flakelog.cli import main
from flakelog.commands.completion import is_plain_word
from flakelog.commands.terminal import confirm, print_line, print_table
from flakelog.visible_text import visible, visible_line

HOSTILE = "a\x1b[31mb\u202e\x9bc"
SHOWN = r"a\u{1b}[31mb\u{202e}\u{9b}c"


def test_hidden_characters_are_written_out():
    assert visible(f"{HOSTILE}\n\té") == f"{SHOWN}\n\té" and visible_line(f"{HOSTILE}\n\té") == rf"{SHOWN}\n é"


@pytest.mark.parametrize("show", [print_line, confirm, lambda text: print_table(["NAME"], [[text]])])
def test_lines_tables_and_questions_write_them_out(show):
    command = click.Command("show", callback=lambda: show(f"{HOSTILE}\n"))
    output = CliRunner().invoke(command, color=True, input="n\n").output
    assert rf"{SHOWN}\n" in output and not {"\x1b", "\x9b", "\u202e"} & set(output)


@pytest.mark.parametrize(
    "arguments", [("produce", "t", f"/no/{HOSTILE}"), ("topic", "list", "--servers", f"{HOSTILE}:x"), (HOSTILE,)]
)
def test_errors_write_them_out(arguments):
    output = CliRunner().invoke(main, arguments, color=True).output
    assert "Error: " in output and not {"\x1b", "\x9b", "\u202e"} & set(output)


@pytest.mark.parametrize("name", ["billing", "orders.v2", "größe_1", "a:b/c@d+e,f=g-h", ".hidden"])
def test_a_shell_completes_plain_names(name):
    assert is_plain_word(name)


@pytest.mark.parametrize(
    "name", ["$(reboot)", "a;b", "a b", "a\nb", "`id`", "~root", "--yes", "a*", "", "\u3164", HOSTILE]
)
def test_a_shell_completes_no_name_that_it_would_run_expand_or_split(name):
    assert not is_plain_word(name)
