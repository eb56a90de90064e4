"""Planted faults: each takes one rule of the cluster out, and the world has to notice (test_cluster_faults.py)."""

from dataclasses import replace

from broker.cluster import producer_id_blocks
from broker.cluster.cluster_changes import ClusterChanges
from broker.group.commits import Commits
from broker.handlers import leader_and_isr, write_txn_markers
from broker.log.producer_state import ProducerState
from broker.membership import hosted_partitions, metadata_updates
from broker.membership.entity_settings import EntitySettings
from broker.membership.member import Member
from broker.metadata.change import Change
from broker.metadata.image import Image
from broker.metadata.local_metadata import LocalMetadata
from broker.services import coordinator_topic, transaction_markers
from broker.services.coordinator_partitions import CoordinatorPartitions, LoadState
from broker.services.group_coordination import GroupCoordination
from broker.services.peer_markers import PeerMarkers
from broker.waiting.purgatory import Delayed
from broker.wire.errors import ApiError, ErrorCode
from tests.simulation import cluster_process
from tests.simulation.cluster_world import ClusterWorld


def takes_orders_of_earlier_controllers(patch):
    """E2: a broker does not check the controller epoch of an order."""
    checked = Member.refusal_of_order

    def refusal_of_order(member, order, now):
        member.controller_epoch = min(member.controller_epoch, order.controller_epoch)
        return checked(member, order, now)

    patch.setattr(Member, "refusal_of_order", refusal_of_order)


def reads_no_controller_epoch(patch):
    """E2: a broker does not learn at its registration which controller epoch to refuse below."""
    registered_before = Member._registered

    def registered(member, answer, error, now):
        registered_before(member, answer if answer is None else answer._replace(controller_epoch=0), error, now)

    patch.setattr(Member, "_registered", registered)


def takes_orders_for_earlier_lives(patch):
    """E3: a broker does not check for which of its lives an order is."""
    checked = Member.refusal_of_order

    def refusal_of_order(member, order, now):
        epoch, member.broker_epoch = member.broker_epoch, 0
        try:
            return checked(member, order, now)
        finally:
            member.broker_epoch = epoch

    patch.setattr(Member, "refusal_of_order", refusal_of_order)


def takes_earlier_leader_epochs(patch):
    """E4: LeaderAndIsr is taken in an equal or an older leader epoch too."""

    def plan(hosted, *more):
        forgotten = Image()
        forgotten.apply([Change({topic.name: _without_epochs(topic) for topic in hosted.topics()})])
        planned = hosted_partitions.plan_leader_and_isr(forgotten, *more)
        for name, topic in planned.topics.items():
            held, before = hosted.topic(name), forgotten.topic(name)
            if held is not None:
                unchanged = {
                    number for number, state in enumerate(before.partitions) if topic.partitions[number] == state
                }
                states = [held.partitions[n] if n in unchanged else state for n, state in enumerate(topic.partitions)]
                planned.topics[name] = replace(topic, partitions=tuple(states))
        return planned

    patch.setattr(leader_and_isr, "plan_leader_and_isr", plan)


def _without_epochs(topic):
    return replace(topic, partitions=tuple(state._replace(leader_epoch=-1) for state in topic.partitions))


def answers_before_the_record(patch):
    """A coordinator answers before its record is written to the disk."""
    patch.setattr(coordinator_topic, "unstored_end", lambda log: None)


def serves_while_it_loads(patch):
    """A coordinator serves before it has loaded its partition."""
    check = CoordinatorPartitions._check

    def check_no_load(partitions, led):
        if led.state is not LoadState.LOADING:
            return check(partitions, led)
        try:
            led.log = partitions._ports.logs.get(partitions.topic.name, led.partition)
        except ApiError:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    patch.setattr(CoordinatorPartitions, "_check", check_no_load)


def gives_producer_ids_from_zero(patch):
    """Each block of producer ids begins at 0."""
    patch.setattr(producer_id_blocks, "_last_of", lambda node: -1)


def keeps_settings_of_deleted_topics(patch):
    """The settings of a deleted topic are used for the topic that is made again under its name."""
    patch.setattr(EntitySettings, "knows", lambda settings, name, topic_id: name in settings._ids)


