"""idgen.fair_queue: the order in which ids are given when they are used up, with literal times. A turn has 4,096 ids,
those of one millisecond."""

import pytest

from coordination.memory import Ensemble, MemoryCoordinator
from idgen.config import IdgenConfig
from idgen.errors import SequenceExhausted
from idgen.fair_queue import UNLIMITED, FairQueue, ThriftCaller, TurnBudget
from idgen.registry import Registry
from idgen.sequence_start import sequence_start
from idgen.service import IdService
from idgen.wire import Call, ThriftError, decode_reply, encode_call
from tests.idgen.driving import NOW, claim, settle

TURN = 4_096


class Peer:
    """A connection: its calls, and its answers so far with the time of each."""

    def __init__(self, service, budget, *calls):
        self.caller = ThriftCaller(service, budget)
        self.caller.receive(b"".join(map(encode_call, calls)))
        self.answers = []

    def take_turn(self, most, now_ms, skew_ms):
        for answer in self.caller.answers(most, now_ms, skew_ms):
            self.answers.append((now_ms - NOW, decode_reply(answer[4:])))
        return self.caller.idle

    @property
    def ids(self):
        return sum(len(reply.value) if isinstance(reply.value, list) else 1 for _, reply in self.answers)

    @property
    def served_at(self):
        return [at_ms for at_ms, _ in self.answers]


class House:
    def __init__(self, max_ahead_ms=30, **settings):
        self.waits = []
        config = IdgenConfig(ids_max_ahead_ms=max_ahead_ms, **settings)
        start = sequence_start(config.ids_sequence_start, config.ids_sequence_starts, 0)
        claimed = claim(registry=Registry(max_ahead_ms=max_ahead_ms), sequence_start=start)
        held = settle(claimed, MemoryCoordinator(Ensemble()), NOW)
        self.service = IdService(held, config)
        self.budget = TurnBudget(config.ids_look_calls)
        self.line = FairQueue(self.service.turn_ids, self.budget, self.waits.append)
        self.spend(NOW)

    def spend(self, now_ms):
        """Use up all ids that are available at this time."""
        try:
            while True:
                self.service.next_id("before", now_ms, 0)
        except SequenceExhausted:
            pass

    def join(self, *calls, now_ms=NOW):
        peer = Peer(self.service, self.budget, *calls)
        self.line.join(peer, now_ms)
        return peer

    def serve(self, *times_ms):
        """Serve at each of these times, with as many call budgets as that takes."""
        for at_ms in times_ms:
            self.budget.renew()
            while (retry_at_ms := self.line.serve(NOW + at_ms, 0)) == NOW + at_ms:
                self.budget.renew()
        return retry_at_ms


def many(count, seqid=1, times=1):
    return [Call("get_ids", seqid + n, "flood", count) for n in range(times)]


def small_call(seqid=1):
    return Call("get_id", seqid, "small")


@pytest.fixture
def house():
    return House()


def test_who_comes_first_is_served_first_and_each_is_told_when_to_come_again(house):
    first, second = house.join(*many(TURN)), house.join(*many(TURN))
    assert house.serve(0) == NOW + 1
    assert house.serve(1) == NOW + 2
    assert house.serve(2) is None
    assert (first.served_at, second.served_at) == ([1], [2])
    assert house.waits == [1, 2]


def test_one_that_wants_little_waits_one_turn_of_each_before_it_however_much_they_want(house):
    """Three floods are queued before the small call, so it is served in the fourth millisecond."""
    floods = [house.join(*many(100_000, times=10)) for _ in range(3)]
    small = house.join(small_call())
    assert house.serve(1, 2, 3) == NOW + 4
    assert small.answers == []
    house.serve(4)
    assert small.served_at == [4]
    assert [flood.answers for flood in floods] == [[], [], []]  # each of their calls takes 24 turns


