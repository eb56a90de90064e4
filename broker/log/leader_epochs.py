"""The start offset of each leader epoch (KIP-101), in the text format of Kafka's `leader-epoch-checkpoint` with a CRC.

    1                 version of the file; Kafka's is 0, and has no last line
    2                 number of entries
    0 0               epoch, start offset
    4 1250
    5e8b5dc2          CRC-32C of the lines before, in hexadecimal
"""

from bisect import bisect_right
from itertools import pairwise

from broker.log import json_lines

FILE = "leader-epoch-checkpoint"
NO_EPOCH = -1
EPOCH_MAX, OFFSET_MAX = 2**31 - 1, 2**63 - 1
UNWRITTEN = [(0, 0)]
"""The epochs of a log without the file: epoch 0 from its first offset."""
_VERSION = 1
_WITHOUT_CRC = b"0\n"


def encode(epochs: list[tuple[int, int]]) -> bytes:
    lines = [str(_VERSION), str(len(epochs)), *(f"{epoch} {start}" for epoch, start in epochs)]
    return json_lines.with_crc("".join(line + "\n" for line in lines).encode())


def has_crc(data: bytes) -> bool:
    """Return False for a file of version 0, which `decode` takes without a CRC."""
    return not data.startswith(_WITHOUT_CRC)


def decode(data: bytes) -> list[tuple[int, int]]:
    """Return (epoch, start offset) pairs, ascending. Raise ValueError if the file is damaged."""
    version, body = (_VERSION, json_lines.checked(data)) if has_crc(data) else (0, data)
    lines = body.decode().splitlines()
    if len(lines) < 2 or lines[0] != str(version) or lines[1] != str(len(lines) - 2):
        raise ValueError(f"not a version {version} file with as many entries as it says")
    pairs = [_pair(line) for line in lines[2:]]
    for earlier, later in pairwise(pairs):
        if not (earlier[0] < later[0] and earlier[1] < later[1]):
            raise ValueError(f"epoch {later[0]} from offset {later[1]} does not follow {earlier}")
    return pairs


def _pair(line: str) -> tuple[int, int]:
    epoch, _, start = line.partition(" ")
    if not (epoch.isdecimal() and start.isdecimal() and int(epoch) <= EPOCH_MAX and int(start) <= OFFSET_MAX):
        raise ValueError(f"{line[:40]!r} is no epoch with its start offset")
    return int(epoch), int(start)


def from_offset(epochs: list[tuple[int, int]], offset: int) -> list[tuple[int, int]]:
    """Return the epochs of a log that begins at `offset`: the epoch of that offset now begins there."""
    earlier = [epoch for epoch, begin in epochs if begin <= offset]
    later = epochs[len(earlier) :]
    return [(earlier[-1], offset), *later] if earlier else later


def cut(epochs: list[tuple[int, int]], end_offset: int) -> list[tuple[int, int]]:
    """Return the epochs of a log that recovery cuts at `end_offset`; see `truncated` for a follower's truncation.

    If the newest epoch began past it, that epoch now begins at the cut, so that its number is not assigned again. Other
    epochs that began at or past the cut are dropped, because none of their batches remains.
    """
    if not epochs or epochs[-1][1] <= end_offset:
        return epochs
    return [entry for entry in epochs if entry[1] < end_offset] + [(epochs[-1][0], end_offset)]


def truncated(epochs: list[tuple[int, int]], end_offset: int) -> list[tuple[int, int]]:
    """Return the epochs of a follower's log that is truncated to `end_offset`: those that begin before it.

    An epoch that begins at or past the end goes, written in or not. A follower names its newest epoch to the leader. If
    the leader never had that epoch, both logs diverge at its start, and would diverge there for ever if it stayed.
    """
    return [entry for entry in epochs if entry[1] < end_offset]


def start(epochs: list[tuple[int, int]], epoch: int, offset: int) -> list[tuple[int, int]]:
    """Return the epochs with `epoch` begun at `offset`. Drop older epochs that have no offset before it."""
    if epochs and epochs[-1][0] >= epoch:
        return epochs
    return [entry for entry in epochs if entry[1] < offset] + [(epoch, offset)]


def epoch_of(epochs: list[tuple[int, int]], offset: int) -> int:
    """Return the epoch in which `offset` was written, -1 if it is unknown."""
    number = bisect_right(epochs, offset, key=lambda entry: entry[1])
    return epochs[number - 1][0] if number else NO_EPOCH


def end_of(epochs: list[tuple[int, int]], epoch: int, log_end_offset: int) -> tuple[int, int]:
    """Return (epoch, end offset) of the newest epoch up to `epoch` (KIP-101), (-1, -1) if `epoch` is -1 or in the
    future, or no epoch is known.

    If a reader's last records of `epoch` lie past that end, the log no longer has them. An epoch older than all known
    ones ends where the first known one begins.
    """
    if epoch == NO_EPOCH or not epochs or epoch > epochs[-1][0]:
        return NO_EPOCH, -1
    number = bisect_right(epochs, epoch, key=lambda entry: entry[0])
    if number == len(epochs):
        return epoch, log_end_offset
    return epochs[number - 1][0] if number else epoch, epochs[number][1]


def divergence(
    epochs: list[tuple[int, int]], last_epoch: int, fetch_offset: int, log_start_offset: int, log_end_offset: int
) -> tuple[int, int] | None:
    """Return where a follower's log leaves its leader's (KIP-595), as (epoch, end offset); None if it does not.

    The arguments are of the leader's log, but for `last_epoch`, the newest epoch that the follower knows of, and
    `fetch_offset`, its end. Return (-1, -1) if it is not known where that epoch ended. Consumers are told by `end_of`
    instead: what they have read of deleted epochs is no reason to read again.
    """
    epoch, end_offset = end_of(epochs, last_epoch, log_end_offset)
    if epoch == NO_EPOCH:
        return NO_EPOCH, -1
    number = bisect_right(epochs, epoch, key=lambda entry: entry[0]) - 1
    if number < 0:
        # The leader has deleted the end of that epoch, so the follower's last batches may never have been in the
        # leader's log. Their ids may then be above those that follow. It needs none of them, and begins anew.
        return (epoch, log_start_offset) if fetch_offset else None
    if epoch < last_epoch or end_offset < fetch_offset:
        return epoch, end_offset
    if epochs[number][1] > fetch_offset:
        # A power cut has taken the end of the follower's log, and left an epoch that was begun after it. The batches in
        # between are of older epochs, so the follower refuses them until it drops that epoch.
        return (epochs[number - 1][0] if number else epoch - 1), epochs[number][1]
    return None
