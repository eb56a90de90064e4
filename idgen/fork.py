"""SHELL (fork hooks, a page of memory): a forked child issues nothing from its parent's claim.

The child has a copy of the parent's worker, sequence and all: both would issue the same ids. So in the child each claim
is abandoned at once: its worker raises Fenced, which names the remedy.

Python's hooks are not run by servers that fork in C (uWSGI, unless py-call-osafterfork is set). What hands out ids in
an application asks `check` first: it looks at a page of memory that the kernel empties in a child (MADV_WIPEONFORK,
madvise(2)), which costs a tenth of asking for the process's number.
"""

import mmap
import os
from typing import Protocol
from weakref import WeakSet

REASON = "this process was forked from its holder; make a Snowflake (or start a server) of its own after the fork"
_MADV_WIPEONFORK = 18  # Linux 4.14 and later; Python's mmap has no name for it


class Abandonable(Protocol):
    """What ends in a forked child: a claim, or whatever holds one."""

    def abandon(self, reason: str) -> None:
        """Issue nothing any more, and leave the number to the process that holds it."""


_guarded: "WeakSet[Abandonable]" = WeakSet()


def guard(holder: Abandonable) -> None:
    """Abandon `holder` in every child that this process forks from now on."""
    _guarded.add(holder)


def check() -> None:
    """Notice that this process is a child, if nobody has noticed yet."""
    if _page is None:
        if os.getpid() != _pid:
            _abandon_all()
    elif not _page[0]:
        _abandon_all()


def _abandon_all() -> None:
    global _pid
    _pid = os.getpid()
    if _page is not None:
        _page[0] = 1
    for holder in list(_guarded):
        holder.abandon(REASON)


def _page_emptied_in_children() -> mmap.mmap | None:
    """None where the system has no such pages."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_MADV_WIPEONFORK)
    except (AttributeError, OSError, ValueError):
        return None
    page[0] = 1
    return page


_pid = os.getpid()
_page = _page_emptied_in_children()
os.register_at_fork(after_in_child=_abandon_all)