def test_a_flood_gets_its_ids_all_the_same_and_no_id_comes_twice(house):
    flood, other = house.join(*many(10_000, times=2)), house.join(*many(5_000, times=3))
    house.serve(*range(1, 30))
    assert (flood.ids, other.ids) == (20_000, 15_000)
    ids = [id for peer in (flood, other) for _, reply in peer.answers for id in reply.value]
    assert len(set(ids)) == 35_000
    for peer in (flood, other):
        peer_ids = [id for _, reply in peer.answers for id in reply.value]
        assert peer_ids == sorted(peer_ids)
        assert [reply.seqid for _, reply in peer.answers] == list(range(1, 1 + len(peer.answers)))
    assert house.service.counters.by_user_agent["flood"] == 35_000


def test_many_small_calls_of_one_connection_share_its_turn():
    house = House(ids_look_calls=10_000)
    flood, small = house.join(*many(100_000)), house.join(*(small_call(n) for n in range(5_000)))
    house.serve(*range(1, 3))
    assert len(small.answers) == TURN
    house.serve(*range(3, 5))
    assert len(small.answers) == 5_000 and small.served_at[-1] == 4
    assert flood.answers == []


def test_a_large_call_is_not_passed_by_for_ever_by_small_ones(house):
    """Small calls find ids each millisecond; without a queue the large call never would."""
    large = house.join(*many(3 * TURN))
    for at_ms in range(1, 12):
        house.join(*many(TURN - 1), now_ms=NOW + at_ms)
        house.serve(at_ms)
    assert large.served_at and large.served_at[0] <= 11


def test_a_client_that_is_alone_takes_as_much_as_a_turn_allows(house):
    alone = house.join(*many(100_000))
    assert house.serve(1) == NOW + 4  # 16,384 ids: 256 times 64
    house.serve(*range(4, 25, 4))
    assert alone.served_at == []
    assert house.serve(25) is None  # 24.4 milliseconds' ids
    assert alone.served_at == [25]


def test_who_is_not_alone_any_more_takes_what_is_there_and_lets_the_other_in():
    house = House()
    flood = house.join(*many(100_000))
    house.serve(10)
    small = house.join(small_call(), now_ms=NOW + 10)
    house.serve(10)
    assert small.served_at == [10] and flood.answers == []


def test_calls_that_need_no_ids_are_answered_while_others_wait(house):
    peer = Peer(house.service, house.budget, Call("get_timestamp", 1), small_call(2), Call("get_timestamp", 3))
    peer.take_turn(0, NOW, 0)
    assert [reply.seqid for _, reply in peer.answers] == [1]
    peer.take_turn(UNLIMITED, NOW + 1, 0)
    assert [reply.seqid for _, reply in peer.answers] == [1, 2, 3]
    assert peer.caller.idle


def test_a_turn_may_end_within_a_call_which_goes_on_with_the_next(house):
    """A turn gives four calls 1,000 ids each, and 96 ids to the fifth call."""
    peer = house.join(*many(1_000, times=8))
    other = house.join(*many(1_000, times=8))
    house.serve(1)
    assert (len(peer.answers), len(other.answers)) == (4, 0)
    house.serve(2)
    assert (len(peer.answers), len(other.answers)) == (4, 4)
    house.serve(3)
    assert (len(peer.answers), len(other.answers)) == (8, 4)


def test_who_leaves_holds_nobody_up(house):
    leaver, small = house.join(*many(100_000)), house.join(small_call())
    house.line.leave(leaver)
    house.line.leave(leaver)
    house.serve(1)
    assert small.served_at == [1] and not house.line


def test_a_refusal_ends_a_call_that_had_some_of_its_ids(house):
    """After a worker is fenced, or the registry is unreachable, the call's ids so far are not used."""
    flood, small = house.join(*many(100_000), small_call(2)), house.join(small_call())
    house.serve(1)
    house.service.claim.close(NOW + 1)
    house.serve(2)
    assert [reply.error.partition(":")[0] for _, reply in flood.answers] == ["Fenced", "Fenced"]
    assert [reply.error.partition(":")[0] for _, reply in small.answers] == ["Fenced"]


