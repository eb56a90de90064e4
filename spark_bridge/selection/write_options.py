"""The options of a write, batch and streaming, and the producer's settings that follow from them.

The names are those of Kafka's Java producer; the producer is librdkafka, which has other names for some. Defaults are
the Java producer's for what can be seen from outside: acknowledgements, idempotence, timeouts, and the choice of the
partition (murmur2 of the key; for rows without a key, one partition for a batch). Batches are larger by default.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from spark_bridge.reading.network import Address
from spark_bridge.reading.settings import CLIENT_ID
from spark_bridge.selection.option_table import KAFKA, OptionError, Use, security_of, sort_out
from spark_bridge.selection.option_values import INT_MAX, flag, number, word
from spark_bridge.selection.options import parse_servers

DAY_MS = 86_400_000
BUFFER_BYTES = 64 << 20
"""Messages that wait in a task. Kafka's default is 32 MiB, with batches of 16 KiB; these batches are larger."""
IN_FLIGHT_MAX = 5  # of an idempotent producer, in Kafka
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
# option: (librdkafka's name, least, most)
_NUMBERS: Mapping[str, tuple[str, int, int]] = {
    "linger.ms": ("linger.ms", 0, 900_000),
    "batch.size": ("batch.size", 1, INT_MAX),
    "max.request.size": ("message.max.bytes", 1_000, 1_000_000_000),
    "delivery.timeout.ms": ("delivery.timeout.ms", 1, INT_MAX),
    "request.timeout.ms": ("request.timeout.ms", 1, 900_000),
    "retries": ("retries", 0, INT_MAX),
    "retry.backoff.ms": ("retry.backoff.ms", 1, 300_000),
    "retry.backoff.max.ms": ("retry.backoff.max.ms", 1, 300_000),
    "max.in.flight.requests.per.connection": ("max.in.flight.requests.per.connection", 1, 1_000_000),
    "metadata.max.age.ms": ("metadata.max.age.ms", 1, DAY_MS),
}
_DEFAULTS: Mapping[str, int | str | bool] = {
    "delivery.timeout.ms": 120_000, "partitioner": "murmur2_random", "message.max.bytes": 1 << 20
}  # fmt: skip

Settings: TypeAlias = Mapping[str, int | str | bool]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The validated options of a write."""

    servers: tuple[Address, ...]
    topic: str | None = None
    """The topic of all rows; None if the column `topic` names it."""
    producer: tuple[tuple[str, int | str | bool], ...] = ()
    """The settings of librdkafka's producer, by its names, sorted."""
    block_ms: int = 60_000
    """How long a message waits for room in the producer's memory."""
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Properties of Kafka's clients, of which a task makes settings of librdkafka."""
    warnings: tuple[str, ...] = ()
    """For the user: options that are ignored, and why."""


def parse_write(options: Mapping[str, str]) -> WriteOptions:
    """Parse the options of `write.format("flakelog")` and `writeStream`. Raise OptionError."""
    given, warnings = sort_out(options, Use.WRITE)
    servers = parse_servers(given)
    topic = given["topic"].strip() if "topic" in given else None
    if topic == "":
        raise OptionError("topic is empty; name the topic of all rows, or leave it to the column topic")
    settings = {"bootstrap.servers": ",".join(map(str, servers)), **_producer(given)}
    block_ms = number(given, KAFKA + "max.block.ms", 60_000)
    return WriteOptions(servers, topic, tuple(sorted(settings.items())), block_ms, security_of(given), warnings)


def _producer(given: Mapping[str, str]) -> Settings:
    settings = dict(_DEFAULTS)
    settings["client.id"] = given.get(KAFKA + "client.id", CLIENT_ID)
    settings["compression.type"] = word(given, KAFKA + "compression.type", _CODECS, "none")
    memory = number(given, KAFKA + "buffer.memory", BUFFER_BYTES, 1 << 10, INT_MAX)
    settings["queue.buffering.max.kbytes"] = max(1, memory >> 10)
    for name, (theirs, least, most) in _NUMBERS.items():
        if KAFKA + name in given:
            settings[theirs] = number(given, KAFKA + name, 0, least, most)
    acks = word(given, KAFKA + "acks", ("all", "-1", "1", "0"), "all")
    settings["acks"] = "all" if acks == "-1" else acks
    settings["enable.idempotence"] = _is_idempotent(given, settings)
    return settings


def _is_idempotent(given: Mapping[str, str], settings: Settings) -> bool:
    """Return the Java producer's choice: yes, unless another setting excludes it. Raise OptionError for both."""
    in_flight = "max.in.flight.requests.per.connection"
    excluded = [
        name
        for name, excludes in (
            ("acks", settings["acks"] != "all"),
            ("retries", settings.get("retries") == 0),
            (in_flight, int(settings.get(in_flight, 1)) > IN_FLIGHT_MAX),
        )
        if excludes
    ]
    if not flag(given, KAFKA + "enable.idempotence", not excluded):
        return False
    if excluded:
        name = KAFKA + excluded[0]
        raise OptionError(
            f"kafka.enable.idempotence=true needs acks=all, retries, and at most {IN_FLIGHT_MAX} requests in flight; "
            f"{name} is {given[name]}"
        )
    return True
