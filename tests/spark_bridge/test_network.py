"""Addresses of a read's options."""

import pytest

from spark_bridge.reading.network import Address, addresses


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("127.0.0.1:9092", (Address("127.0.0.1", 9092),)),
        ("a:1, b:2,", (Address("a", 1), Address("b", 2))),
        ("broker", (Address("broker", 9092),)),
        ("[::1]:9093,[::1]", (Address("::1", 9093), Address("::1", 9092))),
    ],
)
def test_servers_are_addresses_with_commas_between(servers, expected):
    assert addresses(servers) == expected
    assert addresses(",".join(map(str, expected))) == expected


@pytest.mark.parametrize("servers", ["", " , ", "host:", "host:http", "host:0", "host:65536", ":9092"])
def test_what_is_no_address_is_refused(servers):
    with pytest.raises(ValueError):
        addresses(servers)
