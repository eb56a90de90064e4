"""A claim that holds a number, and the high-water mark of a number in the registry."""

import json

from coordination.port import Get
from idgen.claim_state import ClaimState
from tests.idgen.driving import NOW, claim, settle


def mark(coordinator, number):
    return json.loads(coordinator.execute(Get(f"/snowflake-servers-marks/{number}")).data)


def held(coordinator, token="t", now_ms=NOW, **more):
    made = settle(claim(token, **more), coordinator, now_ms)
    assert made.state is ClaimState.HELD, made.problem
    return made
