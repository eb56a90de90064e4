"""All options of format "flakelog" in one table: the Kafka connector's, by its names, and Flakelog's.

Each option has a verdict for each use (a batch read, a streaming read, a write): it is taken, ignored with a warning,
or refused with a reason. `sort_out` applies the table.

Spark passes all options as strings and ignores the case of their names. An unknown option is an error, because ignoring
it would read other data than the user meant. Unknown Kafka settings (kafka.*) are ignored with a warning, because they
tune a client and select nothing.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from broker.client.security.settings import CLIENT_SETTINGS, check_properties, is_of_security, why_unknown
from coordination.errors import FlakelogError
from idgen.settings import InvalidSetting

SERVERS = "kafka.bootstrap.servers"
KAFKA = "kafka."


class OptionError(FlakelogError, ValueError):
    """An option that is unknown, invalid, missing, or contradicts another; the message names it."""


class Use(Enum):
    READ = "a batch read"
    STREAM = "a streaming read"
    WRITE = "a write"


class Verdict(Enum):
    TAKEN = "taken"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Option:
    """An option: what it means, and where it is taken.

    `meaning` is Flakelog's; `connector` says what differs in the Kafka connector ("" if nothing does, None if it has no
    such option). In a use that is neither in `taken` nor in `ignored`, the option is refused because of `reason`.
    """

    name: str
    meaning: str
    taken: frozenset[Use] = frozenset()
    default: str = ""
    connector: str | None = ""
    reason: str = ""
    ignored: frozenset[Use] = frozenset()

    def verdict(self, use: Use) -> Verdict:
        if use in self.taken:
            return Verdict.TAKEN
        if use is Use.WRITE and self.taken:
            return Verdict.IGNORED  # the connector ignores a read's options too, and jobs share their options
        return Verdict.IGNORED if use in self.ignored else Verdict.REFUSED


_ALL = frozenset(Use)
_READS = frozenset((Use.READ, Use.STREAM))
_BATCH = frozenset((Use.READ,))
_STREAMS = frozenset((Use.STREAM,))
_WRITES = frozenset((Use.WRITE,))
_READS_ONLY = "it selects or splits what is read"
_BATCH_ONLY = "a stream has no end, and its offsets are in Spark's checkpoint"
_BYTES = "keys and values are bytes; convert them with DataFrame operations"
_NO_GROUP = "reads join no consumer group and commit no offsets"
_SECURITY_MEANING = "as at Kafka's clients; the text may refer to a file or a variable of the machine that reads it"


def _selects(name: str, meaning: str, default: str = "", connector: str | None = "") -> Option:
    return Option(name, meaning, _READS, default, connector, _READS_ONLY)


def _ends(name: str, meaning: str, default: str = "", connector: str | None = "") -> Option:
    return Option(name, meaning, _BATCH, default, connector, _BATCH_ONLY)


def _triggers(name: str, meaning: str, default: str = "") -> Option:
    return Option(name, meaning, _STREAMS, default, "", "only a streaming read has triggers", _ALL)


def _tunes(name: str, meaning: str, taken: frozenset[Use], default: str = "") -> Option:
    return Option(KAFKA + name, meaning, taken, default, "", "it has no meaning here", _ALL)


def _refused(name: str, reason: str, ignored: frozenset[Use]) -> Option:
    return Option(KAFKA + name, "refused: " + reason, reason=reason, ignored=ignored)


def _ignored(name: str, reason: str, connector: str = "passed to Kafka's client") -> Option:
    return Option(name, "ignored with a warning: " + reason, frozenset(), "", connector, reason, _ALL)


TABLE: tuple[Option, ...] = (
    Option(SERVERS, "host:port, several with commas between; required", _ALL),
    # --- the selection
    _selects("subscribe", "topics, with commas between"),
    _selects("assign", 'partitions of topics: {"topic": [0, 1]}'),
    _selects("subscribePattern", "a regular expression of Python's that is found in names of topics", "", "Java's"),
    _selects("startingTimestamp", "ms since 1970, for all partitions; before the next two"),
    _selects("startingOffsetsByTimestamp", 'ms since 1970: {"topic": {"0": 1700000000000}}; before the next'),
    _selects(
        "startingOffsets", 'earliest, latest (a stream), or {"topic": {"0": 17, "1": -2}}', "earliest; a stream: latest"
    ),
    _selects("startingOffsetsByTimestampStrategy", "error, or latest, for a partition without such a record", "error"),
    _ends("endingTimestamp", "ms since 1970, for all partitions; before the next two"),
    _ends("endingOffsetsByTimestamp", 'ms since 1970: {"topic": {"0": 1700000000000}}; before the next'),
    _ends("endingOffsets", 'latest, or {"topic": {"0": 17, "1": -1}}', "latest"),
    _selects("startingId", "the first id to read; no other start beside it", "", None),
    _ends("endingId", "the id to end before; no other end beside it", "", None),
    _ends("manifest", "path of a manifest: read exactly its ranges", "", None),
    _ends("flakelog.binding", "pinned: latest is fixed at load(); late: anew at each action", "pinned", None),
    # --- the reading
    _selects(
        "failOnDataLoss", "false: offsets that the log no longer has are named in a warning and left out", "true"
    ),
    _selects("minPartitions", "split the read into about so many tasks; at least 1"),
    _selects("maxRecordsPerPartition", "offsets of one task at most; at least 1"),
    Option("includeHeaders", "true: the column headers", _ALL, "false"),
    _selects("columns", "the columns to read, with commas between", "all but headers and id_time", None),
    _selects(
        "compacted", "true: offsets may be missing, as after compaction", "by the topic's cleanup.policy", None
    ),
    _selects("onPoison", "skip: leave out batches that cannot be decoded, with a warning", "fail", None),
    _selects("poisonReport", "a directory in which tasks name the batches that they left out", "", None),
    _selects("idEpochMs", "the epoch of the ids (flakelog.ids.epoch.ms), for the column id_time", "the broker's", None),
    _selects("fetchOffset.numRetries", "attempts to ask for offsets", "8", "default 3"),
    _selects("fetchOffset.retryIntervalMs", "ms between these attempts", "100, doubled each time", "default 1000"),
    _selects("kafkaConsumer.pollTimeoutMs", "ms that a task waits for an answer", "30000", "default 120000"),
    _triggers("maxOffsetsPerTrigger", "offsets of one micro-batch at most"),
    _triggers("minOffsetsPerTrigger", "offsets of one micro-batch at least"),
    _triggers("maxTriggerDelay", "the longest wait for minOffsetsPerTrigger", "15m"),
    _ignored("groupIdPrefix", _NO_GROUP, "names the consumer groups of a query"),
    # --- writes
    Option("topic", "the topic of all rows; without it the column topic", _WRITES, "", "", "a read has subscribe"),
    Option("checkpointLocation", "Spark's own", _WRITES, "", "", "it is for a write", _ALL),
    # --- Kafka's settings
    _tunes("isolation.level", "read_committed: up to the last stable offset, without aborted records", _READS),
    _tunes("client.id", "the name of this client in the broker's metrics and quotas", _ALL, "flakelog-spark"),
    _tunes("request.timeout.ms", "ms to wait for an answer", _ALL, "30000"),
    _tunes("max.partition.fetch.bytes", "bytes of one fetch", _READS, "4194304"),
    _tunes("fetch.max.bytes", "bytes of one fetch, if it is the lower", _READS),
    _tunes("fetch.max.wait.ms", "ms that the broker waits for records", _READS, "500"),
    # --- a producer's settings, with Kafka's names (spark_bridge.selection.write_options)
    _tunes("acks", "acknowledgements that a write waits for: all, 1 or 0", _WRITES, "all"),
    _tunes("enable.idempotence", "true: the producer's own retries write nothing twice", _WRITES, "true with acks=all"),
    _tunes("compression.type", "none, gzip, snappy, lz4 or zstd", _WRITES, "none"),
    _tunes("linger.ms", "ms to wait for a fuller batch", _WRITES, "5"),
    _tunes("batch.size", "bytes of one batch", _WRITES, "1000000"),
    _tunes("max.request.size", "bytes of one request, and so of one message", _WRITES, "1048576"),
    _tunes("buffer.memory", "bytes of messages that wait in a task", _WRITES, "67108864"),
    _tunes("max.block.ms", "ms that a task waits for room in this memory", _WRITES, "60000"),
    _tunes("delivery.timeout.ms", "ms until a message must be acknowledged", _WRITES, "120000"),
    _tunes("retries", "attempts after the first", _WRITES, "2147483647"),
    _tunes("retry.backoff.ms", "ms before the next attempt", _WRITES, "100"),
    _tunes("retry.backoff.max.ms", "ms before the next attempt, after several", _WRITES, "1000"),
    _tunes("max.in.flight.requests.per.connection", "requests that are sent ahead", _WRITES, "5"),
    _tunes("metadata.max.age.ms", "ms after which a producer looks for new partitions", _WRITES, "300000"),
    _refused("partitioner.class", "it names a Java class; choose partitions by the column partition", _READS),
    _refused("transactional.id", "writes are at least once, without transactions, as the connector's", _READS),
    *(_tunes(name, _SECURITY_MEANING, _ALL) for name in sorted(CLIENT_SETTINGS)),
    _ignored("kafka.group.id", _NO_GROUP, "the consumer group, with a warning"),
    _ignored("kafka.max.poll.records", "a task reads whole fetches"),
    _ignored("kafka.fetch.min.bytes", "a range ends before the end of the log, so a fetch need not wait for more"),
    _refused("auto.offset.reset", "startingOffsets says where a read begins", _WRITES),
    _refused("enable.auto.commit", "Spark's checkpoint holds the offsets, and a batch read has its own", _WRITES),
    _refused("interceptor.classes", "an interceptor could change what is read", _WRITES),
    _refused("key.deserializer", _BYTES, _WRITES),
    _refused("value.deserializer", _BYTES, _WRITES),
    _refused("key.serializer", _BYTES, _READS),
    _refused("value.serializer", _BYTES, _READS),
)
BY_NAME: Mapping[str, Option] = {option.name.lower(): option for option in TABLE}


class Given(NamedTuple):
    """The options of one use: {name as in the table: value} of those that are taken, and the warnings for the rest."""

    options: Mapping[str, str]
    warnings: tuple[str, ...]


def sort_out(options: Mapping[str, str], use: Use) -> Given:
    """Apply the table. Raise OptionError for an option that is refused, or unknown (it suggests the closest name)."""
    taken, ignored = {}, {}
    for name, value in options.items():
        option = BY_NAME.get(name.lower()) or _unlisted(name)
        verdict = option.verdict(use)
        if verdict is Verdict.REFUSED:
            raise OptionError(f"option {option.name} is refused for {use.value}: {option.reason}")
        if verdict is Verdict.IGNORED:
            ignored[option.name] = option.reason
        else:
            taken[option.name] = value
    _refuse_backward_triggers(options)
    return Given(taken, tuple(f"option {name} is ignored: {why}" for name, why in sorted(ignored.items())))


def options_of(security: Mapping[str, str] | None) -> dict[str, str]:
    """Return the options of a client's properties of security."""
    return {KAFKA + name: text for name, text in (security or {}).items()}


