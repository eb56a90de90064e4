"""Progress in a consumer group on a real server, stored by two members that hand partitions over."""

import pytest
from twisted.internet.selectreactor import SelectReactor

from broker.client.group_config import GroupMemberConfig
from flakelog.operations import groups
from partition_manager.offset_document import OffsetDocument
from partition_manager.ports import AwaitShare, Failed, Released, ReleasePartition, Saved, SaveOffset
from partition_manager.progress import Progress
from spout.world import TwistedWorld
from tests.compat.storm.group_spouts import PARTITIONS, Shared
from tests.patience import until

CONFIG = GroupMemberConfig(session_timeout_ms=30_000, heartbeat_interval_ms=200)


@pytest.fixture
def shared(group_broker, tmp_path):
    shared = Shared(group_broker.address, tmp_path)
    yield shared
    shared.close()


@pytest.fixture
def members(shared):
    """Return a function that makes a member of the group."""
    reactor, made = SelectReactor(), []
    reactor.startRunning(installSignalHandlers=False)
    yield lambda: made.append(Member(shared, reactor)) or made[-1]
    for member in made:
        member.store.close()
    reactor.stop()
    reactor.iterate()


class Member:
    """A process with one task. `grants` are its partitions, each with its grant; it shall hand over `revoked`."""

    def __init__(self, shared, reactor):
        self.grants, self.revoked = {}, set()
        self._topic, self._reactor = shared.name, reactor
        self.store = TwistedWorld(reactor).group_member(shared.address, shared.name, "log", 1, CONFIG)(0)
        self._await_share(0)

    def _await_share(self, version):
        self.store.ask(AwaitShare((self._topic,), version), self._shared)

    def _shared(self, share):
        self.grants = {partition: grant for (_, partition), grant in share.grants.items()}
        self.revoked = {partition for _, partition in share.revoked}
        self._await_share(share.version)

    def ask(self, request):
        answers = []
        self.store.ask(request, answers.append)
        self.until(lambda: answers)
        return answers[0]

    def until(self, condition):
        until(lambda: self._reactor.iterate(0.01) or condition())

    def save(self, partition, offset):
        document = OffsetDocument("", "", self._topic, partition, Progress(offset))
        return self.ask(SaveOffset(self._topic, partition, document.encode(), 0))

    def release(self, partition):
        return self.ask(ReleasePartition(self._topic, partition, self.grants[partition]))


def test_progress_is_not_stored_over_that_of_a_partitions_next_owner(shared, members):
    first = members()
    first.until(lambda: len(first.grants) == PARTITIONS)
    second = members()
    first.until(lambda: first.revoked)
    for partition in first.revoked:
        assert isinstance(first.save(partition, 5), Saved)
        assert first.release(partition) == Released()
    first.until(lambda: second.grants)
    partition = min(second.grants)
    assert isinstance(second.save(partition, 7), Saved)
    assert first.save(partition, 6) == Failed("another member owns it now")
    assert groups.committed(shared.client, shared.name)[shared.name, partition] == 7
