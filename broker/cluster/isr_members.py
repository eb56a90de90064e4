"""The members of ISR and ELR: which of them are trusted to have all committed records, and who moves between the two.

After a power cut a replica may lack records that it has confirmed. So each `state` names the life (the broker epoch) in
which a member joined, and a member is trusted (rule W2) by these facts:

| the member's `lives` | its registration | trusted |
|---|---|---|
| its present life | any | yes |
| NO_LIFE, or a life without records | any | no, until it joins the ISR anew |
| an earlier life, or none recorded | whole, and its last life is not below the recorded one | yes |
| an earlier life, or none recorded | anything else | no |

Apache Kafka has no such rule. A broker that registers without the key `flakelog` is one of Kafka's, which elects each
live member of an ISR; it is trusted as Kafka trusts it, unless its entry says NO_LIFE, and it has no entry otherwise. A
controller of Kafka's drops all entries: then no life is recorded, and a member of ours is trusted if it is whole.

A partition with one replica has no other to elect, and no entries: the only copy leads whenever its broker is there.

A member whose disk was replaced comes with an empty data directory. It has none of the records, so it is no leader that
a power cut of all would need (rule W4), while another replica may have some. The directory lives on, and does not look
empty at its next start. So `lives` says in which life the member came without records. A member that comes with the
right directory again has an earlier life in it.

A member that leaves an ISR which is then below min.insync.replicas moves to the ELR (KIP-966, rule R3): while the ISR
is that small, the high watermark stands still, so the member has all that is committed. Only a leader of ours waits in
this way, so a leader of Kafka's has no ELR.
"""

from collections.abc import Iterable
from dataclasses import replace

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import NEW_DIRECTORY, NO_LIFE, LeaderAndIsr, TopicPartition


def is_trusted(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr, broker_id: int
) -> bool:
    """Return True if a registered member may lead by its membership (rule W2)."""
    if len(context.replicas(partition)) == 1:
        return True
    recorded = leadership.lives.get(broker_id)
    if recorded is not None and recorded <= NO_LIFE:
        return False
    life = context.brokers[broker_id].life
    if life is None or recorded == context.broker_epochs[broker_id]:
        return True
    return life.whole and (recorded is None or life.last >= recorded)


def life_without_records(broker_epoch: int) -> int:
    """Return what `lives` says of a member that came with an empty directory in this life. The function is its own
    inverse.
    """
    return NO_LIFE - 1 - broker_epoch


def lacks_all_records(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr, broker_id: int
) -> bool:
    """Return True if a registered member has nothing of what it had: it came with a new directory, in this life or
    in an earlier one. Return False if that is not known, as of all others than members.
    """
    life, present = context.brokers[broker_id].life, context.broker_epochs[broker_id]
    recorded = leadership.lives.get(broker_id, NO_LIFE)
    if life is None or recorded in (present, NO_LIFE) or len(context.replicas(partition)) == 1:
        return False
    if life.last == NEW_DIRECTORY:
        return True
    came_empty = life_without_records(recorded)
    return recorded < NO_LIFE and (present == came_empty or life.last >= came_empty)


def life_of_untrusted(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr, broker_id: int
) -> int:
    """Return what `lives` says from now on of a registered member that is not trusted."""
    if not lacks_all_records(context, partition, leadership, broker_id):
        return NO_LIFE
    recorded = leadership.lives.get(broker_id, NO_LIFE)
    return recorded if recorded < NO_LIFE else life_without_records(context.broker_epochs[broker_id])


def trusted_members(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr, members: Iterable[int]
) -> tuple[int, ...]:
    """Return the members that are online and trusted: those that may lead."""
    return tuple(
        member
        for member in members
        if context.is_online(partition, member) and is_trusted(context, partition, leadership, member)
    )


def untrusted_members(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr
) -> tuple[int, ...]:
    """Return the members of ISR and ELR that are registered and not trusted."""
    return tuple(
        member
        for member in leadership.members
        if member in context.broker_epochs and not is_trusted(context, partition, leadership, member)
    )


def elr_after(
    context: ControllerContext,
    partition: TopicPartition,
    current: LeaderAndIsr,
    leader: int,
    isr: tuple[int, ...],
    min_isr: int | None = None,
) -> tuple[int, ...]:
    """Return the ELR that belongs to the next ISR of a partition (rule R3).

    `min_isr` is the leader's reading of min.insync.replicas, in the controller's own decisions None.
    """
    replicas = context.replicas(partition)
    wanted = context.policy.min_isr(partition.topic) if min_isr is None else min_isr
    if len(isr) >= min(wanted, len(replicas)) or is_of_kafka(context, leader):
        return ()
    candidates = dict.fromkeys((*current.elr, *current.isr))
    return tuple(
        member
        for member in candidates
        if member not in isr and member in replicas and _may_be_trusted(context, partition, current, member)
    )


def is_of_kafka(context: ControllerContext, broker_id: int) -> bool:
    """Return True if a registered broker is one of Kafka's, which knows no ELR."""
    registration = context.brokers.get(broker_id)
    return registration is not None and registration.life is None


def _may_be_trusted(
    context: ControllerContext, partition: TopicPartition, leadership: LeaderAndIsr, broker_id: int
) -> bool:
    """Return True for a member that is trusted, or whose broker is away. A disk that failed may have lost records."""
    if context.may_lack_records(partition, broker_id):
        return False
    if broker_id in context.broker_epochs:
        return is_trusted(context, partition, leadership, broker_id)
    return leadership.lives.get(broker_id, 0) > NO_LIFE


def with_lives(context: ControllerContext, partition: TopicPartition, decision: LeaderAndIsr) -> LeaderAndIsr:
    """Return a decision with the lives of its members as it is written: those of live, trusted members are renewed."""
    if len(context.replicas(partition)) == 1:
        return replace(decision, lives={})
    lives: dict[int, int] = {}
    for member in decision.members:
        recorded = decision.lives.get(member)
        is_registered = member in context.broker_epochs
        if is_registered and is_trusted(context, partition, decision, member):
            if not is_of_kafka(context, member):
                lives[member] = context.broker_epochs[member]
        elif recorded is not None:
            lives[member] = recorded
    return replace(decision, lives=lives)


def joined(context: ControllerContext, decision: LeaderAndIsr, members: Iterable[int]) -> LeaderAndIsr:
    """Return a decision in which live members join the ISR, or lead by themselves, in their present lives."""
    lives = dict(decision.lives)
    for member in members:
        lives.pop(member, None)
        if not is_of_kafka(context, member):
            lives[member] = context.broker_epochs[member]
    return replace(decision, lives=lives)
