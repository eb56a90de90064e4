"""The refusal of a target that is not the one of the earlier loads, or that no longer has what they committed."""

from spark_bridge.load.load import LoadError
from spark_bridge.load.target import Commit, Target

WAYS_OUT = (
    "Name a new place, or begin a new chain of loads in this place with --start-over, which takes the messages from "
    "the beginning again"
)


class OtherTarget(LoadError):
    """The target is not the one of the earlier loads, no longer has what they committed, or has rows of no record."""


def check_same(was: Target, now: Target | None) -> None:
    """Raise OtherTarget unless `now` is the target `was`. Names are compared only where one of them has no id."""
    if now is None:
        raise gone(was.kind, was.location)
    by_id = was.id is not None and now.id is not None
    before, after = (was.id, now.id) if by_id else (was.location, now.location)
    if (was.kind, before) != (now.kind, after):
        known = "id" if by_id else "name"
        raise OtherTarget(
            f"the {now.kind} {now.location} is not the one of the earlier loads (its {known} is {after}, theirs was "
            f"{before}): it was dropped and made again, or another one took its place. It lacks the messages of these "
            f"loads, and nothing was written. {WAYS_OUT}"
        )


def gone(kind: str, location: str) -> OtherTarget:
    """Return the error for a target that is not there, though loads went to it."""
    return OtherTarget(
        f"the {kind} {location} is gone, and the record in _flakelog has loads that went to it. A new one would lack "
        f"their messages, so nothing was written. {WAYS_OUT}"
    )


def undone(kind: str, location: str, commit: Commit, how: str) -> OtherTarget:
    """Return the error for a load that the target no longer has. `how` says what happened to its commit."""
    return OtherTarget(
        f"the {kind} {location} no longer has load {commit.number}: {how}. Going on would leave a hole, so nothing was "
        f"written. {WAYS_OUT}; remove the messages of earlier loads first, or give --since after them"
    )


def still_there(location: str, number: int, *, is_put_back: bool) -> OtherTarget:
    """Return the error for a new chain in a place that still has messages of the old one."""
    if is_put_back:
        other = "give --since a time or an id after them, with which they stay"
    else:
        other = "leave --start-over out to go on after the last load"
    return OtherTarget(
        f"{location} still has messages of load {number}, and a new chain would bring them twice: remove them first, "
        f"or {other}"
    )
