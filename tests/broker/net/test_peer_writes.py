"""What a connection to another broker writes, over a real socket whose polls the test makes."""

import socket
from uuid import UUID

import pytest

from broker.wire.fetch import FetchPartition
from tests.broker.net.peer_link import SMALL, Link
from tests.broker.net.peer_world import fetch

TOPIC_ID = UUID(int=4)
MANY = 20_000  # partitions of a request that is larger than the room of both sockets


@pytest.fixture
def link():
    link = Link()
    yield link
    link.close()


def large():
    return fetch(partitions=[FetchPartition(TOPIC_ID, partition, 0, 1) for partition in range(MANY)])


def test_a_request_that_the_socket_takes_leaves_at_once_and_no_reactor_watches_for_it(link):
    link.connection.send(fetch())
    assert link.reactor.writers == {} and link.peer.recv(1 << 16)


def test_requests_that_the_socket_does_not_take_leave_in_order_as_the_peer_reads(link):
    for call in (large(), fetch(), large(), fetch()):
        link.connection.send(call)
    assert link.transport in link.reactor.writers
    sizes = [len(link.read_frame()) for _ in range(4)]
    assert sizes[0] == sizes[2] > SMALL * 4 > sizes[1] == sizes[3]
    link.reactor.poll()
    assert link.reactor.writers == {}


def test_a_request_to_a_peer_that_has_gone_is_told_of_by_the_reactor(link):
    link.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    link.peer.close()
    link.connection.send(fetch())
    link.connection.send(fetch())
    link.reactor.poll()
    assert link.calls.is_lost
