"""The consumers of a simulated cluster: one that commits without generations, and the members of a group."""

from broker.wire.errors import ErrorCode
from tests.broker.engine_client import HEARTBEAT, JOIN_GROUP, LEAVE_GROUP, OFFSET_COMMIT, SYNC_GROUP
from tests.simulation.cluster_clients import GROUP, NOT_SERVED, STABLE, Client, Sleep

TRAVELLERS = "travellers"
OWNER = b"partition 0"
"""The assignment of the one member of a generation that may commit."""
SESSION_MS, REBALANCE_MS = 8_000, 5_000


class Consumer(Client):
    """A client that commits offsets of partition 0, each above the one before."""

    def commit(self, group, offset, generation=-1, member_id=""):
        """Commit an offset; return the error code."""
        partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        fields = {"group_id": group, "topics": [{"name": STABLE, "partitions": partitions}]}
        fields |= {"generation_id_or_member_epoch": generation, "member_id": member_id}
        code, _ = yield from self.ask_coordinator(
            GROUP, group, OFFSET_COMMIT, 8, fields, lambda answer: answer.topics[0].partitions[0].error_code
        )
        return code


class Committer(Consumer):
    """A consumer without a generation: it commits, and asks for its offset."""

    def act(self):
        if self.random.random() < 0.4:
            yield from self.check_offset(self.name)
            return
        self.values += 1
        self.world.oracle.note_offset(self.name, self.values, is_sure=False)
        if (yield from self.commit(self.name, self.values)) == 0:
            self.world.oracle.note_offset(self.name, self.values, is_sure=True)


class GroupMember(Consumer):
    """A member of the travellers: it joins, is assigned the partition or nothing, commits, and leaves now and then.

    What a power cut without durable acks may lose is a generation, so nothing is promised of a group from then on.
    """

    def __init__(self, world, name):
        super().__init__(world, name)
        self.id, self.generation = "", -1
        self.is_owner = False
        self.offset = 0

    def ask(self, api_key, version, **fields):
        """Ask the group's coordinator; return (error code, answer). After an error this member joins anew."""
        fields |= {"group_id": TRAVELLERS, "member_id": self.id}
        code, answer = yield from self.ask_coordinator(
            GROUP, TRAVELLERS, api_key, version, fields, lambda answer: answer.error_code
        )
        self._take_error(code)
        return code, answer

    def _take_error(self, code):
        if code:
            self.generation, self.is_owner = -1, False
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.id = ""

    def act(self):
        if self.generation < 0:
            yield from self.join()
            return
        if self.random.random() < 0.05:
            yield Sleep(REBALANCE_MS + self.random.choice((1_000, SESSION_MS)))  # it wakes with an earlier generation
        if self.random.random() < 0.1:
            yield from self.ask(LEAVE_GROUP, 1)
            self._take_error(ErrorCode.UNKNOWN_MEMBER_ID)
        elif self.is_owner and self.random.random() < 0.7:
            yield from self.commit_next()
        else:
            yield from self.ask(HEARTBEAT, 3, generation_id=self.generation, group_instance_id=None)

    def join(self):
        code, joined = yield from self.ask(
            JOIN_GROUP,
            5,
            group_instance_id=None,
            session_timeout=SESSION_MS,
            rebalance_timeout=REBALANCE_MS,
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = joined.member_id
        if code:
            return
        self.generation = joined.generation_id
        assignments = []
        if joined.leader == self.id:
            owner = self.random.choice(joined.members).member_id
            assignments = [{"member_id": owner, "assignment": OWNER}]
        generation = {"generation_id": self.generation, "group_instance_id": None}
        code, synced = yield from self.ask(SYNC_GROUP, 3, assignments=assignments, **generation)
        if code == 0 and synced.assignment == OWNER:
            yield from self.own()

    def own(self):
        """Begin where the owner before has ended."""
        if not self.world.oracle.losses:
            self.world.oracle.note_owner(TRAVELLERS, self.generation, self.id)
        code, offset = yield from self.fetch_offset(TRAVELLERS)
        if code == 0:
            self.is_owner, self.offset = True, offset
            if not self.world.oracle.losses:
                self.world.oracle.check_offset(TRAVELLERS, offset)

    def commit_next(self):
        oracle = self.world.oracle
        newest = oracle.generations.get(TRAVELLERS, -1)
        if not oracle.losses:
            oracle.note_offset(TRAVELLERS, self.offset + 1, is_sure=False)
        code = yield from self.commit(TRAVELLERS, self.offset + 1, self.generation, self.id)
        if code == 0:
            self.offset += 1
            self.world.counts["commit in a generation"] += 1
            if not oracle.losses:
                oracle.check_generation(TRAVELLERS, self.generation, newest)
                oracle.note_offset(TRAVELLERS, self.offset, is_sure=True)
        elif code != NOT_SERVED:
            self._take_error(code)
