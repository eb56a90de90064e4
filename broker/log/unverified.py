"""The part of a segment that an earlier process wrote, and how much of it this process has verified.

A start trusts the sizes of synced files and not their contents. So each segment begins as `Unverified` up to the end
that it had at the start. A walk (broker.log.integrity.segment_walk) verifies a span of batches before the first read of
it, and the span is remembered. When all is verified, the log forgets the object.
"""

from typing import NamedTuple


class VerifiedSpan(NamedTuple):
    """Verified batches that follow each other: offsets first_offset .. end_offset - 1 in bytes start .. end - 1."""

    first_offset: int
    end_offset: int
    start: int
    end: int


class Unverified:
    """A segment up to byte `end`, where it ended at the start, with indexes of these sizes in bytes."""

    __slots__ = ("end", "index_bytes", "time_bytes", "spans", "is_ordered", "error")

    def __init__(self, end: int, index_bytes: int, time_bytes: int) -> None:
        self.end = end
        self.index_bytes = index_bytes
        self.time_bytes = time_bytes
        self.spans: tuple[VerifiedSpan, ...] = ()
        self.is_ordered = False
        """True once the entries of the offset index are known to rise."""
        self.error: str | None = None
        """Why the last walk failed without a verdict, until a read was answered with it."""

    def span_of(self, offset: int) -> VerifiedSpan | None:
        """Return the span with an offset."""
        return next((span for span in self.spans if span.first_offset <= offset < span.end_offset), None)

    def span_at(self, position: int) -> VerifiedSpan | None:
        """Return the span with a position, or with its end there."""
        return next((span for span in self.spans if span.start <= position <= span.end), None)

    def add(self, span: VerifiedSpan) -> None:
        """Add a span, and join it with those that it touches."""
        joined = [other for other in self.spans if other.start <= span.end and span.start <= other.end]
        merged = VerifiedSpan(
            min(part.first_offset for part in (*joined, span)),
            max(part.end_offset for part in (*joined, span)),
            min(part.start for part in (*joined, span)),
            max(part.end for part in (*joined, span)),
        )
        self.spans = (*(other for other in self.spans if other not in joined), merged)

    @property
    def is_done(self) -> bool:
        """Return True if all is verified."""
        return any(not span.start and span.end >= self.end for span in self.spans)
