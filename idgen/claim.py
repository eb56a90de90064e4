"""A claim on a worker number over time: claim it, keep it, release it, and claim again if another process took it.

idgen/claim_state.py lists the states and their transitions.
A sans-I/O core: `tick` passes the time, `take_operation` hands out operations for the coordinator one at a
time, `answered` or `failed` take an operation's result, and `happened` takes the session's events. No method waits:
while no number was claimed, `usable_worker` raises NoWorkerNumber.
"""

from collections.abc import Callable

from coordination.port import (
    ConnectionLost,
    CoordinationError,
    Event,
    Operation,
    Result,
    SessionEnded,
    SessionEstablished,
    SessionSuspended,
)
from idgen.claim_state import TRANSITIONS, ClaimState, Turn
from idgen.config import IdgenConfig
from idgen.errors import IdError, LayoutExhausted, NoWorkerNumber
from idgen.registry import AHEAD, IDS, Chance, Held, NumberBusy, Registry, Steps, TakenOver, no_chance
from idgen.sequence_start import SequenceStart, sequence_start
from idgen.worker import IdWorker

RAISE_INTERVAL_MS = 10_000  # a third of the lead: two raises may fail before ids stop
RAISE_SPREAD = 0.2  # raise up to this fraction of the interval early, at random, because a late raise may stop ids
RETRY_MS = 1_000
EXHAUSTED_RETRY_MS = 10_000
CLOSED_REASON = "it was closed; claim a number anew"


