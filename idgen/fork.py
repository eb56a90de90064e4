"""SHELL (fork hooks): a forked child issues nothing from its parent's claim.

The child has a copy of the parent's worker, sequence and all: both would issue the same ids. So in the child each claim
is abandoned at once: its worker raises Fenced, which names the remedy.
"""

import os
from typing import Protocol
from weakref import WeakSet

REASON = "this process was forked from its holder; make a Snowflake (or start a server) of its own after the fork"


class Abandonable(Protocol):
    """What ends in a forked child: a claim, or whatever holds one."""

    def abandon(self, reason: str) -> None:
        """Issue nothing any more, and leave the number to the process that holds it."""


_guarded: "WeakSet[Abandonable]" = WeakSet()


def guard(holder: Abandonable) -> None:
    """Abandon `holder` in every child that this process forks from now on."""
    _guarded.add(holder)


def _abandon_all() -> None:
    for holder in list(_guarded):
        holder.abandon(REASON)


os.register_at_fork(after_in_child=_abandon_all)
