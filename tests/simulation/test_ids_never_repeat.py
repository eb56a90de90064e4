"""No id is ever issued twice, whatever clocks, processes and the network do.

Each seed is one history of the world in ids_world.py. A failure prints the command that replays it; FLAKELOG_SEEDS
takes a seed, or a range such as 0-9999.
"""

import os
from collections import Counter

import pytest

from coordination.port import Set
from idgen.claim import WorkerClaim
from idgen.claim_state import ClaimState
from idgen.registry import Registry
from tests.simulation.ids_world import PROCESSES_MAX, NoMoreIds, OutOfOrder, Repeated, World

SEEDS = os.environ.get("FLAKELOG_SEEDS", "0-149")
SEEDS_AT_ONCE = 25
SOAK_SEEDS = 10_000
PLANTED_SEEDS, PLANTED_CATCHES = 60, 3  # each bug shows in at least a seventh of the histories
BUSY_SEEDS = 40


# The events the simulation must produce, with the minimum count in the busy seeds.
FAULTS_SEEN = {
    "a holder's clock set back": 4,
    "a holder stopped for a lead": 8,
    "a holder cut off for a lead": 20,
    "a holder forked": 5,
    "a holder found its number taken": 10,
    "started twice": 20,
    "rebooted": 10,
    "link cut": 50,
    "session expired": 5,
    "set applied, answer lost": 4,
    "set applied after it was given up": 5,
    "set came too late": 5,
    "answer read a lead late": 5,
    "another layout refused": 30,
}


def seeds():
    first, _, last = SEEDS.partition("-")
    return range(int(first), int(last or first) + 1)


def batches():
    return [seeds()[at : at + SEEDS_AT_ONCE] for at in range(0, len(seeds()), SEEDS_AT_ONCE)]


def play(seed, **planted):
    """Run a whole history: faults, then a time without faults in which ids must become available again."""
    world = World(seed, **planted)
    world.run()
    world.calm()
    return world


def check(seed):
    try:
        play(seed)
    except Exception as error:
        path = os.path.relpath(__file__)
        replay = f"replay: FLAKELOG_SEEDS={seed} .venv/bin/python -m pytest {path} -k no_id_twice"
        raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}\n{replay}") from error


@pytest.mark.parametrize("batch", batches(), ids=lambda batch: f"{batch[0]}-{batch[-1]}")
def test_no_id_twice_no_k_above_a_second_and_ids_come_back(batch):
    for seed in batch:
        check(seed)


@pytest.mark.soak
def test_10_000_histories_of_the_same():
    for seed in range(SOAK_SEEDS):
        check(seed)


def test_the_histories_are_busy_ones():
    """The histories contain enough ids and faults for the absence of repetition to mean something."""
    worlds = [play(seed) for seed in range(BUSY_SEEDS)]
    assert sum(len(world.oracle.ids) > 1_000 for world in worlds) > BUSY_SEEDS / 2
    assert all(world.names > 3 * PROCESSES_MAX for world in worlds)
    assert {world.in_directory for world in worlds} == {True, False}
    seen = sum((world.seen for world in worlds), Counter())
    rare = {name: seen[name] for name, least in FAULTS_SEEN.items() if seen[name] < least}
    assert not rare, f"these hardly happen: {rare}"


class StartsAtTheClock(Registry):
    """Planted bug: a claim starts at its clock instead of the old mark."""

    def _first_ms(self, now_ms, old_high_water_ms):
        return now_ms


class TakesWhatRests(StartsAtTheClock):
    """Planted bug: a number is taken before its mark has passed, and its ids start at the clock."""

    def _check_passed(self, number, mark, now_ms):
        pass


class AnyLayout(Registry):
    """Planted bug: the recorded layout is not checked."""

    def open(self):
        return
        yield


class RaisesTooSoon(WorkerClaim):
    """Planted bug: a raised mark is used before its set is acknowledged."""

    def take_operation(self):
        operation = super().take_operation()
        if isinstance(operation, Set) and self.state in (ClaimState.HELD, ClaimState.SUSPENDED) and not self._closing:
            self.worker.raise_limit(max(self.worker.limit_ms, self._now_ms + self.registry.lead_ms))
        return operation


class RunsFarAhead(Registry):
    """Planted bug: ids are borrowed from further in the future than k allows."""

    def __init__(self, **settings):
        super().__init__(**settings | {"max_ahead_ms": 5_000})


class NeverTriesAgain(WorkerClaim):
    """Planted bug: a claim that lost its number never claims another."""

    def _fenced(self, reason):
        super()._fenced(reason)
        self._due_ms = float("inf")


@pytest.mark.parametrize(
    "planted, verdict",
    [
        ({"registry_class": StartsAtTheClock}, Repeated),
        ({"registry_class": TakesWhatRests}, Repeated),
        ({"registry_class": AnyLayout}, Repeated),
        ({"claim_class": RaisesTooSoon}, Repeated),
        ({"versioned": False}, Repeated),
        ({"abandon_in_child": False}, Repeated),
        ({"registry_class": RunsFarAhead}, OutOfOrder),
        ({"claim_class": NeverTriesAgain}, NoMoreIds),
    ],
    ids=[
        "starts at the clock",
        "takes what rests",
        "any layout",
        "raises too soon",
        "unversioned set",
        "a shared claim after fork",
        "runs far ahead",
        "never tries again",
    ],
)
def test_a_planted_bug_is_caught(planted, verdict):
    """The simulation detects each planted bug, and not by luck; otherwise its silence would prove nothing."""
    caught = 0
    for seed in range(PLANTED_SEEDS):
        try:
            play(seed, **planted)
        except verdict:
            caught += 1
            if caught == PLANTED_CATCHES:
                return
    pytest.fail(f"{planted} was noticed in {caught} of {PLANTED_SEEDS} histories, {PLANTED_CATCHES} are due")