def test_a_call_that_is_wrong_is_refused_in_its_turn(house):
    bad = house.join(Call("get_ids", 1, "-", 5), Call("get_ids", 2, "agent", 1 << 30), Call("get_ids", 3, "agent", -1))
    house.join(small_call())
    house.serve(1)
    assert [reply.error.partition(":")[0] for _, reply in bad.answers] == [
        "InvalidUserAgent", "InvalidCount", "InvalidCount"
    ]  # fmt: skip
    assert bad.caller.idle


def test_what_cannot_be_read_is_met_after_what_came_before_it(house):
    peer = Peer(house.service, house.budget)
    peer.caller.receive(encode_call(Call("get_timestamp", 1)) + b"GET / HTTP/1.0\r\n")
    with pytest.raises(ThriftError):
        peer.take_turn(TURN, NOW, 0)
    assert [reply.seqid for _, reply in peer.answers] == [1]


def test_a_thousand_calls_that_each_wait_do_not_grow_a_stack(house):
    """Each wait once wrapped the remaining calls in another iterator, and the thousandth wait overflowed the stack."""
    peer = house.join(*many(TURN, times=1_500))
    for at_ms in range(1, 1_501):
        house.serve(at_ms)
    assert len(peer.answers) == 1_500


def test_a_turn_is_what_a_millisecond_has_where_sequences_begin_later():
    house = House(ids_sequence_start="spread", ids_sequence_starts=256, ids_max_batch=1_000_000)
    assert house.service.turn_ids == TURN - 255
    assert house.service.max_batch == 31 * (TURN - 255) == house.service.claim.worker.max_batch


def served(house, at_ms, *peers):
    """Serve with one call budget; return when to continue, and how many calls of each peer are answered so far."""
    house.budget.renew()
    continue_at_ms = house.line.serve(NOW + at_ms, 0)
    return (continue_at_ms if continue_at_ms is None else continue_at_ms - NOW), [len(peer.answers) for peer in peers]


def test_in_one_look_at_everything_no_more_is_answered_than_it_allows():
    """The call budget holds however many ids are available, so that the process's other work comes in between."""
    house = House(ids_look_calls=256)
    peers = [house.join(*(small_call(n) for n in range(300))) for _ in range(3)]
    assert served(house, 20, *peers) == (20, [256, 0, 0])
    assert served(house, 20, *peers) == (20, [256, 256, 0])
    assert served(house, 20, *peers) == (20, [256, 256, 256])
    assert served(house, 20, *peers) == (None, [300, 300, 300])
    assert house.waits == [20, 20, 20]


def test_a_batch_counts_as_several_calls_and_a_large_one_takes_several_looks():
    """1,000 ids count as 1 + 15 calls, so 16 such calls use up a budget of 256; 20,000 ids count as more than 312."""
    house = House(ids_look_calls=256)
    small = house.join(*many(1_000, times=40))
    assert served(house, 20, small) == (20, [16])
    assert served(house, 20, small) == (20, [32])
    assert served(house, 20, small) == (None, [40])
    large = house.join(*many(20_000, times=2))
    assert served(house, 30, large) == (30, [0])
    assert served(house, 30, large) == (30, [1])
    assert served(house, 30, large) == (None, [2])


def test_calls_that_need_no_ids_wait_for_the_next_look_too():
    house = House(ids_look_calls=10)
    peer = house.join(*(Call("get_timestamp", n) for n in range(25)))
    assert served(house, 0, peer) == (0, [10])
    assert served(house, 0, peer) == (0, [20])
    assert served(house, 0, peer) == (None, [25])
    assert house.waits == []  # the calls waited for no ids and for no time


def test_what_is_refused_is_paid_for_as_well():
    house = House(ids_look_calls=10)
    peer = house.join(*many(-1, times=15))
    assert served(house, 0, peer) == (0, [10])
    assert served(house, 0, peer) == (None, [15])


def test_the_logs_stamps_wait_for_no_line_of_the_id_service(house):
    """The log has a separate worker number, and no RPC is on the path of its stamps."""
    stamps = settle(claim("log", number=7), MemoryCoordinator(Ensemble()), NOW).usable_worker()
    for _ in range(100):
        house.join(*many(100_000, times=10))
    assert house.serve(0) == NOW + 1
    assert stamps.next_ids(1_000, NOW)[0].count == 1_000
