"""The states of a claim on a worker number, as one table.

    CLAIMING --claimed--> HELD --cut off--> SUSPENDED      ids are issued in HELD, and in SUSPENDED as long
                          | ^ <-confirmed-- |              as the acknowledged mark lasts
                     taken| |claimed        |taken
                          v |               |
                         FENCED <-----------+              its worker issues nothing; another claim is under way

    any state --closed--> CLOSED                           the end: a release lowers the mark to just above the last
                                                           millisecond used
"""

from enum import Enum, auto


class ClaimState(Enum):
    """The state of a claim."""

    CLAIMING = auto()
    HELD = auto()
    SUSPENDED = auto()
    FENCED = auto()
    CLOSED = auto()


class Turn(Enum):
    """An event that moves a claim to another state."""

    CLAIMED = auto()
    CUT_OFF = auto()
    CONFIRMED = auto()
    TAKEN = auto()
    CLOSED = auto()


TRANSITIONS = {
    (ClaimState.CLAIMING, Turn.CLAIMED): ClaimState.HELD,
    (ClaimState.CLAIMING, Turn.CUT_OFF): ClaimState.CLAIMING,
    (ClaimState.CLAIMING, Turn.CLOSED): ClaimState.CLOSED,
    (ClaimState.HELD, Turn.CONFIRMED): ClaimState.HELD,
    (ClaimState.HELD, Turn.CUT_OFF): ClaimState.SUSPENDED,
    (ClaimState.HELD, Turn.TAKEN): ClaimState.FENCED,
    (ClaimState.HELD, Turn.CLOSED): ClaimState.CLOSED,
    (ClaimState.SUSPENDED, Turn.CONFIRMED): ClaimState.HELD,
    (ClaimState.SUSPENDED, Turn.CUT_OFF): ClaimState.SUSPENDED,
    (ClaimState.SUSPENDED, Turn.TAKEN): ClaimState.FENCED,
    (ClaimState.SUSPENDED, Turn.CLOSED): ClaimState.CLOSED,
    (ClaimState.FENCED, Turn.CLAIMED): ClaimState.HELD,
    (ClaimState.FENCED, Turn.CUT_OFF): ClaimState.FENCED,
    (ClaimState.FENCED, Turn.CLOSED): ClaimState.CLOSED,
}
