"""SHELL (Twisted's and Python's logging, stderr): the log of topologies, for a program that has configured none.

If the program has chosen observers for Twisted's log, they get all events, and this module prints nothing. Otherwise
events go to `logging` if its root logger has handlers, and else to stderr. That is decided anew for each event, because
a program may configure its logging after the first topology has started.
"""

import logging
import sys
from datetime import datetime
from typing import Any

from twisted.logger import ILogObserver, LogLevel, eventAsText, formatEvent, globalLogBeginner, globalLogPublisher
from zope.interface import provider

OURS = ("spout", "partition_manager", "broker", "coordination", "flakelog", "idgen")

_LEVELS = {
    LogLevel.debug: logging.DEBUG,
    LogLevel.info: logging.INFO,
    LogLevel.warn: logging.WARNING,
    LogLevel.error: logging.ERROR,
    LogLevel.critical: logging.CRITICAL,
}


def attach() -> None:
    """Show the log from now on, unless the program shows it itself. A second call changes nothing."""
    globalLogPublisher.addObserver(_observe)


@provider(ILogObserver)  # type: ignore[untyped-decorator]
def _observe(event: Any) -> None:
    if _twisted_is_configured() or not is_of_interest(event):
        return
    if logging.getLogger().handlers:
        _to_logging(event)
    elif event["log_level"] is not LogLevel.critical:  # Twisted prints critical events itself until it is configured
        print(_line(event), file=sys.stderr, flush=True)


def is_of_interest(event: Any) -> bool:
    """Return True for our events from level info up, and for those of other packages from level warn up."""
    level = event.get("log_level")
    if level is None:
        return False
    package = str(event.get("log_namespace", "")).partition(".")[0]
    return bool(level >= (LogLevel.info if package in OURS else LogLevel.warn))


def _twisted_is_configured() -> bool:
    """Return True if the program has begun Twisted's logging, or added an observer of its own.

    Twisted has no public question for this. Until logging begins, its publisher has one observer, for critical events.
    """
    first = getattr(globalLogBeginner, "_temporaryObserver", None)
    observers = getattr(globalLogPublisher, "_observers", ())
    return first is None or any(observer not in (first, _observe) for observer in observers)


def _to_logging(event: Any) -> None:
    failure = event.get("log_failure")
    error = None if failure is None else (failure.type, failure.value, failure.getTracebackObject())
    logger = logging.getLogger(event["log_namespace"])
    logger.log(_LEVELS[event["log_level"]], "%s", formatEvent(event), exc_info=error)


def _line(event: Any) -> str:
    time = datetime.fromtimestamp(event["log_time"]).astimezone().isoformat(timespec="milliseconds")
    text = eventAsText(event, includeTimestamp=False, includeSystem=False).strip()
    return f"{time} {event['log_level'].name:5} {text}".replace("\n", "\n    ")
