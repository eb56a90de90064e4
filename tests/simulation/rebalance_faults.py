"""Rules of a group's consumers, each broken on purpose. The simulation must notice each one."""

from broker.client.connector import group_view, offsets_topic, ownership, rebalance
from broker.client.connector.assignment import TopicView
from broker.client.connector.belief import SessionBelief
from broker.client.connector.group_view import topic_view
from broker.client.connector.offsets_topic import Age
from broker.client.connector.ownership import Claim, Ownerships
from broker.client.connector.registration import VERSION, Registration
from broker.client.registry.nodes import CONSUMERS, encode_offset, offset_path, owner_path
from broker.cluster.documents import TopicPartition
from broker.cluster.procedure import read_children
from coordination.port import ANY_VERSION, Check, ConnectionLost, Create, Delete, Multi, Set
from tests.simulation.rebalance_client import Client


def release_without_commit(monkeypatch):
    """A consumer releases a partition before it has committed."""

    def release_writes(group, partition, version, offset):
        path = offset_path(group, partition)
        return (Check(path, version), Delete(owner_path(group, partition)))

    monkeypatch.setattr(ownership, "release_writes", release_writes)


def no_session_check(monkeypatch):
    """A consumer delivers on after its session may have ended."""
    monkeypatch.setattr(SessionBelief, "lives", lambda belief, now_ms: belief.until_ms is not None)


def belief_from_the_answer(monkeypatch):
    """A consumer counts its session from the answer to a request instead of from the sending."""
    answered = rebalance.RegistryConsumer.answered

    def answered_late(core, operation, outcome, now):
        core._belief.sent(operation, now.ms)
        answered(core, operation, outcome, now)

    monkeypatch.setattr(rebalance.RegistryConsumer, "answered", answered_late)


def order_by_leader(monkeypatch):
    """Consumers sort partitions by the broker that leads when they look."""
    init = Client.__init__

    def first_replicas(world, view):
        leaders = {
            number: world.leaders.get(TopicPartition(view.name, number), replica)
            for number, replica in view.first_replicas.items()
        }
        return TopicView(view.name, leaders, view.topic_id, view.czxid)

    def client_of(client, world, *args):
        monkeypatch.setattr(group_view, "topic_view", lambda name, node: first_replicas(world, topic_view(name, node)))
        init(client, world, *args)

    monkeypatch.setattr(Client, "__init__", client_of)


def commit_without_version(monkeypatch):
    """A commit names no version."""

    def commit_writes(group, partition, version, offset):
        return (Set(offset_path(group, partition), encode_offset(offset), ANY_VERSION),)

    monkeypatch.setattr(ownership, "commit_writes", commit_writes)


def claim_without_version(monkeypatch):
    """A claim leaves the version of the offset as it is, and writes do not check the registration.

    Either rule alone stops the commit of a consumer that has got a new session and does not know it yet.
    """
    claim_writes = ownership.claim_writes

    def writes(group, partition, stream, node, offset, *, replaces):
        first, *others = claim_writes(group, partition, stream, node, offset, replaces=replaces)
        return (first if isinstance(first, Create) else Check(first.path, first.version), *others)

    def write(registration, *operations):
        path, version = (CONSUMERS, ANY_VERSION) if operations else (registration.path, VERSION)
        return Multi((Check(path, version), *operations))

    monkeypatch.setattr(ownership, "claim_writes", writes)
    monkeypatch.setattr(Registration, "write", write)


def commit_of_the_queue(monkeypatch):
    """A consumer commits what lies in its queue, and what its program works on."""

    def tell(client, reading, partition, offset):
        reading.processed_offset = offset
        client.core.processed(partition, client.world.end(partition, reading.identity) or offset)

    monkeypatch.setattr(Client, "tell", tell)


def offsets_of_an_earlier_topic(monkeypatch):
    """A topic that was made again goes on at the offsets of the earlier topic."""
    monkeypatch.setattr(offsets_topic, "compare", lambda stored, view: Age.SAME)


def go_back_to_an_earlier_topic(monkeypatch):
    """A consumer that sees an old view of a topic takes it for the later one."""
    compare = offsets_topic.compare

    def later(stored, view):
        age = compare(stored, view)
        return Age.LATER if age is Age.EARLIER else age

    monkeypatch.setattr(offsets_topic, "compare", later)


def deliver_until_released(monkeypatch):
    """A consumer delivers records of a partition while it releases it."""
    monkeypatch.setattr(Ownerships, "stop", lambda owners, partitions: None)


def lost_claim_is_no_claim(monkeypatch):
    """A claim without an answer counts as not carried out, and the partition is left to others."""
    claim = Ownerships._claim

    def give_up(owners, partition, stream, topic, topic_version):
        procedure = claim(owners, partition, stream, topic, topic_version)
        batch = next(procedure)
        while True:
            outcomes = yield batch
            if any(isinstance(outcome, ConnectionLost) for outcome in outcomes):
                return Claim.OWNED
            try:
                batch = procedure.send(outcomes)
            except StopIteration as stop:
                return stop.value

    monkeypatch.setattr(Ownerships, "_claim", give_up)


def consumers_are_not_watched(monkeypatch):
    """A consumer does not watch the others of its group."""
    monkeypatch.setattr(group_view, "read_children", lambda path, watch: read_children(path))


FAULTS = (
    release_without_commit, no_session_check, order_by_leader, claim_without_version, commit_of_the_queue,
    offsets_of_an_earlier_topic, deliver_until_released, lost_claim_is_no_claim, consumers_are_not_watched,
)  # fmt: skip
RARE_FAULTS = belief_from_the_answer, commit_without_version, go_back_to_an_earlier_topic
"""The faults that need a hundred seeds or more."""
