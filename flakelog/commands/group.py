"""`flakelog group`: list, describe, reset and delete consumer groups."""

from typing import TYPE_CHECKING, Any, NamedTuple

import click

from broker.client.offset_spec import OffsetSpec
from flakelog.commands.completion import GroupType
from flakelog.commands.exit_codes import fail
from flakelog.commands.start import find_starts, move_options
from flakelog.commands.terminal import (
    client_of,
    confirm,
    count_of,
    json_option,
    print_json,
    print_line,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from broker.client.admin import Group, Member
    from broker.client.blocking import Client
    from broker.client.group_protocol import Partition


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups."""


@group.command("list")
@servers_option
@json_option
def list_groups(servers: str, as_json: bool) -> None:
    """List the groups and their states."""
    from broker.client import admin

    with client_of(servers) as client:
        groups = client.run(admin.list_groups(client.core))
    if as_json:
        for each in groups:
            print_json({"group": each.group_id, "state": each.state, "protocol_type": each.protocol_type})
    elif groups:
        rows = [(each.group_id, each.state, each.protocol_type) for each in groups]
        print_table(("GROUP", "STATE", "PROTOCOL"), rows)
    else:
        click.echo("there are no groups", err=True)


class _Place(NamedTuple):
    """A group's position in a partition; `lag` is the number of offsets not committed yet."""

    topic: str
    partition: int
    committed: int | None
    end: int | None
    member: "Member | None"

    @property
    def lag(self) -> int | None:
        return None if self.committed is None or self.end is None else max(self.end - self.committed, 0)

    def to_json(self) -> dict[str, Any]:
        member = None if self.member is None else self.member.member_id
        place = {"topic": self.topic, "partition": self.partition, "committed": self.committed, "end": self.end}
        return place | {"lag": self.lag, "member": member}


@group.command()
@click.argument("name", type=GroupType())
@servers_option
@json_option
def describe(name: str, servers: str, as_json: bool) -> None:
    """Show the members of group NAME, and its committed offset and lag in each partition."""
    from flakelog.operations.partitions import ends_of

    with client_of(servers) as client:
        described, offsets = _known(client, name)
        owners = {partition: member for member in described.members for partition in member.partitions}
        wanted = sorted(offsets.keys() | owners.keys())
        ends = ends_of(client, wanted)
    places = [_Place(*each, offsets.get(each), ends.get(each), owners.get(each)) for each in wanted]
    if as_json:
        print_json(
            {"group": name, "state": described.state, "protocol": described.protocol, "members": _members(described)}
            | {"partitions": [each.to_json() for each in places]}
        )
        return
    lag = sum(each.lag or 0 for each in places)
    print_line(f"{name}: {described.state}, {count_of(len(described.members), 'member')}, lag {lag:,}")
    if places:
        print_table(
            ("TOPIC", "PARTITION", "COMMITTED", "END", "LAG", "CLIENT", "HOST"),
            [
                (each.topic, each.partition, each.committed, each.end, each.lag, *_client(each.member))
                for each in places
            ],
        )


def _members(described: "Group") -> list[dict[str, Any]]:
    return [
        {"member": each.member_id, "client": each.client_id, "host": each.host, "partitions": list(each.partitions)}
        for each in described.members
    ]


def _client(member: "Member | None") -> tuple[str | None, str | None]:
    return (None, None) if member is None else (member.client_id, member.host)


def _known(client: "Client", name: str) -> "tuple[Group, dict[Partition, int]]":
    """Return the group and its committed offsets; fail if the broker does not know the group."""
    from broker.client import admin

    described = client.run(admin.describe_group(client.core, name))
    offsets = client.run(admin.committed(client.core, name))
    if described.state == admin.DEAD and not offsets:
        fail(f"there is no group {name}; `flakelog group list` shows those that there are")
    return described, offsets


def _check_empty(name: str, described: "Group") -> None:
    """Fail if the group has members, because the broker refuses to move or to delete it."""
    if described.members:
        members = count_of(len(described.members), "member")
        fail(f"group {name} is {described.state} with {members}; stop them first")


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

    With --execute the group must have no members. Without --execute the changes are only shown.
    """
    from broker.client import admin

    with client_of(servers) as client:
        described = client.run(admin.describe_group(client.core, name))
        before = client.run(admin.committed(client.core, name))
        if execute:
            _check_empty(name, described)
        wanted = _wanted(client, name, before, topics, partitions)
        after = {(span.topic, span.partition): span.offset for span in find_starts(client, wanted, start)}
        if execute:
            client.run(admin.commit(client.core, name, after))
    _print_reset(before, after, as_json)
    if not execute:
        click.echo("nothing is changed yet; --execute does it", err=True)


def _wanted(
    client: "Client",
    name: str,
    before: "dict[Partition, int]",
    topics: tuple[str, ...],
    partitions: tuple[int, ...],
) -> "list[Partition]":
    """Return the partitions to reset: those of the named topics, or those the group has committed."""
    if topics:
        found = [(topic, number) for topic in topics for number in range(client.topic(topic).partitions)]
    else:
        found = list(before)
    if partitions:
        found = [each for each in found if each[1] in partitions]
    if not found:
        fail(f"group {name} has committed nothing of the kind; name a --topic it is to begin with")
    return found


def _print_reset(before: "dict[Partition, int]", after: "dict[Partition, int]", as_json: bool) -> None:
    rows = [(topic, partition, before.get((topic, partition)), offset) for (topic, partition), offset in after.items()]
    names = ("topic", "partition", "before", "after")
    if as_json:
        for row in rows:
            print_json(dict(zip(names, row, strict=True)))
    else:
        print_table([each.upper() for each in names], rows)


@group.command()
@click.argument("names", nargs=-1, required=True, type=GroupType(), metavar="NAME...")
@click.option("--yes", is_flag=True, help="Do not ask.")
@servers_option
@json_option
def delete(names: tuple[str, ...], yes: bool, servers: str, as_json: bool) -> None:
    """Delete groups that have no members, with all their committed offsets."""
    from broker.client import admin

    with client_of(servers) as client:
        if not yes:
            for name in names:
                _check_empty(name, _known(client, name)[0])
            confirm(f"delete {', '.join(names)} with what they have committed?")
        for name in names:
            client.run(admin.delete_group(client.core, name))
            if as_json:
                print_json({"group": name, "deleted": True})
            else:
                print_line(f"deleted {name}")
