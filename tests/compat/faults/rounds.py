"""How often `make test` and `make soak` make each fault of replicated brokers."""

import pytest

KILLS = 25
"""How often each kind of broker is killed."""
ROLLS = 10
"""How often all brokers are restarted, one after the other."""
OUTAGES = 10
"""How often each of the other faults is made."""
ID_ROUNDS = 34
"""How often the leaders change three times while ids are compared."""
_FIRST, *_OTHERS = "leader and controller", "leader", "controller", "follower"
BROKERS = [_FIRST, *(pytest.param(kind, marks=pytest.mark.soak) for kind in _OTHERS)]
"""The kinds of brokers that are killed, as `Replicated.choose` takes them; `make test` kills the first kind."""


def rounds(number):
    """Return the turns of a test: `make test` runs one, `make soak` all others."""
    return [0, *(pytest.param(turn, marks=pytest.mark.soak) for turn in range(1, number))]
