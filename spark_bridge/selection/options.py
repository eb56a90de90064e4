"""The options of a read: the Kafka connector's, by its names and rules, and Flakelog's.

    kafka.bootstrap.servers      host:port,...; required
    subscribe | assign | subscribePattern                 exactly one (none with `manifest`)
    startingOffsets, endingOffsets                        earliest, latest, or {"topic": {"0": 17, "1": -2}}
    startingTimestamp, endingTimestamp                    ms since 1970; not together with offsets
    startingOffsetsByTimestampStrategy                    error (default) | latest
    minPartitions, maxRecordsPerPartition                 spark_bridge.selection.plan
    includeHeaders, failOnDataLoss                        true | false; data loss is always an error here
    kafka.max.partition.fetch.bytes                       bytes of one fetch

    startingId, endingId         an exact range of ids, half-open
    manifest                     path of a manifest: read exactly its ranges
    columns                      the columns to read, separated by commas; without it, those of the manifest
    compacted                    true: offsets may be missing, as after compaction
    onPoison                     fail (default) | skip: batches with a valid CRC whose records cannot be decoded
    poisonReport                 directory in which each task of a read with onPoison=skip names what it left out

Spark passes all options as strings and ignores the case of their names. An unknown option is an error, because ignoring
it would read other data than the user meant.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from spark_bridge.reading.network import Address, addresses
from spark_bridge.reading.row import choose
from spark_bridge.reading.settings import ReadSettings
from spark_bridge.reading.skipped import FAIL, SKIP
from spark_bridge.selection.selector import (
    EARLIEST,
    LATEST,
    IdSelector,
    OffsetSelector,
    SelectionError,
    Selector,
    TimeSelector,
)

NAMES = (
    "kafka.bootstrap.servers", "subscribe", "assign", "subscribePattern", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestampStrategy", "minPartitions",
    "maxRecordsPerPartition", "includeHeaders", "failOnDataLoss", "kafka.max.partition.fetch.bytes",
    "startingId", "endingId", "manifest", "columns", "compacted", "onPoison", "poisonReport",
)  # fmt: skip
SELECTION = (
    "subscribe", "assign", "subscribePattern", "startingOffsets", "endingOffsets", "startingTimestamp",
    "endingTimestamp", "startingOffsetsByTimestampStrategy", "minPartitions", "maxRecordsPerPartition",
    "startingId", "endingId",
)  # fmt: skip
"""Options that cannot be combined with a manifest, because it already fixes the selection."""

FETCH_BYTES_MAX = 64 << 20  # several fetches of a task are in memory at once


class OptionError(ValueError):
    """An option that is unknown, invalid, missing, or contradicts another; the message names it."""


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
    manifest: str | None = None
    poison_report: str | None = None
    topics: Topics = Topics()
    selector: Selector = OffsetSelector()
    min_partitions: int = 0
    max_records_per_partition: int = 0


def parse(options: Mapping[str, str]) -> ReadOptions:
    """Parse the options of `spark.read.format("flakelog")`. Raise OptionError."""
    given = _known(options)
    try:
        return _parse(given)
    except SelectionError as error:
        raise OptionError(str(error)) from None


def _parse(given: Mapping[str, str]) -> ReadOptions:
    if "kafka.bootstrap.servers" not in given:
        raise OptionError("option kafka.bootstrap.servers is needed: host:port, several with commas between")
    if not _flag(given, "failOnDataLoss", True):
        raise OptionError("failOnDataLoss=false is not offered: a read is complete, or fails")
    servers = _valid("kafka.bootstrap.servers", given["kafka.bootstrap.servers"], addresses)
    headers = _flag(given, "includeHeaders", False)
    names = [each.strip() for each in given["columns"].split(",")] if "columns" in given else None
    columns = _valid("columns", names, lambda value: choose(value, include_headers=headers))
    fetch_bytes = _number(given, "kafka.max.partition.fetch.bytes", ReadSettings().fetch_bytes, 1, FETCH_BYTES_MAX)
    settings = ReadSettings(
        fetch_bytes=fetch_bytes, compacted=_flag(given, "compacted", False), skip_poison=_skips_poison(given)
    )
    report = given.get("poisonReport")
    if "manifest" in given:
        also = [name for name in SELECTION if name in given]
        if also:
            raise OptionError(f"a manifest says what is read; {', '.join(also)} cannot be given beside it")
        if "columns" not in given and not headers:
            columns = ()
        return ReadOptions(servers, columns, settings, given["manifest"], report)
    return ReadOptions(
        servers,
        columns,
        settings,
        poison_report=report,
        topics=_topics(given),
        selector=_selector(given),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
    )


def _known(options: Mapping[str, str]) -> dict[str, str]:
    """Return {name as documented: value}. Raise OptionError for an unknown name, suggesting the closest known one."""
    names = {name.lower(): name for name in NAMES}
    known = {}
    for name, value in options.items():
        if name.lower() not in names:
            near = difflib.get_close_matches(name.lower(), names, 1)
            hint = f"; is {names[near[0]]} meant?" if near else f"; there are {', '.join(NAMES)}"
            raise OptionError(f"option {name} is not known{hint}")
        known[names[name.lower()]] = value
    return known


def _topics(given: Mapping[str, str]) -> Topics:
    ways = [name for name in ("subscribe", "assign", "subscribePattern") if name in given]
    if len(ways) != 1:
        raise OptionError(f"exactly one of subscribe, assign, subscribePattern is needed; got {ways or 'none'}")
    if "assign" in given:
        return Topics(partitions=_assigned(given["assign"]))
    if "subscribePattern" in given:
        if not given["subscribePattern"].strip():
            raise OptionError("subscribePattern is empty, so it matches no topic; .* matches all")
        return Topics(pattern=given["subscribePattern"])
    names = tuple(filter(None, (each.strip() for each in given["subscribe"].split(","))))
    if not names:
        raise OptionError("subscribe names no topic")
    return Topics(names=names)


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    value = _json("assign", text)
    good = isinstance(value, dict) and value and all(
        isinstance(each, list) and each and all(type(one) is int for one in each) for each in value.values()
    )
    if not good:
        raise OptionError(f'assign is JSON like {{"topic": [0, 1]}}; got {text}')
    return {topic: tuple(sorted(set(each))) for topic, each in value.items()}


def _selector(given: Mapping[str, str]) -> Selector:
    by_id = "startingId" in given or "endingId" in given
    by_time = "startingTimestamp" in given or "endingTimestamp" in given
    by_offset = "startingOffsets" in given or "endingOffsets" in given
    if by_id and (by_time or by_offset):
        raise OptionError("a range of ids is the whole selection; no offsets or timestamps can be given beside it")
    if by_id:
        return IdSelector(_maybe(given, "startingId"), _maybe(given, "endingId"))
    if by_time and by_offset:
        raise OptionError("select by offsets or by timestamps, not by both")
    if by_time:
        strategy = given.get("startingOffsetsByTimestampStrategy", "error")
        if strategy not in ("error", "latest"):
            raise OptionError(f"startingOffsetsByTimestampStrategy is error or latest; got {strategy}")
        return TimeSelector(
            _maybe(given, "startingTimestamp"), _maybe(given, "endingTimestamp"), strict=strategy == "error"
        )
    return OffsetSelector(
        _offsets("startingOffsets", given.get("startingOffsets", EARLIEST)),
        _offsets("endingOffsets", given.get("endingOffsets", LATEST)),
    )


def _offsets(name: str, text: str) -> str | dict[str, dict[int, int]]:
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    value = _json(name, text)
    try:
        return {topic: {int(p): _offset(offset) for p, offset in each.items()} for topic, each in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise OptionError(f'{name} is earliest, latest or JSON like {{"topic": {{"0": 17}}}}; got {text}') from None


def _offset(value: Any) -> int:
    """Return a whole number of JSON. Raise TypeError for 1.7, true and "17", which the connector refuses too."""
    if type(value) is not int:
        raise TypeError(f"{value!r} is no offset")
    return value


def _skips_poison(given: Mapping[str, str]) -> bool:
    value = given.get("onPoison", FAIL).lower()
    if value not in (FAIL, SKIP):
        raise OptionError(f"onPoison is {FAIL} or {SKIP}; got {value!r}")
    if "poisonReport" in given and value == FAIL:
        raise OptionError(f"poisonReport names what onPoison={SKIP} leaves out; with {FAIL} nothing is")
    return value == SKIP


# --- values ------------------------------------------------------------------------------------------------------


def _maybe(given: Mapping[str, str], name: str) -> int | None:
    return _number(given, name, 0) if name in given else None


def _number(given: Mapping[str, str], name: str, default: int, least: int = 0, most: int = (1 << 63) - 1) -> int:
    text = given.get(name, str(default)).strip()
    if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
        raise OptionError(f"{name} is a whole number from {least} to {most}; got {text!r}")
    return int(text)


def _positive(given: Mapping[str, str], name: str) -> int:
    """Return a number that is at least 1, or 0 if the option is not given."""
    return _number(given, name, 1, 1) if name in given else 0


def _flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"{name} is true or false; got {text!r}")
    return text == "true"


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{name} is no JSON: {error}") from None


def _valid(name: str, value: Any, make: Any) -> Any:
    try:
        return make(value)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None
