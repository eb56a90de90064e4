"""Log lines about a claim, for operators: it is cut off, has lost its number, holds a number again, or has ended."""

from idgen.claim import WorkerClaim
from idgen.claim_state import ClaimState

LINES_MAX = {ClaimState.SUSPENDED: 1, ClaimState.FENCED: 2}  # per state, because each attempt words its problem anew


class ClaimNews:
    """The log lines about one claim. The code that waits for the claim reports its start."""

    def __init__(self) -> None:
        self._state = ClaimState.CLAIMING
        self._reported: list[str] = []
        self._has_ended = False
        """True if it is reported that the lead has passed, since the claim was cut off."""

    def of(self, claim: WorkerClaim, now_ms: int) -> str | None:
        """Return the line to log now, or None if nothing is new."""
        before, self._state = self._state, claim.state
        if claim.state is not before:
            self._reported, self._has_ended = [], False
            if claim.state is ClaimState.HELD and before in LINES_MAX:
                return f"worker number {claim.number} is held{' again' if before is ClaimState.SUSPENDED else ' now'}"
            if claim.failure is not None and before is not ClaimState.CLAIMING:
                return f"ids: {claim.failure}; no more ids until this process is started again"
        problem = claim.problem
        if problem and not self._has_ended and claim.lead_has_passed(now_ms) and claim.state is ClaimState.SUSPENDED:
            self._has_ended = True
            self._reported.append(problem)
            why = f"because the lead of worker number {claim.number} has passed"
            return f"ids: {problem}; no ids until it answers, {why}"
        if problem is None or problem in self._reported or len(self._reported) >= LINES_MAX.get(claim.state, 0):
            return None
        self._reported.append(problem)
        return f"ids: {problem}{_meanwhile(claim, now_ms)}"


def _meanwhile(claim: WorkerClaim, now_ms: int) -> str:
    if claim.state is ClaimState.FENCED or claim.worker is None:
        return "; no ids until a worker number is held"
    left_ms = max(claim.worker.limit_ms - now_ms, 0)
    return f"; worker number {claim.number} goes on without it for {left_ms} ms"
