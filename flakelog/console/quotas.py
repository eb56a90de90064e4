"""Client quotas (KIP-13, KIP-546): which are set, and what they have held back."""

from collections.abc import Sequence
from typing import NamedTuple

from broker.quota.client_quotas import CONSUMER, PRODUCER
from broker.services.context import BrokerServices
from flakelog.console.topics import Pages, pages_of

DEFAULT = "(all others)"


class QuotaRow(NamedTuple):
    """A quota of an entity, such as [("client-id", "spark")]. `in_bytes` says that the value is bytes in a second."""

    entity: Sequence[tuple[str, str]]
    key: str
    value: float
    in_bytes: bool


class ThrottleRow(NamedTuple):
    """A kind of quota: how many requests or connections were throttled, and for how long, since the start."""

    key: str
    times: int
    ms: int


class QuotaPage(NamedTuple):
    """A page of the quotas, and the throttle times by quota."""

    rows: Sequence[QuotaRow]
    pages: Pages
    throttled: Sequence[ThrottleRow]


def quota_page(services: BrokerServices, page: int = 0) -> QuotaPage:
    """Return the quotas by entity."""
    rows = [
        QuotaRow(
            [(kind, DEFAULT if name is None else name) for kind, name in entity],
            key,
            value,
            key in (PRODUCER, CONSUMER),
        )
        for entity, values in services.metadata.quotas.items()
        for key, value in sorted(values.items())
    ]
    rows.sort(key=lambda row: (list(row.entity), row.key))
    pages = pages_of(len(rows), page)
    metrics = services.metrics
    throttled = [ThrottleRow(key, times, metrics.throttled_ms[key]) for key, times in sorted(metrics.throttled.items())]
    return QuotaPage(rows[pages.start : pages.end], pages, throttled)
