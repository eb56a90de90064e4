"""The cooperative-sticky assignor: balanced, sticky, and taking before it gives."""

from random import Random

import pytest

from broker.client.group_assignor import assign
from broker.client.group_protocol import MemberSubscription


def owns(*numbers, topics=("t",), generation=1):
    return MemberSubscription(topics, tuple(("t", n) for n in numbers), generation)


def numbers(shares):
    return {member: [n for _, n in share] for member, share in shares.items()}


def rounds(members, partitions):
    """Assign, revoke and join again until nothing changes; return the assignment and the number of rounds."""
    generation = max(subscription.generation for subscription in members.values())
    for count in range(1, 10):
        shares = assign(members, partitions)
        check_takes_before_it_gives(members, shares)
        generation += 1
        after = {
            name: MemberSubscription(subscription.topics, shares[name], generation)
            for name, subscription in members.items()
        }
        if all(set(after[name].owned) == set(members[name].owned) for name in members):
            return shares, count
        members = after
    raise AssertionError("the assignment never comes to rest")


def check_takes_before_it_gives(members, shares):
    for name, share in shares.items():
        claimed = {
            partition
            for other, subscription in members.items()
            if other != name
            for partition in subscription.owned
        }
        assert not set(share) & claimed


def test_the_first_members_share_all_partitions():
    assert numbers(assign({"a": owns(), "b": owns()}, {"t": 3})) == {"a": [0, 2], "b": [1]}


def test_a_new_member_gets_nothing_until_the_owners_have_revoked():
    members = {"a": owns(0, 1, 2), "b": owns(3, 4, 5), "c": owns()}
    assert numbers(assign(members, {"t": 6})) == {"a": [0, 1], "b": [3, 4], "c": []}
    members = {"a": owns(0, 1), "b": owns(3, 4), "c": owns()}
    assert numbers(assign(members, {"t": 6})) == {"a": [0, 1], "b": [3, 4], "c": [2, 5]}


def test_the_partitions_of_a_member_that_left_go_to_the_others_at_once():
    assert numbers(assign({"a": owns(0, 1), "b": owns(2, 3)}, {"t": 6})) == {"a": [0, 1, 4], "b": [2, 3, 5]}


def test_new_partitions_move_no_old_one():
    assert numbers(assign({"a": owns(0), "b": owns(1)}, {"t": 4})) == {"a": [0, 2], "b": [1, 3]}


def test_the_claim_of_the_later_generation_counts_and_the_older_one_must_be_given_up_first():
    members = {"a": owns(0, generation=3), "b": owns(0, 1, generation=2)}
    assert numbers(assign(members, {"t": 2})) == {"a": [], "b": [1]}


def test_two_claims_of_one_generation_are_both_refused_for_a_round():
    members = {"a": owns(0), "b": owns(0)}
    assert numbers(assign(members, {"t": 1})) == {"a": [], "b": []}


def test_members_get_partitions_of_their_own_topics_only():
    members = {"a": MemberSubscription(("t", "u")), "b": MemberSubscription(("u",)), "c": MemberSubscription(("v",))}
    shares = assign(members, {"t": 2, "u": 2})
    assert shares == {"a": (("t", 0), ("t", 1)), "b": (("u", 0), ("u", 1)), "c": ()}


def test_a_chain_of_moves_balances_members_that_share_no_topic():
    """a gives to b and b to c, though a and c have no topic in common."""
    owned = {"a": ("t", 4), "b": ("u", 3), "c": ("v", 2)}
    topics = {"a": ("t",), "b": ("t", "u"), "c": ("u", "v")}
    members = {
        name: MemberSubscription(topics[name], tuple((topic, n) for n in range(count)), 1)
        for name, (topic, count) in owned.items()
    }
    shares, _ = rounds(members, {"t": 4, "u": 3, "v": 2})
    assert {name: len(share) for name, share in shares.items()} == {"a": 3, "b": 3, "c": 3}


def test_claims_of_topics_and_partitions_that_do_not_exist_are_ignored():
    members = {"a": MemberSubscription(("t", "gone"), (("gone", 0), ("t", 9), ("t", -1), ("t", 0)), 1)}
    assert numbers(assign(members, {"t": 1})) == {"a": [0]}


@pytest.mark.parametrize("seed", range(60))
def test_members_that_come_and_go_are_balanced_within_one_with_as_few_moves_as_possible(seed):
    random = Random(seed)
    count, partitions = random.randint(1, 8), random.randint(0, 40)
    members = {f"m{i}": owns() for i in range(count)}
    for generation in range(1, 6):
        before = {name: set(subscription.owned) for name, subscription in members.items()}
        shares, used = rounds(members, {"t": partitions})
        sizes = sorted(len(share) for share in shares.values())
        assert sum(sizes) == partitions and sizes[-1] - sizes[0] <= 1
        assert used <= 3  # revoke, give, nothing changes
        moved = sum(len(set(share) - before[name]) for name, share in shares.items())
        least = fewest_moves([len(owned) for owned in before.values()], partitions)
        assert moved == least, f"{moved} partitions moved, {least} were necessary"
        members = {name: MemberSubscription(("t",), share, generation) for name, share in shares.items()}
        if len(members) > 1 and random.random() < 0.5:
            del members[random.choice(sorted(members))]
        for _ in range(random.randint(0, 2)):
            members[f"n{generation}{random.randint(0, 99)}"] = MemberSubscription(("t",), (), -1)
        partitions += random.choice((0, 0, 3))


def fewest_moves(sizes, partitions):
    """Return how many partitions must change hands: all that no member may keep in a balanced assignment."""
    low, more = divmod(partitions, len(sizes))
    kept_count = sum(min(size, low + (rank < more)) for rank, size in enumerate(sorted(sizes, reverse=True)))
    return partitions - kept_count


def test_a_thousand_partitions_of_mixed_topics_come_to_rest():
    random = Random(7)
    topics = {f"t{i}": random.randint(1, 40) for i in range(30)}
    members = {f"m{i}": MemberSubscription(tuple(random.sample(sorted(topics), 12))) for i in range(20)}
    shares, _ = rounds(members, topics)
    given = [partition for share in shares.values() for partition in share]
    assert len(given) == len(set(given))
