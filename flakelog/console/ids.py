"""Ids: the process's worker numbers with their lead, the rate of ids, and one id decoded."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from flakelog import health as told
from idgen.layout import ID_BITS, IdParts, Layout

RATE = ("ids from the service",)


class WorkerRow(NamedTuple):
    """A worker number that this process holds, or claims.

    `lead_ms` is how long ids can be issued without the registry; `problem` says what the claim waits for.
    """

    role: str
    number: int | None
    state: str
    lead_ms: int | None
    last_ms: int | None
    problem: str


class IdsPage(NamedTuple):
    """The ids of a server process. `rate` is in a second, None before the second sample."""

    workers: Sequence[WorkerRow]
    scope: str
    skew_ms: int
    offset_ms: float | None
    issued: int
    rate: float | None
    by_user_agent: Mapping[str, int]
    refused: Mapping[str, int]
    waits: int
    layout: Layout


class DecodedId(NamedTuple):
    """An id with its parts, or the reason why it has none."""

    text: str
    parts: IdParts | None
    wrong: str = ""


def ids_page(server: told.WatchedServer, now_ms: int, rate: float | None, layout: Layout) -> IdsPage:
    """Return the page of ids."""
    workers = [
        WorkerRow(
            claim.registry.role,
            claim.number,
            claim.state.name.lower(),
            None if claim.worker is None else max(claim.worker.limit_ms - now_ms, 0),
            None if claim.worker is None else claim.worker.last_ms,
            claim.problem or "",
        )
        for claim in server.claims
    ]
    service = server.service
    counters = None if service is None else service.counters
    return IdsPage(
        workers,
        server.scope,
        server.clock.skew_ms,
        None if server.peers is None else server.peers.offset_ms,
        0 if counters is None else counters.ids,
        rate,
        (
            {}
            if counters is None
            else dict(sorted(counters.by_user_agent.items(), key=lambda agent_and_count: -agent_and_count[1])[:20])
        ),
        {} if counters is None else dict(counters.exceptions),
        0 if counters is None else counters.waits,
        layout,
    )


def decoded(text: str, layout: Layout) -> DecodedId:
    """Return an id's parts by the server's layout."""
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) < 1 << ID_BITS):
        return DecodedId(text[:40], None, "an id is a decimal number from 0 to 2**63 - 1")
    return DecodedId(text, layout.unpack(int(text)))
