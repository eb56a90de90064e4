"""`flakelog group`: list, describe, reset and delete consumer groups."""

from typing import TYPE_CHECKING, Any

import click

from broker.client.offset_spec import OffsetSpec
from flakelog.commands.completion import GroupType
from flakelog.commands.start import move_options, name_at_end, print_move
from flakelog.commands.terminal import (
    client_of,
    confirm,
    count_of,
    json_option,
    print_json,
    print_line,
    print_none,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from flakelog.operations.groups import Group, GroupPosition, Member


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups."""


@group.command("list")
@servers_option
@json_option
def list_groups(servers: str, as_json: bool) -> None:
    """List the groups and their states."""
    from flakelog.operations import groups

    with client_of(servers) as client:
        listed = groups.list_groups(client)
        if not (listed or as_json):
            print_none(client, "groups")
    if as_json:
        for info in listed:
            print_json({"group": info.group_id, "state": info.state, "protocol_type": info.protocol_type})
    elif listed:
        rows = [(info.group_id, info.state, info.protocol_type) for info in listed]
        print_table(("GROUP", "STATE", "PROTOCOL"), rows)


@group.command()
@click.argument("name", type=GroupType())
@servers_option
@json_option
def describe(name: str, servers: str, as_json: bool) -> None:
    """Show the members of group NAME, and its committed offset and lag in each partition."""
    from flakelog.operations.groups import progress

    with client_of(servers) as client:
        described = progress(client, name)
    info, positions = described.group, described.positions
    if as_json:
        print_json(
            {"group": name, "state": info.state, "protocol": info.protocol, "members": _members(info)}
            | {"partitions": [_position(position) for position in positions]}
        )
        return
    head = f"{name}: {info.state}, {count_of(len(info.members), 'member')}, lag {described.lag:,}"
    if uncommitted := sum(at.committed is None for at in positions):
        head += f", nothing committed in {count_of(uncommitted, 'partition')}"
    if beyond := sum(at.is_beyond_end for at in positions):
        head += f", committed beyond the end of {count_of(beyond, 'partition')}"
    if unknown := sum(at.end is None for at in positions):
        head += f", end not known of {count_of(unknown, 'partition')}"
    print_line(head)
    if positions:
        print_table(
            ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "CLIENT", "HOST"),
            [
                (at.topic, at.partition, at.committed, at.end, at.lag, *_client(at.member))
                for at in positions
            ],
        )


def _position(position: "GroupPosition") -> dict[str, Any]:
    return {
        "topic": position.topic,
        "partition": position.partition,
        "committed": position.committed,
        "end": position.end,
        "lag": position.lag,
        "member": None if position.member is None else position.member.member_id,
    }


def _members(info: "Group") -> list[dict[str, Any]]:
    return [
        {
            "member": member.member_id,
            "client": member.client_id,
            "host": member.host,
            "partitions": list(member.partitions),
        }
        for member in info.members
    ]


def _client(member: "Member | None") -> tuple[str | None, str | None]:
    return (None, None) if member is None else (member.client_id, member.host)


@group.command("reset-offsets")
@click.argument("name", type=GroupType())
@move_options
@servers_option
@json_option
def reset_offsets(
    name: str,
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
    start: OffsetSpec,
    execute: bool,
    servers: str,
    as_json: bool,
) -> None:
    """Move group NAME to another PLACE: in all partitions it has committed, or in those named.

    With --execute the group must have no members. Without --execute the changes are only shown. An offset that a log
    does not have is refused.
    """
    from flakelog.operations import group_reset

    with client_of(servers) as client:
        reset = group_reset.plan_reset(client, name, start, topics, partitions)
        if execute:
            group_reset.carry_out(client, reset)
    print_move(reset.before, reset.after, as_json)
    name_at_end(reset.at_end)
    if not execute:
        members = count_of(len(reset.group.members), "member")
        stop = f"; stop its {members} first" if reset.group.members else ""
        click.echo(f"nothing is changed yet; --execute does it{stop}", err=True)


@group.command()
@click.argument("names", nargs=-1, required=True, type=GroupType(), metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def delete(names: tuple[str, ...], yes: bool, servers: str, as_json: bool) -> None:
    """Delete groups that have no members, with all their committed offsets."""
    from flakelog.operations import groups

    with client_of(servers) as client:
        for name in names:
            groups.check_deletable(client, name)
        if not yes:
            confirm(f"delete {', '.join(names)} with what they have committed?")
        for name in names:
            groups.delete_group(client, name)
            if as_json:
                print_json({"group": name, "deleted": True})
            else:
                print_line(f"deleted {name}")
