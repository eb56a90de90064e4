"""`flakelog spout dead`: list, show, send back and drop the dead letters of a topic."""

from collections import Counter, deque
from collections.abc import Callable, Iterator
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
    from flakelog.dead_letters import Letter
    from flakelog.handled_letters import HandledLetters

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
    from flakelog.dead_letters import described

    with client_of(servers) as client:
        newest: deque[Letter] = deque(maxlen=count)
        reasons: Counter[str] = Counter()
        for each in _read(client, _topic(topic, letters), _marks(client, _topic(topic, letters)), handled):
            if reason not in (None, each.reason):
                continue
            if as_json:
                print_json(described(each))
            reasons[each.reason] += 1
            newest.append(each)
    if as_json:
        return
    if not reasons:
        click.echo(f"{topic} has no dead letters" + ("" if handled else " that were not sent back"), err=True)
        return
    number = count_of(reasons.total(), "dead letter")
    print_line(f"{number}: " + ", ".join(f"{n:,} {name}" for name, n in reasons.items()))
    rows = [
        (each.place, each.reason, f"{each.source_partition}:{each.source_offset}", each.id, each.attempts, _short(each))
        for each in newest
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
    from flakelog.dead_letters import PREFIX, described

    with client_of(servers) as client:
        found = _letter_at(client, _topic(topic, letters), letter)
    if found is None:
        fail(f"there is no {letter} in {_topic(topic, letters)}; give a {A_LETTER}")
    told = described(found) | {"time": iso(found.timestamp_ms)}
    told |= as_text("key", found.record.key) | as_text("value", found.record.value)
    own = [(name, data) for name, data in found.record.headers if not name.startswith(PREFIX)]
    told["headers"] = [{"name": name, **as_text("value", data)} for name, data in own]
    if as_json:
        print_json(told)
        return
    for name, value in told.items():
        print_line(f"{name}: {'-' if value is None else value}")


@dead.command()
@click.argument("topic")
@click.option("--all", "everything", is_flag=True, help="All letters that can be sent back.")
@click.option("--reason", "reasons", multiple=True, help="Those given up for this reason; repeatable.")
@click.option("--id", "ids", type=Whole(0), multiple=True, help="That of the message with this id; repeatable.")
@click.option("--letter", "places", multiple=True, metavar="PARTITION:OFFSET", help="This one; repeatable.")
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
    places: tuple[str, ...],
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
    from flakelog.dead_letters import batches
    from flakelog.handled_letters import TooManyMarks

    if not (everything or reasons or ids or places):
        raise click.UsageError("name what to send: --all, --reason, --id or --letter")
    with client_of(servers) as client:
        marks = _marks(client, _topic(topic, letters))
        there = [each for each in _read(client, _topic(topic, letters), marks, handled) if each.source == topic]
        chosen = [
            each
            for each in there
            if everything or each.reason in reasons or (each.id is not None and each.id in ids) or each.place in places
        ]
        _require_all(there, reasons, ids, places)
        left = [each for each in chosen if each.unsendable]
        chosen = [each for each in chosen if not each.unsendable]
        try:
            marks.check(chosen)
        except TooManyMarks as error:
            fail(str(error))
        if chosen and not yes:
            confirm(f"send {count_of(len(chosen), 'message')} back to {topic}?")
        for partition, some, batch in batches(chosen):
            offset = client.produce(topic, partition, batch).base_offset
            marks.mark(some)
            for number, each in enumerate(some):
                if as_json:
                    sent = {"letter": each.place, "topic": topic, "partition": partition, "offset": offset + number}
                    print_json(sent)
    for each in left:
        print_line(f"letter {each.place} is not sent: {each.unsendable}", err=True)
    if not as_json:
        click.echo(f"{count_of(len(chosen), 'message')} sent back to {topic}")


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
    from flakelog.operations.partitions import bounds_of
    from flakelog.operations.topics import delete_records

    if everything == bool(letters_before):
        raise click.UsageError("name what to drop: --all, or the last letter of each partition as PARTITION:OFFSET")
    name = _topic(topic, letters)
    with client_of(servers) as client:
        bounds = {number: bounds_of(client, name, number) for number in range(client.topic(name).partitions)}
        ends = {number: end for number, (_, end) in bounds.items()} if everything else _ends(letters_before, bounds)
        number = sum(max(end - bounds[partition][0], 0) for partition, end in ends.items())
        if number and not yes:
            confirm(f"delete {count_of(number, 'dead letter')} of {topic} for ever?")
        delete_records(
            client, {(name, partition): end for partition, end in ends.items() if end > bounds[partition][0]}
        )
    if as_json:
        print_json({"topic": name, "dropped": number})
    else:
        click.echo(f"{count_of(number, 'dead letter')} dropped")


def _ends(places: tuple[str, ...], bounds: dict[int, tuple[int, int]]) -> dict[int, int]:
    """Return the first offset to keep, by partition."""
    ends = {}
    for place in places:
        partition, _, offset = place.partition(":")
        if not (partition.isdigit() and offset.isdigit() and int(partition) in bounds):
            fail(f"{place!r} is no letter; give a {A_LETTER}")
        begin, end = bounds[int(partition)]
        if not begin <= int(offset) < end:
            fail(f"partition {partition} has letters {begin} to {end - 1}, not {offset}")
        ends[int(partition)] = int(offset) + 1
    return ends


def _topic(topic: str, letters: str) -> str:
    return letters.replace("{topic}", topic)


def _marks(client: "Client", topic: str) -> "HandledLetters":
    """Return which letters of a dead-letter topic are handled; fail if there is no such topic."""
    from broker.client.errors import BrokerError
    from broker.wire.errors import ErrorCode
    from flakelog.handled_letters import HandledLetters

    try:
        return HandledLetters(client, topic)
    except BrokerError as error:
        if error.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        fail(f"there is no topic {topic}: no message was given up, or its letters are elsewhere (--letters)")


def _read(client: "Client", topic: str, marks: "HandledLetters", handled: bool) -> "Iterator[Letter]":
    """Yield the letters of all partitions, each partition in the order of its log; with `handled`, all of them."""
    from broker.client.offset_spec import Earliest
    from flakelog.commands.consume import span_records
    from flakelog.commands.start import find_start
    from flakelog.dead_letters import letter_of

    for number in range(client.topic(topic).partitions):
        span = find_start(client, topic, number, Earliest())
        if not handled:
            span = span._replace(offset=max(span.offset, marks.start(number)))
        begin = span.offset
        for record in span_records(client, span):
            letter = letter_of(number, record)
            if letter is not None:
                letter = letter._replace(begin=begin, is_handled=marks.has(letter))
                begin = record.offset + 1
                if handled or not letter.is_handled:
                    yield letter


def _letter_at(client: "Client", topic: str, place: str) -> "Letter | None":
    """Return the letter at PARTITION:OFFSET, or None if there is none."""
    from flakelog.dead_letters import letter_of
    from flakelog.operations.partitions import bounds_of

    marks = _marks(client, topic)
    number, _, offset = place.partition(":")
    if not (number.isdigit() and offset.isdigit() and int(number) < client.topic(topic).partitions):
        return None
    begin, end = bounds_of(client, topic, int(number))
    if not begin <= int(offset) < end:
        return None
    records, _ = client.fetch(topic, int(number), int(offset), max_bytes=1)
    found = [letter_of(int(number), record) for record in records if record.offset == int(offset)]
    return found[0]._replace(is_handled=marks.has(found[0])) if found and found[0] is not None else None


def _require_all(
    there: "list[Letter]", reasons: tuple[str, ...], ids: tuple[int, ...], places: tuple[str, ...]
) -> None:
    """Fail if something named is not there."""
    for what, named, known in (
        ("reason", reasons, {each.reason for each in there}),
        ("id", ids, {each.id for each in there}),
        ("letter", places, {each.place for each in there}),
    ):
        missing = [str(each) for each in named if each not in known]
        if missing:
            told = f"; the reasons are: {', '.join(sorted(map(str, known))) or 'none'}" if what == "reason" else ""
            fail(f"no dead letter has {what} {', '.join(missing)}{told}")


def _short(letter: "Letter") -> str:
    first = letter.error.partition("\n")[0]
    return first if len(first) <= ERROR_CHARACTERS else first[: ERROR_CHARACTERS - 1] + "…"
