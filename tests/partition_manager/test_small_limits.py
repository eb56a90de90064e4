"""Limits near each other: whatever the sizes are, every message of every partition is settled."""

from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from partition_manager.config import AT_LEAST_ONCE, AT_MOST_ONCE, SpoutConfig
from tests.partition_manager.managers import emit_all, manager_of
from tests.partition_manager.test_coordinator import coordinator_of, world_of
from tests.partition_manager.world import records

STILL_MAX = 50  # steps of a second without an emission: a retry is due after one


@pytest.mark.parametrize("cap", [1, 2, 3, 500, 999, 1_000, 1_001, 2_000])
def test_a_partition_goes_on_at_every_cap_of_unsettled_messages(cap):
    world = world_of(2 * cap + 1)
    coordinator = coordinator_of(world, config=SpoutConfig(spout_max_uncommitted=cap))
    assert settle_all(coordinator, world, Random(0), window=cap, failures=0.0).acked == 2 * cap + 1


def test_a_message_emitted_at_the_limit_of_messages_leaves_the_partition_waiting_for_room():
    """To emit one more message does not end the wait for room: the message is not settled yet."""
    manager = manager_of(max_uncommitted=4, fetch_max_records=10)
    manager.wanted()
    manager.fetched(records(0, 4), 4, 9)
    assert manager.wanted() is None, "no room"
    tickets = emit_all(manager)
    manager.check()
    manager.ack(0, tickets[0])
    manager.check()
    assert manager.wanted().max_records == 1


sizes = st.integers(1, 12)


@settings(max_examples=50, deadline=None)
@given(
    cap=sizes,
    fetch=sizes,
    ranges=st.integers(1, 6),
    window=sizes,
    space=st.integers(1, 12),
    failures=st.sampled_from((0.0, 0.1, 0.5, 0.9)),
    guarantee=st.sampled_from((AT_LEAST_ONCE, AT_MOST_ONCE)),
    attempts=st.integers(0, 3),
    messages=st.lists(st.integers(0, 30), min_size=1, max_size=3),
    seed=st.integers(0, 2**32),
)
@example(5, 10, 6, 10, 12, 0.0, AT_LEAST_ONCE, 0, [40], 0)
def test_every_message_is_settled_whatever_the_limits_are(
    cap, fetch, ranges, window, space, failures, guarantee, attempts, messages, seed
):
    world = world_of(*messages)
    config = SpoutConfig(
        spout_max_uncommitted=cap,
        spout_fetch_max_records=fetch,
        spout_max_settled_ranges=ranges,
        spout_max_pending_bytes=space * 251,  # of a message in memory, here of one byte
        spout_max_attempts=attempts,
        spout_guarantee=guarantee,
        spout_outage_after_messages=0,
        spout_retry_max_ms=1_000,
    )
    coordinator = coordinator_of(world, config=config)
    counts = settle_all(coordinator, world, Random(seed), window=window, failures=failures)
    assert counts.acked + counts.dead_lettered + counts.dropped == sum(messages)


def settle_all(coordinator, world, random, *, window, failures):
    """Emit, ack and fail until all messages of the world are settled, with at most `window` of them in flight.

    Return the counts. Fail if nothing moves any more.
    """
    in_flight, now_ms, still = [], 0, 0
    while still < STILL_MAX:
        world.carry(coordinator, now_ms)
        still += 1
        while len(in_flight) < window and (emission := coordinator.next(now_ms)) is not None:
            in_flight.append(emission[0])
            still = 0
        random.shuffle(in_flight)
        for _ in range(random.randint(1, len(in_flight)) if in_flight else 0):
            id = in_flight.pop()
            coordinator.fail(id, now_ms) if random.random() < failures else coordinator.ack(id)
            still = 0
        for partition in coordinator._all if window < 20 else ():
            partition.manager.check()
        now_ms += 1_000
    assert all(status.watermark == world.log.ends[status.partition] for status in coordinator.status()), "nothing moves"
    return coordinator.counts
