"""Who leads a partition: one function for each occasion (Kafka's Election).

| election | leader | ISR after |
|---|---|---|
| offline | the first replica that is in the ISR | the members of the ISR that may lead |
| | else the first that is in the ELR | the leader |
| | else, if all members are back and none is trusted (W4), the first that has records | the leader |
| | else, if the topic allows it, the first live replica | the leader |
| unclean, by request | as offline, as if the topic allowed it | as offline |
| preferred | the first replica of the assignment, if it is in the ISR | the same |
| controlled shutdown | the first replica that is in the ISR | without the brokers that shut down |

Each leader but an unclean one is online and trusted (`isr_members`). Each function returns the next LeaderAndIsr and
the brokers that must hear of it, or None if no replica can lead. "First" is the order of the assignment, in which the
first replica is preferred. The ELR follows from the next ISR (rule R3); an unclean leader has none.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from broker.cluster.controller_context import ControllerContext
from broker.cluster.documents import NO_LEADER, RECOVERING, LeaderAndIsr, TopicPartition
from broker.cluster.isr_members import (
    elr_after,
    is_trusted,
    joined,
    lacks_all_records,
    life_of_untrusted,
    trusted_members,
    untrusted_members,
)

MAY_LACK = "may lack records since an unclean stop"
"""Follows the names of members that are not trusted, in the reason why a partition has no leader."""


class Elected(NamedTuple):
    """A decision. `loss` says which records an unclean leader may lack, for people."""

    leadership: LeaderAndIsr
    recipients: tuple[int, ...]
    loss: str | None = None


Strategy: TypeAlias = Callable[[ControllerContext, TopicPartition, LeaderAndIsr], Elected | None]


def elect_new(context: ControllerContext, partition: TopicPartition) -> LeaderAndIsr | None:
    """Return the first decision for a partition: its first live replica leads, and the live ones are the ISR."""
    live = context.live_replicas(partition)
    if not live:
        return None
    return LeaderAndIsr(live[0], live, controller_epoch=context.epoch)


def elect_offline(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect a leader for a partition whose leader is not online."""
    elected = _elect_clean(context, partition, current) or _elect_returned(context, partition, current)
    if elected is None and context.policy.allows_unclean(partition.topic):
        return _elect_any(context, partition, current, "unclean.leader.election.enable is true for the topic")
    return elected


