"""Settings of a connection to a ZooKeeper ensemble: session timeout, credentials, ACLs and TLS.

Secrets are given as the paths of the files that hold them, because settings can be queried and printed.
"""

from dataclasses import dataclass
from enum import Enum
from urllib.parse import urlsplit

DEFAULT_PORT = 2181
SESSION_TIMEOUT_MS = 10_000  # a server accepts 2 to 20 of its ticks (2 s each by default)


def an_ensemble(hosts: str) -> str | None:
    """Validate host:port,host:port/chroot, the hosts of an ensemble; return what would be valid, or None."""
    addresses, _, _ = hosts.partition("/")
    good = all(map(_is_address, addresses.split(",")))
    return None if good else "must be host:port,host:port/chroot"


def is_same_ensemble(one: str, other: str) -> bool:
    """Return True if both texts, which are valid, name a server in common, and the same chroot."""
    return _chroot(one) == _chroot(other) and not _servers(one).isdisjoint(_servers(other))


def _servers(hosts: str) -> set[tuple[str | None, int]]:
    addresses, _, _ = hosts.partition("/")
    parts = [urlsplit(f"//{address.strip()}") for address in addresses.split(",")]
    return {(part.hostname, part.port or DEFAULT_PORT) for part in parts}  # urlsplit makes the host lower case


def _chroot(hosts: str) -> list[str]:
    _, _, chroot = hosts.partition("/")
    return list(filter(None, chroot.split("/")))


def _is_address(text: str) -> bool:
    """Return True for a host with or without a port; a resolver would raise ValueError for others."""
    try:
        parts = urlsplit(f"//{text.strip()}")
        host, port = parts.hostname or "", parts.port
        host.encode("idna")
    except ValueError:
        return False
    return bool(host) and port != 0 and text.isprintable() and " " not in text.strip()


class Protection(Enum):
    """What others may do with a node: everything, read it, or nothing."""

    OPEN = "open"
    READABLE = "readable"
    SECRET = "secret"


@dataclass(frozen=True)
class Access:
    """Settings for one ensemble; the defaults connect anonymously and without encryption.

    Files are paths. `credentials_file` holds one line "user:password" (the digest scheme). `truststore` holds the PEM
    certificates of the authorities that may sign servers' certificates, in addition to the system's authorities.
    `keystore` holds the PEM of our key and certificate. With `set_acl`, only these credentials may change the nodes we
    create, and everyone may read them, as with Kafka's nodes. Nodes at and below `secret_paths` are then ours alone,
    and those at and below `open_paths` stay open to everyone. With `tls`, the hosts are those of the ensemble's
    secureClientPort. Raises ValueError for settings that contradict each other.
    """

    session_timeout_ms: int = SESSION_TIMEOUT_MS
    credentials_file: str | None = None
    set_acl: bool = False
    tls: bool = False
    truststore: str | None = None
    keystore: str | None = None
    verify_hostname: bool = True
    secret_paths: tuple[str, ...] = ()
    open_paths: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.set_acl and not (self.credentials_file or self.keystore):
            raise ValueError("set_acl needs a credentials_file or a keystore: nobody else could be let in by it")
        if (self.truststore or self.keystore) and not self.tls:
            raise ValueError("a truststore or a keystore needs tls=True, else nothing would be encrypted")

    def protection(self, path: str) -> Protection:
        """Return how a node that we create is protected."""
        if not self.set_acl or _is_below(path, self.open_paths):
            return Protection.OPEN
        return Protection.SECRET if _is_below(path, self.secret_paths) else Protection.READABLE


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    """Return True for one of the roots, and for a node below one."""
    return any(path == root or path.startswith(f"{root}/") for root in roots)
