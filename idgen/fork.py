"""SHELL (fork hooks, a page of memory): a forked child issues no ids from its parent's claim.

A child has a copy of the parent's worker with its sequence, so both would issue the same ids. Therefore each claim is
abandoned in the child at once: its worker raises Fenced, which names the remedy.

Servers that fork in C do not run Python's hooks (uWSGI, unless py-call-osafterfork is set). So code that issues ids in
an application calls `check` first. It looks at a page of memory that the kernel clears in a child (MADV_WIPEONFORK,
madvise(2)), which costs a tenth of a call of os.getpid.
"""

import mmap
import os
from typing import Protocol
from weakref import WeakSet

REASON = "this process was forked from its holder; make a Snowflake (or start a server) of its own after the fork"
_MADV_WIPEONFORK = 18  # Linux 4.14 and later; Python's mmap has no name for it


class Abandonable(Protocol):
    """An object to end in a forked child: a claim, or the holder of one."""

    def abandon(self, reason: str) -> None:
        """Stop issuing ids, and leave the number to the process that holds it."""


_guarded: "WeakSet[Abandonable]" = WeakSet()


def guard(holder: Abandonable) -> None:
    """Abandon `holder` in every child that this process forks from now on."""
    _guarded.add(holder)


def check() -> None:
    """Abandon all guarded objects if this process is a forked child that has not done so yet."""
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
    """Return a page that the kernel clears in forked children; None if the system has no such pages."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_MADV_WIPEONFORK)
    except (AttributeError, OSError, ValueError):
        return None
    page[0] = 1
    return page


_pid = os.getpid()
_page = _page_emptied_in_children()
mark: mmap.mmap | bytes = b"\0" if _page is None else _page
"""Its first byte is 1 in the process that made the ids' holders, 0 if `check` must be called to know."""
os.register_at_fork(after_in_child=_abandon_all)
