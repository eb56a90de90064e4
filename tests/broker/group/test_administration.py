"""ListGroups, DescribeGroups, DeleteGroups."""

from broker.wire.errors import ErrorCode


def test_groups_are_listed_with_type_and_state(house):
    house.stable("a")
    house.commit(("t", 0, 1), group="simple")
    assert sorted(house.coordinator.list_groups()) == [
        ("g", "consumer", "Stable", "classic"),
        ("simple", "", "Empty", "classic"),
    ]


def test_the_list_is_filtered_by_state_and_type_in_any_case(house):
    """The filter by state exists since v4 (KIP-518), the one by type since v5 (KIP-848)."""
    house.stable("a")
    house.commit(("t", 0, 1), group="simple")
    names = [g.group_id for g in house.coordinator.list_groups(states=["stable", "DEAD"])]
    assert names == ["g"]
    assert len(house.coordinator.list_groups(types=["Classic"])) == 2
    assert house.coordinator.list_groups(types=["consumer"]) == []


def test_a_stable_group_is_described_with_its_members_and_their_shares(house):
    (member,) = house.stable("app", instance="i-1")
    described = house.coordinator.describe("g")
    assert described[:5] == (ErrorCode.NONE, "g", "Stable", "consumer", "range")
    (shown,) = described.members
    share = b"share of " + member.member_id.encode()
    assert shown == (member.member_id, "i-1", "app", "/10.0.0.7", b"topics", share)


def test_while_it_rebalances_no_protocol_is_shown(house):
    house.stable("a")
    house.join(client="b")
    described = house.coordinator.describe("g")
    assert (described.state, described.protocol_data) == ("PreparingRebalance", "")
    assert [m.metadata for m in described.members] == [b"", b""]


def test_a_group_that_does_not_exist_is_dead(house):
    described = house.coordinator.describe("none")
    assert (described.error, described.state) == (ErrorCode.GROUP_ID_NOT_FOUND, "Dead")


def test_a_group_with_members_is_not_deleted(house):
    house.stable("a")
    assert house.delete("g") is ErrorCode.NON_EMPTY_GROUP
    assert house.delete("none") is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_deleted_group_is_gone_with_its_offsets_also_after_a_restart(house):
    (member,) = house.stable("a")
    house.commit(("t", 0, 5), member_id=member.member_id, generation=1)
    house.leave(member.member_id)
    given = house.join(id_required=True).result
    assert house.delete("g") is ErrorCode.NONE
    house.settle()
    assert house.state() == "Dead" and house.coordinator.fetch("g", None) == []
    assert len(house.restarted().coordinator) == 0
    assert house.join(given.member_id).result.error is ErrorCode.UNKNOWN_MEMBER_ID
    house.at(100_000)
