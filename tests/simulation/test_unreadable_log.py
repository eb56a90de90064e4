"""A start that cannot read a partition costs nothing: others go on, and a later start finds all that was synced.

Each seed is a life as in test_power_cut.py, with one more log. A start may find a file that it cannot open: its disk
answers with errors, is not mounted yet, or its file system is being checked. The partition is offline then, over some
power cuts, kills and closes of the others, until a start can read it again. The journal that all logs share must keep
what the unreadable one has only there.

A failure prints the command that replays it.
"""

import os
from collections import Counter

import pytest

from tests.simulation.power_cut_world import TOPIC, Life

AGAIN = "FLAKELOG_SEED={} .venv/bin/python -m pytest tests/simulation/test_unreadable_log.py -k one_seed"
FIRST = int(os.environ.get("FLAKELOG_SEED", "0"))
NEEDED = ".log", ".idindex"


class UnreadableLife(Life):
    PARTITIONS = 3

    def __init__(self, seed):
        self.counts = Counter()
        super().__init__(seed)

    def start(self):
        for number in range(1, self.PARTITIONS):  # the first can be read at each start
            files = self.needed_files(number)
            if files and not self.random.randrange(2 if number in self.unreadable else 6):
                self.storage.failing_opens.add(self.random.choice(files))
        super().start()

    def needed_files(self, number):
        """Return the files of a log that nothing else can replace."""
        files = (path for path in self.storage.files if path.startswith(f"{TOPIC}-{number}/"))
        return sorted(path for path in files if path.endswith(NEEDED))

    def check_offline(self):
        """Return the partitions that the start could not read, which have a file that it could not open.

        A start does not open each file: recovery removes segments behind the log's end without a look into them.
        """
        failing, self.storage.failing_opens = self.storage.failing_opens, set()
        directories = {path.partition("/")[0] for path in failing}
        assert self.manager.offline.keys() <= directories, f"{failing} cannot be read, yet: {self.manager.offline}"
        unreadable = [number for number in range(self.PARTITIONS) if f"{TOPIC}-{number}" in self.manager.offline]
        self.counts["unreadable"] += len(unreadable)
        for number in set(self.unreadable) - set(unreadable):
            self.counts["read again"] += self.parts[number].durable > 0
        return unreadable

    def power_cut(self):
        super().power_cut()
        for number in self.unreadable:
            self.parts[number].written = 0  # the cut may take what was not synced


def live(seed, generations):
    life = UnreadableLife(seed)
    try:
        for _ in range(generations):
            life.generation()
    except Exception as error:
        error.add_note("again: " + AGAIN.format(seed))
        raise
    return life.counts


@pytest.mark.parametrize("start", range(0, 60, 30))
def test_a_log_that_a_start_cannot_read_is_whole_once_it_can(start):
    counts = sum((live(seed, generations=6) for seed in range(start, start + 30)), Counter())
    assert min(counts["unreadable"], counts["read again"]) > 5, counts


def test_one_seed():
    """The seed of FLAKELOG_SEED, or 0, passes."""
    live(FIRST, generations=8)


@pytest.mark.soak
def test_a_log_that_a_start_cannot_read_is_whole_once_it_can_for_3000_seeds():
    for seed in range(3_000):
        live(seed, generations=8)
