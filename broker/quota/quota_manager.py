"""Enforcement of client quotas: which quotas a client has, its usage, and how long it is throttled.

The rules are Kafka's (ClientQuotaManager, KIP-13, KIP-124, KIP-219, KIP-599, KIP-612). A request is done and answered
at once. The answer has the throttle time, and for that time the connection is not read. There are two exceptions: a
Fetch over its quota gets no records, and a change of topics over its quota is refused if the client's version allows
that.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import NamedTuple

from broker.metadata.change import Entity, entity_of
from broker.quota.client_quotas import (
    CLIENT_ID,
    CONNECTIONS,
    CONSUMER,
    IP,
    MUTATIONS,
    PRODUCER,
    REQUESTS,
    USER,
    Quotas,
)
from broker.quota.quota_rates import Rate, TokenBucket, Windows
from broker.security.principal_rules import ANONYMOUS
from broker.settings.config import INT_MAX, BrokerConfig
from broker.wire.errors import ApiError, ErrorCode

_NS_PER_PERCENT = 10_000_000  # one percent of a second
NAME_MAX = 256  # characters of a client id that identify its usage; longer ids with the same start share it
KEPT_MS = 3_600_000  # as in Kafka; a debt of topic changes may be older than all windows
_KINDS = (PRODUCER, CONSUMER, REQUESTS, MUTATIONS)


class Limit(NamedTuple):
    """A quota of a client. All clients with the same `whose` share it."""

    whose: Entity
    quota: float


@dataclass(slots=True)
class _Usage:
    """Usage of one quota by one entity."""

    used_ms: int
    rate: Rate
    tokens: TokenBucket


class QuotaManager:
    """All quotas of one broker. Times are of the engine's monotonic clock."""

    def __init__(self, config: BrokerConfig) -> None:
        self._windows = Windows(config.quota_window_num, config.quota_window_size_seconds * 1_000)
        self._mutation_windows = Windows(
            config.controller_quota_window_num, config.controller_quota_window_size_seconds * 1_000
        )
        self._most = config.max_quota_clients
        self._quotas: dict[str, dict[Entity, float]] = {}
        self._usages: OrderedDict[tuple[str, Entity], _Usage] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        """Return the number of usages remembered."""
        return len(self._usages)

    @property
    def window_ms(self) -> int:
        return self._windows.size_ms

    @property
    def full_windows_seconds(self) -> float:
        """Return the length of all windows except the one being filled."""
        return (self._windows.number - 1) * self._windows.size_ms / 1_000

    def use(self, quotas: Quotas) -> None:
        """Replace the quotas. Usage so far is kept."""
        self._quotas = {}
        for entity, values in quotas.items():
            for kind, quota in values.items():
                self._quotas.setdefault(kind, {})[_normal(entity)] = quota

    # --- entities ------------------------------------------------------------------------------------------------

    def meter(self, client_id: str | None, user: str = ANONYMOUS) -> "Meter | None":
        """Return a meter for a request of this client, or None if no quota applies to it."""
        limits = {}
        for kind in _KINDS:
            if kind in self._quotas and (limit := self._limit(kind, client_id, user)) is not None:
                limits[kind] = limit
        return Meter(self, limits) if limits else None

    def _limit(self, kind: str, client_id: str | None, user: str) -> Limit | None:
        """Return the most specific quota that applies to the client."""
        quotas = self._quotas[kind]
        for entity, whose in _entities(client_id, user):
            quota = quotas.get(entity)
            if quota is not None:
                return Limit(whose, quota)
        return None

    def usage(self, kind: str, whose: Entity, now_ms: int) -> _Usage:
        """Return an entity's usage so far. It is forgotten when it has no effect left, or earlier if there are more
        usages than `flakelog.max.quota.clients`."""
        usage = self._usages.get((kind, whose))
        if usage is None:
            self._forget(now_ms)
            usage = self._usages[kind, whose] = _Usage(now_ms, Rate(self._windows), TokenBucket(self._mutation_windows))
        self._usages.move_to_end((kind, whose))
        usage.used_ms = now_ms
        return usage

    def _forget(self, now_ms: int) -> None:
        """Make room for another usage."""
        kept_ms = max(KEPT_MS, self._windows.span_ms + self._windows.size_ms)
        while self._usages:
            oldest = next(iter(self._usages.values()))
            if len(self._usages) < self._most and now_ms - oldest.used_ms < kept_ms:
                break
            self._usages.popitem(last=False)

    # --- connections ---------------------------------------------------------------------------------------------

    def connected(self, address: str, now_ms: int) -> "Meter | None":
        """Count a connection from an address, and return None.

        If it is one too many, do not count it, and return a Meter with the time to hold it before it is closed.
        """
        quotas = self._quotas.get(CONNECTIONS, {})
        whose = _normal(((IP, address),))
        quota = quotas.get(whose, quotas.get(((IP, None),)))
        if quota is None:
            return None
        rate = self.usage(CONNECTIONS, whose, now_ms).rate
        rate.add(1, now_ms)
        over_ms = min(rate.over_ms(quota, now_ms), self.window_ms)
        if not over_ms:
            return None
        rate.add(-1, now_ms)
        return Meter(self, {}, over_ms, CONNECTIONS)


