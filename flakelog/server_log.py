"""The log of a server or a topology on stderr: lines for people, or one JSON object a line for programs."""

import json
import sys
from datetime import UTC, datetime
from typing import Any

from twisted.logger import (
    FilteringLogObserver,
    LogLevel,
    LogLevelFilterPredicate,
    formatEvent,
    globalLogBeginner,
    textFileLogObserver,
)

FORMATS = ("text", "json")
OURS = ("flakelog", "broker", "idgen", "coordination", "partition_manager", "spout")


def begin(form: str) -> None:
    """Start to log: our messages from level info up, those of Twisted and other packages from level warn up."""
    levels: Any = LogLevelFilterPredicate(defaultLogLevel=LogLevel.warn)
    for namespace in OURS:
        levels.setLogLevelForNamespace(namespace, LogLevel.info)
    lines: Any = _print_json if form == "json" else textFileLogObserver(sys.stderr)
    observer: Any = FilteringLogObserver(lines, [levels])
    globalLogBeginner.beginLoggingTo([observer], redirectStandardIO=False, discardBuffer=True)


def _print_json(event: Any) -> None:
    print(json.dumps(as_json(event), ensure_ascii=False), file=sys.stderr, flush=True)


def as_json(event: Any) -> dict[str, Any]:
    """Return a Twisted log event as data for JSON; a failure has its traceback, a topology's event its facts."""
    failure = event.get("log_failure")
    fields = {
        "time": datetime.fromtimestamp(event["log_time"], UTC).isoformat(timespec="milliseconds"),
        "level": event["log_level"].name,
        "logger": event["log_namespace"],
        "message": event["text"] if "facts" in event else formatEvent(event),
        **event.get("facts", {}),
    }
    if event.get("traceback"):
        fields["traceback"] = event["traceback"]
    return fields if failure is None else fields | {"traceback": failure.getTraceback()}