def security_of(given: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the properties of security among the options, by Kafka's names; a task makes its client of them.

    Their references to files and variables stay, for the machine that uses them. Raise OptionError.
    """
    names = {KAFKA + name: name for name in sorted(CLIENT_SETTINGS)}
    properties = {name: given[option] for option, name in names.items() if option in given}
    try:
        check_properties(properties)
    except InvalidSetting as error:
        raise OptionError(f"option {KAFKA}{error}") from None
    return tuple(properties.items())


def _unlisted(name: str) -> Option:
    low = name.lower()
    if low.startswith(KAFKA) and is_of_security(low.removeprefix(KAFKA)):
        return Option(name, "", reason=why_unknown(low.removeprefix(KAFKA)))
    near = difflib.get_close_matches(low, BY_NAME, 1)
    hint = f"is {BY_NAME[near[0]].name} meant?" if near else ""
    if low.startswith(KAFKA):
        return Option(name, "", reason=f"Flakelog's client has no such setting{hint and '; ' + hint}", ignored=_ALL)
    raise OptionError(f"option {name} is not known; {hint or 'there are ' + ', '.join(row.name for row in TABLE)}")


def _refuse_backward_triggers(options: Mapping[str, str]) -> None:
    """Raise OptionError as the connector does, which compares the two in a batch read too."""
    low = {name.lower(): value.strip() for name, value in options.items()}
    least, most = low.get("minoffsetspertrigger", ""), low.get("maxoffsetspertrigger", "")
    if least.isdecimal() and most.isdecimal() and int(least) > int(most):
        raise OptionError(f"minOffsetsPerTrigger is {least}, more than maxOffsetsPerTrigger, which is {most}")
