"""Settings of the server as a whole: where it listens, where its data is."""

from dataclasses import dataclass

from idgen.config import InvalidSetting, at_least, check_settings, setting

EVERYWHERE = ("0.0.0.0", "::")  # where one can listen, and nobody can be reached


def _listener(value: str) -> str | None:
    """What would be right, or None: PROTOCOL://host:port, of which only PLAINTEXT is served; or empty."""
    if not value:
        return None
    protocol, separator, address = value.partition("://")
    if not separator:
        return "must be PLAINTEXT://host:port, or empty to turn the broker off"
    if "," in value:
        return "one listener is served; give one PLAINTEXT://host:port"
    if protocol != "PLAINTEXT":
        return f"{protocol} is not served; PLAINTEXT://host:port is"
    return _address(address)


def _address(value: str) -> str | None:
    host, colon, port = value.rpartition(":")
    good = bool(colon) and port.isdigit() and int(port) < 65536
    return None if not value or (good and host) else "must be host:port (port 0 takes a free one), or empty"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One `flakelog server` process. Each part can be off: an empty listener."""

    listeners: str = setting(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "Where the broker listens; port 0 takes a free one, empty turns it off.",
        check=_listener,
    )
    advertised_listeners: str | None = setting(
        "advertised.listeners",
        None,
        "How clients reach the broker, when that is not where it listens.",
        check=_listener,
    )
    http_listener: str = setting(
        "flakelog.http.listener",
        "127.0.0.1:8609",
        "host:port of ids over HTTP, metrics and health; empty turns it off.",
        check=_address,
    )
    start_timeout_ms: int = setting(
        "flakelog.start.timeout.ms",
        60_000,
        "How long a start waits for a worker number: a configured one rests up to flakelog.ids.lead.ms after a crash.",
        check=at_least(100),
        unit="ms",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        told = self.advertised_address or self.broker_address
        if self.broker_address and told and told[0] in EVERYWHERE:
            wanted = "clients are told to connect there and reach themselves; give the name they know this host by"
            raise InvalidSetting("advertised.listeners", self.advertised_listeners or self.listeners, wanted)

    @property
    def broker_address(self) -> tuple[str, int] | None:
        return split_address(self.listeners.partition("://")[2])

    @property
    def advertised_address(self) -> tuple[str, int] | None:
        return split_address((self.advertised_listeners or "").partition("://")[2])

    @property
    def http_address(self) -> tuple[str, int] | None:
        return split_address(self.http_listener)


def split_address(value: str) -> tuple[str, int] | None:
    """ "host:port" as a pair; None for an empty one."""
    if not value:
        return None
    host, _, port = value.rpartition(":")
    return host.strip("[]"), int(port)
