"""The progress of one partition: what may be committed at the source, and the state that is kept with it.

    take --> acknowledged --> to_commit
    skip -------------------> to_commit

Batches count in the order in which they were taken. So the offset to commit is the one after the last batch before
which all batches are acknowledged by the target.

The state lies in the metadata of the commit, as JSON: the id of the source's topic, the pairs of offsets, and whether
the mirror is one of two in opposite directions.
"""

import json
from collections import deque
from uuid import UUID

from broker.client.group_requests import METADATA_CHARACTERS_MAX, CommittedOffset
from broker.client.mirror.offset_pairs import OffsetPair, OffsetPairs

VERSION = 1


class TakenBatch:
    """A batch of the source up to `following`, and how many of the batches that were made of it are under way."""

    __slots__ = ("first", "following", "unacknowledged", "target", "target_next")

    def __init__(self, first: int, following: int, unacknowledged: int) -> None:
        self.first = first
        self.following = following
        self.unacknowledged = unacknowledged
        self.target: int | None = None
        self.target_next: int | None = None


class PartitionProgress:
    """The progress of one partition of the source."""

    def __init__(self, topic_id: UUID | None, *metadata: str, two_way: bool = False) -> None:
        """Go on from the metadata of the last commit, and of older ones. A topic with another id has no pairs yet."""
        self.is_other_way = is_one_way(metadata[0]) is two_way if metadata else False
        """True if the last commit is of a mirror with another value of `two_way`."""
        self._two_way = two_way
        stored_id, pairs = next(filter(any, map(_decoded, metadata)), (None, []))
        self.is_recreated = stored_id is not None and topic_id is not None and stored_id != str(topic_id)
        """True if the commit is of another topic, which had the same name."""
        self.pairs = OffsetPairs(() if self.is_recreated else pairs)
        self.copied_records = self.copied_bytes = 0
        self.target_end: int | None = None
        """The offset after the last record that the target has acknowledged."""
        self._topic_id = topic_id
        self._taken: deque[TakenBatch] = deque()
        self._position: int | None = None
        self._committed: int | None = None

    @property
    def position(self) -> int | None:
        """Return the source's offset before which all is copied, None while it is not known."""
        return self._position

    @property
    def is_settled(self) -> bool:
        """True if the target has acknowledged all batches."""
        return not self._taken

    def follow(self, topic_id: UUID | None) -> None:
        """Begin new pairs if the topic has another id: it was made again, and the copy continues with the new one."""
        if topic_id is not None and topic_id != self._topic_id:
            if self._topic_id is not None:
                self.pairs.clear()
            self._topic_id = topic_id
            self._committed = None

    def take(self, first: int, following: int, number: int) -> TakenBatch:
        """Add a batch of the source, of which `number` batches are produced; none if nothing of it is copied."""
        taken = TakenBatch(first, following, number)
        self._taken.append(taken)
        self._advance()
        return taken

    def skip(self, following: int) -> None:
        """Nothing is left to copy before this offset: what lies there are markers, or aborted records."""
        last = self._taken[-1].following if self._taken else self._position
        if last is None or following > last:
            self.take(following, following, 0)

    def acknowledged(self, taken: TakenBatch, target: int | None, records: int, size: int = 0) -> None:
        """The target has a batch, from its offset `target` on; None if it only says that it had the batch before."""
        taken.unacknowledged -= 1
        self.copied_records += records
        self.copied_bytes += size
        if target is not None:
            taken.target = target if taken.target is None else min(target, taken.target)
            taken.target_next = max(target + records, taken.target_next or 0)
        self._advance()

    def to_commit(self) -> CommittedOffset | None:
        """Return what to commit at the source, None if that is committed."""
        if self._position is None or self._position == self._committed:
            return None
        return CommittedOffset(self._position, metadata=_encoded(self._topic_id, self.pairs, self._two_way))

    def first_commit(self, offset: int) -> CommittedOffset:
        """Return a commit of `offset` before anything is copied: it has the topic's id."""
        return CommittedOffset(max(0, offset), metadata=_encoded(self._topic_id, self.pairs, self._two_way))

    def committed(self, offset: int) -> None:
        """The source has taken a commit."""
        self._committed = offset

    def _advance(self) -> None:
        while self._taken and not self._taken[0].unacknowledged:
            taken = self._taken.popleft()
            self._position = taken.following
            if taken.target is not None and taken.target_next is not None:
                if not len(self.pairs):
                    self.pairs.add(OffsetPair(taken.first, taken.target))
                self.pairs.add(OffsetPair(taken.following, taken.target_next))
                self.target_end = taken.target_next


def is_one_way(metadata: str) -> bool | None:
    """Return True if a commit is of a mirror without --two-way, None if it is of no mirror."""
    try:
        fields = json.loads(metadata)
        return None if fields["v"] != VERSION else not fields.get("two_way", False)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _encoded(topic_id: UUID | None, pairs: OffsetPairs, two_way: bool) -> str:
    """Return the metadata of a commit. If it is too long, leave out the earliest pairs."""
    flat = [list(pair) for pair in pairs]
    while True:
        fields: dict[str, object] = {"v": VERSION, "id": None if topic_id is None else str(topic_id), "pairs": flat}
        if two_way:
            fields["two_way"] = True
        text = json.dumps(fields, separators=(",", ":"))
        if len(text) <= METADATA_CHARACTERS_MAX:
            return text
        del flat[: max(1, len(flat) // 4)]


def _decoded(metadata: str) -> tuple[str | None, list[OffsetPair]]:
    """Return the topic's id and the pairs; none from metadata that a mirror of this version did not write."""
    try:
        fields = json.loads(metadata)
        if fields["v"] != VERSION:
            return None, []
        return fields["id"], [OffsetPair(int(source), int(target)) for source, target in fields["pairs"]]
    except (ValueError, TypeError, KeyError):
        return None, []
