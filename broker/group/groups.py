"""The groups of one coordinator by id. All coordinators of a broker together are limited in number."""

from collections.abc import Iterator

from broker.group.group import Group
from broker.group.offset_records import group_key
from broker.group.outbox import Outbox
from broker.group.shared import Shared
from broker.group.states import Event
from broker.now import Now
from broker.settings.group_config import GroupConfig


class Groups:
    """A dict of groups. `shared` counts them for the limit (`flakelog.groups.max`)."""

    def __init__(self, config: GroupConfig, outbox: Outbox, shared: Shared) -> None:
        self._most = config.groups_max
        self._outbox = outbox
        self._shared = shared
        self._groups: dict[str, Group] = {}

    def __iter__(self) -> Iterator[Group]:
        return iter(list(self._groups.values()))

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, group_id: str) -> Group | None:
        return self._groups.get(group_id)

    def find_or_make(self, group_id: str, now: Now) -> Group | None:
        """Return the group with this id, created empty if missing; None if `flakelog.groups.max` is reached."""
        group = self._groups.get(group_id)
        if group is None and self._shared.groups < self._most:
            group = Group(group_id, now.wall_ms)
            self.put(group)
        return group

    def put(self, group: Group) -> None:
        """Add or replace a group. The limit does not apply to groups that are read from their records."""
        former = self._groups.get(group.group_id)
        if former is None:
            self._shared.groups += 1
            self._shared.groups_made += 1
        group.number = self._shared.groups_made if former is None else former.number
        self._groups[group.group_id] = group

    def drop(self, group_id: str) -> None:
        if self._groups.pop(group_id, None) is not None:
            self._shared.groups -= 1

    def write_tombstone(self, group: Group) -> None:
        """Write a group's tombstone if it has a record. The caller calls `removed` once the tombstone is in the log."""
        if group.is_stored:
            self._outbox.append(group.group_id, group_key(group.group_id), None)

    def removed(self, group: Group, now: Now) -> None:
        """Remove a group without members, whose tombstone is in the log; its state becomes Dead."""
        for alarm in group.pending.values():
            alarm.clear()
        group.pending.clear()
        group.happened(Event.REMOVED, now.wall_ms)
        self.drop(group.group_id)
