"""A consumer group of the simulation's runs: partitions move as runs come, go, and lose their sessions."""

from functools import partial

from coordination.access import Access
from flakelog.testing.memory_group import MemoryGroup, MemoryGroupStore
from partition_manager.ports import AwaitShare


class GroupOfRuns:
    """The members, and which of them has each partition. `moved` counts partitions that changed their member."""

    def __init__(self, world):
        self.world = world
        self.members = []
        self.owners = {}
        self.moved = 0

    def join(self, member):
        self.members.append(member)
        self.rebalance()

    def leave(self, member):
        """Forget a member that stopped or was killed."""
        if member in self.members:
            self.members.remove(member)
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner is not member}
        self.rebalance()

    def lose(self, member):
        """Take a member's partitions away at once, as when its session has expired."""
        member.lose(*[partition for partition, owner in self.owners.items() if owner is member])
        self.owners = {partition: owner for partition, owner in self.owners.items() if owner is not member}
        self.rebalance()

    def rebalance(self):
        """Divide the partitions anew: a partition that another member has is handed over first."""
        for member in self.members:
            released, member.released = member.released, []
            for partition in released:
                if self.owners.get(partition) is member:
                    del self.owners[partition]
        if not self.members:
            return
        log = self.world.log
        wanted = {(log.topic, n): self.members[n % len(self.members)] for n in log.kept}
        for partition, owner in list(self.owners.items()):
            if wanted.get(partition) is not owner:
                owner.revoke(partition)
        for partition, member in wanted.items():
            if partition not in self.owners:
                self.owners[partition] = member
                self.moved += 1
                member.assign(partition)


class Member(MemoryGroup):
    """A run's member. It joins when its first task asks for its share."""

    def __init__(self, group, topics, store, tasks):
        super().__init__(topics, store, tasks)
        self.group = group
        self.joined = False

    def ask(self, task, request, answer):
        if not isinstance(request, AwaitShare):
            super().ask(task, request, answer)
            return
        self._waiting[task] = request.known_version, answer
        if not self.joined:
            self.joined = True
            self.group.join(self)
        self._tell()


class WorldOfRun:
    """The world as one run sees it: it has a member of its own in the group."""

    def __init__(self, world, group):
        self._world = world
        self._group = group
        self.member = None

    def group_member(self, servers, group_id, component, tasks, config, *, security=None):
        if self.member is None:
            store = self._world.offset_store("kafka", f"/{group_id}", Access())
            self.member = Member(self._group, self._world.topics, store, tasks)
        return partial(MemoryGroupStore, self.member)

    def __getattr__(self, name):
        return getattr(self._world, name)
