"""Members that act in any order: the invariants always hold, and the group becomes stable once the members behave.

Hypothesis prints a failing example as the list of steps; `@reproduce_failure` replays it.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.group.results import GroupProtocol
from broker.group.states import GroupState
from broker.wire.errors import ErrorCode

CLIENTS = 4


class Client:
    """A stock consumer, with the state that it keeps."""

    def __init__(self, house, number):
        self.house = house
        self.options = {"client": f"c{number}", "instance": f"i{number}" if number % 2 else None}
        self.member_id = ""
        self.joining = self.syncing = self.joined = None

    def join(self, fresh=False):
        if fresh:
            self.member_id = ""
        session = {"session_ms": 10_000, "rebalance_ms": 20_000, "id_required": True}
        self.syncing = None
        self.joining = self.house.join(self.member_id, **self.options, **session)
        self.hear()

    def sync(self):
        if self.joined is not None:
            shares = {m.member_id: b"share of " + m.member_id.encode() for m in self.joined.members}
            more = {"instance_id": self.options["instance"]}
            self.syncing = self.house.sync(self.joined, shares if self.leads else {}, **more)

    @property
    def leads(self):
        return self.joined.leader == self.joined.member_id

    def heartbeat(self):
        generation = self.joined.generation if self.joined else 0
        return self.house.heartbeat(self.member_id, generation, instance=self.options["instance"])

    def leave(self):
        self.house.leave(self.member_id)
        self.forget()

    def forget(self):
        self.member_id = ""
        self.joined = None

    def hear(self):
        """Process the answer to a join if it has arrived."""
        if self.joining is None or self.joining.result is None:
            return
        result, self.joining = self.joining.result, None
        self.joined = result if result.error is ErrorCode.NONE else None
        if result.error in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            self.member_id = result.member_id
        else:
            self.forget()

    def behave(self):
        """Do one round of a consumer's work: heartbeat, and join and sync when the coordinator asks for it."""
        self.hear()
        if self.joining is not None:
            return
        if self.joined is None:
            self.join()
        elif self.heartbeat() is not ErrorCode.NONE:
            if self.heartbeat() is not ErrorCode.REBALANCE_IN_PROGRESS:
                self.forget()
            self.join()
        elif self.syncing is None or (self.syncing.result is not None and self.syncing.result.error):
            self.sync()


def check(house):
    """Assert the invariants that group.py states."""
    for group in house.coordinator._groups:
        members = group.members
        assert (group.leader_id in members) if members else group.leader_id is None
        assert group.awaiting_join == sum(m.joining is not None for m in members.values())
        assert group.unsynced <= set(members)
        assert {i: m for i, m in group._static_ids.items()} == {
            m.instance_id: m.member_id for m in members.values() if m.instance_id
        }
        assert not set(group.pending) & set(members)
        if members:
            assert group.supports(group.protocol_type, [GroupProtocol("range", b"")])
            assert group.state is not GroupState.EMPTY
        for member in members.values():
            assert member.session.deadline_ms is not None or member.joining or member.syncing
            if member.joining:
                assert group.state is GroupState.PREPARING_REBALANCE and member.joining.result is None
            if member.syncing:
                assert group.state is GroupState.COMPLETING_REBALANCE and member.syncing.result is None


step = st.tuples(
    st.sampled_from(["join", "fresh", "sync", "heartbeat", "leave", "behave", "time", "time", "delete", "restart"]),
    st.integers(0, CLIENTS - 1),
    st.sampled_from([1, 1_000, 3_000, 9_000, 20_000]),
)


@settings(max_examples=120)
@given(steps=st.lists(step, max_size=40))
def test_whatever_members_did_the_group_becomes_stable_once_they_behave(make_house, steps):
    house = make_house()
    clients = [Client(house, number) for number in range(CLIENTS)]
    for name, number, ms in steps:
        if name == "time":
            house.at(house.now_ms + ms)
        elif name == "delete":
            house.delete("g")
            house.settle()
        elif name == "restart":
            again = house.restarted()
            again.log, again._members = house.log, house._members
            house = again
            for client in clients:
                client.house, client.joining, client.syncing = house, None, None
        elif name == "fresh":
            clients[number].join(fresh=True)
        else:
            getattr(clients[number], name)()
        for client in clients:
            client.hear()
        check(house)
    for _ in range(60):
        for client in clients:
            client.behave()
        house.at(house.now_ms + 2_000)
        check(house)
    settled(house, clients)


def settled(house, clients):
    described = house.coordinator.describe("g")
    assert described.state == "Stable"
    assert sorted(m.member_id for m in described.members) == sorted(c.member_id for c in clients)
    assert len({c.joined.generation for c in clients}) == 1
    assert [c.syncing.result.assignment for c in clients] == [b"share of " + c.member_id.encode() for c in clients]
    assert sum(c.leads for c in clients) == 1
    assert house.restarted().coordinator.describe("g") == described
