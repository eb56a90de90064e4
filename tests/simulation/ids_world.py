"""A world with every kind of fault, whose processes claim worker numbers and issue ids.

Each seed is one history. Machines' clocks step, drift and stand still. Processes are paused, killed, forked and started
twice. Their coordinator is either ZooKeeper as a client sees it (ids_links.py: cut links, late answers, expired
sessions, lagging servers), or a directory on one machine. The oracle holds every id. The layout is tiny (4 numbers, 4
ids a millisecond), so that collisions show soon.
"""

import copy
import random

from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import run
from idgen import fork
from idgen.claim import EXHAUSTED_RETRY_MS, WorkerClaim
from idgen.claim_state import ClaimState
from idgen.clock import IdClock
from idgen.errors import IdError, LayoutMismatch
from idgen.layout import Layout
from idgen.registry import Mark, Registry
from idgen.service import flat
from idgen.worker import IdWorker
from tests.simulation.ids_links import LEAD_MS, SESSION_MS, Directory, DirectoryLink, Forked, Servers, ZooKeeperLink

LAYOUT = Layout(time_bits=59, datacenter_bits=0, worker_bits=2, sequence_bits=2, epoch_ms=0)
OTHER_LAYOUT = Layout(time_bits=59, datacenter_bits=0, worker_bits=3, sequence_bits=1, epoch_ms=0)  # may give equal ids
START_MS = 1_000_000_000
HOUR_MS = 3_600_000
RAISE_INTERVAL_MS, RETRY_MS, MAX_AHEAD_MS = 1_000, 100, 500
CLOCK_STEPS_MS = [-300, -40, 40, 300]
WILD_CLOCK_STEPS_MS = [-HOUR_MS, -HOUR_MS, -2_000, 2_000, HOUR_MS, 5 * HOUR_MS]  # clocks diverge, so not in all worlds
STEPS = 300
PROCESSES_MAX = 5
K_MS = 1_000  # k of the k-sorted ids
BURST = 200
ALL = 1 << 20  # asks for as many ids as are available

HAPPENINGS = {
    "work": 110,
    "work on": 4,
    "issue": 90,
    "step a clock": 3,
    "change a clock's pace": 3,
    "pause": 5,
    "fault of the link": 14,
    "kill": 5,
    "close": 5,
    "hand over": 3,
    "start twice": 3,
    "fork": 3,
    "isolate": 2,
    "rush": 3,
    "reboot": 0.7,
    "change the layout": 4,
}


class Repeated(AssertionError):
    """An id was issued twice."""


class OutOfOrder(AssertionError):
    """Ids deviate from the order of time by more than k allows."""


class NoMoreIds(AssertionError):
    """The faults have ended, but ids are still not available."""


class Oracle:
    """The set of all ids issued by any process."""

    def __init__(self):
        self.ids = set()

    def issued(self, process, worker, ids):
        repeated = self.ids.intersection(ids)
        if repeated:
            raise Repeated(f"issued twice: {LAYOUT.unpack(min(repeated))}")
        self.ids.update(ids)
        if ids[0] <= process.last_of.get(worker, -1) or ids != sorted(set(ids)):
            raise OutOfOrder(f"{process.name}: ids of one worker do not rise")
        process.last_of[worker] = ids[-1]
        for id in (ids[0], ids[-1]):
            self._is_k_sorted(process, id)

    def _is_k_sorted(self, process, id):
        """Raise OutOfOrder unless the id is within k of the newest and, if the clock is right, of the true time."""
        ms = process.layout.unpack(id).time_ms
        if ms <= process.newest_ms - K_MS:
            raise OutOfOrder(f"{process.name}: an id of {ms} after one of {process.newest_ms}")
        process.newest_ms = max(process.newest_ms, ms)
        off_ms = ms - int(process.machine.true_ms)
        if process.machine.right and not -K_MS < off_ms < K_MS:
            raise OutOfOrder(f"{process.name}: an id {off_ms} ms from the time, by a clock that is right")


