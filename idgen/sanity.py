"""Whether the other id services of a registry are who it says they are, and whether our clock agrees with theirs.

As snowflake-2010's sanity checks at start: each peer's worker and datacenter make the number its node is called by, and
our clock is within ten seconds of the mean of theirs. No id depends on it (the marks see to that); it finds registries
that are shared with something else, and clocks whose ids would name a time far from the others'.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from idgen.errors import IdError
from idgen.layout import Layout
from idgen.registry import IDS, Worker


class SanityCheckFailed(IdError):
    """What the peers say does not fit the registry, or our clock."""


class Peer(NamedTuple):
    """An id service to ask: the number it is shown with, and where it answers."""

    number: int
    host: str
    port: int


class Answer(NamedTuple):
    """What a peer said of itself; `offset_ms` is our clock less its clock."""

    peer: Peer
    datacenter: int
    worker: int
    offset_ms: int


def peers_of(workers: Iterable[Worker]) -> list[Peer]:
    """The living id services. Who made no mark is taken for one of Twitter's."""
    speaking = [each for each in workers if each.living and (each.mark is None or each.mark.role == IDS)]
    found = (_peer(each.number, each.address) for each in speaking)
    return [each for each in found if each is not None]


def _peer(number: int, address: str) -> Peer | None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or host in ("0.0.0.0", "[::]"):
        return None  # shown before its port was known, or where nobody can connect
    return Peer(number, host.strip("[]"), int(port))


def mean_offset_ms(answers: Sequence[Answer]) -> int | None:
    """Our clock less the mean of the peers'; None when none answered."""
    return round(sum(each.offset_ms for each in answers) / len(answers)) if answers else None


def check(answers: Sequence[Answer], layout: Layout, max_offset_ms: int) -> None:
    """SanityCheckFailed names the first thing that does not fit."""
    true = [each for each in answers if _checked(each, answers, layout)]
    offset_ms = mean_offset_ms(true)
    if offset_ms is not None and abs(offset_ms) > max_offset_ms:
        raise SanityCheckFailed(
            f"this machine's clock is {abs(offset_ms)} ms {'ahead of' if offset_ms > 0 else 'behind'} the mean of "
            f"{len(true)} id services, more than flakelog.ids.sanity.max.offset.ms ({max_offset_ms}): set the clock, "
            f"or start with flakelog.ids.sanity.check=false"
        )


def _checked(answer: Answer, answers: Sequence[Answer], layout: Layout) -> bool:
    """Whether the peer is the one that is shown. Where two nodes lead to one place, one is a dead session's; what is
    at a loopback address may be another machine's affair. Neither is a fault."""
    peer = answer.peer
    number = answer.datacenter << layout.worker_bits | answer.worker
    if number == peer.number:
        return True
    others = [each.peer for each in answers if each.peer[1:] == peer[1:] and each is not answer]
    if any(each.number == number for each in others) or _is_loopback(peer.host):
        return False
    raise SanityCheckFailed(
        f"the id service at {peer.host}:{peer.port} is shown with number {peer.number} and answers with worker "
        f"{answer.worker} of datacenter {answer.datacenter}, which is {number}: is this registry used with another "
        f"layout, or by something else? flakelog.ids.sanity.check=false starts all the same"
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
