"""The log of a Delta table: what its commits did to data files, and whether they were undone.

A commit is a file of JSON lines, `_delta_log/00000000000000000003.json`. Source: the Delta protocol, "Actions".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from spark_bridge.load.load import LoadError
from spark_bridge.load.table_history import Kind, TableCommit

LOG = "_delta_log"
_RESTORE = "RESTORE"


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A commit: what it says about itself, with its version, and its actions on files by their paths."""

    version: int
    info: Mapping[str, Any]
    added: Mapping[str, Mapping[str, Any]]
    removed: Mapping[str, Mapping[str, Any]]

    @classmethod
    def parse(cls, version: int, data: bytes) -> "LogEntry":
        """Parse the bytes of a commit. Raise LoadError."""
        info: dict[str, Any] = {}
        files: dict[str, dict[str, Mapping[str, Any]]] = {"add": {}, "remove": {}}
        try:
            for line in data.splitlines():
                for name, action in (json.loads(line) if line.strip() else {}).items():
                    if name == "commitInfo":
                        info = dict(action)
                    elif name in files:
                        files[name][unquote(action["path"])] = action
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise LoadError(f"{LOG}/{version:020d}.json is no commit of a Delta table: {error!r}") from None
        return cls(version, info | {"version": version}, files["add"], files["remove"])

    def commit(self) -> TableCommit:
        operation = str(self.info.get("operation", "unknown"))
        kind = Kind.CHANGE
        if operation == _RESTORE:
            kind = Kind.PUT_BACK
        elif not any(action.get("dataChange", True) for action in self.removed.values()):
            kind = Kind.REWRITE  # OPTIMIZE says so of each file
        return TableCommit(f"version {self.version} ({operation})", kind, self.added.keys(), self.removed.keys())


def restored(commits: Sequence[Mapping[str, Any]], version: int) -> str | None:
    """Return what undid the commit of a version, by that commit and those after it, in order; None if it stands.

    RESTORE brings back the state of an older version, or of one after which an earlier RESTORE took the commit away.
    """
    undone: dict[int, str | None] = {version: None}
    times = {made["version"]: made.get("timestamp", 0) for made in commits}
    state: str | None = None
    for made in commits:
        if made.get("operation") == _RESTORE:
            to = _restored_to(made.get("operationParameters") or {}, times, version)
            how = f"RESTORE put the table back to version {to} in version {made['version']}"
            state = undone.get(to, how) if to >= version else how
        undone[made["version"]] = state
    return state


def _restored_to(parameters: Mapping[str, Any], times: Mapping[int, int], version: int) -> int:
    """Return the version that a RESTORE brought back; one before `version` if the parameters do not say it."""
    asked = parameters.get("version")
    if asked is not None and str(asked).isdigit():
        return int(asked)
    for value in filter(None, map(parameters.get, ("timestamp", "datetime"))):
        text = str(value)
        try:
            at = int(text) if text.isdigit() else int(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1000)
        except ValueError:
            continue
        return max((table_version for table_version, made_ms in times.items() if made_ms <= at), default=version - 1)
    return version - 1
