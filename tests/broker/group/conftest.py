"""A group coordinator, the clock that the test sets, and the log that the coordinator writes."""

import pytest

from broker.group.coordinator import GroupCoordinator
from broker.group.results import (
    CommitRequest,
    GroupProtocol,
    JoinRequest,
    MemberIdentity,
    OffsetToCommit,
    SyncRequest,
)
from broker.now import Now
from broker.settings.group_config import GroupConfig
from broker.wire.errors import ErrorCode

WALL_MS = 1_700_000_000_000


def protocols(*names, metadata=b"topics"):
    return tuple(GroupProtocol(name, metadata) for name in names)


class House:
    """A coordinator with its log. Each method ends as the handlers do: append the records, then hand on the answers."""

    def __init__(self, **settings):
        self.config = GroupConfig(**settings)
        self.coordinator = GroupCoordinator(self.config, now_ms=0)
        self.now_ms = 0
        self.log = []
        self.answered = []
        self.refused = set()
        """Groups whose records the disk refuses at present."""
        self._members = 0
        self.coordinator.loaded(self.now)  # its log has no records yet

    @property
    def now(self):
        return Now(self.now_ms, WALL_MS + self.now_ms)

    def settle(self):
        appends = self.coordinator.take_appends()
        refused = {append.group_id for append in appends} & self.refused
        self.log += [(append.key, append.value) for append in appends if append.group_id not in refused]
        self.coordinator.settled(refused, self.now)
        self.answered += [pending.key for pending in self.coordinator.take_answered()]

    def delete(self, group="g"):
        """Delete a group as DeleteGroups does: append its records, then drop the group."""
        error = self.coordinator.delete(group)
        self.settle()
        if not error:
            self.coordinator.deleted(group, self.now)
        return error

    def forget(self, topic):
        """Report to the coordinator that a topic was deleted."""
        self.coordinator.forget_topics({topic}.__contains__, self.now)
        self.settle()

    def at(self, now_ms):
        """Advance the clock to `now_ms` as the engine does: from deadline to deadline."""
        while (due_ms := self.coordinator.next_deadline_ms()) is not None and due_ms <= now_ms:
            self._wake(due_ms)
        self.now_ms = now_ms

    def joined(self, *waiting):
        """Advance the clock until all of these joins are answered; return their results."""
        while any(pending.result is None for pending in waiting):
            self._wake(self.coordinator.next_deadline_ms())
        return [pending.result for pending in waiting]

    def _wake(self, due_ms):
        self.now_ms = max(self.now_ms, due_ms)
        self.coordinator.tick(self.now)
        self.settle()

    def join(
        self, member_id="", *, group="g", client="c", instance=None, names=("range",), metadata=b"topics",
        session_ms=10_000, rebalance_ms=60_000, id_required=False, may_skip=False, kind="consumer",
    ):  # fmt: skip
        self._members += 1
        request = JoinRequest(
            group_id=group,
            member_id=member_id,
            instance_id=instance,
            client_id=client,
            client_host="/10.0.0.7",
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            protocol_type=kind,
            protocols=protocols(*names, metadata=metadata),
            member_id_suffix=str(self._members),
            member_id_required=id_required,
            may_skip_assignment=may_skip,
        )
        pending = self.coordinator.join(request, self.now)
        self.settle()
        return pending

    def sync(self, joined, assignments=(), *, group="g", generation=None, member_id=None, **more):
        request = SyncRequest(
            group_id=group,
            member_id=joined.member_id if member_id is None else member_id,
            generation=joined.generation if generation is None else generation,
            assignments=tuple(dict(assignments).items()),
            **more,
        )
        pending = self.coordinator.sync(request, self.now)
        self.settle()
        return pending

    def heartbeat(self, member_id, generation, *, group="g", instance=None):
        error = self.coordinator.heartbeat(group, member_id, instance, generation, self.now)
        self.settle()
        return error

    def leave(self, *members, group="g"):
        identities = [m if isinstance(m, MemberIdentity) else MemberIdentity(m) for m in members]
        result = self.coordinator.leave(group, identities, self.now)
        self.settle()
        return result

    def commit(self, *offsets, group="g", **more):
        """Commit offsets, each given as (topic, partition, offset[, leader epoch[, metadata]])."""
        request = CommitRequest(group_id=group, offsets=tuple(OffsetToCommit(*o) for o in offsets), **more)
        errors = self.coordinator.commit(request, self.now)
        self.settle()
        return errors

    def state(self, group="g"):
        return self.coordinator.describe(group).state

    def stable(self, *clients, **join):
        """Make a stable group of these clients and return their join results; the first client leads."""
        joined = self.joined(*[self.join(client=client, **join) for client in clients])
        assert [j.error for j in joined] == [ErrorCode.NONE] * len(joined)
        shares = {j.member_id: b"share of " + j.member_id.encode() for j in joined}
        for follower in joined[1:]:
            self.sync(follower)
        self.sync(joined[0], shares)
        assert self.state() == "Stable"
        return joined

    def restarted(self):
        """Return a House whose coordinator has loaded this log, compacted or not, as a new process does."""
        other = House.__new__(House)
        other.__init__()
        other.config, other.now_ms = self.config, 0
        other.coordinator = GroupCoordinator(self.config, now_ms=0)
        for key, value in self.log:
            other.coordinator.load(key, value)
        other.coordinator.loaded(other.now)
        other.settle()
        return other


@pytest.fixture
def house():
    return House()


@pytest.fixture(scope="session")
def make_house():
    return House
