"""`flakelog spout dead`: list, show, send back and drop the dead letters of a topic."""

from collections import Counter, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from flakelog.commands.arguments import Whole
from flakelog.commands.exit_codes import fail
from flakelog.commands.terminal import (
    client_of,
    confirm,
    count_of,
    iso,
    json_option,
    print_json,
    print_line,
    print_table,
    servers_option,
)

if TYPE_CHECKING:
    from broker.client.blocking import Client
    from flakelog.operations.dead_letters import Letter
    from flakelog.operations.handled_letters import HandledLetters

ERROR_CHARACTERS = 80  # of an error in a table; `show` and --json have all
HANDLED = "Also letters whose messages were sent back already."
A_LETTER = "letter PARTITION:OFFSET, as `flakelog spout dead list` shows them"


@click.group()
def dead() -> None:
    """List, show, send back and drop the dead letters of a topic."""


def _letters_option(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--letters", default="{topic}.dead-letters", show_default=True, help="The topic where the letters are."
    )
    return option(command)


@dead.command("list")
@click.argument("topic")
@_letters_option
@click.option("--reason", help="Only those given up for this reason: attempts, undecodable, expired, poison, refused.")
@click.option("--count", type=Whole(0), default=20, show_default=True, help="How many of them to show.")
@click.option("--handled", is_flag=True, help=HANDLED)
@servers_option
@json_option
def list_letters(
    topic: str, letters: str, reason: str | None, count: int, handled: bool, servers: str, as_json: bool
) -> None:
    """Count the dead letters of TOPIC by reason, and show the newest. With --json, print each as an object.

    Letters that `send` has sent back are not listed, unless with --handled.
    """
    from flakelog.operations.dead_letters import described
    from flakelog.operations.letters import read_letters

    with client_of(servers) as client:
        newest: deque[Letter] = deque(maxlen=count)
        reasons: Counter[str] = Counter()
        letters_topic = _topic(topic, letters)
        for letter in read_letters(client, letters_topic, _marks(client, letters_topic), with_handled=handled):
            if reason not in (None, letter.reason):
                continue
            if as_json:
                print_json(described(letter))
            reasons[letter.reason] += 1
            newest.append(letter)
    if as_json:
        return
    if not reasons:
        click.echo(f"{topic} has no dead letters" + ("" if handled else " that were not sent back"), err=True)
        return
    number = count_of(reasons.total(), "dead letter")
    print_line(f"{number}: " + ", ".join(f"{n:,} {name}" for name, n in reasons.items()))
    rows = [
        (at.place, at.reason, f"{at.source_partition}:{at.source_offset}", at.id, at.attempts, _short(at))
        for at in newest
    ]
    if rows:
        print_table(("LETTER", "REASON", "MESSAGE", "ID", "ATTEMPTS", "ERROR"), rows)


@dead.command()
@click.argument("topic")
@click.argument("letter", metavar="PARTITION:OFFSET")
@_letters_option
@servers_option
@json_option
def show(topic: str, letter: str, letters: str, servers: str, as_json: bool) -> None:
    """Show one dead letter of TOPIC: its message, and why it was given up."""
    from flakelog.commands.record_format import as_text
    from flakelog.operations.dead_letters import PREFIX, described
    from flakelog.operations.letters import letter_at

    letters_topic = _topic(topic, letters)
    with client_of(servers) as client:
        shown = letter_at(client, letters_topic, _marks(client, letters_topic), letter)
    if shown is None:
        fail(f"there is no {letter} in {letters_topic}; give a {A_LETTER}")
    fields = described(shown) | {"time": iso(shown.timestamp_ms)}
    fields |= as_text("key", shown.record.key) | as_text("value", shown.record.value)
    own = [(name, data) for name, data in shown.record.headers if not name.startswith(PREFIX)]
    fields["headers"] = [{"name": name, **as_text("value", data)} for name, data in own]
    if as_json:
        print_json(fields)
        return
    for name, value in fields.items():
        print_line(f"{name}: {'-' if value is None else value}")


