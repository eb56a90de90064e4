"""The cooperative-sticky assignor (KIP-54, KIP-429): a pure function from subscriptions to assignments.

The assignment is balanced: no member has two partitions more than another member that could take one of them, directly
or by a chain of moves. Members with equal subscriptions differ by one at most. It is sticky: a member keeps what it
owns unless balance needs a move. And it takes before it gives: a partition that changes its owner is assigned to no
member in this round. Its owner revokes it and joins again, and the next round assigns it.

Two members may claim one partition, because one of them missed a rebalance. The claim of the later generation counts.
If both name the same generation, neither counts. In any case no member gets a partition that another still claims.
"""

from collections import defaultdict, deque
from collections.abc import Mapping
from itertools import pairwise

from broker.client.group_protocol import MemberSubscription, Partition

NAME = "cooperative-sticky"


def assign(
    members: Mapping[str, MemberSubscription], partitions: Mapping[str, int]
) -> dict[str, tuple[Partition, ...]]:
    """Return the partitions of each member for this round, ascending.

    `partitions` has the number of partitions of each topic that exists. Other topics are ignored.
    """
    claims = _claims(members)
    targets = _Balance(members, partitions, _owners(members, claims)).targets()
    return {
        member: tuple(sorted(key for key in target if not claims.get(key, set()) - {member}))
        for member, target in targets.items()
    }


def _claims(members: Mapping[str, MemberSubscription]) -> dict[Partition, set[str]]:
    """Return all members that say they own a partition."""
    claims: dict[Partition, set[str]] = defaultdict(set)
    for member, subscription in members.items():
        for key in subscription.owned:
            claims[key].add(member)
    return claims


def _owners(members: Mapping[str, MemberSubscription], claims: Mapping[Partition, set[str]]) -> dict[Partition, str]:
    """Return the owner of each partition with one valid claim."""
    owners = {}
    for key, claimants in claims.items():
        latest = max(members[member].generation for member in claimants)
        valid = [member for member in claimants if members[member].generation == latest]
        if len(valid) == 1:
            owners[key] = valid[0]
    return owners


class _Balance:
    """The target assignment, which is reached when all moves are made."""

    def __init__(
        self,
        members: Mapping[str, MemberSubscription],
        partitions: Mapping[str, int],
        owners: Mapping[Partition, str],
    ) -> None:
        self._owners = owners
        self._partitions = partitions
        self._order = sorted(members)
        self._topics = {member: frozenset(members[member].topics) & partitions.keys() for member in members}
        self._subscribers: dict[str, list[str]] = defaultdict(list)
        for member in self._order:
            for topic in self._topics[member]:
                self._subscribers[topic].append(member)
        self._has: dict[str, dict[str, set[int]]] = {member: defaultdict(set) for member in self._order}
        self._count = dict.fromkeys(self._order, 0)

    def targets(self) -> dict[str, set[Partition]]:
        """Return the target partitions of each member."""
        self._keep()
        self._fill()
        while self._improve():
            pass
        return {
            member: {(topic, number) for topic, numbers in has.items() for number in numbers}
            for member, has in self._has.items()
        }

    def _keep(self) -> None:
        for (topic, number), owner in self._owners.items():
            if topic in self._topics[owner] and 0 <= number < self._partitions[topic]:
                self._give(owner, topic, number)

    def _fill(self) -> None:
        """Give each partition without an owner to the subscriber that has the fewest.

        Topics with few subscribers come first, because their partitions have fewer places to go.
        """
        for topic in sorted(self._subscribers, key=lambda topic: (len(self._subscribers[topic]), topic)):
            subscribers = self._subscribers[topic]
            taken = set().union(*(self._has[member][topic] for member in subscribers))
            for number in range(self._partitions[topic]):
                if number not in taken:
                    self._give(min(subscribers, key=self._count.__getitem__), topic, number)

    def _improve(self) -> bool:
        """Move one partition, along a chain of members, from one with many to one with few. Return False if none can.
        """
        for member in sorted(self._order, key=self._count.__getitem__, reverse=True):
            chain = self._chain(member)
            if chain:
                for giver, taker in pairwise(chain):
                    self._move(giver, taker)
                return True
        return False

    def _chain(self, member: str) -> list[str]:
        """Return the members from `member` to one with at least two partitions fewer, or an empty list."""
        came_from: dict[str, str] = {}
        queue = deque([member])
        seen_topics: set[str] = set()
        best = member
        while queue:
            at = queue.popleft()
            topics = [topic for topic, numbers in self._has[at].items() if numbers and topic not in seen_topics]
            seen_topics.update(topics)
            for taker in (subscriber for topic in topics for subscriber in self._subscribers[topic]):
                if taker != member and taker not in came_from:
                    came_from[taker] = at
                    queue.append(taker)
                    best = min(best, taker, key=self._count.__getitem__)
        if self._count[member] - self._count[best] < 2:
            return []
        chain = [best]
        while chain[-1] != member:
            chain.append(came_from[chain[-1]])
        return chain[::-1]

    def _move(self, giver: str, taker: str) -> None:
        """Move a partition. Prefer one that needs no revocation: the taker owns it, or no member does."""
        topic, number = min(
            ((topic, number) for topic in self._topics[taker] for number in self._has[giver][topic]),
            key=lambda key: (
                self._owners.get(key) != taker,
                self._owners.get(key) == giver,
                -len(self._has[giver][key[0]]),
                key[0],
                -key[1],
            ),
        )
        self._has[giver][topic].discard(number)
        self._count[giver] -= 1
        self._give(taker, topic, number)

    def _give(self, member: str, topic: str, number: int) -> None:
        self._has[member][topic].add(number)
        self._count[member] += 1
