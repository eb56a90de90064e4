"""SHELL (asyncio, a clock, this machine's name and process id): a mirror's orders, and the documents that it publishes.

Both are topics of the target (`orders`, `document`). A failure never disturbs the copy: it is logged once while it
lasts, and tried again.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from broker.client.asyncio import AsyncClient
from broker.client.core import EARLIEST
from broker.client.errors import BrokerError, ClientError
from broker.client.mirror import document, orders
from broker.client.mirror.document import MirrorProcess, document_of
from broker.record.records import BatchRecord, encode_batch
from broker.wire.errors import ErrorCode

TOMBSTONE_SECONDS = 1.0  # longest time that a stop waits for the tombstone; without it the document expires

_log = logging.getLogger("broker.client.mirror")


class MirrorControl:
    """The orders to one mirror of a source, and its documents. `fields` returns its figures now."""

    def __init__(
        self, client: AsyncClient, name: str, source_id: str, fields: Callable[[], Mapping[str, Any]]
    ) -> None:
        self._client = client
        self._name = name
        self._process = MirrorProcess(uuid4().hex[:12], socket.gethostname(), os.getpid(), _now_ms())
        self._key = f"{name}/{source_id}/{self._process.run_id}".encode()
        self._fields = fields
        self._orders = orders.Orders()
        self._offset: int | None = None  # of the topic of orders
        self._last_trouble = ""

    async def is_paused(self) -> bool:
        """Read the orders that are new, and return True if the mirror is to pause. Raise ClientError."""
        try:
            if self._offset is None:
                self._offset = await self._client.find_offset(orders.TOPIC, 0, EARLIEST)
            while True:
                records, following = await self._client.fetch(orders.TOPIC, 0, self._offset, max_wait_ms=0)
                self._orders.read((record.key, record.value) for record in records)
                if following == self._offset:
                    break
                self._offset = following
        except BrokerError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._orders = orders.Orders()  # there are no orders yet
            elif error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._offset = None
        return self._name in self._orders.paused

    async def follow_by_time(self, interval_ms: int, pause: Callable[[bool], None]) -> None:
        """Obey orders and publish a document, again and again."""
        while True:
            troubles: list[str] = []
            try:
                pause(await self.is_paused())
            except ClientError as error:
                troubles.append(f"orders: {error}")
            try:
                await self._publish(document_of(self._fields(), self._process, _now_ms()))
            except ClientError as error:
                troubles.append(f"figures are not published: {error}")
            trouble = "; ".join(troubles)
            if trouble and trouble != self._last_trouble:
                _log.warning("%s; the copy goes on", trouble)
            self._last_trouble = trouble
            await asyncio.sleep(interval_ms / 1000)

    async def end(self) -> None:
        """Take the document back, because the mirror stops cleanly."""
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(TOMBSTONE_SECONDS):
                await self._produce(None)

    async def _publish(self, value: bytes) -> None:
        try:
            await self._produce(value)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            await self._create()
            await self._produce(value)

    async def _produce(self, value: bytes | None) -> None:
        batch = encode_batch([BatchRecord(0, 0, self._key, value)], base_timestamp_ms=_now_ms())
        await self._client.produce(document.TOPIC, 0, batch)

    async def _create(self) -> None:
        try:
            await self._client.create_topic(document.TOPIC, 1, document.TOPIC_CONFIGS)
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
