"""Addresses as text: a printed address can be parsed again."""

import pytest

from broker.address import host_port
from broker.client.core import Address, parse_addresses


@pytest.mark.parametrize("host, text", [("127.0.0.1", "127.0.0.1:9092"), ("::1", "[::1]:9092"), ("a.b", "a.b:9092")])
def test_what_is_shown_is_read_back(host, text):
    """The colons of an IPv6 address need brackets (RFC 3986, 3.2.2)."""
    assert host_port(host, 9092) == str(Address(host, 9092)) == text
    assert parse_addresses(text) == [Address(host, 9092)]
