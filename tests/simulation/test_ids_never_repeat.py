"""No id is ever issued twice, whatever clocks, processes and the network do (DESIGN section 4).

One seed is one history: processes that claim, issue, pause, crash and come back; wall clocks that step by hours, drift
and differ; sessions that expire; requests that are lost, late, or applied although nobody waits any more. The oracle
holds every id. The layout is tiny (4 numbers, 8 ids a millisecond), so that whatever can collide soon does.

A failure names the one command that replays it; FLAKELOG_SEEDS takes a seed, or a range as 0-9999.
"""

import os
import random

import pytest

from coordination.memory import Ensemble
from coordination.port import ANY_VERSION, ConnectionLost, CoordinationError, SessionEnded, SessionEstablished, Set
from idgen.claim import WorkerClaim
from idgen.claim_state import State
from idgen.clock import IdClock
from idgen.errors import IdError
from idgen.layout import Layout
from idgen.registry import Registry
from idgen.service import flat

LAYOUT = Layout(time_bits=58, datacenter_bits=0, worker_bits=2, sequence_bits=3, epoch_ms=0)
START_MS = 1_000_000_000
STEPS = 500
PROCESSES = 3
HOUR_MS = 3_600_000

HAPPENINGS = {
    "run": 45,
    "issue": 40,
    "give up": 2,
    "step a clock": 2,
    "pause all": 1,
    "cut off": 2,
    "expire": 1,
    "crash": 1.5,
    "close": 1.5,
    "ghost": 2,
}
HAPPENINGS, WEIGHTS = list(HAPPENINGS), list(HAPPENINGS.values())


class Repeated(AssertionError):
    """The verdict: an id was issued twice."""


class Process:
    """One life of a program with a claim, on a machine whose clocks are its own."""

    def __init__(self, world, machine, token, make_claim):
        self.world, self.machine = world, machine
        self.clock = IdClock(machine.wall_ns, machine.steady_ns)
        self.claim = make_claim(token)
        self.session = world.ensemble.begin_session()
        self.requests = []  # sent and not arrived yet: [operation, whether its answer is waited for]
        self.cut_until_ms = 0

    def now_ms(self):
        return self.clock.now_ms()

    def run(self):
        """It is scheduled: time passes for it, and what it asks for is sent."""
        self.claim.tick(self.now_ms())
        operation = self.claim.take_operation()
        if operation is not None:
            self.requests.append([operation, True])

    def arrive(self, answered):
        """The oldest request is applied, in its session if that lives; its answer comes, or gets lost."""
        operation, waited_for = self.requests.pop(0)
        try:
            result, error = self.world.apply(self.session, operation), None
        except CoordinationError as failure:
            result, error = None, failure
        if not waited_for:
            return
        if not answered:
            error = ConnectionLost("the answer got lost")
        if error is not None:
            self.claim.failed(error, self.now_ms())
        else:
            self.claim.answered(result, self.now_ms())

    def give_up(self):
        """The program waits no longer; the request may arrive all the same."""
        if self.requests and self.requests[-1][1]:
            self.requests[-1][1] = False
            self.claim.failed(ConnectionLost("no answer in time"), self.now_ms())

    def new_session(self):
        """The old one expired at the ensemble."""
        self.world.ensemble.end_session(self.session)
        self.session = self.world.ensemble.begin_session()
        self.requests = [request for request in self.requests if request[1]]  # the rest went with the connection
        self.claim.happened(SessionEnded(), self.now_ms())
        self.claim.happened(SessionEstablished(self.session), self.now_ms())

    def issue(self, count):
        try:
            worker = self.claim.usable_worker()
            ids = flat(worker.next_ids(min(count, worker.max_batch), self.now_ms()))
        except IdError:
            return
        self.world.issued(ids)


