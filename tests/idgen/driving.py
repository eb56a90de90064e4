"""Tools that drive a claim and its coordinator step by step, as a shell does, and a reactor iteration by iteration."""

from twisted.internet.task import Clock

from coordination.port import CoordinationError
from idgen.claim import WorkerClaim
from idgen.registry import Registry

NOW = 1_700_000_000_000


def claim(token="t", registry=None, **more):
    return WorkerClaim(registry or Registry(address=f"host-{token}:1"), token=token, **more)


def step(claim, coordinator, now_ms):
    """Carry out the operation that is due; return False if none was due."""
    for event in coordinator.take_events():
        claim.happened(event, now_ms)
    claim.tick(now_ms)
    operation = claim.take_operation()
    if operation is None:
        return False
    try:
        result = coordinator.execute(operation)
    except CoordinationError as error:
        claim.failed(error, now_ms)
    else:
        claim.answered(result, now_ms)
    return True


def settle(claim, coordinator, now_ms):
    """Carry out every operation that is due at this time."""
    for _ in range(5_000):
        if not step(claim, coordinator, now_ms):
            return claim
    raise AssertionError("it asks for ever")


class LookingClock(Clock):
    """A reactor that reports when it has handled all events, as broker.net.reactor's does."""

    def after_events(self, call):
        self.end_look = call

    def iterate(self):
        """Run one iteration: report all events as handled, then run the due timers, but not those that they set."""
        self.end_look()
        for call in [call for call in self.getDelayedCalls() if call.getTime() <= self.seconds()]:
            call.func(*call.args, **call.kw)
            if call.active():
                call.cancel()
