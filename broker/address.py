"""Addresses as people and settings write them."""


def host_port(host: str, port: int) -> str:
    """ "host:port"; an IPv6 address in brackets, as in a URL (RFC 3986), so that it can be read back."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