class Machine:
    """A wall clock that may be wrong by any amount, and a monotonic clock that runs slightly fast or slow."""

    def __init__(self, true_ms, offset_ms):
        self.true_ms = true_ms
        self.wall_ms = true_ms + offset_ms
        self.steady_ms = 0.0
        self.rate = 1.0
        self.wall_stands = False
        self.right = offset_ms == 0
        self.layout = LAYOUT

    def pass_time(self, ms):
        self.true_ms += ms
        self.steady_ms += ms * self.rate
        self.wall_ms += 0 if self.wall_stands else ms * self.rate

    def step(self, ms):
        self.wall_ms += ms
        self.right = False

    def change_pace(self, rate, wall_stands):
        self.rate, self.wall_stands = rate, wall_stands
        self.right = False

    def reboot(self):
        """Restart the monotonic clock at zero; the wall clock keeps its time."""
        self.steady_ms = 0.0

    def set_right(self):
        self.wall_ms, self.rate, self.wall_stands = self.true_ms, 1.0, False

    def wall_ns(self):
        return int(self.wall_ms * 1_000_000)

    def steady_ns(self):
        return int(self.steady_ms * 1_000_000)


class Process:
    """A run of a program with a claim, driven as its shell drives it. It knows time only from its machine's clocks."""

    def __init__(self, name, machine, claim, link):
        self.name, self.machine, self.claim, self.link = name, machine, claim, link
        self.layout = claim.registry.layout
        self.clock = IdClock(machine.wall_ns, machine.steady_ns)
        self.paused_until_ms = 0
        self.newest_ms = -1
        self.last_of = {}

    @property
    def paused(self):
        return self.machine.true_ms < self.paused_until_ms

    def run(self):
        """Schedule the process: it reads incoming answers, its time passes, and its requests are sent."""
        self.link.wake(self.machine.true_ms)
        for tell in self.link.take_deliveries():
            tell(self.claim, self.clock.now_ms())
        self.claim.tick(self.clock.now_ms())
        operation = self.claim.take_operation()
        if operation is not None:
            self.link.send(operation)

    def issue(self, count, oracle):
        """Issue ids on some thread, regardless of what the keeper has read. Return True if ids were available."""
        try:
            worker = self.claim.usable_worker()
            now_ms = self.clock.now_ms()
            count = min(count, worker.max_batch)
            ids = [worker.next_id(now_ms)] if count == 1 else flat(worker.next_ids(count, now_ms))
        except IdError:
            return False
        oracle.issued(self, worker, ids)
        return True

    def forked(self, name, abandon):
        """Return the child: all of the parent's memory, none of its threads.

        `abandon` runs the action of fork.py's hook.
        """
        child = copy.copy(self)
        child.name, child.link = name, Forked(self.link.shared)
        child.claim, child.clock, child.last_of = copy.copy(self.claim), copy.copy(self.clock), dict(self.last_of)
        child.claim._steps = child.claim._operation = None
        if self.claim.worker is not None:
            child.claim.worker = copy_memory(self.claim.worker)
            child.last_of[child.claim.worker] = self.last_of.get(self.claim.worker, -1)
        if abandon:
            child.claim.abandon(fork.REASON)
        return child


def copy_memory(worker):
    """Copy a worker as fork does; copy.copy refuses to."""
    twin = object.__new__(type(worker))
    for name in IdWorker.__slots__:
        setattr(twin, name, getattr(worker, name))
    return twin


