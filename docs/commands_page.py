"""A hook of MkDocs: put the help of every command, and the table of exit codes, into docs/commands.md."""

import click

from flakelog.cli import COMMANDS, main
from flakelog.commands.exit_codes import EXIT_CODES

PAGE = "commands.md"
WIDTH = 100


def on_page_markdown(markdown, page, **_):
    if page.file.src_uri == PAGE:
        for place, text in (("<!-- commands -->", all_help()), ("<!-- exit codes -->", exit_codes())):
            assert place in markdown, f"{PAGE} has no {place}"
            markdown = markdown.replace(place, text)
    return markdown


def exit_codes():
    """Return the table of exit codes."""
    return "| code | meaning |\n|--:|---|\n" + "".join(f"| {code} | {text} |\n" for code, text in EXIT_CODES.items())


def all_help():
    """Return the help of each command, as --help prints it, under its name."""
    root = click.Context(main, info_name="flakelog", max_content_width=WIDTH, terminal_width=WIDTH)
    return "\n".join(help_of(root, main.get_command(root, name), name) for name in COMMANDS)


def help_of(parent, command, name):
    context = click.Context(command, parent=parent, info_name=name, terminal_width=WIDTH)
    if isinstance(command, click.Group):
        return "\n".join(help_of(context, each, each.name) for each in command.commands.values())
    text = "".join(f"    {line}\n" if line else "\n" for line in command.get_help(context).splitlines())
    return f"### {context.command_path}\n\n{text}"
