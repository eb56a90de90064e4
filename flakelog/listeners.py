"""Listeners as Kafka's settings write them: `NAME://host:port,...`, and which protocol a NAME speaks."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL = "PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"
PROTOCOLS = (SASL_SSL, PLAINTEXT, SSL, SASL_PLAINTEXT)
LISTENERS = "listeners"
EVERYWHERE = ("", "0.0.0.0", "::")  # hosts to listen on that clients cannot connect to
LISTEN_BACKLOG = 1_024  # of ids and HTTP; with Twisted's 50, a burst of clients fills the queue and has to wait 1 s
_FORM = "must be PLAINTEXT://host:port, several with a comma between, or empty to turn the broker off"


class Listener(NamedTuple):
    """A listener; an empty host is every interface."""

    name: str
    host: str
    port: int


def parse_listeners(value: str) -> list[Listener]:
    """Parse "NAME://host:port,..."; raise ValueError with the correct form. Names become upper case, as Kafka's."""
    listeners: list[Listener] = []
    for listener in filter(None, (part.strip() for part in value.split(","))):
        name, separator, address = listener.partition("://")
        host, colon, port = address.rpartition(":")
        if not separator or not name:
            raise ValueError(_FORM)
        if not colon or not port.isdigit() or int(port) > 65535 or (":" in host and not host.startswith("[")):
            raise ValueError("must be host:port behind ://, an IPv6 address in brackets; port 0 takes a free one")
        listeners.append(Listener(name.upper(), host.strip("[]"), int(port)))
    names = [listener.name for listener in listeners]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is there twice; give the second a name of its own in listener.security.protocol.map")
    return listeners


def parse_protocols(value: str) -> dict[str, str]:
    """Parse "NAME:PROTOCOL,..." as a mapping; raise ValueError."""
    protocols = {}
    for assignment in value.split(","):
        name, colon, protocol = assignment.strip().rpartition(":")
        if not colon or protocol.upper() not in PROTOCOLS:
            raise ValueError(f"must be NAME:PROTOCOL,... with a PROTOCOL of {', '.join(PROTOCOLS)}")
        protocols[name.upper()] = protocol.upper()
    return protocols


def parse_names(value: str | None) -> list[str]:
    """Parse "A,B" as names in upper case."""
    return [name.strip().upper() for name in (value or "").split(",") if name.strip()]


def refusal(listeners: Iterable[Listener], protocols: dict[str, str]) -> str | None:
    """Return why one of the listeners cannot be served, or None."""
    for listener in listeners:
        protocol = protocols.get(listener.name)
        if protocol is None:
            return (
                f"listener.security.protocol.map does not say what {listener.name} speaks; add {listener.name}:{SSL}, "
                f"or {PLAINTEXT} on a network you trust"
            )
    return None


def moved(texts: Mapping[str, str], port: int) -> dict[str, str]:
    """Return listeners moved by the distance that puts the first of `listeners` at `port`.

    `texts` has settings by name, of which `listeners` is one; each is NAME://host:port,... or host:port. What is turned
    off stays off, and port 0 stays 0. Raise ValueError if `listeners` has no port to move, or a port would be none.
    """
    first = next(iter(parse_listeners(texts[LISTENERS])), None)
    if first is None or not first.port:
        raise ValueError(f"there is nothing to move: {LISTENERS}={texts[LISTENERS]} has no port of the broker")
    return moved_by(texts, port - first.port)


def moved_by(texts: Mapping[str, str], distance: int) -> dict[str, str]:
    """Return listeners moved by `distance`; port 0 stays 0. Raise ValueError if a port would be none."""
    return {
        name: ",".join(_moved(name, listener, distance) for listener in text.split(",")) for name, text in texts.items()
    }


def _moved(name: str, address: str, distance: int) -> str:
    host, colon, port = address.strip().rpartition(":")
    if not colon or not port.isdigit() or not int(port):
        return address
    then = int(port) + distance
    if not 0 < then < 1 << 16:
        raise ValueError(f"it would put {name} at {then}, {distance:+} from {port}; ports are 1 to 65535")
    return f"{host}:{then}"


def is_local(host: str) -> bool:
    """Return True if only this machine can reach `host`."""
    return host in ("localhost", "::1") or host.startswith("127.")
