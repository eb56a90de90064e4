"""The keys of identity providers, by the URL of their key sets, and when each is to be fetched. Times are monotonic ms.

A shell fetches the sets that `take_due` returns. A set is due at first, then after `refresh_ms`, and once a token names
a key that is not there, but MISSING_MS after the last time at the earliest, because anybody can invent names. After a
failure it is due again after `backoff_ms`, and that pause doubles each time.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from broker.security.sasl.token_rules import KeySource

if TYPE_CHECKING:  # it needs `cryptography`, which few brokers import
    from broker.security.sasl.web_keys import WebKey

MISSING_MS = 10_000


class KeySet:
    """The keys of one source; none before they are fetched."""

    def __init__(self, source: KeySource) -> None:
        self.source = source
        self.is_under_way = False
        self._keys: "tuple[WebKey, ...]" = ()
        self._due_ms: int | None = None
        """When it is fetched next, None for at once."""
        self._earliest_ms = 0
        self._pause_ms = source.backoff_ms

    def find(self, key_id: str | None) -> "Iterable[WebKey]":
        """Return the keys of a name, all for None. Without such a key, the set becomes due."""
        keys = [key for key in self._keys if key_id is None or key.key_id == key_id]
        if not keys:
            self._due_ms = None
        return keys

    def is_due(self, now_ms: int) -> bool:
        wanted = self._due_ms is None or self._due_ms <= now_ms
        return wanted and not self.is_under_way and self._earliest_ms <= now_ms

    def fetched(self, keys: "tuple[WebKey, ...]", now_ms: int) -> None:
        self.is_under_way = False
        self._keys, self._pause_ms = keys, self.source.backoff_ms
        self._earliest_ms, self._due_ms = now_ms + MISSING_MS, now_ms + self.source.refresh_ms

    def failed(self, now_ms: int) -> None:
        """Keep the keys, and try again after a pause."""
        self.is_under_way = False
        self._earliest_ms, self._due_ms = now_ms + self._pause_ms, None
        self._pause_ms = min(2 * self._pause_ms, self.source.backoff_max_ms)


class KeySets:
    """The key sets of a broker's listeners."""

    def __init__(self) -> None:
        self._sets: dict[KeySource, KeySet] = {}

    def of(self, source: KeySource) -> KeySet:
        """Return the set of a source."""
        return self._sets.setdefault(source, KeySet(source))

    def take_due(self, now_ms: int) -> list[KeySet]:
        """Return the sets to fetch now. Each must be `fetched` or `failed` afterwards."""
        due = [keys for keys in self._sets.values() if keys.is_due(now_ms)]
        for keys in due:
            keys.is_under_way = True
        return due
