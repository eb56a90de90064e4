"""docs/commands.md, and rules that hold for every command."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from flakelog.cli import COMMANDS, main
from flakelog.commands.exit_codes import EXIT_CODES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "commands.md"
CONTEXT = click.Context(main, info_name="flakelog")
# Commands that ask no server, and those whose own work is to run on.
WITHOUT_TIMEOUT = {
    "spout run", "spout storm", "id decode", "id range", "completion", "check", "settings", "compat", "demo",
    "mirror run",
}  # fmt: skip
WITHOUT_JSON = {"spout run", "spout storm", "spout progress export", "completion", "demo"}  # export prints only JSON


def leaves(command, path):
    if isinstance(command, click.Group):
        for name, subcommand in command.commands.items():
            yield from leaves(subcommand, (*path, name))
    else:
        yield path, command


ALL = {
    " ".join(path): command
    for name in COMMANDS
    for path, command in leaves(main.get_command(CONTEXT, name), (name,))
}


def options_of(command):
    return {text for param in command.params for text in (*param.opts, *param.secondary_opts)}


@pytest.mark.parametrize("name", ALL)
def test_every_command_has_a_time_limit_json_and_its_exit_codes(name):
    options = options_of(ALL[name])
    assert "--timeout" in options or name in WITHOUT_TIMEOUT
    assert "--json" in options or name in WITHOUT_JSON
    shown = CliRunner().invoke(main, [*name.split(), "--help"]).output
    assert "Exit codes:" in shown


def test_the_help_of_all_lists_every_exit_code():
    shown = CliRunner().invoke(main, ["--help"]).output
    assert all(f"{code} {text}" in shown for code, text in EXIT_CODES.items())


def test_the_page_names_commands_and_options_that_there_are():
    """The first words after `flakelog` are a command, and each word that begins with - is its option."""
    named = re.findall(r"`flakelog ([a-z][^`]*)`", PAGE.read_text())
    assert len(named) > 20
    for text in named:
        longest_first = sorted(ALL, key=len, reverse=True)
        name = next((command for command in longest_first if f"{text} ".startswith(f"{command} ")), None)
        assert name is not None, f"flakelog {text}"
        given = {word for word in text.removeprefix(name).split() if re.fullmatch("-[a-zA-Z]|--[a-z-]+", word)}
        assert given <= options_of(ALL[name]), f"flakelog {text}"
