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
        self.owners = {place: owner for place, owner in self.owners.items() if owner is not member}
        self.rebalance()

    def lose(self, member):
        """Take a member's partitions away at once, as when its session has expired."""
        member.lose(*[place for place, owner in self.owners.items() if owner is member])
        self.owners = {place: owner for place, owner in self.owners.items() if owner is not member}
        self.rebalance()

    def rebalance(self):
        """Divide the partitions anew: a partition that another member has is handed over first."""
        for member in self.members:
            released, member.released = member.released, []
            for place in released:
                if self.owners.get(place) is member:
                    del self.owners[place]
        if not self.members:
            return
        log = self.world.log
        wanted = {(log.topic, n): self.members[n % len(self.members)] for n in log.kept}
        for place, owner in list(self.owners.items()):
            if wanted.get(place) is not owner:
                owner.revoke(place)
        for place, member in wanted.items():
            if place not in self.owners:
                self.owners[place] = member
                self.moved += 1
                member.assign(place)


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
