"""The line that tells operators and programs that a server serves."""

from collections.abc import Mapping


def ready_line(addresses: Mapping[str, str], scope: str) -> str:
    """Return the line with addresses by name (broker, broker.<listener>, ids, http, console) and the ids' scope."""
    parts = [f"{name}={address}" for name, address in addresses.items()]
    return f"ready: {' '.join(parts)} ids unique in {scope}"