def writes_no_file(patch):
    """LeaderAndIsr is answered before the broker's file names its partitions."""
    patch.setattr(LocalMetadata, "save", lambda metadata, document: None)


def keeps_what_a_full_update_does_not_name(patch):
    """A FULL UpdateMetadata does not replace the image."""
    patch.setattr(metadata_updates, "FULL", -1)


def forgets_markers_without_answer(patch):
    """A marker is not tried again after its answer was lost."""
    settle_before = PeerMarkers._settle

    def settle(markers, broker_id, sent, response, now):
        if response is not None:
            settle_before(markers, broker_id, sent, response, now)
            return
        for end, tried in sent:
            tried(end.partition, True, now)

    patch.setattr(PeerMarkers, "_settle", settle)


def keeps_verifications_over_markers(patch):
    """The answer of a verification lets batches in that come after the transaction was aborted."""
    marked_before = ProducerState.marked

    def marked(producers, header, *more, **others):
        verification = producers.verifications.get(header.producer_id)
        marked_before(producers, header, *more, **others)
        if verification is not None:
            producers.verifications[header.producer_id] = verification

    patch.setattr(ProducerState, "marked", marked)


def keeps_a_worker_number(patch):
    """Each life of a broker has the worker number of the one before, and does not look at its last id."""

    def worker(world, process):
        return cluster_process.new_worker(process.id, process.now.wall_ms)

    patch.setattr(ClusterWorld, "new_worker", worker)


def shares_a_worker_number(patch):
    """All brokers have one worker number."""
    patch.setattr(
        ClusterWorld, "new_worker", lambda world, process: cluster_process.new_worker(1, process.now.wall_ms)
    )


def completes_before_markers_are_on_the_disk(patch):
    """A transaction is complete although a power cut can lose its markers."""
    patch.setattr(write_txn_markers, "unstored_end", lambda log: None)
    patch.setattr(transaction_markers, "once_stored", lambda ports, log, then, now: then(True, now))


def assigns_before_the_record(patch):
    """The members of a group are assigned before the record of their generation is on the disk."""

    def when_answered(groups, led, pending, answer, crowded, now):
        if pending.result is not None:
            return answer(pending.result)

        def try_complete(at):
            return None if pending.result is None else answer(pending.result)

        return Delayed((pending.key,), None, try_complete, lambda at: answer(crowded))

    patch.setattr(GroupCoordination, "when_answered", when_answered)


def takes_commits_of_earlier_generations(patch):
    """A group takes any commit, whatever its generation is. A member that is not known has an earlier one, so that the
    check of members has to go too."""
    checked = Commits.commit

    def commit(commits, request, now):
        group = commits._group(request, now)
        if isinstance(group, ErrorCode) or request.producer is not None:
            return checked(commits, request, now)
        return [commits._commit(group, offset, request.retention_ms, now) for offset in request.offsets]

    patch.setattr(Commits, "commit", commit)


def repeats_no_order_after_a_full_disk(patch):
    """An order that a full disk refused is repeated to the next life of the broker only."""
    patch.setattr(ClusterChanges, "order_again", lambda changes, replicas: iter(()))


def verifies_nothing(patch):
    """Batches are not verified, so that one which comes after its transaction opens another (KIP-890)."""
    patch.setattr(ClusterWorld, "broker_settings", {"transaction_partition_verification_enable": False})


FAULTS = (
    takes_orders_of_earlier_controllers,
    reads_no_controller_epoch,
    takes_orders_for_earlier_lives,
    takes_earlier_leader_epochs,
    answers_before_the_record,
    serves_while_it_loads,
    gives_producer_ids_from_zero,
    keeps_settings_of_deleted_topics,
    writes_no_file,
    keeps_what_a_full_update_does_not_name,
    forgets_markers_without_answer,
    keeps_verifications_over_markers,
    completes_before_markers_are_on_the_disk,
    assigns_before_the_record,
    takes_commits_of_earlier_generations,
    repeats_no_order_after_a_full_disk,
    verifies_nothing,
    keeps_a_worker_number,
    shares_a_worker_number,
)