def elect_unclean(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect as `elect_offline`, or the first live replica, which may lack records that were acknowledged."""
    elected = elect_offline(context, partition, current)
    return elected or _elect_any(context, partition, current, "an unclean election was asked for")


def elect_preferred(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect the first replica of the assignment, if it is in the ISR."""
    replicas = context.replicas(partition)
    preferred = trusted_members(context, partition, current, replicas[:1])
    if not preferred or preferred[0] not in current.isr:
        return None
    return _elected(context, partition, current, preferred[0], current.isr, replicas)


def elect_for_shutdown(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect another leader in place of a broker that shuts down, which leaves the ISR."""
    leader = _first_of(context, partition, current, current.isr)
    if leader is None:
        return None
    isr = tuple(replica for replica in current.isr if replica not in context.shutting_down)
    recipients = tuple(replica for replica in context.replicas(partition) if replica in context.broker_epochs)
    return _elected(context, partition, current, leader, isr, recipients)


def exclude_untrusted(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Take the untrusted members out of ISR and ELR if a trusted one is live; else let them stay, trusted in no life
    (rule W3). Elect another leader in place of an untrusted one. Return None if there is nothing to decide.
    """
    untrusted = untrusted_members(context, partition, current)
    if not untrusted:
        return None
    live = context.live_replicas(partition)
    registered = [member for member in current.members if member in context.broker_epochs]
    trusted = [m for m in registered if m not in untrusted and not context.has_failed_disk(partition, m)]
    if not trusted:
        returned = _elect_returned(context, partition, current)
        if returned is not None:
            return returned
        lives = {**current.lives, **{m: life_of_untrusted(context, partition, current, m) for m in untrusted}}
        leader = NO_LEADER if current.leader in untrusted else current.leader
        if lives == current.lives and leader == current.leader:
            return None
        return Elected(replace(current.succeeded_by(leader, current.isr, current.elr), lives=lives), live)
    isr = tuple(member for member in current.isr if member not in untrusted) or (trusted[0],)
    reduced = replace(current, isr=isr, elr=elr_after(context, partition, current, current.leader, isr))
    if current.leader in isr and context.is_online(partition, current.leader):
        return Elected(reduced.succeeded_by(current.leader, isr, reduced.elr), live)
    elected = _elect_clean(context, partition, reduced)
    return elected or Elected(reduced.succeeded_by(NO_LEADER, isr, reduced.elr), live)


def why_leaderless(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> str | None:
    """Return why the live members of a partition do not lead, if they are not trusted, or have another's records."""
    if any(context.has_other_topic(partition, member) for member in current.members):
        return (
            "brokers with a copy have records of another topic of this name. To begin anew, delete the topic, and "
            "these records with it, and create it again"
        )
    untrusted = untrusted_members(context, partition, current)
    if not untrusted:
        return None
    away = [member for member in current.members if member not in context.broker_epochs]
    empty = [member for member in untrusted if lacks_all_records(context, partition, current, member)]
    if not empty:
        return (
            f"{_brokers(untrusted)} {MAY_LACK}, and {_brokers(away)} may have them: start them, or ask for an unclean "
            "election"
        )
    others = f", start {_brokers(away)}" if away else ""
    return (
        f"{_brokers(empty)} came with an empty data directory, and only replicas in sync have all records: start "
        f"{_brokers(empty)} with the directory from before{others}, or ask for an unclean election"
    )


def _elect_clean(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect the first member of the ISR that may lead, else of the ELR."""
    live = context.live_replicas(partition)
    leader = _first_of(context, partition, current, current.isr)
    if leader is not None:
        isr = trusted_members(context, partition, current, current.isr)
        return _elected(context, partition, current, leader, isr, live)
    leader = _first_of(context, partition, current, current.elr)
    if leader is not None:
        return _elected(context, partition, current, leader, (leader,), live)
    return None


def _elect_returned(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> Elected | None:
    """Elect the first of the ISR when all members are back and none is trusted, as after a power cut of all (W4).

    A member with an empty data directory leads only if all replicas have such a directory: nothing is left to lose.
    """
    members = current.members
    if not all(member in context.broker_epochs for member in members):
        return None
    if any(is_trusted(context, partition, current, member) for member in members):
        return None
    live = context.live_replicas(partition)
    in_order = [r for r in live if r in current.isr] + [r for r in live if r in current.elr]
    with_records = [r for r in in_order if not lacks_all_records(context, partition, current, r)]
    back = f"all its replicas in sync, {_brokers(members)}, are back"
    if with_records:
        loss = f"{back} from unclean stops. Acknowledged records that its disk did not keep are lost"
        return _unclean(context, partition, current, with_records[0], loss)
    if not in_order or _may_have_records(context, partition, current):
        return None
    loss = f"{back} with empty data directories. All records are lost"
    return _unclean(context, partition, current, in_order[0], loss)


def _may_have_records(context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr) -> bool:
    """Return True if a replica may have records: one that is no member, or a member with a directory from before."""
    return any(
        replica not in current.members or not lacks_all_records(context, partition, current, replica)
        for replica in context.replicas(partition)
    )


def _elect_any(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr, reason: str
) -> Elected | None:
    live = context.live_replicas(partition)
    if not live:
        return None
    with_records = (r for r in live if not lacks_all_records(context, partition, current, r))
    leader = next(with_records, live[0])
    others = [member for member in current.members if member != leader]
    loss = f"{reason}. Acknowledged records that only {_brokers(others)} had are lost"
    return _unclean(context, partition, current, leader, loss)


def _unclean(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr, leader: int, loss: str
) -> Elected:
    decision = current.succeeded_by(leader, (leader,), (), RECOVERING)
    return Elected(joined(context, decision, [leader]), context.live_replicas(partition), loss)


def _elected(
    context: ControllerContext,
    partition: TopicPartition,
    current: LeaderAndIsr,
    leader: int,
    isr: tuple[int, ...],
    recipients: tuple[int, ...],
) -> Elected:
    elr = elr_after(context, partition, current, leader, isr)
    return Elected(current.succeeded_by(leader, isr, elr), recipients)


def _first_of(
    context: ControllerContext, partition: TopicPartition, current: LeaderAndIsr, members: tuple[int, ...]
) -> int | None:
    """Return the first of the assignment that is one of these members, online and trusted."""
    in_order = [replica for replica in context.replicas(partition) if replica in members]
    return next(iter(trusted_members(context, partition, current, in_order)), None)


def _brokers(broker_ids: Iterable[int]) -> str:
    ids = sorted(broker_ids)
    return f"broker{'s' if len(ids) > 1 else ''} {', '.join(map(str, ids))}" if ids else "no other broker"
