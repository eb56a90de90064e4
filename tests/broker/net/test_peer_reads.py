"""How a connection to another broker reads its answers, over a real socket whose polls the test makes."""

import select
from uuid import UUID

import pytest

from broker.net.peer_connection import PIECE_BYTES
from broker.wire.fetch import FetchedPartition, FetchResponse, encode_response
from tests.broker.net.peer_link import Link
from tests.broker.net.peer_world import fetch
from tests.patience import SECONDS

TOPIC_ID = UUID(int=4)
FIRST_BYTES, SOME_BYTES = 1_000, 10_000
LARGE = 3 * PIECE_BYTES


class FollowerLink(Link):
    """A follower's connection to a leader, which answers its fetches by hand."""

    def __init__(self):
        super().__init__()
        self._answers = 0

    def frame(self, records):
        """Return the answer to the next fetch."""
        self._answers += 1
        body = b"".join(encode_response(17, FetchResponse([FetchedPartition(TOPIC_ID, 0, records=records)])))
        data = self._answers.to_bytes(4, "big") + b"\0" + body
        return len(data).to_bytes(4, "big") + data

    def arrive(self, data):
        """Let bytes arrive, read whatever the connection is ready for."""
        while data:
            data = data[self.peer.send(data[:SOME_BYTES]) :]
            self.reactor.poll()
        self.reactor.poll()

    def is_readable(self, seconds=0):
        """Return True if a reactor would wake up for the connection."""
        poller = select.poll()
        poller.register(self.own, select.POLLIN)
        return bool(poller.poll(seconds * 1_000))

    @property
    def records(self):
        return [bytes(response.partitions[0].records) for response in self.calls.responses]


@pytest.fixture
def link():
    link = FollowerLink()
    yield link
    link.close()


def test_answers_of_all_sizes_arrive_whole_and_in_order(link):
    sent = [bytes([number]) * size for number, size in enumerate((10, LARGE, 10, LARGE, LARGE + 1, 0, 70_000))]
    for _ in sent:
        link.connection.send(fetch())
    link.arrive(b"".join(map(link.frame, sent)))
    assert link.records == sent


def test_the_records_of_a_large_answer_lie_in_one_buffer_that_no_later_answer_writes_to(link):
    link.connection.send(fetch()), link.connection.send(fetch())
    link.arrive(link.frame(b"a" * LARGE))
    first = link.calls.responses[0].partitions[0].records
    link.arrive(link.frame(b"b" * LARGE))
    assert first == b"a" * LARGE and first.obj is not link.calls.responses[1].partitions[0].records.obj


def test_the_reactor_wakes_up_for_a_large_piece_of_an_answer_or_its_rest(link):
    link.connection.send(fetch())
    frame = link.frame(bytes(PIECE_BYTES))
    link.arrive(frame[:FIRST_BYTES])
    link.peer.sendall(frame[FIRST_BYTES : 2 * FIRST_BYTES])
    assert not link.is_readable()
    link.arrive(frame[2 * FIRST_BYTES : -1])
    link.peer.sendall(frame[-1:])
    assert link.is_readable(SECONDS)
    link.reactor.poll()
    assert link.records == [bytes(PIECE_BYTES)]


def test_after_a_large_answer_the_reactor_wakes_up_for_each_small_one(link):
    link.connection.send(fetch()), link.connection.send(fetch())
    link.arrive(link.frame(bytes(LARGE)))
    link.peer.sendall(link.frame(b"a"))
    assert link.is_readable(SECONDS)
    link.reactor.poll()
    assert link.records == [bytes(LARGE), b"a"]


def test_a_peer_that_ends_in_the_middle_of_an_answer_wakes_the_reactor_and_is_lost(link):
    link.connection.send(fetch())
    link.arrive(link.frame(bytes(LARGE))[:FIRST_BYTES])
    link.peer.sendall(bytes(FIRST_BYTES))
    link.peer.close()
    assert link.is_readable(SECONDS)
    link.reactor.poll(), link.reactor.poll()
    assert link.calls.is_lost and link.calls.responses == [None]
