"""Which sequence a millisecond begins with.

Where a worker issues less than an id a millisecond and every millisecond begins with 0, all ids are multiples of 4,096:
taken modulo a number of shards, nearly all go to one (shardingsphere #7750, bwmarrin #44). So a millisecond can begin
elsewhere in the first few of its sequences. Ids still rise strictly, for no sequence below the first one is used; that
costs a full millisecond at most `starts` - 1 of its ids.

The start is a function of the millisecond, so what was planned for it and what is issued in it agree.
"""

from dataclasses import dataclass

ZERO, SPREAD, RANDOM = KINDS = ("zero", "spread", "random")
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class SequenceStart:
    """Milliseconds begin with a sequence in 0..starts-1: each in turn, or, with a salt, as a hash of it has it."""

    starts: int
    salt: int | None = None

    def of(self, ms: int) -> int:
        """The first sequence of a millisecond."""
        return (ms if self.salt is None else _mixed(ms + self.salt)) % self.starts


def sequence_start(kind: str, starts: int, chance: float) -> SequenceStart | None:
    """As flakelog.ids.sequence.start names it; None for zero. `chance` in [0, 1) makes the salt of a random one."""
    if kind == ZERO:
        return None
    return SequenceStart(starts, int(chance * (1 << 53)) if kind == RANDOM else None)


def _mixed(x: int) -> int:
    """splitmix64's finish: neighbours come out far apart."""
    x = x * 0x9E3779B97F4A7C15 & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31
