"""`flakelog mirror`: copy topics into another cluster; list mirrors, pause and resume them."""

import time
from typing import Any

import click

from flakelog.commands.mirror_run import run
from flakelog.commands.terminal import client_of, json_option, print_json, print_line, print_table, servers_option

FIGURES = ("state", "records", "records_per_s", "lag", "errors")


class MirrorGroup(click.Group):
    """The commands of mirrors. `run` may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=MirrorGroup)
def mirror() -> None:
    """Copy topics into another cluster; list the mirrors that do, pause and resume them.

    `flakelog mirror --from SERVERS --to SERVERS --all` is short for `flakelog mirror run ...`.
    """


mirror.add_command(run)


@mirror.command("list")
@servers_option
@json_option
def list_mirrors(servers: str, as_json: bool) -> None:
    """List the mirrors that copy into a cluster now, a row for each process and source."""
    from flakelog.operations import mirrors

    with client_of(servers) as client:
        documents = mirrors.list_mirrors(client, _now_ms())
    if as_json:
        for document in documents:
            print_json(document)
    elif documents:
        rows = [
            [document.get("name"), document.get("from"), *(document.get(name) for name in FIGURES), _process(document)]
            for document in documents
        ]
        print_table(["MIRROR", "FROM", "STATE", "RECORDS", "PER SECOND", "LAG", "ERRORS", "PROCESS"], rows)
    else:
        click.echo("no mirror copies into this cluster now")


@mirror.command()
@click.argument("name")
@servers_option
@json_option
def pause(name: str, servers: str, as_json: bool) -> None:
    """Let the mirror NAME copy nothing more until `resume`, also after it was killed and started again.

    All its processes pause within two seconds. --servers is the target.
    """
    from broker.client.mirror.figures import PAUSED

    _set_state(name, servers, PAUSED, as_json)


@mirror.command()
@click.argument("name")
@servers_option
@json_option
def resume(name: str, servers: str, as_json: bool) -> None:
    """Let the mirror NAME go on where it was paused. --servers is the target."""
    from broker.client.mirror.figures import RUNNING

    _set_state(name, servers, RUNNING, as_json)


def _set_state(name: str, servers: str, state: str, as_json: bool) -> None:
    from flakelog.operations import mirrors

    with client_of(servers) as client:
        mirrors.set_state(client, name, state, _now_ms())
    if as_json:
        print_json({"name": name, "state": state})
    else:
        print_line(f"the mirror {name} is {state}")


def _process(document: dict[str, Any]) -> str:
    return f"{document.get('host')}:{document.get('pid')}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
