"""Dead letters of a topic: read them, choose some, send their messages back, and drop them.

`topic` is the topic where the letters are. A letter has the name PARTITION:OFFSET of its place there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from broker.client.blocking import Client
from broker.client.errors import BrokerError, ClientError
from broker.wire.errors import ErrorCode
from flakelog.operations.dead_letters import Letter, batches, letter_of
from flakelog.operations.errors import NotPossible
from flakelog.operations.handled_letters import HandledLetters
from flakelog.operations.partitions import bounds_of_all, partitions_of, read_records
from flakelog.operations.topics import delete_records

NAME_CHARACTERS_MAX = 40
NOT_THERE = (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class Sent(NamedTuple):
    """Letters whose messages were sent back in one batch; `offset` is that of the first message in its topic."""

    letters: Sequence[Letter]
    topic: str
    partition: int
    offset: int

    @property
    def names(self) -> str:
        return ", ".join(letter.place for letter in self.letters)


class Unmarked(ClientError):
    """Letters that were sent, and could not be marked; the message names them."""


def read_letters(client: Client, topic: str, marks: HandledLetters, *, with_handled: bool) -> Iterator[Letter]:
    """Yield the letters of all partitions, each partition in the order of its log.

    Leave out those that were sent back already, unless `with_handled`.
    """
    for (_, partition), (begin, end) in _bounds(client, topic).items():
        offset = begin if with_handled else max(begin, marks.start(partition))
        begin = offset
        for record in read_records(client, (topic, partition), offset, end):
            letter = letter_of(partition, record)
            if letter is not None:
                letter = letter._replace(begin=begin, is_handled=marks.has(letter))
                begin = record.offset + 1
                if with_handled or not letter.is_handled:
                    yield letter


def letter_at(client: Client, topic: str, marks: HandledLetters, name: str) -> Letter | None:
    """Return the letter of a name, None if there is none.

    Its `begin` is its own offset, so that a mark of it marks no letter before it.
    """
    place = place_of(name)
    if place is None:
        return None
    partition, offset = place
    try:
        records, _ = client.fetch(topic, partition, offset, max_bytes=1, max_wait_ms=0)
    except BrokerError as error:
        if error.code in NOT_THERE:
            return None
        raise
    letter = next((letter_of(partition, record) for record in records if record.offset == offset), None)
    return None if letter is None else letter._replace(is_handled=marks.has(letter))


def choose(client: Client, topic: str, marks: HandledLetters, names: Sequence[str]) -> list[Letter]:
    """Return the letters of these names. Raise NotPossible unless all are there and can be sent back."""
    letters = []
    for name in names:
        if place_of(name) is None:
            raise NotPossible(f"{name[:NAME_CHARACTERS_MAX]!r} is no letter; give PARTITION:OFFSET")
        letter = letter_at(client, topic, marks, name)
        if letter is None:
            raise NotPossible(f"{topic} has no dead letter at {name}")
        if letter.is_handled:
            raise NotPossible(f"the letter {name} was sent again already")
        if letter.unsendable is not None:
            raise NotPossible(f"the letter {name} cannot be sent again: {letter.unsendable}")
        letters.append(letter)
    marks.check(letters)
    return letters


def send(client: Client, letters: Sequence[Letter], marks: HandledLetters, report: Callable[[Sent], object]) -> None:
    """Send the letters' messages to their topics, and mark the letters. Call `report` after each batch.

    Raise NotPossible with nothing sent if there are too many marks, or Unmarked after a batch whose letters could not
    be marked.
    """
    marks.check(letters)
    by_source: dict[str, list[Letter]] = {}
    for letter in letters:
        by_source.setdefault(letter.source, []).append(letter)
    for source, of_source in sorted(by_source.items()):
        for partition, in_batch, batch in batches(of_source):
            sent = Sent(in_batch, source, partition, client.produce(source, partition, batch).base_offset)
            # The marks come first, because a report may raise: a full disk ends the output of the command line.
            try:
                marks.mark(in_batch)
            except ClientError as error:
                unmarked = f"{sent.names} were sent, so do not send them again; they could not be marked: {error}"
                raise Unmarked(unmarked) from error
            finally:
                report(sent)


def bounds_to_drop(client: Client, topic: str, last: Sequence[str] | None) -> dict[int, tuple[int, int]]:
    """Return the first letter to drop and the first to keep, by partition.

    `last` names the last letter to drop in each partition; None means all letters. Raise NotPossible if one of them is
    not there.
    """
    bounds = {partition: offsets for (_, partition), offsets in _bounds(client, topic).items()}
    if last is None:
        return bounds
    dropped = {}
    for name in last:
        place = place_of(name)
        if place is None or place[0] not in bounds:
            raise NotPossible(
                f"{name!r} is no letter; give a letter PARTITION:OFFSET, as `flakelog spout dead list` shows them"
            )
        partition, offset = place
        begin, end = bounds[partition]
        if not begin <= offset < end:
            raise NotPossible(f"partition {partition} has letters {begin} to {end - 1}, not {offset}")
        dropped[partition] = begin, offset + 1
    return dropped


def drop(client: Client, topic: str, bounds: Mapping[int, tuple[int, int]]) -> None:
    """Delete the letters up to the ends of these bounds, for ever."""
    delete_records(client, {(topic, partition): end for partition, (begin, end) in bounds.items() if end > begin})


def place_of(name: str) -> tuple[int, int] | None:
    """Return (partition, offset) of a letter's name, None if the text is no name of a letter."""
    partition, _, offset = name.partition(":")
    is_place = partition.isdecimal() and offset.isdecimal() and len(name) < NAME_CHARACTERS_MAX
    return (int(partition), int(offset)) if is_place and name.isascii() else None


def _bounds(client: Client, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    return bounds_of_all(client, partitions_of(client, [topic]))