class WorkerClaim:
    """A claim on one worker number, and the `IdWorker` that issues its ids.

    `token` is globally unique (a uuid). `number` is the configured worker number; without one the claim takes the
    lowest free number. `chance` returns random numbers in [0, 1) that vary each pause, so that a thousand claims
    synchronised by an outage do not retry together.

    `worker` issues the ids. Each successful claim makes a new worker, so read the attribute each time. `problem` says,
    for people, what the claim waits for. `crowded_out` is True if any number would do and all are taken. `failure` is
    the error that ended the claim for good, in state CLOSED.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        token: str,
        number: int | None = None,
        datacenter: int | None = None,
        raise_interval_ms: int = RAISE_INTERVAL_MS,
        retry_ms: int = RETRY_MS,
        chance: Chance = no_chance,
        sequence_start: SequenceStart | None = None,
    ) -> None:
        self.registry = registry
        self.state = ClaimState.CLAIMING
        self.worker: IdWorker | None = None
        self.problem: str | None = "it is still being claimed"
        self.failure: Exception | None = None
        self.crowded_out = False
        self._token = token
        self._number = number
        self._numbers = registry.layout.numbers_of(datacenter)
        self._raise_interval_ms = raise_interval_ms
        self._retry_ms = retry_ms
        self._chance = chance
        self._sequence_start = sequence_start
        self._claims = 0
        self._rests: dict[int, int] = {}  # resting numbers, and until when (Unix ms)
        self._session_id: int | None = None
        self._lost_number: int | None = None
        self._held: Held | None = None
        self._steps: Steps[None] | None = None
        self._operation: Operation | None = None
        self._due_ms = 0
        self._now_ms = 0
        self._closing = False
        self._needed_ms = 0

    @property
    def number(self) -> int | None:
        """The worker number held, if any."""
        return self._held.number if self._held else None

    @property
    def next_deadline_ms(self) -> int | None:
        """The time when `tick` is due; None while an operation is in progress and in state CLOSED."""
        return None if self._steps or self.state is ClaimState.CLOSED else self._due_ms

    def tick(self, now_ms: int) -> None:
        """Take the current time, and begin the next procedure if it is due."""
        self._now_ms = now_ms
        if self._steps is None and self.state is not ClaimState.CLOSED and (self._closing or now_ms >= self._due_ms):
            self._begin()

    def take_operation(self) -> Operation | None:
        """Return the operation to carry out, once; pass its result to `answered` or `failed`."""
        operation, self._operation = self._operation, None
        return operation

    def answered(self, result: Result, now_ms: int) -> None:
        """Take the result of the operation."""
        self._now_ms = now_ms
        steps = self._steps
        if steps is not None:
            self._move(lambda: steps.send(result))

    def failed(self, error: CoordinationError, now_ms: int) -> None:
        """Take the error of an operation that failed, or whose outcome is unknown."""
        self._now_ms = now_ms
        steps = self._steps
        if steps is not None:
            self._move(lambda: steps.throw(error))

    def happened(self, event: Event, now_ms: int) -> None:
        """Take a session event. Ids continue without a session, because the high-water mark is the fence."""
        if isinstance(event, SessionEstablished):
            self._session_id = event.session_id
        match event:
            case SessionSuspended() | SessionEnded() if self.state is ClaimState.HELD:
                self._turn(Turn.CUT_OFF)
                self.problem = "the registry does not answer"
                self._due_ms = now_ms + self._paced_ms(self._retry_ms)
            case SessionEstablished() if self.state is ClaimState.SUSPENDED:
                self._due_ms = now_ms + int(self._retry_ms * self._chance())

    def close(self, now_ms: int) -> None:
        """Stop issuing ids, and release the number as soon as the registry answers; the final state is CLOSED."""
        self._closing = True
        if self.worker is not None:
            self.worker.fence(CLOSED_REASON)
        self.tick(now_ms)

    def abandon(self, reason: str) -> None:
        """End the claim at once, and leave number and mark to their holder (a forked child leaves its parent's)."""
        if self.worker is not None:
            self.worker.fence(reason)
        self.problem = reason
        self._held = self._steps = self._operation = None
        self.state = ClaimState.CLOSED

    def need(self, time_ms: int) -> None:
        """Have the mark raised above `time_ms` at the next tick, because ids of that time are needed (role AHEAD)."""
        self._needed_ms = max(self._needed_ms, time_ms)
        if self.worker is not None and self.worker.limit_ms <= time_ms:
            self._due_ms = self._now_ms

    def why_no_ids(self, now_ms: int) -> str | None:
        """Return why no id can be issued now, or None if ids are available. Without the registry they last a lead."""
        if self.worker is None:
            return self.problem
        if self.lead_has_passed(now_ms):
            return self.problem or "the acknowledged high-water mark has passed; it is being raised"
        return self.worker.fenced

    def lead_has_passed(self, now_ms: int) -> bool:
        """Return True if the worker issues no ids because its acknowledged high-water mark has passed."""
        return self.worker is not None and self.worker.fenced is None and now_ms >= self.worker.limit_ms

    def usable_worker(self) -> IdWorker:
        """Return the worker. NoWorkerNumber, with the reason, if no claim has succeeded yet."""
        if self.worker is None:
            raise NoWorkerNumber(f"no worker number: {self.problem}")
        return self.worker

    def _begin(self) -> None:
        if self._closing:
            steps = self._releasing()
        else:
            steps = {
                ClaimState.CLAIMING: self._claiming,
                ClaimState.FENCED: self._claiming,
                ClaimState.HELD: self._raising,
                ClaimState.SUSPENDED: self._confirming,
            }[self.state]()
        self._steps = steps
        self._move(lambda: next(steps))

    def _claiming(self) -> Steps[None]:
        registry, token = self.registry, f"{self._token}-{self._claims}"
        if self._now_ms > registry.layout.last_ms:
            raise LayoutExhausted(self._now_ms, registry.layout.last_ms)
        yield from registry.open()
        if self._lost_number is not None:
            yield from registry.withdraw(self._lost_number, self._session_id)
            self._lost_number = None
        if self._number is not None:
            held = yield from registry.claim_number(self._number, token, self._now_ms, self._session_id)
        else:
            held = yield from registry.claim(self._candidates(), token, self._now_ms, self._chance, self._rests)
        self._rests.clear()
        self._claims += 1  # so that no two workers share a token
        self._held = held
        self.worker = IdWorker(
            registry.layout,
            held.number,
            start_ms=held.mark.start_ms,
            limit_ms=held.mark.high_water_ms,
            max_ahead_ms=registry.max_ahead_ms + registry.ahead_ms,
            sequence_start=self._sequence_start,
        )
        if self._closing:
            self.worker.fence(CLOSED_REASON)
        self._settled(Turn.CLAIMED)
        yield from registry.register(held.number)

    def _raising(self) -> Steps[None]:
        assert self._held is not None
        self._acknowledged((yield from self.registry.raise_mark(self._held, self._reached_ms())))
        if self.state is ClaimState.HELD:
            self._settled(Turn.CONFIRMED)

    def _confirming(self) -> Steps[None]:
        assert self._held is not None
        self._acknowledged((yield from self.registry.confirm(self._held)))
        self._acknowledged((yield from self.registry.raise_mark(self._mine(), self._reached_ms())))
        yield from self.registry.register(self._mine().number)
        self._settled(Turn.CONFIRMED)

    def _reached_ms(self) -> int:
        """Return the time above which the mark is raised: now, or in role AHEAD the time that the ids have reached."""
        if not self.registry.ahead_ms or self.worker is None:
            return self._now_ms
        return max(self._now_ms, self.worker.last_ms, self._needed_ms)

    def _releasing(self) -> Steps[None]:
        if self._held is not None and self.worker is not None:
            yield from self.registry.release(self._held, self.worker.last_ms)
        self._turn(Turn.CLOSED)

    def _move(self, step: Callable[[], Operation]) -> None:
        """Advance the procedure to its next operation, to its end, or to the error that stopped it."""
        try:
            self._operation = step()
            return
        except StopIteration:
            self._steps = None
        except (IdError, CoordinationError) as error:
            self._steps = None
            self._stopped(error)
        if self._closing and self.state is not ClaimState.CLOSED:
            self._begin()

    def _stopped(self, error: IdError | CoordinationError) -> None:
        """Move to the state that a procedure's error leads to, and set the time of the next attempt."""
        self.problem = str(error)
        self.crowded_out = isinstance(error, NoWorkerNumber) and self._number is None
        self._due_ms = self._now_ms + self._paced_ms(EXHAUSTED_RETRY_MS if self.crowded_out else self._retry_ms)
        if self._closing and self._held is not None:
            self._turn(Turn.CLOSED)  # not released: the number rests until its mark has passed
        elif isinstance(error, TakenOver):
            self._fenced(str(error))
        elif isinstance(error, NoWorkerNumber):
            if isinstance(error, NumberBusy) and error.retry_at_ms is not None:
                self._due_ms = min(error.retry_at_ms, self._now_ms + EXHAUSTED_RETRY_MS)
        elif isinstance(error, ConnectionLost) or self._held is not None:
            self._turn(Turn.CUT_OFF)
        else:  # another layout, no access: a retry cannot help
            self.failure = error
            self._turn(Turn.CLOSED)

    def _paced_ms(self, pause_ms: int) -> int:
        """Return a random pause between `pause_ms` and twice `pause_ms`."""
        return pause_ms + int(pause_ms * self._chance())

    def _fenced(self, reason: str) -> None:
        if self.worker is not None:
            self.worker.fence(f"{reason}; another number is being claimed")
        self._lost_number, self._held = self.number, None
        self._due_ms = self._now_ms
        self._turn(Turn.TAKEN)

    def _settled(self, turn: Turn) -> None:
        self.problem, self.crowded_out = None, False
        sooner = RAISE_SPREAD * self._chance()
        self._due_ms = self._now_ms + int(self._raise_interval_ms * (1 - sooner))
        self.need(self._needed_ms)
        self._turn(turn)

    def _acknowledged(self, held: Held) -> None:
        """Store a mark that the registry acknowledged, and let the worker issue ids up to it."""
        self._held = held
        if self.worker is not None and held.mark.high_water_ms > self.worker.limit_ms:
            self.worker.raise_limit(held.mark.high_water_ms)

    def _mine(self) -> Held:
        assert self._held is not None
        return self._held

    def _candidates(self) -> list[int]:
        """Return the numbers to try: the last one held comes first, then the others from the lowest on."""
        last = self.worker.worker_number if self.worker else None
        return [n for n in (last,) if n is not None] + [n for n in self._numbers if n != last]

    def _turn(self, turn: Turn) -> None:
        self.state = TRANSITIONS[self.state, turn]


def worker_claim(
    config: IdgenConfig,
    *,
    address: str,
    token: str,
    number: int | None = None,
    role: str = IDS,
    chance: Chance = no_chance,
) -> WorkerClaim:
    """Make a claim from the settings, except `number`: a process with two claims configures only one."""
    registry = registry_of(config, address, role)
    return WorkerClaim(
        registry,
        token=token,
        number=number,
        datacenter=config.ids_datacenter,
        raise_interval_ms=config.ids_raise_interval_ms,
        retry_ms=config.ids_retry_ms,
        chance=chance,
        sequence_start=sequence_start(config.ids_sequence_start, config.ids_sequence_starts, chance()),
    )


def registry_of(config: IdgenConfig, address: str = "", role: str = IDS) -> Registry:
    """Make the registry that the settings name."""
    ahead_ms = config.ids_log_max_ahead_ms if role == AHEAD else 0
    return Registry(
        config.ids_registry_path, config.layout, address, config.ids_lead_ms, config.ids_max_ahead_ms, role, ahead_ms
    )
