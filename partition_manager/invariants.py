"""Invariants of a PartitionManager, checked after each step of a test or a simulation."""

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any

from partition_manager.entry import Counts, Message, MessageState
from partition_manager.progress import Progress
from partition_manager.share import Listing


def check_entries(
    live: Mapping[int, Message],
    waiting: Collection[Message],
    scheduled: Collection[int],
    pending_bytes: int,
) -> None:
    """Check that each live message is in exactly the structure its state names, and that offsets ascend."""
    assert all(a < b for a, b in pairwise(live)), "live messages are not in order of their offsets"
    in_state = {state: {o for o, e in live.items() if e.state is state} for state in MessageState}
    assert in_state[MessageState.WAITING] == {entry.offset for entry in waiting}, "WAITING and the waiting queue differ"
    assert in_state[MessageState.RETRYING] == set(
        scheduled
    ), "RETRYING and the schedule differ: a message would be lost"
    in_flight = [entry for entry in live.values() if entry.state is MessageState.IN_FLIGHT]
    assert all(entry.unacked > 0 for entry in in_flight), "in flight without a tuple to wait for"
    assert pending_bytes == sum(entry.size for entry in live.values()), "bytes pending are not the sum of the live"


def check_progress(progress: Progress, live: Mapping[int, Message], position: int, counts: Counts) -> None:
    """Check that each offset below the position is settled or belongs to one live message, and none to both.

    Check that every fetched message is settled or live.
    """
    progress.check()
    assert progress.offset == min(live, default=position), "the watermark is not the least offset not settled"
    extents = [(entry.offset, entry.end) for entry in live.values()]
    covered = sorted([*extents, *(settled for settled in progress.done if settled[0] < position)])
    end = progress.offset
    for start, next_end in covered:
        assert start == end, f"[{end}, {start}) is neither settled nor live, or is both"
        end = next_end
    assert end >= position, f"[{end}, {position}) is neither settled nor live"
    assert all(end <= position for _, end in extents), "a live message reaches past the position"
    settled = counts.acked + counts.filtered + counts.dead_lettered + counts.refused
    settled += counts.dropped + counts.truncated
    assert counts.fetched == settled + len(live), f"{counts.fetched} read, {settled} settled, {len(live)} live"


def check_listing(listing: Listing[Any], *, may_emit: bool, has_enough: bool) -> None:
    """Check that the coordinator will visit the partition if it has something to emit or to fetch."""
    assert listing.is_ready or not may_emit, "messages wait, and the partition is not listed"
    assert has_enough or listing.is_fetching or listing.awaits_memory, "it wants a fetch, and is not listed"
