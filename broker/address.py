"""Addresses in the form that people and settings write them."""

LOCAL_HOST = "local"
"""The host of a peer that has no address, because it is on this machine: in rules, and in the log."""


def host_port(host: str, port: int) -> str:
    """ "host:port", with an IPv6 address in brackets, as in a URL (RFC 3986), so that it can be parsed again."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
