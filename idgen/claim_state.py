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


class State(Enum):
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
    (State.CLAIMING, Turn.CLAIMED): State.HELD,
    (State.CLAIMING, Turn.CUT_OFF): State.CLAIMING,
    (State.CLAIMING, Turn.CLOSED): State.CLOSED,
    (State.HELD, Turn.CONFIRMED): State.HELD,
    (State.HELD, Turn.CUT_OFF): State.SUSPENDED,
    (State.HELD, Turn.TAKEN): State.FENCED,
    (State.HELD, Turn.CLOSED): State.CLOSED,
    (State.SUSPENDED, Turn.CONFIRMED): State.HELD,
    (State.SUSPENDED, Turn.CUT_OFF): State.SUSPENDED,
    (State.SUSPENDED, Turn.TAKEN): State.FENCED,
    (State.SUSPENDED, Turn.CLOSED): State.CLOSED,
    (State.FENCED, Turn.CLAIMED): State.HELD,
    (State.FENCED, Turn.CUT_OFF): State.FENCED,
    (State.FENCED, Turn.CLOSED): State.CLOSED,
}
