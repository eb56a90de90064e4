"""The target of a load, by its identity: a table or a topic of one name may be another one at the next load.

    {"kind": "Iceberg table", "place": "shop.flights", "id": "8d0f...", "commit": {"load": 2, "at": {"snapshot": 77}}}

A plan names the target, and the newest commit of a load that the target had when the load was planned. The receipt
names the load's own commit. Before the next load is planned, and again in its commit, the sink asks whether the target
is still that one and whether that commit still stands: it was not rolled back, restored away or dropped. If not, going
on would leave a hole that nobody sees.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of load `number` in the target. `at` is its place in the target's history, by the names of its kind.

    A record of loads from before targets had an identity knows the number only.
    """

    number: int
    at: Mapping[str, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"load": self.number, "at": None if self.at is None else dict(sorted(self.at.items()))}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Commit":
        """Invert `to_dict`. Raise KeyError, TypeError or ValueError."""
        at = fields["at"]
        return cls(int(fields["load"]), None if at is None else {str(name): int(offset) for name, offset in at.items()})


@dataclass(frozen=True, slots=True)
class Target:
    """A table or a topic. `kind` is its name for people; `id` is None if the cluster gives its topics none.

    `commit` is the newest commit of a load that it had when a load was planned, None before the first.
    """

    kind: str
    location: str
    id: str | None
    commit: Commit | None = None

    def to_dict(self) -> dict[str, Any]:
        commit = None if self.commit is None else self.commit.to_dict()
        return {"kind": self.kind, "place": self.location, "id": self.id, "commit": commit}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> "Target":
        """Invert `to_dict`. Raise KeyError, TypeError or ValueError."""
        id, commit = fields["id"], fields["commit"]
        return cls(
            str(fields["kind"]),
            str(fields["place"]),
            None if id is None else str(id),
            None if commit is None else Commit.from_dict(commit),
        )