class Machine:
    """A wall clock that may be wrong by any amount, and one that counts what has elapsed, a little fast or slow."""

    def __init__(self, world, rng):
        self.world = world
        self.offset_ms = rng.choice([0, 0, 0, 0, 7, -300, -HOUR_MS, HOUR_MS])
        self.rate = rng.choice([1.0, 1.0, 1.0, 0.999, 1.001])

    def wall_ns(self):
        return (self.world.true_ms + self.offset_ms) * 1_000_000

    def steady_ns(self):
        return int(self.world.true_ms * self.rate) * 1_000_000


class World:
    """Everything, driven by one seed. `planted` is a bug: a claim's class, or a registry's, or 'unversioned'."""

    def __init__(self, seed, claim_class=WorkerClaim, registry_class=Registry, versioned=True):
        self.rng = random.Random(seed)
        self.claim_class, self.versioned = claim_class, versioned
        self.registry = registry_class(layout=LAYOUT, lead_ms=3_000, max_ahead_ms=500)
        self.true_ms = START_MS
        self.ensemble = Ensemble()
        self.ids = set()
        self.lives = 0
        self.machines = [Machine(self, self.rng) for _ in range(PROCESSES)]
        self.processes = [self.start(machine) for machine in self.machines]
        self.ghosts = []  # of crashed processes: their requests still arrive

    def start(self, machine):
        self.lives += 1
        number = self.rng.choice([None, None, 0])
        return Process(self, machine, f"life{self.lives}", lambda token: self.make_claim(token, number))

    def make_claim(self, token, number):
        return self.claim_class(self.registry, token=token, number=number, raise_interval_ms=1_000, retry_ms=100)

    def apply(self, session, operation):
        if isinstance(operation, Set) and not self.versioned:
            operation = Set(operation.path, operation.data, ANY_VERSION)
        return self.ensemble.apply(session, operation, lambda event: None)

    def issued(self, ids):
        repeated = self.ids.intersection(ids)
        if repeated:
            raise Repeated(f"issued twice: {LAYOUT.unpack(min(repeated))}")
        self.ids.update(ids)

    def run(self, steps=STEPS):
        pace_ms = 20
        for _ in range(steps):
            if self.rng.random() < 0.04:  # a hundred things happen in a millisecond, or hardly any in a second
                pace_ms = self.rng.choice([0, 1, 20, 400])
            self.true_ms += self.rng.randint(0, pace_ms)
            self.something_happens(self.rng.randrange(PROCESSES))

    def something_happens(self, at):
        process, rng = self.processes[at], self.rng
        (happening,) = rng.choices(HAPPENINGS, WEIGHTS)
        if happening == "run":
            process.run()
            if process.requests and self.true_ms >= process.cut_until_ms:
                process.arrive(answered=rng.random() < 0.95)
        elif happening == "issue":
            process.issue(rng.choice([1, 2, 8, 9, 60, 1_000]))
        elif happening == "give up":
            process.give_up()
        elif happening == "step a clock":
            self.machines[at].offset_ms += rng.choice([-HOUR_MS, -2_000, -40, 40, 2_000, HOUR_MS])
        elif happening == "pause all":
            self.true_ms += rng.choice([1_500, 4_000])
        elif happening == "cut off":
            process.cut_until_ms = self.true_ms + rng.choice([200, 2_000, 8_000])
            process.give_up()
            if rng.random() < 0.5:
                process.new_session()
        elif happening == "expire":
            process.new_session()
        elif happening == "crash":
            self.crash(at)
        elif happening == "close":
            process.claim.close(process.now_ms())
        elif happening == "ghost":
            self.ghost_arrives()
        if process.claim.state is State.CLOSED and not process.requests:
            self.ensemble.end_session(process.session)
            self.processes[at] = self.start(self.machines[at])

    def crash(self, at):
        """kill -9: its session lives on for a while at the ensemble, or ends at once."""
        self.ghosts.append(self.processes[at])
        if self.rng.random() < 0.5:
            self.ensemble.end_session(self.processes[at].session)
        self.processes[at] = self.start(self.machines[at])

    def ghost_arrives(self):
        if self.ghosts:
            ghost = self.ghosts.pop(self.rng.randrange(len(self.ghosts)))
            while ghost.requests:
                ghost.requests[0][1] = False
                ghost.arrive(answered=False)
            self.ensemble.end_session(ghost.session)

    def calm(self):
        """The faults end; for four times the lead of H all clocks go right and all requests arrive."""
        for ghost in self.ghosts:
            self.ensemble.end_session(ghost.session)
        for machine in self.machines:
            machine.offset_ms, machine.rate = HOUR_MS * 100, 1.0
        for _ in range(1_200):
            self.true_ms += 10
            for at, process in enumerate(self.processes):
                process.run()
                while process.requests:
                    process.arrive(answered=True)
                    process.run()
                if process.claim.state is State.CLOSED:
                    self.ensemble.end_session(process.session)
                    self.processes[at] = self.start(self.machines[at])


