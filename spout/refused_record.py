"""SHELL (Twisted): why a topic refuses a record, in words that name the topic's limit."""

from collections.abc import Generator
from typing import Any

from twisted.internet.defer import Deferred, inlineCallbacks

from broker.client.config_admin import TOPIC, Resource, describe_configs
from broker.client.errors import BrokerError, ClientError
from broker.client.twisted import TwistedClient
from broker.record.compression import Codec
from broker.record.records import encode_batch
from partition_manager.dead_letter import TOO_LARGE
from spout.sink_ports import Output, records_of

LIMIT = "max.message.bytes"


@inlineCallbacks
def limit_of(client: TwistedClient, topic: str) -> Generator["Deferred[Any]", Any, int | None]:
    """Return the bytes that a batch of the topic may have; None if the broker does not say, or may not."""
    try:
        configs = yield client.run(describe_configs(client.core, Resource(TOPIC, topic), [LIMIT]))
    except ClientError:
        return None
    values = [config.value for config in configs if config.name == LIMIT and config.value is not None]
    return int(values[0]) if values else None


def size_of(output: Output, codec: Codec) -> int:
    """Return the bytes of a batch that holds one record only."""
    return len(encode_batch(records_of((output,)), base_timestamp_ms=0, codec=codec))


def why_refused(partition: str, error: BrokerError, size: int, limit: int | None) -> str:
    """Return why the partition `place` refuses a record of `size` bytes, alone in its batch."""
    if error.code not in TOO_LARGE:
        return f"{partition} refuses a record: {error}"
    most = f"its {LIMIT} is {limit:,}" if limit is not None else str(error)
    return f"{partition} refuses a record of {size:,} bytes: {most}"