@dataclass(slots=True)
class Meter:
    """The meter of one request, for a client that has quotas. `throttle_ms` is the longest throttle time that a quota
    demands for it, and `quota` is that quota's name."""

    _manager: QuotaManager
    _limits: Mapping[str, Limit]
    throttle_ms: int = 0
    quota: str = ""

    def produced(self, size: int, now_ms: int) -> None:
        """Count a Produce of `size` bytes."""
        limit = self._limits.get(PRODUCER)
        if limit is not None:
            rate = self._rate(PRODUCER, limit, now_ms)
            rate.add(size, now_ms)
            self._hold(PRODUCER, rate.over_ms(limit.quota, now_ms))

    @property
    def fetch_max_bytes(self) -> int:
        """Return the most bytes that the quota allows if nothing was fetched for a while."""
        limit = self._limits.get(CONSUMER)
        if limit is None:
            return INT_MAX
        return max(int(min(limit.quota * self._manager.full_windows_seconds, INT_MAX)), 1)

    def may_fetch(self, size: int, now_ms: int) -> bool:
        """Return True, and count the answer, if an answer of `size` bytes may leave now.

        A client whose requests take more time than their quota allows gets no records either. A batch can be larger
        than the quota ever allows. It leaves if nothing else was fetched for a while, and the client is throttled for
        it afterwards, because otherwise the client would never get past it.
        """
        may = True
        limit = self._limits.get(CONSUMER)
        if limit is not None:
            rate = self._rate(CONSUMER, limit, now_ms)
            is_first = rate.used(now_ms) <= 0
            rate.add(size, now_ms)
            over_ms = rate.over_ms(limit.quota, now_ms)
            self._hold(CONSUMER, over_ms)
            may = is_first or not over_ms
        may = not self.worked(0, now_ms) and may
        if limit is not None and not may:
            rate.add(-size, now_ms)
        return may

    def worked(self, duration_ns: int, now_ms: int) -> int:
        """Count the broker's time spent on the request; one thread is 100 percent. Return the throttle time in ms, at
        most a window."""
        limit = self._limits.get(REQUESTS)
        if limit is None:
            return 0
        rate = self._rate(REQUESTS, limit, now_ms)
        rate.add(duration_ns / _NS_PER_PERCENT, now_ms)
        over_ms = min(rate.over_ms(limit.quota, now_ms), self._manager.window_ms)
        self._hold(REQUESTS, over_ms)
        return over_ms

    def may_mutate(self, partitions: int, now_ms: int) -> bool:
        """Return True, and count the partitions, if the client has no debt, so that they may be made or deleted now."""
        over_ms = self._debt_ms(now_ms)
        if not over_ms:
            self._take(partitions, now_ms)
        return not over_ms

    def mutate(self, partitions: int, strict: bool, now_ms: int) -> None:
        """Count partitions that are to be made or deleted.

        If the client has a debt and `strict`, raise ApiError THROTTLING_QUOTA_EXCEEDED. If not `strict`, the change is
        done and the client is throttled afterwards.
        """
        if strict and not self.may_mutate(partitions, now_ms):
            over_ms = self._debt_ms(now_ms)
            self._hold(MUTATIONS, over_ms)
            reason = f"{MUTATIONS} is {self._limits[MUTATIONS].quota:g} partitions a second; ask again in {over_ms} ms"
            raise ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, reason)
        if not strict:
            self._take(partitions, now_ms)
            self._hold(MUTATIONS, self._debt_ms(now_ms))

    def _take(self, partitions: int, now_ms: int) -> None:
        limit = self._limits.get(MUTATIONS)
        if limit is not None:
            self._manager.usage(MUTATIONS, limit.whose, now_ms).tokens.take(partitions, limit.quota, now_ms)

    def _debt_ms(self, now_ms: int) -> int:
        limit = self._limits.get(MUTATIONS)
        if limit is None:
            return 0
        return self._manager.usage(MUTATIONS, limit.whose, now_ms).tokens.over_ms(limit.quota, now_ms)

    def _rate(self, kind: str, limit: Limit, now_ms: int) -> Rate:
        return self._manager.usage(kind, limit.whose, now_ms).rate

    def _hold(self, kind: str, over_ms: int) -> None:
        if over_ms > self.throttle_ms:
            self.throttle_ms, self.quota = over_ms, kind


def _entities(client_id: str | None, user: str) -> Iterator[tuple[Entity, Entity]]:
    """Yield (entity whose quota may apply, entity that shares the usage) for a client, most specific first."""
    of_user: Entity = ((USER, user),)
    of_client: Entity = ((CLIENT_ID, client_id and client_id[:NAME_MAX]),)
    of_both = of_client + of_user
    for name in (user, None):
        part: Entity = ((USER, name),)
        if client_id:
            yield of_client + part, of_both
            yield ((CLIENT_ID, None),) + part, of_both
        yield part, of_user
    if client_id:
        yield of_client, of_client
        yield ((CLIENT_ID, None),), of_client


def _normal(entity: Entity) -> Entity:
    """Return the entity with an IP address in its canonical form; others are unchanged."""
    return entity_of((kind, str(ip_address(name)) if kind == IP and name else name) for kind, name in entity)
