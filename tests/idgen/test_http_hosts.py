"""idgen.http_hosts: requests that a web page makes a browser send are told from those of this server's clients."""

import pytest

from idgen.http_hosts import OwnHosts, parse_hosts

LOCAL = OwnHosts(bound="127.0.0.1", own=["pc.example", "pc"])
EVERY_INTERFACE = OwnHosts(bound="0.0.0.0")
NAMED = OwnHosts(["ids.example", "fd00::7"], bound="10.0.0.7")
ANY = OwnHosts(["*"], bound="127.0.0.1")


@pytest.mark.parametrize(
    "hosts, good, bad",
    [
        (
            LOCAL,
            ["localhost", "LOCALHOST:8609", "127.0.0.1:80", "127.9.9.9", "[::1]:8609", "pc", "PC.example.:1"],
            ["evil.example", "10.0.0.7", "localhost.evil.example", "", ":80", "127.0.0.1@evil.example", "[::1", "213"],
        ),
        (EVERY_INTERFACE, ["10.1.2.3:8609", "[fd00::1%eth0]:1", "localhost"], ["evil.example", "10.1.2.3.evil"]),
        (NAMED, ["ids.example:443", "[fd00::7]:80", "10.0.0.7", "localhost"], ["10.0.0.8", "[fd00::8]", "example"]),
        (ANY, ["evil.example", "10.0.0.7", ""], []),
    ],
)  # fmt: skip
def test_a_host_is_our_own_or_another(hosts, good, bad):
    assert [host for host in good if not hosts.accepts(host)] == []
    assert [host for host in bad if hosts.accepts(host)] == []


@pytest.mark.parametrize(
    "method, named, origins, status",
    [
        ("POST", ["localhost:8609"], [], None),
        ("POST", [], [], None),
        ("POST", ["localhost:8609"], ["http://localhost:8609"], None),
        ("POST", ["PC.example"], ["https://pc.EXAMPLE"], None),
        ("POST", ["localhost:8609"], ["http://localhost:3000"], 403),
        ("POST", ["localhost:8609"], ["https://evil.example"], 403),
        ("POST", ["localhost:8609"], ["null"], 403),
        ("POST", ["localhost:8609"], [""], 403),
        ("POST", [], ["https://evil.example"], 403),
        ("GET", ["localhost:8609"], ["https://evil.example"], None),
        ("GET", ["evil.example"], [], 421),
        ("POST", ["evil.example"], ["http://evil.example"], 421),
        ("GET", ["localhost", "evil.example"], [], 400),
    ],
)
def test_a_request_of_another_site_is_refused(method, named, origins, status):
    refused = LOCAL.refusal(method, named, origins)
    assert (refused and refused.status) == status


def test_a_refusal_names_the_setting_and_repeats_little_of_a_long_name():
    refused = LOCAL.refusal("GET", ["e" * 5_000], [])
    assert "flakelog.http.hosts" in refused.message and len(refused.message) < 200


def test_the_setting_takes_names_and_addresses_only():
    assert parse_hosts(" ids.example, [fd00::7],10.0.0.7,, *") == ["ids.example", "[fd00::7]", "10.0.0.7", "*"]
    for wrong in ("http://ids.example", "ids.example:8609", "10.0.0.0/8"):
        with pytest.raises(ValueError, match="without scheme and port"):
            parse_hosts(wrong)


def test_over_tls_a_page_of_plain_http_is_another_site():
    over_tls = OwnHosts(bound="127.0.0.1", is_tls=True)
    assert over_tls.refusal("POST", ["localhost:8609"], ["https://localhost:8609"]) is None
    assert over_tls.refusal("POST", ["localhost:8609"], ["http://localhost:8609"]).status == 403
