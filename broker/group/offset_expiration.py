"""Removal of expired offsets, of offsets whose topic was deleted, and of groups that have no offsets left.

There may be a hundred thousand of them, so they are removed in batches. The tombstone is written first, because an
offset that is removed from memory only would come back at the next start. If a tombstone cannot be written, the offset
or group stays and is tried again later.
"""

from collections import Counter, deque
from collections.abc import Callable, Container, Iterator
from itertools import islice

from broker.group.alarms import AlarmClock
from broker.group.commits import Commits
from broker.group.group import Group
from broker.group.groups import Groups
from broker.group.lifetime import is_expired_in, is_idle
from broker.group.offset_records import OffsetKey
from broker.group.shared import StepBudget
from broker.now import Now
from broker.settings.group_config import GroupConfig

RETRY_MS = 1_000  # after the disk refused a tombstone


class OffsetExpiration:
    """Removal of offsets and groups for one coordinator, in steps. All coordinators of a broker share a step's budget.

    The caller appends the tombstones of each step, then calls `settled` with the groups whose tombstones failed.
    """

    def __init__(
        self,
        config: GroupConfig,
        groups: Groups,
        commits: Commits,
        clock: AlarmClock,
        budget: StepBudget,
    ) -> None:
        self._config = config
        self._budget = budget
        self._groups = groups
        self._commits = commits
        self._check = clock.alarm(self._look_through)
        self._next = clock.alarm(self._go_on)
        self._to_look_through: deque[str] = deque()
        """Ids of the groups whose offsets have yet to be checked for expiry."""
        self._looked_at: str | None = None
        self._keys: Iterator[tuple[str, int]] = iter(())
        """The group that is being checked, and its offsets that have yet to be checked."""
        self._offsets: list[OffsetKey] = []
        self._of_group: Counter[str] = Counter()
        self._dead: list[Group] = []
        """Offsets, their number by group, and groups whose tombstones are being appended."""

    def forget_topics(self, is_gone: Callable[[str], bool], now: Now) -> None:
        """Remove the offsets of deleted topics, because they mean nothing for new topics of the same names."""
        self._commits.lose(is_gone)
        self._go_on(now)

    def begin(self, now: Now) -> None:
        """Begin to look for expired offsets, once all records were loaded: a later record may renew an offset."""
        self._check.set(now.ms + self._config.offsets_retention_check_interval_ms)

    def stop(self) -> None:
        """Stop all timers."""
        self._check.clear()
        self._next.clear()

    def _look_through(self, now: Now) -> None:
        self._check.set(now.ms + self._config.offsets_retention_check_interval_ms)
        if not self._to_look_through and self._looked_at is None:
            self._to_look_through.extend(group.group_id for group in self._groups)
        self._go_on(now)

    def _go_on(self, now: Now) -> None:
        most = self._budget.left(now)
        if self._offsets or self._dead:
            self._next.set(self._budget.next_ms)
            return
        for key in islice(self._commits.lost, most):
            self._write(key)
        lost = len(self._offsets)
        looked_on = lost
        while looked_on < most and self._is_looking:
            self._look_on(now)
            looked_on += 1
        self._budget.use(looked_on)
        if lost < len(self._commits.lost) or self._is_looking:
            self._next.set(self._budget.next_ms)

    @property
    def _is_looking(self) -> bool:
        return self._looked_at is not None or bool(self._to_look_through)

    def _write(self, key: OffsetKey) -> None:
        self._commits.write_tombstone(key)
        self._offsets.append(key)
        self._of_group[key.group_id] += 1

    def _look_on(self, now: Now) -> None:
        """Check the next offset of the current group. After its last offset, check the group itself and take the next.
        """
        group = None if self._looked_at is None else self._groups.find(self._looked_at)
        key = None if group is None else next(self._keys, None)
        if group is not None and key is not None:
            self._expire(group, OffsetKey(group.group_id, *key), now)
            return
        if group is not None:
            self._expire_group(group)
        self._looked_at = self._to_look_through.popleft() if self._to_look_through else None
        group = None if self._looked_at is None else self._groups.find(self._looked_at)
        self._keys = iter(()) if group is None else group.offsets.keys()

    def _expire(self, group: Group, key: OffsetKey, now: Now) -> None:
        """Write a tombstone for an offset if it has expired and no open transaction may change it.

        Offsets of deleted topics (`Commits.lost`) are skipped: `_go_on` writes their tombstones, and a second one would
        count the offset twice in `_of_group`.
        """
        if self._commits.is_open(key) or key in self._commits.lost:
            return
        if is_expired_in(group, key.topic, key.partition, now.wall_ms, self._config.offsets_retention_ms):
            self._write(key)

    def _expire_group(self, group: Group) -> None:
        """Write a group's tombstone if it is idle and has no offsets but those that are being removed."""
        if len(group.offsets) > self._of_group[group.group_id]:
            return
        if is_idle(group) and not self._commits.is_open_in(group):
            self._groups.write_tombstone(group)
            self._dead.append(group)

    def settled(self, refused: Container[str], now: Now) -> None:
        """Remove the offsets and groups whose tombstones were appended. Retry those of the `refused` groups later."""
        if not self._offsets and not self._dead:
            return
        offsets, self._offsets = self._offsets, []
        dead, self._dead = self._dead, []
        self._of_group.clear()
        written = [key for key in offsets if key.group_id not in refused]
        for key in written:
            self._commits.forget(key)
        for group in dead:
            if group.group_id not in refused:
                self._groups.removed(group, now)
        refused_keys = [key for key in offsets if key.group_id in refused]
        again = {key.group_id for key in refused_keys if not self._commits.put_off(key)}
        again.update(group.group_id for group in dead if group.group_id in refused)
        self._to_look_through.extend(again)
        if refused_keys or again:
            self._next.set(now.ms + RETRY_MS)
