"""`flakelog completion`: scripts by which a shell completes commands, options, and the names of topics and groups."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from flakelog.commands.arguments import Name, TopicName
from flakelog.commands.command_config import given_security
from flakelog.commands.terminal import SERVERS
from flakelog.visible_text import visible

if TYPE_CHECKING:
    from broker.client.blocking import Client

ASK_MS = 1_000  # a person waits for the completion; without an answer there are no names
PLAIN_WORD = re.compile(r"[\w.][\w.:/@+,=-]*")  # that no shell expands, runs or splits, and that is no option
SHELLS = ("bash", "fish", "zsh")


class TopicType(TopicName):
    """A topic's name, which a shell completes."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return _complete(ctx, incomplete, lambda client: [topic.name for topic in client.topics()])


class GroupType(Name):
    """A consumer group's name, which a shell completes."""

    name = "group"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from flakelog.operations.groups import list_groups

        return _complete(ctx, incomplete, lambda client: [info.group_id for info in list_groups(client)])


def _complete(
    context: click.Context, incomplete: str, ask: "Callable[[Client], list[str]]"
) -> list[CompletionItem]:
    """Return the names that begin with `incomplete`; none if no broker answers, because a shell shows no error.

    Anyone may name a group `$(...)`, and shells insert a completion as it is. So only plain words are completed.
    """
    from broker.client.blocking import Client
    from broker.client.errors import ClientError

    servers: Any = context.params.get("servers") or SERVERS
    try:
        security = given_security(context)
        with Client(servers, timeout_ms=ASK_MS, connect_timeout_ms=ASK_MS, security=security) as client:
            names = ask(client)
    except (ClientError, ValueError):
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete) and is_plain_word(name)]


def is_plain_word(name: str) -> bool:
    """Return True if a shell takes a name as it is, as one word, and a terminal shows all of it."""
    return PLAIN_WORD.fullmatch(name) is not None and visible(name) == name


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print a script that makes SHELL complete commands, options, and the names of topics and groups.

    Names come from the broker of --servers or FLAKELOG_SERVERS, if one answers within a second. Names that a
    shell would run, expand or split are left out.

    \b
    bash: eval "$(flakelog completion bash)"   in ~/.bashrc
    zsh:  eval "$(flakelog completion zsh)"   in ~/.zshrc, after compinit
    fish: flakelog completion fish > ~/.config/fish/completions/flakelog.fish
    """
    made = get_completion_class(shell)
    assert made is not None, "click has bash, zsh and fish"
    root = click.get_current_context().find_root().command
    script = made(root, {}, "flakelog", "_FLAKELOG_COMPLETE").source()
    # click's script for fish cuts a description at its first comma.
    click.echo(script.replace('string split ","', 'string split -m 1 ","') if shell == "fish" else script)
