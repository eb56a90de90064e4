"""The time of an engine's current call, for code that runs later in it, such as the answer of a delayed request."""

from collections.abc import Callable

from broker.now import Now


class TurnClock:
    """`now` is the time that the shell gave, `began_ns` the begin of the round on `clock_ns`, which measures durations.

    `clock_ns` is a monotonic clock. Its default stands still.
    """

    __slots__ = ("clock_ns", "now", "began_ns")

    def __init__(self, clock_ns: Callable[[], int] = lambda: 0) -> None:
        self.clock_ns = clock_ns
        self.now = Now(0, 0)
        self.began_ns = 0
