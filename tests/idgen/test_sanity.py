"""idgen.sanity: the peers' numbers and clocks (snowflake-2010, SnowflakeServer's sanityCheckPeers)."""

import pytest

from idgen.layout import Layout
from idgen.registry import Mark, Worker
from idgen.sanity import Answer, Peer, SanityCheckFailed, check, mean_offset_ms, peers_of

LAYOUT = Layout()


def worker(number, address, role="ids", living=True):
    mark = None if role is None else Mark(2, 1, "t", address, role)
    return Worker(number, living, address, mark)


def answer(number, host="10.0.0.1", port=7609, says=None, offset_ms=0):
    says = number if says is None else says
    return Answer(Peer(number, host, port), says >> 5, says & 31, offset_ms)


def checked(*answers, max_offset_ms=10_000):
    check(answers, LAYOUT, max_offset_ms)


def test_the_living_id_services_are_asked_and_nobody_else():
    workers = [
        worker(0, "10.0.0.1:7609"),
        worker(1, "10.0.0.2:9092", "log"),
        worker(2, "host:4711", "in process"),
        worker(3, "10.0.0.3:7609", living=False),
        worker(4, "twitter:7609", role=None),
        worker(5, "10.0.0.5:0"),
        worker(6, "0.0.0.0:7609"),
        worker(7, "[fe80::1]:7609"),
        worker(8, "damaged"),
    ]
    assert peers_of(workers, "") == [
        Peer(0, "10.0.0.1", 7609),
        Peer(4, "twitter", 7609),
        Peer(7, "fe80::1", 7609),
    ]


def test_processes_that_share_our_port_are_not_asked():
    """Whichever accepts the connection would answer with its number, which may be none of those in the registry yet."""
    workers = [worker(0, "10.0.0.1:7609"), worker(1, "10.0.0.1:7609"), worker(2, "10.0.0.1:7610")]
    assert peers_of(workers, "10.0.0.1:7609") == [Peer(2, "10.0.0.1", 7610)]


def test_peers_that_are_who_they_are_shown_as_are_fine():
    checked()
    checked(answer(0), answer(5, "b"), answer(1_023, "c"))


def test_a_peer_with_another_number_is_named():
    with pytest.raises(SanityCheckFailed, match="10.0.0.1:7609 is shown with number 3 and answers with worker 4 of"):
        checked(answer(3, says=4))


def test_another_datacenter_shows_too():
    """A registry of Twitter's belongs to one datacenter, so its node 5 is not our number 5."""
    with pytest.raises(SanityCheckFailed, match="worker 5 of datacenter 3, which is 101"):
        checked(answer(5, says=101))


def test_the_node_of_a_life_that_was_killed_is_no_fault_of_the_next_at_its_address():
    checked(answer(3, says=4), answer(4))


def test_what_is_at_a_loopback_address_may_be_another_machines():
    checked(answer(3, "127.0.0.1", says=4), answer(3, "localhost", says=4, offset_ms=99_999))


@pytest.mark.parametrize(
    "offsets, fine", [([10_000], True), ([10_001], False), ([-10_001], False), ([60_000, 0], False)]
)
def test_a_clock_is_within_ten_seconds_of_the_mean(offsets, fine):
    answers = [answer(n, f"h{n}", offset_ms=offset) for n, offset in enumerate(offsets)]
    if fine:
        return checked(*answers)
    with pytest.raises(SanityCheckFailed, match=r"clock is \d+ ms (ahead of|behind) the mean of \d id services"):
        checked(*answers)


def test_the_offset_is_that_from_the_mean():
    assert mean_offset_ms([]) is None
    assert mean_offset_ms([answer(0, offset_ms=-30), answer(1, offset_ms=10)]) == -10
