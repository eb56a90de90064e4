"""Checks of the other id services in a registry: their numbers are as shown, and our clock agrees with theirs.

They are snowflake-2010's sanity checks at start: each peer's worker and datacenter make up the number of its node, and
our clock is within ten seconds of the mean of the peers' clocks. No id depends on these checks, because the marks keep
ids unique. The checks find a registry that something else uses too, and a clock whose ids would name a time far from
the others'.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from idgen.errors import IdError
from idgen.layout import Layout
from idgen.registry import IDS, Worker


class SanityCheckFailed(IdError):
    """A peer's answer does not fit the registry, or our clock does not fit the peers' clocks."""


class Peer(NamedTuple):
    """An id service to ask: the number that its node shows, and its address."""

    number: int
    host: str
    port: int


class Answer(NamedTuple):
    """A peer's answer about itself; `offset_ms` is our clock less its clock."""

    peer: Peer
    datacenter: int
    worker: int
    offset_ms: int


def peers_of(workers: Iterable[Worker], own_address: str) -> list[Peer]:
    """Return the live id services. A worker without a mark counts as one of Twitter's.

    Leave out those at our own address. They are processes that share our port, so any of them may accept the
    connection, and they have the same clock; or they are an earlier life of this process.
    """
    living = (worker for worker in workers if worker.living and worker.address != own_address)
    services = [worker for worker in living if worker.mark is None or worker.mark.role == IDS]
    peers = (_peer(worker.number, worker.address) for worker in services)
    return [peer for peer in peers if peer is not None]


def _peer(number: int, address: str) -> Peer | None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536 or host in ("0.0.0.0", "[::]"):
        return None  # shown before its port was known, or with an address that no peer can connect to
    return Peer(number, host.strip("[]"), int(port))


def mean_offset_ms(answers: Sequence[Answer]) -> int | None:
    """Return our clock less the mean of the peers' clocks; None if no peer answered."""
    return round(sum(answer.offset_ms for answer in answers) / len(answers)) if answers else None


def check(answers: Sequence[Answer], layout: Layout, max_offset_ms: int) -> None:
    """Raise SanityCheckFailed for the first answer that does not fit, or for our clock."""
    true = [answer for answer in answers if _checked(answer, answers, layout)]
    offset_ms = mean_offset_ms(true)
    if offset_ms is not None and abs(offset_ms) > max_offset_ms:
        raise SanityCheckFailed(
            f"this machine's clock is {abs(offset_ms)} ms {'ahead of' if offset_ms > 0 else 'behind'} the mean of "
            f"{len(true)} id services, more than flakelog.ids.sanity.max.offset.ms ({max_offset_ms}): set the clock, "
            f"or start with flakelog.ids.sanity.check=false"
        )


def _checked(answer: Answer, answers: Sequence[Answer], layout: Layout) -> bool:
    """Return True if the peer has the number that its node shows.

    Return False if the mismatch is no fault. If two nodes have the same address, one of them is a dead session's. A
    loopback address may belong to another machine.
    """
    peer = answer.peer
    number = answer.datacenter << layout.worker_bits | answer.worker
    if number == peer.number:
        return True
    same_address = [other.peer for other in answers if other.peer[1:] == peer[1:] and other is not answer]
    if any(other.number == number for other in same_address) or _is_loopback(peer.host):
        return False
    raise SanityCheckFailed(
        f"the id service at {peer.host}:{peer.port} is shown with number {peer.number} and answers with worker "
        f"{answer.worker} of datacenter {answer.datacenter}, which is {number}: is this registry used with another "
        f"layout, or by something else? flakelog.ids.sanity.check=false starts all the same"
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
