"""The names under which the HTTP port is reached, and which requests they refuse.

A web page can make a browser send requests to a server that only the browser's user reaches. Two rules stop it. `Host`
must be a name of this server, because a page can point a name of its own at this server's address (DNS rebinding). A
POST with the `Origin` of another site is refused, because a POST spends ids. RFC 9110, section 7.2; RFC 6454.
"""

import re
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

ANY_HOST = "*"
EVERYWHERE = ("", "0.0.0.0", "::")  # hosts that stand for every interface
SHOWN_CHARACTERS = 80  # of a refused name
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::[0-9]*)?")


class Refusal(NamedTuple):
    """An answer to a request of another site: its status, the error's name, and the reason."""

    status: int
    error: str
    message: str


class OwnHosts:
    """The names and addresses of this server, without ports.

    `named` are the operator's names, where "*" accepts every name. `bound` is the host of the listening socket. If it
    is every interface, each IP address is accepted, because DNS rebinding needs a name, and because health checks of
    Kubernetes use the address of the pod. With `is_tls` a page of plain HTTP is another site.
    """

    def __init__(
        self, named: Iterable[str] = (), bound: str = "", own: Iterable[str] = (), *, is_tls: bool = False
    ) -> None:
        self._is_tls = is_tls
        names = {_plain(name) for name in named}
        self._any = ANY_HOST in names
        self._any_address = bound in EVERYWHERE
        self._names = names | {"localhost"} | {_plain(name) for name in (bound, *own) if name not in EVERYWHERE}

    def accepts(self, host: str) -> bool:
        """Return True if a Host header names this server."""
        if self._any:
            return True
        authority = _AUTHORITY.fullmatch(host.strip())
        if authority is None:
            return False
        name = _plain(authority[1])
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self._any_address or address.is_loopback

    def refusal(self, method: str, hosts: Sequence[str], origins: Sequence[str]) -> Refusal | None:
        """Return why a request with these Host and Origin headers is refused, or None.

        A request without Host is accepted, because browsers always send it and HTTP/1.0 health checks may not.
        """
        if len(hosts) > 1:
            return Refusal(400, "BadRequest", f"Host is given {len(hosts)} times; once is due")
        host = hosts[0] if hosts else ""
        if hosts and not self.accepts(host):
            shown = host[:SHOWN_CHARACTERS]
            problem = f"{shown!r} is no name of this server; if it should be, add it to flakelog.http.hosts"
            return Refusal(421, "MisdirectedRequest", problem)
        foreign = next((origin for origin in origins if not self._is_own(origin, host)), None)
        if method == "POST" and foreign is not None:
            problem = f"a page of {foreign[:SHOWN_CHARACTERS]!r} may not spend ids of {host[:SHOWN_CHARACTERS]!r}"
            return Refusal(403, "ForeignOrigin", problem)
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Return True if an Origin header names a page of the host that was asked."""
        scheme, _, authority = origin.partition("://")
        return authority.lower() == host.lower() and (scheme == "https" or not self._is_tls)


def parse_hosts(value: str) -> list[str]:
    """Split the text of flakelog.http.hosts; raise ValueError with the correct form."""
    hosts = [text.strip() for text in value.split(",") if text.strip()]
    for host in hosts:
        if "/" in host or (":" in host and not _is_address(_plain(host))):
            raise ValueError("must be names or addresses without scheme and port, several with a comma between, or *")
    return hosts


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _plain(name: str) -> str:
    """Return a name in lower case, without the brackets of an IPv6 address and the dot at a name's end."""
    return name.lower().removesuffix(".").strip("[]").partition("%")[0]


EVERY_HOST = OwnHosts([ANY_HOST])
