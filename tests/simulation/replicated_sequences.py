"""Sequences of events that a history seldom has by chance, each around one partition with three copies.

The rules of replication are needed in a moment: between a proposal and its grant, or between the order of a new leader
and the first fetch of its follower. A sequence comes to such a moment, and then kills those who know. It returns True
if it has come so far.
"""

from broker.cluster.documents import state_path
from broker.group.offset_records import partition_of
from broker.membership.calls import Link as LinkKind
from broker.metadata.topic import GROUP_OFFSETS_TOPIC
from tests.simulation.replicated_bursts import Commit, Deletion, Election, OffsetQuestion, Setting
from tests.simulation.replicated_stage import ELECTED_MS, JOINED_MS, Stage, stage

# --- a leader without followers --------------------------------------------------------------------------------------


def strand_a_leader(world):
    """A leader's followers do not get its records, and leave the ISR, or the leader asks in vain. Then it dies."""
    act = stage(world)
    if act is None:
        return False
    followers = act.followers
    act.write(2)
    world.run(world.random.choice((100, 400)))
    act.hang_fetches(*world.random.choice((followers, followers[:1])))
    if world.random.random() < 0.5:
        act.hang_proposals()
    act.write(2)
    if world.random.random() < 0.8:
        world.run(world.lag_ms * 3 // 2 + 300)
        act.write()
    world.run(world.random.choice((100, 600)))
    return act.replace_leader()


def lower_min_isr_between_two_deaths(world):
    """min.insync.replicas is lowered when only the leader is in the ISR. The leader dies before the controller has
    emptied the ELR."""
    act = stage(world, lambda act: world.min_isr_of(act.partition.topic) > 1 and act.controller != act.leader)
    if act is None:
        return False
    act.hang_fetches(*act.followers)
    act.write()
    if not act.until(lambda: act.state.isr == (act.leader,), 2 * world.lag_ms):
        act.heal()
        return False
    act.hang_proposals()
    world.begin(Setting(world, act.partition.topic, "min.insync.replicas", 1))
    world.run(300)
    act.write(2)
    world.run(world.random.choice((100, 600)))
    return act.replace_leader()


# --- a follower that joins -------------------------------------------------------------------------------------------


def lead_by_a_follower_that_joins(world):
    """A follower joins the ISR slowly, or before the leader hears of it. At that moment all others die."""
    is_slow = world.random.random() < 0.4
    act = stage(world, lambda act: is_slow or act.controller != act.leader)
    if act is None:
        return False
    joins = act.followers[-1]
    act.kill(joins)
    act.until(lambda: joins not in act.state.isr, ELECTED_MS)
    act.write(3)
    world.run(300)
    if is_slow:
        act.hang_fetches(joins)
    act.start(joins)
    if not is_slow:
        act.hang_grants()
    has_joined = act.until(lambda: joins in act.state.isr, JOINED_MS)
    if has_joined:
        act.hang_fetches(joins)
        act.write(2)
        world.run(world.random.choice((0, 200, 500)))
        others = [member for member in act.state.isr if member != joins]
        act.kill(*others)
        world.run(50)
        act.heal()
        act.until_elected()
        act.later(*others)
    act.heal()
    return has_joined


def lead_by_a_member_that_the_leader_does_not_know(world):
    """A follower joins the ISR. Before the leader hears of it, it writes what the new member does not get. Then the
    others die."""
    act = stage(world, lambda act: len(act.followers) == 2 and act.controller != act.leader)
    if act is None:
        return False
    joins = next(member for member in reversed(act.followers) if member != act.controller)
    act.hang_fetches(joins)
    act.write()
    if act.until(lambda: joins not in act.state.isr, 2 * world.lag_ms):
        world.cut(act.controller, act.leader, LinkKind.ORDERS)
        act.hang_grants()
        world.heal_cuts_of(LinkKind.FETCHES)
        if act.until(lambda: joins in act.state.isr, JOINED_MS):
            act.hang_fetches(joins)
            act.write(2)
            world.run(world.random.choice((300, 600)))
            others = [member for member in act.state.isr if member != joins]
            act.kill(*others)
            act.until_elected()
            act.later(*others)
    act.heal()
    return True


def join_in_a_life_that_is_over(world):
    """A follower loses power while the controller is asked to let it join. Then all others die."""
    act = stage(world, lambda act: act.followers[-1] != act.controller)
    if act is None:
        return False
    joins = act.followers[-1]
    act.kill(joins)
    world.run(200)
    act.write(3)
    act.hang_proposals()
    act.start(joins)
    has_caught_up = act.until(lambda: act.end_of(joins) >= act.end_of(act.leader), JOINED_MS)
    if has_caught_up:
        act.write(2)
        world.run(400)
        life = act.life_of(joins)
        world.cut_power_of(world.machines[joins])
        act.hang_fetches(joins)
        act.start(joins)
        act.until(lambda: act.life_of(joins) not in (None, life), 1_500)
        world.run(world.random.choice((100, 300)))
        world.heal_cuts_of(LinkKind.REQUESTS)
        if act.until(lambda: joins in act.state.isr, 1_500):
            others = [member for member in act.state.isr if member != joins]
            act.kill(*others)
            act.until_elected()
            act.later(*others)
    act.heal()
    return has_caught_up


def join_by_a_late_proposal(world):
    """A proposal that lets a follower join reaches the controller in the leader's next epoch, and its answer is lost.
    Then the leader dies. That epoch begins when the member of the ELR returns from a power cut."""

    def is_fit(act):
        is_whole = len(act.followers) == 2 and world.min_isr_of(act.partition.topic) == 2
        return is_whole and act.controller not in (act.leader, act.followers[0])

    act = stage(world, is_fit)
    if act is None:
        return False
    other, joins = act.followers
    for late in (joins, other):
        act.hang_fetches(late)
        act.write()
        if not act.until(lambda late=late: late not in act.state.isr, 2 * world.lag_ms):
            act.heal()
            return False
    world.run(200)
    act.hang_proposals()
    world.heal_cut(act.leader, joins, LinkKind.FETCHES)
    act.until(lambda: act.end_of(joins) >= act.end_of(act.leader), 1_000)
    world.begin(Setting(world, act.partition.topic, "min.insync.replicas", 1))
    world.run(300)
    act.hang_fetches(joins)
    epoch = act.state.leader_epoch
    world.cut_power_of(world.machines[other])
    act.start(other)
    leads_on = act.until(lambda: act.state.leader_epoch > epoch and act.leads(act.leader), ELECTED_MS)
    act.hang_grants()
    world.heal_cut(act.leader, act.controller, LinkKind.REQUESTS)
    world.run(300)
    act.write(2)
    world.run(world.random.choice((100, 300)))
    act.kill(act.leader)
    world.run(50)
    act.heal()
    act.until_elected()
    act.later(act.leader)
    return leads_on


# --- a leader after another ------------------------------------------------------------------------------------------


def lead_by_one_after_another(world):
    """A leader dies, and so does the next one, before the third replica has got what both had."""
    act = stage(world, lambda act: len(act.followers) == 2)
    if act is None:
        return False
    second, third = act.followers
    act.hang_fetches(third)
    act.hang_fetches(third, leader=second)
    act.write(2)
    world.run(world.random.choice((100, 300)))
    act.kill(act.leader)
    is_elected = act.until_elected()
    act.write()
    world.run(world.random.choice((0, 100, 300)))
    act.kill(second)
    world.run(50)
    act.heal()
    act.until(lambda: act.leads(act.state.leader), ELECTED_MS)
    act.later(act.leader, second)
    return is_elected


def coordinate_by_one_after_another(world):
    """A coordinator dies, and the next one is asked before the third replica has what both had."""
    act = stage(world, lambda act: len(act.followers) == 2, topics=(GROUP_OFFSETS_TOPIC,))
    if act is None:
        return False
    second, third = act.followers
    group = group_at(act.partition.partition, world.settings["offsets_topic_num_partitions"])
    world.begin(Commit(world, group, act.leader, 1))
    world.run(400)
    act.hang_fetches(third)
    act.hang_fetches(third, leader=second)
    world.begin(Commit(world, group, act.leader, 2))
    world.run(world.random.choice((100, 300)))
    act.kill(act.leader)
    is_elected = act.until_elected()
    for _ in range(3):
        world.begin(OffsetQuestion(world, group, act.state.leader))
        world.run(100)
    act.kill(second)
    world.run(50)
    act.heal()
    act.until(lambda: act.leads(act.state.leader), ELECTED_MS)
    world.begin(OffsetQuestion(world, group, act.state.leader))
    world.run(100)
    act.later(act.leader, second)
    return is_elected


def _led_by_the_second(world):
    """Return a partition whose preferred leader follows, and whose leader and third replica are not the controller."""

    def is_fit(act):
        is_whole = len(act.followers) == 2 and act.followers[0] == act.replicas[0]
        return is_whole and act.controller not in (act.leader, act.followers[1])

    act = stage(world, is_fit)
    if act is not None:
        return act
    act = stage(world, lambda act: act.leader == act.replicas[0] and act.controller not in act.replicas)
    if act is None:
        return None
    act.kill(act.leader)
    act.until_elected()
    act.start(act.leader)
    act.until(lambda: act.leader in act.state.isr, JOINED_MS)
    if state_path(act.partition) not in world.ensemble.nodes:
        return None  # the topic was deleted meanwhile
    moved = Stage(world, act.partition)
    return moved if moved.leads(moved.leader) and is_fit(moved) else None


def move_a_leader_from_under_itself(world):
    """Another broker leads for a moment, of which the leader before does not hear. It leads again, and dies.

    The controller decides both, and dies before it has told the leader: the next controller tells its own state first.
    """
    act = _led_by_the_second(world)
    if act is None:
        return False
    preferred, third = act.followers
    controller = act.controller
    if controller not in world.machines:
        return False  # nobody leads the cluster at the moment
    act.hang_fetches(preferred)
    act.write(2)
    end = act.end_of(act.leader)
    act.until(lambda: act.known_end_of(third) >= max(end + 1, act.end_of(act.leader)), 600)
    if world.random.random() < 0.5:
        world.cut(third, act.leader, LinkKind.FETCHES)
    world.cut(controller, act.leader, LinkKind.ORDERS)
    world.begin(Election(world, act.partition, controller))
    act.until(lambda: act.state.leader == preferred and act.leads(preferred), 1_000)
    act.until(lambda: 0 <= act.end_of(third) <= act.end_of(preferred), 1_700)
    world.cut(act.leader, third, LinkKind.FETCHES)
    epoch = act.state.leader_epoch
    act.kill(preferred)
    act.until(lambda: act.state.leader_epoch > epoch and act.state.leader == act.leader, ELECTED_MS)
    act.kill(controller)
    leads_again = act.until(lambda: act.state.leader_epoch > epoch and act.leads(act.leader), 2 * ELECTED_MS)
    world.heal_cut(third, act.leader, LinkKind.FETCHES)
    world.run(world.random.choice((50, 200)))
    act.kill(act.leader)
    world.run(50)
    act.heal()
    act.until_elected()
    act.later(act.leader, *{preferred, controller})
    return leads_again


# --- ids -------------------------------------------------------------------------------------------------------------


def lead_with_a_late_clock(world):
    """The next leader's clock is behind, so that it may have to wait for the last id of its log."""
    act = stage(world)
    if act is None:
        return False
    act.write(2)
    world.run(300)
    late_ms = world.random.choice((1_000, 4_000, 8_000))
    for follower in act.followers:
        world.machines[follower].wall_step_ms -= late_ms
    followers = act.followers
    act.kill(act.leader)
    is_elected = act.until_elected()
    act.write(2)
    world.run(500)
    for follower in followers:
        world.machines[follower].wall_step_ms += late_ms
    act.later(act.leader)
    return is_elected


def lead_an_empty_log(world):
    """All records are deleted while a follower is away. It leads, with a clock that is behind."""
    act = stage(world)
    if act is None:
        return False
    joins = act.followers[-1]
    act.kill(joins)
    act.write(2)
    world.run(1_000)
    log = act.log_of(act.leader)
    if log is not None:
        world.begin(Deletion(world, act.partition, act.leader, act.topic_id, log.high_watermark))
    world.run(300)
    late_ms = world.random.choice((4_000, 8_000))
    world.machines[joins].wall_step_ms -= late_ms
    act.start(joins)
    has_joined = act.until(lambda: joins in act.state.isr, JOINED_MS)
    if has_joined:
        others = [member for member in act.state.isr if member != joins]
        act.kill(*others)
        act.until_elected()
        act.write(2)
        world.run(500)
        act.later(*others)
    world.machines[joins].wall_step_ms += late_ms
    return has_joined


def leave_one(world):
    """Let the records, or the ISR, of a partition be those of one broker only. Return its machine, None if no partition
    is led; the others come back before it."""
    act = stage(world)
    if act is None:
        return None
    if world.random.random() < 0.5:
        act.write(2)
        world.run(400)
        act.hang_fetches(*act.followers)
        act.write(2)
        world.run(200)
    else:
        act.hang_fetches(*act.followers)
        act.write()
        act.until(lambda: act.state.isr == (act.leader,), 2 * world.lag_ms)
    act.kill(act.leader)
    world.run(50)
    act.heal()
    return world.machines[act.leader]


SEQUENCES = (
    strand_a_leader,
    strand_a_leader,
    lower_min_isr_between_two_deaths,
    lead_by_a_follower_that_joins,
    lead_by_a_follower_that_joins,
    lead_by_a_member_that_the_leader_does_not_know,
    join_in_a_life_that_is_over,
    join_by_a_late_proposal,
    lead_by_one_after_another,
    coordinate_by_one_after_another,
    move_a_leader_from_under_itself,
    lead_with_a_late_clock,
    lead_an_empty_log,
)


def group_at(partition, partitions):
    """Return the name of a group whose offsets are in a partition."""
    numbers = range(1_000)
    return next(f"group{n}" for n in numbers if partition_of(f"group{n}", partitions) == partition)
