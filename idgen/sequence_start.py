"""The sequence number with which a millisecond begins.

If a worker issues less than one id per millisecond and every millisecond begins with 0, all its ids are multiples of
4,096. Taken modulo a number of shards, nearly all of them go to one shard (shardingsphere #7750, bwmarrin #44). So a
millisecond can begin with another of its first few sequences. Ids still rise strictly, because no sequence below the
start is used; this costs a full millisecond at most `starts` - 1 of its ids.

The start is a function of the millisecond, so that a planned batch and the ids issued for it agree.
"""

from dataclasses import dataclass

ZERO, SPREAD, RANDOM = KINDS = ("zero", "spread", "random")
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class SequenceStart:
    """The start of each millisecond, in 0..starts-1: each start in turn or, with a salt, a hash of the millisecond."""

    starts: int
    salt: int | None = None

    def of(self, ms: int) -> int:
        """Return the first sequence of a millisecond."""
        return (ms if self.salt is None else _mixed(ms + self.salt)) % self.starts


def sequence_start(kind: str, starts: int, chance: float) -> SequenceStart | None:
    """Make the start that flakelog.ids.sequence.start names; None for zero. `chance` in [0, 1) salts `random`."""
    if kind == ZERO:
        return None
    return SequenceStart(starts, int(chance * (1 << 53)) if kind == RANDOM else None)


def _mixed(x: int) -> int:
    """Apply splitmix64's final steps, so that neighbouring inputs give distant results."""
    x = x * 0x9E3779B97F4A7C15 & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31