class World:
    """All machines, processes and the coordinator, driven by one seed.

    Bugs can be planted: another claim or registry class, unversioned sets, or a child that keeps the claim.
    """

    def __init__(
        self, seed, *, claim_class=WorkerClaim, registry_class=Registry, versioned=True, abandon_in_child=True
    ):
        self.rng = random.Random(seed)
        self.claim_class, self.registry_class = claim_class, registry_class
        self.versioned, self.abandon_in_child = versioned, abandon_in_child
        self.true_ms = START_MS
        self.pace_ms = 20
        self.restarts = True
        self.oracle = Oracle()
        self.names = 0
        self.in_directory = self.rng.random() < 0.3
        self.number = self.rng.choice([0, 0, None])  # with a configured number, all processes want the same one
        if self.in_directory:
            self.shared = Directory(Ensemble(), self.rng, versioned)
        else:
            self.shared = Servers(Ensemble(), self.rng, versioned)
        self.seen = self.shared.seen
        self.true_clocks = self.rng.random() < 0.25
        self.wild = not self.true_clocks and self.rng.random() < 0.6
        self.steps_ms = [0] if self.true_clocks else CLOCK_STEPS_MS + WILD_CLOCK_STEPS_MS * self.wild
        offsets_ms = self.rng.choices([0, 0, *self.steps_ms], k=1 if self.in_directory else 3)
        run(MemoryCoordinator(self.shared.ensemble), Registry(layout=LAYOUT).open())
        self.machines = [Machine(START_MS, offset_ms) for offset_ms in offsets_ms]
        self.processes = []
        for at in range(3):
            self.start(self.machines[at % len(self.machines)])

    # --- lives of processes -----------------------------------------------------------------------------------------

    def start(self, machine):
        registry = self.registry_class(layout=machine.layout, lead_ms=LEAD_MS, max_ahead_ms=MAX_AHEAD_MS)
        claim = self.claim_class(
            registry,
            token=self.name(),
            number=self.number,
            raise_interval_ms=RAISE_INTERVAL_MS,
            retry_ms=RETRY_MS,
            chance=self.rng.random,
        )
        link = (DirectoryLink if self.in_directory else ZooKeeperLink)(self.shared, self.true_ms)
        self.processes.append(Process(self.name(), machine, claim, link))

    def name(self):
        self.names += 1
        return f"life{self.names}"

    def end(self, process, restarted=True):
        """End a process; its session may live on for a while."""
        self.processes.remove(process)
        process.link.die()
        if restarted:
            self.start(process.machine)

    # --- happenings --------------------------------------------------------------------------------------------------

    def run(self, steps=STEPS):
        happenings, weights = list(HAPPENINGS), list(HAPPENINGS.values())
        for happening in self.rng.choices(happenings, weights, k=steps):
            if self.rng.random() < 0.04:  # from a hundred events in a millisecond to hardly any in a second
                self.pace_ms = self.rng.choice([0, 1, 20, 50, 400])
            self.pass_time(self.rng.randint(0, self.pace_ms))
            getattr(self, happening.replace(" ", "_").replace("'", ""))(self.rng.choice(self.processes))

    def pass_time(self, ms):
        self.true_ms += ms
        for machine in self.machines:
            machine.pass_time(ms)
        self.shared.pass_time(self.true_ms)

    def work(self, process):
        if process.paused:
            return
        before = process.claim.state
        process.run()
        self.seen["a holder found its number taken"] += ClaimState.FENCED is process.claim.state is not before
        if process.claim.state is ClaimState.CLOSED and process.link.idle:
            if isinstance(process.claim.failure, LayoutMismatch):
                self.seen["another layout refused"] += 1
                process.machine.layout = LAYOUT  # the operator has read the message
            self.end(process, restarted=self.restarts and len(self.processes) <= 3)

    def work_on(self, process):
        """Run a process until it waits, before any other event."""
        for _ in range(12):
            if process in self.processes:
                self.work(process)
            if process.link.waits:
                return

    def issue(self, process, count=0):
        if not process.paused:
            process.issue(count or self.rng.choice([1, 1, 1, 1, 2, 2, 4, 5, 60, 60, 600, ALL]), self.oracle)

    def step_a_clock(self, process):
        if not self.true_clocks:
            step_ms = self.rng.choice(self.steps_ms)
            self.seen["a holder's clock set back"] += step_ms < 0 and process.claim.state is ClaimState.HELD
            process.machine.step(step_ms)

    def change_a_clocks_pace(self, process):
        if self.true_clocks:
            return
        rates = [1.0, 1.0, 0.999, 1.001] + [0.5, 2.0, 0.0] * self.wild
        process.machine.change_pace(self.rng.choice(rates), self.wild and self.rng.random() < 0.3)

    def pause(self, process):
        """Pause the process (SIGSTOP); sometimes all processes, for about a session or a lead."""
        pause_ms = self.rng.choice([50, SESSION_MS, 2 * SESSION_MS, 2 * LEAD_MS])
        self.seen["a holder stopped for a lead"] += pause_ms > LEAD_MS and process.claim.state is ClaimState.HELD
        process.paused_until_ms = self.true_ms + pause_ms
        process.link.hold_answer()
        if self.rng.random() < 0.2:
            self.pass_time(self.rng.choice([1_500, 4_000]))

    def fault_of_the_link(self, process):
        process.link.fault()

    def kill(self, process):
        self.end(process)

    def close(self, process):
        if not process.paused:
            process.claim.close(process.clock.now_ms())

    def hand_over(self, process):
        """End a process after a burst of ids, which are ahead of the clock; its successor takes its number."""
        if not process.paused:
            process.issue(ALL, self.oracle)
            self.close(process)
            self.work_on(process)
            self.work_on(self.processes[-1])
            self.issue(self.processes[-1], BURST)

    def start_twice(self, process):
        """Start a second process, as a supervisor does that believes the first one dead."""
        if len(self.processes) < PROCESSES_MAX:
            self.seen["started twice"] += process.claim.state is ClaimState.HELD
            self.start(process.machine)

    def isolate(self, process):
        """Cut a holder off for longer than its mark lasts, while it issues all the ids it can and is replaced."""
        holders = [holder for holder in self.processes if holder.claim.state is ClaimState.HELD]
        process = self.rng.choice(holders or [process])
        self.seen["a holder cut off for a lead"] += process.claim.state is ClaimState.HELD
        process.link.cut()
        replaced_in = self.rng.randrange(12)
        for interval in range(12):
            self.pass_time(LEAD_MS // 6)
            if interval == replaced_in:
                self.start_twice(process)
            for other in list(self.processes):
                self.work_on(other)
                self.issue(other, BURST)

    def rush(self, process):
        """Give a number back, and let all waiting processes claim it in step."""
        self.close(process)
        self.work_on(process)
        self.pass_time(2 * RETRY_MS)
        for _ in range(10):
            for other in list(self.processes):
                if other in self.processes:
                    self.work(other)
        for other in self.processes:
            self.issue(other, BURST)

    def fork(self, process):
        if len(self.processes) < PROCESSES_MAX and not process.paused:
            self.seen["a holder forked"] += process.claim.state is ClaimState.HELD
            self.processes.append(process.forked(self.name(), self.abandon_in_child))

    def reboot(self, process):
        for other in [other for other in self.processes if other.machine is process.machine]:
            self.end(other)
        self.seen["rebooted"] += 1
        process.machine.reboot()

    def change_the_layout(self, process):
        """Configure another layout, which applies from the next start."""
        process.machine.layout = OTHER_LAYOUT

    # --- the end of all faults ---------------------------------------------------------------------------------------

    def calm(self):
        """End all faults, and give each process the time it may take to get ids again.

        Raise NoMoreIds if one gets none.

        That time is the session timeout of dead processes, the longest remaining validity of a mark by the slowest
        clock, and two pauses between attempts.
        """
        for machine in self.machines:
            machine.set_right()
            machine.layout = LAYOUT
        for process in list(self.processes):
            process.paused_until_ms = 0
            process.link.heal()
        self.shared.calm = True
        self._let_run(2 * SESSION_MS + LEAD_MS, step_ms=200)
        self._check_all_have_ids()
        self._go_home()

    def _check_all_have_ids(self):
        self._let_run(self._rest_ms(), step_ms=max(self._rest_ms() // 10, 200))
        self._let_run(2 * EXHAUSTED_RETRY_MS + LEAD_MS, step_ms=2_000)
        for process in self.processes:
            if not process.issue(1, self.oracle) and not self._waits_for_the_living(process):
                raise NoMoreIds(f"{process.name} in {process.claim.state}: {process.claim.problem}")

    def _go_home(self):
        """Let holders give their numbers back until every waiting process has had one."""
        self.restarts = False
        while holders := [process for process in self.processes if process.claim.state is ClaimState.HELD]:
            for process in holders:
                self.close(process)
            self._let_run(RETRY_MS, step_ms=RETRY_MS)
            self._check_all_have_ids()

    def _let_run(self, ms, step_ms):
        for _ in range(ms // step_ms + 1):
            self.pass_time(step_ms)
            for process in list(self.processes):
                self.work(process)
                while not process.link.idle and process in self.processes:
                    process.link.arrive()
                    self.work(process)

    def _rest_ms(self):
        """Return the milliseconds until every mark has passed by every clock."""
        now_ms = min((process.clock.now_ms() for process in self.processes), default=self.true_ms)
        marks = [
            Mark.from_bytes(path, node.data).high_water_ms
            for path, node in self.shared.ensemble.nodes.items()
            if path.startswith("/snowflake-servers-marks/")
        ]
        return max(0, max(marks, default=0) - now_ms)

    def _waits_for_the_living(self, process):
        """Return True for a forked child, or if every number the process wants is held by a live process."""
        held = {other.claim.number for other in self.processes if other.claim.state is ClaimState.HELD}
        wanted = {0} if process.claim._number == 0 else set(range(LAYOUT.workers))
        return isinstance(process.link, Forked) or wanted <= held