def seeds():
    first, _, last = os.environ.get("FLAKELOG_SEEDS", "0-79").partition("-")
    return range(int(first), int(last or first) + 1)


def replay(seed):
    return f"replay: FLAKELOG_SEEDS={seed} .venv/bin/python -m pytest {os.path.relpath(__file__)} -m 'not soak'"


def play(seed, **planted):
    world = World(seed, **planted)
    world.run()
    return world


@pytest.mark.parametrize("seed", seeds())
def test_no_id_is_issued_twice(seed):
    try:
        play(seed)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{replay(seed)}") from error


def test_the_histories_are_busy_ones():
    """Else it would be no wonder that nothing is repeated."""
    worlds = sorted((play(seed) for seed in range(20)), key=lambda world: len(world.ids))
    assert len(worlds[10].ids) > 2_000
    assert all(world.lives > PROCESSES for world in worlds)


@pytest.mark.parametrize("seed", list(seeds())[:10])
def test_when_the_faults_end_everyone_issues_ids_again(seed):
    world = play(seed)
    world.calm()
    configured = [p for p in world.processes if p.claim.number is None]
    assert len(configured) < PROCESSES, replay(seed)
    for process in world.processes:
        waits_for_a_live_holder = (process.claim.problem or "").endswith("is held by in-process")
        assert process.claim.state is State.HELD or waits_for_a_live_holder, (process.claim.problem, replay(seed))
        if process.claim.state is State.HELD:
            before = len(world.ids)
            process.issue(1)
            assert len(world.ids) == before + 1, replay(seed)


@pytest.mark.soak
def test_no_id_is_issued_twice_in_10_000_histories():
    for seed in range(10_000):
        try:
            play(seed)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{replay(seed)}") from error


class StartsAtTheClock(Registry):
    """Planted: a claimer that believes its clock instead of the old mark."""

    def _first_ms(self, now_ms, old_high_water_ms):
        return now_ms


class TakesWhatRests(Registry):
    """Planted: a number is taken although its mark has not passed, and its ids start at the clock."""

    def _first_ms(self, now_ms, old_high_water_ms):
        return now_ms

    def _check_passed(self, number, mark, now_ms):
        pass


class RaisesTooSoon(WorkerClaim):
    """Planted: the raised mark is used before its set is acknowledged."""

    def take_operation(self):
        operation = super().take_operation()
        if isinstance(operation, Set) and self.worker is not None and self.state is State.HELD:
            self.worker.raise_limit(max(self.worker.limit_ms, self._now_ms + self.registry.lead_ms))
        return operation


@pytest.mark.parametrize(
    "planted",
    [
        {"registry_class": StartsAtTheClock},
        {"registry_class": TakesWhatRests},
        {"claim_class": RaisesTooSoon},
        {"versioned": False},
    ],
    ids=["starts at the clock", "takes what rests", "raises too soon", "unversioned set"],
)
def test_a_planted_bug_is_caught(planted):
    """A simulation that finds nothing proves nothing unless it finds these."""
    for seed in range(400):
        try:
            play(seed, **planted)
        except Repeated:
            return
    pytest.fail(f"{planted} went unnoticed in 400 histories")
