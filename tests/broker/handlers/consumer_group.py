"""A consumer group that speaks bytes to an EngineBroker: its members, and the offsets that it commits."""

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import (
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
    EngineBroker,
)


class Member:
    """A consumer of a group ("g" by default), in one version of each message."""

    def __init__(self, broker, join=5, sync=3, heartbeat=3, leave=1, instance=None, group="g"):
        self.broker = broker
        self.client = broker.connect()
        self.versions = join, sync, heartbeat, leave
        self.group = group
        self.instance = instance
        self.id, self.generation, self.is_leader, self.protocol = "", -1, False, None

    def _named(self, version, since, **fields):
        """Return the fields, with the instance id if the version has it."""
        return fields | ({"group_instance_id": self.instance} if version >= since else {})

    def join(self, **more):
        """Send JoinGroup, twice if the broker first gives a member id; `joined` receives the answer."""
        version = self.versions[0]
        fields = self._named(
            version,
            5,
            group_id=self.group,
            session_timeout=10_000,
            rebalance_timeout=60_000,
            member_id=self.id,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"topics"}],
        ) | more  # fmt: skip
        self.client.send(JOIN_GROUP, version, fields)
        if version >= 4 and not self.id and self.instance is None:
            ((_, answer),) = self.client.replies()
            assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
            self.id = answer.member_id
            self.client.send(JOIN_GROUP, version, fields | {"member_id": self.id})

    def joined(self):
        self.broker.at(self.broker.now_ms)  # rings the alarm of a new group, whose delay is 0 here
        ((_, answer),) = self.client.replies()
        assert answer.error_code == 0, answer
        self.id, self.generation = answer.member_id, answer.generation_id
        self.is_leader = answer.leader == answer.member_id
        self.protocol = answer.protocol_name
        return answer

    def sync(self, shares=()):
        version = self.versions[1]
        fields = self._named(
            version,
            3,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.id,
            assignments=[{"member_id": member.id, "assignment": share} for member, share in shares],
        )
        fields |= {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
        self.client.send(SYNC_GROUP, version, fields)

    def synced(self):
        ((_, answer),) = self.client.replies()
        assert answer.error_code == 0, answer
        return answer.assignment

    def heartbeat(self):
        version = self.versions[2]
        named = self._named(version, 3, group_id=self.group, generation_id=self.generation, member_id=self.id)
        return self.client.ask(HEARTBEAT, version, named).error_code

    def leave(self):
        version = self.versions[3]
        member = {"member_id": self.id, "group_instance_id": self.instance}
        fields = {"group_id": self.group} | ({"members": [member]} if version >= 3 else {"member_id": self.id})
        return self.client.ask(LEAVE_GROUP, version, fields).error_code

    def commit(self, offset, topic="flights", version=8):
        return commit(self.client, offset, topic, version, group=self.group, member=self.id, generation=self.generation)


def commit(client, offset, topic="flights", version=8, group="g", member="", generation=-1, partition=0, **more):
    """Commit an offset of one partition and return its error code. From v10 on `topic` is an id."""
    position = {"partition_index": partition, "committed_offset": offset, "committed_metadata": "note"}
    key = {"topic_id": topic} if version >= 10 else {"name": topic}
    fields = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member}
    answer = client.ask(OFFSET_COMMIT, version, fields | {"topics": [key | {"partitions": [position]}]} | more)
    return answer.topics[0].partitions[0].error_code


def committed(client, version=7, topic="flights", group="g", partition=0):
    """Return the committed offset of one partition."""
    key = {"topic_id": topic} if version >= 10 else {"name": topic}
    topics = {"topics": [key | {"partition_indexes": [partition]}]}
    if version >= 8:
        answer = client.ask(OFFSET_FETCH, version, {"groups": [{"group_id": group} | topics], "require_stable": False})
        answer = answer.groups[0]
        assert answer.error_code == 0
    else:
        answer = client.ask(OFFSET_FETCH, version, {"group_id": group} | topics)
    (result,) = answer.topics[0].partitions
    assert result.error_code == 0
    return result.committed_offset


def make(storage=None, **settings):
    broker = EngineBroker(storage, **{"group_initial_rebalance_delay_ms": 0} | settings)
    broker.create("flights", 2)
    find(broker.connect())
    return broker


def find(client, version=2, key="g", **more):
    fields = {"coordinator_keys": [key]} if version >= 4 else {"key": key}
    return client.ask(FIND_COORDINATOR, version, fields | more)


def stable(broker, *members):
    """Make the members join together and sync; the first one leads."""
    for member in members:
        member.join()
    for member in members:
        member.joined()
    leader = next(member for member in members if member.is_leader)
    for member in members:
        member.sync([(m, m.id.encode()) for m in members] if member is leader else ())
    for member in members:
        assert member.synced() == member.id.encode()
