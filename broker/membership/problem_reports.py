"""The problems of a broker's part in its cluster, each reported to the operator once."""

from collections.abc import Callable, Iterable

from broker.now import Now

SILENCE_MS = 60_000
"""A problem that comes back within this time is not reported again: a controller that fails tries again each second."""


class ProblemReports:
    """The problems that were reported, until they have been away for `SILENCE_MS`."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._seen_ms: dict[str, int] = {}

    def follow(self, problems: Iterable[str], now: Now) -> None:
        """Report the problems that are new. `problems` are all of the present ones."""
        for problem in problems:
            if problem not in self._seen_ms:
                self._report(problem)
            self._seen_ms[problem] = now.ms
        for problem in [problem for problem, ms in self._seen_ms.items() if ms + SILENCE_MS <= now.ms]:
            del self._seen_ms[problem]