@dead.command()
@click.argument("topic")
@click.option("--all", "everything", is_flag=True, help="All letters that can be sent back.")
@click.option("--reason", "reasons", multiple=True, help="Those given up for this reason; repeatable.")
@click.option("--id", "ids", type=Whole(0), multiple=True, help="That of the message with this id; repeatable.")
@click.option("--letter", "names", multiple=True, metavar="PARTITION:OFFSET", help="This one; repeatable.")
@click.option("--handled", is_flag=True, help=HANDLED)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_letters_option
@servers_option
@json_option
def send(
    topic: str,
    everything: bool,
    reasons: tuple[str, ...],
    ids: tuple[int, ...],
    names: tuple[str, ...],
    handled: bool,
    yes: bool,
    letters: str,
    servers: str,
    as_json: bool,
) -> None:
    """Send dead letters back to TOPIC, each to its message's partition, with its key, value, time and own headers.

    The message is appended again, with a new offset and a new Snowflake id. Its letter is marked in the topic
    <letters>.handled and no longer listed or sent, unless with --handled; it stays until `drop`. Commands that run at
    the same time keep the marks of each other, but two that choose the same letter both send it.
    """
    from flakelog.operations.letters import Sent, read_letters
    from flakelog.operations.letters import send as send_back

    if not (everything or reasons or ids or names):
        raise click.UsageError("name what to send: --all, --reason, --id or --letter")

    def report(sent: Sent) -> None:
        if as_json:
            for number, letter in enumerate(sent.letters):
                message = {"topic": sent.topic, "partition": sent.partition, "offset": sent.offset + number}
                print_json({"letter": letter.place} | message)

    letters_topic = _topic(topic, letters)
    with client_of(servers) as client:
        marks = _marks(client, letters_topic)
        read = read_letters(client, letters_topic, marks, with_handled=handled)
        of_topic = [letter for letter in read if letter.source == topic]
        _require_all(of_topic, reasons, ids, names)
        chosen = [
            letter
            for letter in of_topic
            if everything or letter.reason in reasons or letter.id in ids or letter.place in names
        ]
        sendable = [letter for letter in chosen if not letter.unsendable]
        marks.check(sendable)
        if sendable and not yes:
            confirm(f"send {count_of(len(sendable), 'message')} back to {topic}?")
        send_back(client, sendable, marks, report)
    for letter in chosen:
        if letter.unsendable:
            print_line(f"letter {letter.place} is not sent: {letter.unsendable}", err=True)
    if not as_json:
        click.echo(f"{count_of(len(sendable), 'message')} sent back to {topic}")


@dead.command()
@click.argument("topic")
@click.argument("letters_before", nargs=-1, metavar="[PARTITION:OFFSET]...")
@click.option("--all", "everything", is_flag=True, help="All letters that are there now.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_letters_option
@servers_option
@json_option
def drop(
    topic: str, letters_before: tuple[str, ...], everything: bool, yes: bool, letters: str, servers: str, as_json: bool
) -> None:
    """Delete dead letters of TOPIC for ever, from the beginning of their log on.

    In each partition named, delete the letter at OFFSET and all letters before it, whether they were sent back or not;
    with --all, all letters. A log can be deleted from its beginning only, so no letter in its middle can be deleted
    alone. To be rid of one in the list, send it back: it is listed no more, and stays until a `drop` reaches it.
    """
    from flakelog.operations.letters import bounds_to_drop
    from flakelog.operations.letters import drop as drop_letters

    if everything == bool(letters_before):
        raise click.UsageError("name what to drop: --all, or the last letter of each partition as PARTITION:OFFSET")
    name = _topic(topic, letters)
    with client_of(servers) as client:
        bounds = bounds_to_drop(client, name, None if everything else letters_before)
        number = sum(max(end - begin, 0) for begin, end in bounds.values())
        if number and not yes:
            confirm(f"delete {count_of(number, 'dead letter')} of {topic} for ever?")
        drop_letters(client, name, bounds)
    if as_json:
        print_json({"topic": name, "dropped": number})
    else:
        click.echo(f"{count_of(number, 'dead letter')} dropped")


def _topic(topic: str, letters: str) -> str:
    return letters.replace("{topic}", topic)


def _marks(client: "Client", topic: str) -> "HandledLetters":
    """Return which letters of a dead-letter topic are handled; fail if there is no such topic."""
    from broker.client.errors import BrokerError
    from broker.wire.errors import ErrorCode
    from flakelog.operations.handled_letters import HandledLetters

    try:
        return HandledLetters(client, topic)
    except BrokerError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        fail(f"there is no topic {topic}: no message was given up, or its letters are elsewhere (--letters)")


def _require_all(
    letters: "list[Letter]", reasons: tuple[str, ...], ids: tuple[int, ...], names: tuple[str, ...]
) -> None:
    """Fail if no letter has one of these reasons, ids or names."""
    for field, named, existing in (
        ("reason", reasons, {letter.reason for letter in letters}),
        ("id", ids, {letter.id for letter in letters}),
        ("letter", names, {letter.place for letter in letters}),
    ):
        missing = [str(value) for value in named if value not in existing]
        if missing:
            hint = f"; the reasons are: {', '.join(sorted(map(str, existing))) or 'none'}" if field == "reason" else ""
            fail(f"no dead letter has {field} {', '.join(missing)}{hint}")


def _short(letter: "Letter") -> str:
    first = letter.error.partition("\n")[0]
    return first if len(first) <= ERROR_CHARACTERS else first[: ERROR_CHARACTERS - 1] + "…"
