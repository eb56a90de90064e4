"""An id worker for the simulations of logs, which fails as soon as it issues an id twice."""

from idgen.layout import Layout
from idgen.worker import IdWorker

LEAD_MS = 30_000

LAYOUTS = Layout(), Layout(52, 0, 6, 5), Layout(58, 0, 0, 5)
"""The default; 32 ids a millisecond, so that a batch spans several; and a single worker, so that ids leave no gaps."""


class Stamp:
    """An id worker that remembers every id it issued, over all generations."""

    def __init__(self, layout):
        self.layout = layout
        self.given = set()
        self.last = []
        self.marks = {}
        self.worker = None

    def beside(self):
        """Return the id worker of another process, which must not repeat the ids of this one either."""
        other = Stamp(self.layout)
        other.given, other.marks = self.given, self.marks
        return other

    def claim(self, number, now_ms, lead_ms=LEAD_MS):
        """Claim a number as the registry does: start at or above the number's old high-water mark."""
        number %= self.layout.workers
        start = max(self.marks.get(number, 0), now_ms)
        self.marks[number] = start + lead_ms
        self.worker = IdWorker(self.layout, number, start_ms=start, limit_ms=start + lead_ms)
        return start

    @property
    def max_batch(self):
        return self.worker.max_batch

    def next_ids(self, n, now_ms, floor=-1):
        runs = self.worker.next_ids(n, now_ms, floor)
        self.last = ids_of(runs)
        repeated = self.given.intersection(self.last)
        assert not repeated, f"ids given twice: {repeated}"
        self.given.update(self.last)
        return runs


def ids_of(runs):
    return [first + i for first, length in runs for i in range(length)]
