"""The options of a read, parsed: what `spark.read.format("flakelog")` and `spark.readStream` have in common.

`parse` is for batch reads. Names, meanings and refusals are in spark_bridge.selection.option_table.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broker.client.offset_spec import AtId, Earliest, Latest
from spark_bridge.reading.network import Address, addresses
from spark_bridge.reading.row import choose
from spark_bridge.reading.settings import CLIENT_ID, Patience, ReadSettings
from spark_bridge.reading.skipped import FAIL, SKIP
from spark_bridge.selection.option_table import SERVERS
from spark_bridge.selection.option_table import OptionError as OptionError
from spark_bridge.selection.option_table import Use, security_of, sort_out
from spark_bridge.selection.option_values import INT_MAX, by_partition, flag, from_json, made, number, positive, word
from spark_bridge.selection.selector import (
    EARLIEST,
    LATEST,
    Bound,
    OffsetBound,
    SelectionError,
    Selector,
    TimeBound,
    offset_bound,
)

SELECTION = (
    "subscribe", "assign", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestamp", "endingOffsetsByTimestamp", "startingId", "endingId",
    "minPartitions", "maxRecordsPerPartition", "kafka.isolation.level", "flakelog.binding",
)  # fmt: skip
"""Options that cannot be combined with a manifest, because it already fixes the selection."""

FETCH_BYTES_MAX = 64 << 20  # several fetches of a task are in memory at once
ATTEMPTS_MAX = 1_000
PAUSE_MS_MAX = 60_000
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_SET = re.compile(r"\[\^?\]?([^\]]*)\]")
LATE, PINNED = "late", "pinned"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of a read: by name, by a regular expression over all names, or some partitions of some topics."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The validated options of a read."""

    servers: tuple[Address, ...]
    columns: tuple[str, ...]
    """The columns to read; none if the manifest names them."""
    settings: ReadSettings
    """For tasks."""
    driver_settings: ReadSettings = ReadSettings()
    """For the driver's requests: topics, leaders and offsets."""
    manifest: str | None = None
    poison_report: str | None = None
    id_epoch_ms: int | None = None
    """The epoch of the ids in Unix ms; None asks the broker for their layout."""
    topics: Topics = Topics()
    selector: Selector = Selector()
    min_partitions: int = 0
    max_records_per_partition: int = 0
    late: bool = False
    """Resolve `latest` anew at each action; otherwise it is fixed when the DataFrame is loaded."""
    warnings: tuple[str, ...] = ()
    """For the user: options that are ignored, and why."""

    @property
    def is_split(self) -> bool:
        """Return True if the user says how many tasks there are."""
        return bool(self.min_partitions or self.max_records_per_partition or self.manifest)

    @property
    def read_committed(self) -> bool:
        return self.settings.read_committed

    @property
    def fail_on_data_loss(self) -> bool:
        return self.settings.fail_on_data_loss


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read.format("flakelog")`. Raise OptionError."""
    given, warnings = sort_out(options, Use.READ)
    try:
        read = replace(parse_source(given), warnings=warnings)
        if read.manifest is not None:
            return read
        start, end = parse_start(given, EARLIEST), _end(given)
        return replace(read, selector=Selector(start, end), late=_is_late(given))
    except SelectionError as error:
        raise OptionError(str(error)) from None


def parse_source(given: Mapping[str, str]) -> ReadOptions:
    """Parse what batch and streaming reads have in common: all but start, end and binding. Raise OptionError."""
    servers = parse_servers(given)
    headers = flag(given, "includeHeaders", False)
    names = [column.strip() for column in given["columns"].split(",")] if "columns" in given else None
    columns = made("columns", names, lambda value: choose(value, include_headers=headers))
    settings = _settings(given)
    read = ReadOptions(
        servers,
        columns,
        _task_settings(given, settings),
        _driver_settings(given, settings),
        poison_report=given.get("poisonReport"),
        id_epoch_ms=number(given, "idEpochMs", 0) if "idEpochMs" in given else None,
    )
    if "manifest" in given:
        also = [name for name in SELECTION if name in given]
        if also:
            raise OptionError(f"a manifest says what is read; {', '.join(also)} cannot be given beside it")
        unnamed = "columns" not in given and not headers
        return replace(read, manifest=given["manifest"], columns=() if unnamed else columns)
    return replace(
        read,
        topics=_topics(given),
        min_partitions=positive(given, "minPartitions", INT_MAX),
        max_records_per_partition=positive(given, "maxRecordsPerPartition"),
    )


def parse_servers(given: Mapping[str, str]) -> tuple[Address, ...]:
    if SERVERS not in given:
        raise OptionError(f"option {SERVERS} is needed: host:port, several with commas between")
    return made(SERVERS, given[SERVERS], addresses)


def parse_start(given: Mapping[str, str], default: str) -> Bound:
    """Return where a read starts. A time for all partitions comes before times for each, and these before offsets."""
    if "startingId" in given:
        _refuse_beside_id(given, "startingId", "startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
        return AtId(number(given, "startingId", 0))
    strict = word(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error") == "error"
    if "startingTimestamp" in given:
        return TimeBound(number(given, "startingTimestamp", 0), strict)
    if "startingOffsetsByTimestamp" in given:
        return TimeBound(_times(given, "startingOffsetsByTimestamp"), strict)
    return _offsets(given, "startingOffsets", default)


def _end(given: Mapping[str, str]) -> Bound:
    if "endingId" in given:
        _refuse_beside_id(given, "endingId", "endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
        return AtId(number(given, "endingId", 0))
    if "endingTimestamp" in given:
        return TimeBound(number(given, "endingTimestamp", 0))
    if "endingOffsetsByTimestamp" in given:
        return TimeBound(_times(given, "endingOffsetsByTimestamp"))
    return _offsets(given, "endingOffsets", LATEST)


def _refuse_beside_id(given: Mapping[str, str], name: str, *others: str) -> None:
    also = [option for option in others if option in given]
    if also:
        raise OptionError(f"{name} is exact; {', '.join(also)} cannot be given beside it")


def _is_late(given: Mapping[str, str]) -> bool:
    return word(given, "flakelog.binding", (PINNED, LATE), PINNED) == LATE


def _settings(given: Mapping[str, str]) -> ReadSettings:
    """Return the settings that the driver and the tasks have in common."""
    default = ReadSettings()
    return ReadSettings(
        read_committed=word(given, "kafka.isolation.level", (COMMITTED, UNCOMMITTED), UNCOMMITTED) == COMMITTED,
        fail_on_data_loss=flag(given, "failOnDataLoss", True),
        client_id=given.get("kafka.client.id", CLIENT_ID),
        request_timeout_ms=number(given, "kafka.request.timeout.ms", default.request_timeout_ms, 1, INT_MAX),
        security=security_of(given),
    )


def _task_settings(given: Mapping[str, str], common: ReadSettings) -> ReadSettings:
    largest = FETCH_BYTES_MAX
    by_partition_bytes = number(given, "kafka.max.partition.fetch.bytes", common.fetch_bytes, 1, largest)
    return replace(
        common,
        # a fetch asks for one partition, so both limits are limits on it
        fetch_bytes=min(by_partition_bytes, number(given, "kafka.fetch.max.bytes", largest, 1, INT_MAX)),
        fetch_wait_ms=number(given, "kafka.fetch.max.wait.ms", common.fetch_wait_ms, 0, PAUSE_MS_MAX),
        request_timeout_ms=number(given, "kafkaConsumer.pollTimeoutMs", common.request_timeout_ms, 1, INT_MAX),
        compacted=flag(given, "compacted", False) if "compacted" in given else None,
        skip_poison=_skips_poison(given),
    )


def _driver_settings(given: Mapping[str, str], common: ReadSettings) -> ReadSettings:
    patience = replace(
        common.patience, attempts=number(given, "fetchOffset.numRetries", common.patience.attempts, 1, ATTEMPTS_MAX)
    )
    if "fetchOffset.retryIntervalMs" in given:
        pause_ms = number(given, "fetchOffset.retryIntervalMs", 0, 0, PAUSE_MS_MAX)
        patience = Patience(patience.attempts, pause_ms, pause_ms_max=pause_ms)
    return replace(common, patience=patience)


def _topics(given: Mapping[str, str]) -> Topics:
    ways = [name for name in ("subscribe", "assign", "subscribePattern") if name in given]
    if len(ways) != 1:
        raise OptionError(f"exactly one of subscribe, assign, subscribePattern is needed; got {ways or 'none'}")
    if "assign" in given:
        return Topics(partitions=_assigned(given["assign"]))
    if "subscribePattern" in given:
        pattern = given["subscribePattern"].strip()
        if not pattern:
            raise OptionError("subscribePattern is empty, so it matches no topic; .* matches all")
        return Topics(pattern=_regular(pattern))
    names = tuple(filter(None, (topic.strip() for topic in given["subscribe"].split(","))))
    if not names:
        raise OptionError("subscribe names no topic; give names with a comma between, as in orders,payments")
    return Topics(names=names)


def _regular(pattern: str) -> str:
    """Return the pattern if Java and Python read it alike. Raise OptionError."""
    if has_nested_set(pattern):
        reason = "it has [ or && between [ and ], which is a set within a set in Java only"
    else:
        try:
            re.compile(pattern)
            return pattern
        except re.error as error:
            reason = str(error)
    raise OptionError(
        f"subscribePattern {pattern!r} is no regular expression of Python's: {reason}. Python lacks Java's "
        "\\p{...}, \\Q...\\E, (?<name>...) and sets within sets"
    )


def has_nested_set(pattern: str) -> bool:
    """Return True if a pattern has an unescaped [ or && within a set such as [a-z&&[^x]].

    Python takes these characters as such there. No topic's name has them.
    """
    for inner in _SET.findall(_ESCAPED.sub("", pattern)):
        if "[" in inner or "&&" in inner:
            return True
    return False


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    value = from_json("assign", text)
    good = (
        isinstance(value, dict)
        and value
        and all(
            isinstance(partitions, list) and partitions and all(type(number) is int for number in partitions)
            for partitions in value.values()
        )
    )
    if not good:
        raise OptionError(f'assign is JSON like {{"topic": [0, 1]}}; got {text}')
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in value.items()}


def _offsets(given: Mapping[str, str], name: str, default: str) -> Earliest | Latest | OffsetBound:
    text = given.get(name, default).strip()
    if text.lower() in (EARLIEST, LATEST):
        return offset_bound(text.lower())
    return OffsetBound(by_partition(name, text, 'earliest, latest or JSON like {"topic": {"0": 17}}'))


def _times(given: Mapping[str, str], name: str) -> dict[str, dict[int, int]]:
    return by_partition(name, given[name].strip(), 'JSON like {"topic": {"0": 1700000000000}}')


def _skips_poison(given: Mapping[str, str]) -> bool:
    value = word(given, "onPoison", (FAIL, SKIP), FAIL)
    if "poisonReport" in given and value == FAIL:
        raise OptionError(f"poisonReport names what onPoison={SKIP} leaves out; with {FAIL} nothing is")
    return value == SKIP
