"""How many partitions reads handle before other connections have their turn.

Fetch, ListOffsets, and the waiting requests that an event or a deadline answers share one budget a turn. A request that
finds too little of it left is executed in slices (`broker.channel.slices`), and so is each request for more than
PARTITIONS_AT_ONCE partitions. Small requests are always executed at once, and counted.

    left           what the turn may still handle at once
    begin_slices   the turn's slices begin; they have their own part of the budget, so that they always go on
    end_turn       other connections have had their turn
"""

PARTITIONS_AT_ONCE = 500
"""The partitions of one slice, as of a Produce. Each takes some 2 to 10 microseconds."""
PARTITIONS_PER_TURN = 5_000
"""Not a setting, because it bounds the time of a turn: some 10 to 50 ms."""
FEW_PARTITIONS = 8
"""A new request for so few partitions never waits behind larger ones; nearly all requests are such."""


class PartitionBudget:
    """The budget of one engine. Code that handles partitions subtracts them from `left`, without a call."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = PARTITIONS_PER_TURN - PARTITIONS_AT_ONCE

    def end_turn(self) -> None:
        self.left = PARTITIONS_PER_TURN - PARTITIONS_AT_ONCE

    def begin_slices(self) -> None:
        self.left = PARTITIONS_AT_ONCE

    def is_too_small(self, partitions: int) -> bool:
        """Return True if so many partitions are to be handled in slices."""
        return partitions > self.left or partitions > PARTITIONS_AT_ONCE
