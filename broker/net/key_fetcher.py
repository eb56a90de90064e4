"""SHELL (threads, HTTP): the keys of identity providers are fetched, from files too, while the broker serves."""

import time
from collections.abc import Callable
from http.client import HTTPException
from threading import Thread
from typing import Any
from urllib.request import urlopen

from twisted.internet.task import LoopingCall

from broker.security.sasl.key_sets import KeySet, KeySets
from broker.security.sasl.web_keys import WebKey, parse_keys

CHECK_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
BYTES_MAX = 1 << 20


class KeyFetcher:
    """Fetches the key sets that are due. `report` takes a line when a set cannot be fetched, and when it can again."""

    def __init__(self, reactor: Any, key_sets: KeySets, report: Callable[[str], None]) -> None:
        self._reactor = reactor
        self._key_sets = key_sets
        self._report = report
        self._failing: set[str] = set()
        self._checks = LoopingCall(self._fetch_due)
        self._checks.clock = reactor

    def serve(self) -> None:
        """Fetch all sets now, in this thread, because clients need them; fetch them in threads from then on."""
        for keys in self._key_sets.take_due(_now_ms()):
            self._ended(keys, *_fetch(keys.source.url))
        self._checks.start(CHECK_SECONDS, now=False)

    def stop(self) -> None:
        if self._checks.running:
            self._checks.stop()

    def _fetch_due(self) -> None:
        for keys in self._key_sets.take_due(_now_ms()):
            Thread(target=self._fetch_in_thread, args=(keys,), name="keys", daemon=True).start()

    def _fetch_in_thread(self, keys: KeySet) -> None:
        fetched, reason = _fetch(keys.source.url)
        self._reactor.callFromThread(self._ended, keys, fetched, reason)

    def _ended(self, keys: KeySet, fetched: tuple[WebKey, ...], reason: str | None) -> None:
        url = keys.source.url
        if reason is None:
            keys.fetched(fetched, _now_ms())
            if url in self._failing:
                self._failing.discard(url)
                self._report(f"the keys at {url} were fetched")
            return
        keys.failed(_now_ms())
        if url not in self._failing:
            self._failing.add(url)
            self._report(f"the keys at {url} cannot be fetched, which is tried again: {reason}")


def _fetch(url: str) -> tuple[tuple[WebKey, ...], str | None]:
    """Return the keys of a URL, and the reason if they could not be fetched, else None."""
    try:
        with urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # its scheme is checked as a setting
            data = answer.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            return (), f"it is larger than {BYTES_MAX} bytes"
        return parse_keys(data.decode()), None
    except (OSError, ValueError, HTTPException) as error:
        return (), str(error)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
