"""Addresses, and successive requests on a connection."""

import pytest

from broker.wire.errors import ErrorCode, WireError
from broker.wire.frame import read_request_header
from broker.wire.primitives import I32
from spark_bridge.reading.network import Address, Conversation, Refused, TryAgain, addresses, check


@pytest.mark.parametrize(
    ("servers", "found"),
    [
        ("127.0.0.1:9092", (Address("127.0.0.1", 9092),)),
        ("a:1, b:2,", (Address("a", 1), Address("b", 2))),
        ("broker", (Address("broker", 9092),)),
        ("[::1]:9093,[::1]", (Address("::1", 9093), Address("::1", 9092))),
    ],
)
def test_servers_are_addresses_with_commas_between(servers, found):
    assert addresses(servers) == found
    assert addresses(",".join(map(str, found))) == found


@pytest.mark.parametrize("servers", ["", " , ", "host:", "host:http", "host:0", "host:65536", ":9092"])
def test_what_is_no_address_is_refused(servers):
    with pytest.raises(ValueError):
        addresses(servers)


class Echo:
    """A connection that answers requests with their correlation ids, but only when `receive` is called."""

    def __init__(self, shift=0):
        self.sent, self.shift = [], shift

    def send(self, frame):
        self.sent.append(read_request_header(memoryview(frame)))

    def receive(self):
        return memoryview(I32.pack(self.sent.pop(0).correlation_id + self.shift) + b"\0body")

    def close(self):
        pass


def test_answers_come_in_the_order_of_the_requests():
    """Kafka answers a connection's requests in order; two may be outstanding."""
    echo = Echo()
    conversation = Conversation(echo)
    conversation.send(1, 12, b"")
    conversation.send(3, 10, b"")
    assert [(each.api_key, each.correlation_id, each.client_id) for each in echo.sent] == [
        (1, 1, "flakelog-spark"),
        (3, 2, "flakelog-spark"),
    ]
    for _ in range(2):
        frame, position = conversation.receive()
        assert bytes(frame[position:]) == b"body"


def test_an_answer_that_belongs_to_no_request_is_an_error():
    with pytest.raises(WireError, match="another request"):
        Conversation(Echo(shift=1)).ask(1, 12, b"")


def test_errors_are_in_passing_or_final():
    check(ErrorCode.NONE, "x")
    with pytest.raises(TryAgain, match=r"t-0: the broker answered NOT_LEADER_OR_FOLLOWER \(6\)"):
        check(6, "t-0")
    with pytest.raises(Refused, match=r"t-0: the broker answered error 999"):
        check(999, "t-0")
