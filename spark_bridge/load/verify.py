"""Verification of a destination: the chain of loads has no gap and no overlap, and the files are those of receipts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_bridge.load.load import Load, describe
from spark_bridge.load.receipt import Receipt
from spark_bridge.load.sink import LoadState, Sink, StoredLoad
from spark_bridge.load.target_check import OtherTarget
from spark_bridge.reading.offset_range import OffsetRange


@dataclass(frozen=True, slots=True)
class Verification:
    """The contents of a destination, and its problems."""

    loads: int
    rows: int
    """Rows that the receipts of all loads name."""
    target_rows: int | None
    """Rows that the target has now, also those of other writers; None if the target is not there."""
    files: int
    bytes: int
    lost: tuple[OffsetRange, ...]
    """Offsets that no load has, because the user accepted their loss."""
    unfinished: int | None
    """The number of the newest load, if the next run has to finish it."""
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Changes that other writers made to messages of loads; no load is at fault."""


def verify(sink: Sink) -> Verification:
    """Verify all loads of a sink. Raise LoadError if the newest load cannot be read, or OSError of the store."""
    newest = sink.newest()
    if newest is None:
        return Verification(0, 0, None, 0, 0, (), None, ())
    problems: list[str] = []
    receipts: list[Receipt] = []
    lost: list[OffsetRange] = []
    before: StoredLoad | None = None
    for number in range(newest.load.number + 1):
        stored = sink.find(number)
        if stored is None:
            problems.append(f"load {number} is gone")
            continue
        problems += _chain_problems(before, stored, newest.load.number)
        before = stored
        if stored.state is LoadState.PUBLISHED and stored.receipt is not None:
            receipts.append(stored.receipt)
            lost += (*stored.load.lost, *stored.receipt.lost)
    problems += _target_problems(sink, newest)
    contents = sink.contents(receipts)
    problems += contents.problems
    files = {name: file for receipt in receipts for name, file in receipt.files.items()}
    if len(files) != sum(len(receipt.files) for receipt in receipts):
        problems.append("two loads have files of the same name")
    if not newest.unfinished:
        problems += [f"{name} is a file of no load" for name in sink.strays(files)]
    return Verification(
        len(receipts),
        sum(receipt.rows for receipt in receipts),
        contents.rows,
        len(files),
        sum(file.bytes for file in files.values()),
        tuple(lost),
        newest.load.number if newest.unfinished else None,
        tuple(problems),
        contents.notes,
    )


def _target_problems(sink: Sink, newest: StoredLoad) -> Iterator[str]:
    try:
        sink.check(newest)
    except OtherTarget as error:
        yield str(error)


def _chain_problems(before: StoredLoad | None, stored: StoredLoad, newest: int) -> Iterator[str]:
    load = stored.load
    if stored.unfinished and load.number != newest:
        yield f"load {load.number} is {stored.state.value}, and load {newest} was planned after it"
    if stored.receipt is not None and stored.receipt.load_sha256 != load.sha256:
        yield f"the receipt of load {load.number} is of another plan"
    if before is None or before.load.number != load.number - 1:
        return
    yield from _position_problems(before.ends, load, before.load.number)
    if before.load.manifest.topic_ids != load.manifest.topic_ids:
        yield f"load {load.number} is of another topic of that name than load {before.load.number}"


def _position_problems(expected: Mapping[int, int], load: Load, before: int) -> Iterator[str]:
    for partition, end in sorted(expected.items()):
        start = load.starts.get(partition)
        if start is None:
            yield f"load {load.number} has no position of partition {partition}, which load {before} has"
        elif start > end:
            gap = describe([OffsetRange(load.topic, partition, end, start)])
            yield f"no load has {gap}: load {before} ends before, load {load.number} starts after"
        elif start < end:
            twice = describe([OffsetRange(load.topic, partition, start, end)])
            yield f"loads {before} and {load.number} both have {twice}"
