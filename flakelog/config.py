"""Settings of the server as a whole: where it listens, where its data is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from broker.security.authorization.acl import EVERYBODY
from broker.security.password_encoder import OLD_SECRET, SECRET
from broker.security.sasl.exchange import GSSAPI
from broker.security.tls_config import REQUIRED, TlsConfig
from coordination.access import an_ensemble
from flakelog.listeners import (
    EVERYWHERE,
    PROTOCOLS,
    SASL_PLAINTEXT,
    SASL_SSL,
    SSL,
    Listener,
    is_local,
    parse_listeners,
    parse_names,
    parse_protocols,
    refusal,
)
from idgen.http_hosts import parse_hosts
from idgen.settings import (
    Check,
    InvalidSetting,
    an_address,
    at_least,
    between,
    check_settings,
    one_of,
    setting,
    split_address,
)


def _parsed_by(parse: Callable[[str], object]) -> Check:
    """Return a check that accepts what `parse` accepts; its message is the ValueError of `parse`."""

    def check(value: str) -> str | None:
        try:
            parse(value)
        except ValueError as error:
            return str(error)
        return None

    return check


PROCESSES_MAX = 64  # of 1,024 worker numbers, each process holds two, and each death leaves two resting
TOKEN_CHARACTERS_MIN = 16  # a token that cannot be guessed by trying


def _one_directory(value: str) -> str | None:
    return "one directory is served; give one, on a disk that is big enough" if "," in value else None


def _a_user(value: str) -> str | None:
    is_user = value.startswith("User:") and len(value) > len("User:") and value != EVERYBODY
    return None if is_user else "must be a user, as in User:console"


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """Settings of one `flakelog server` process. An empty listener turns its part off."""

    listeners: str = setting(
        "listeners",
        "PLAINTEXT://127.0.0.1:9092",
        "Where the broker listens: NAME://host:port, several with a comma between; port 0 takes a free one, no host "
        "is every interface, empty turns the broker off. Kafka listens on every interface; here that is to be asked "
        "for, because a listener of PLAINTEXT does not ask who a client is.",
        check=_parsed_by(parse_listeners),
    )
    advertised_listeners: str | None = setting(
        "advertised.listeners",
        None,
        "How clients reach each listener, when that is not where it listens; Metadata answers with the address of the "
        "listener that was asked.",
        check=_parsed_by(parse_listeners),
    )
    listener_security_protocol_map: str = setting(
        "listener.security.protocol.map",
        ",".join(f"{protocol}:{protocol}" for protocol in PROTOCOLS),
        "What each listener speaks, as NAME:PLAINTEXT,...; by default each protocol is its own name.",
        check=_parsed_by(parse_protocols),
    )
    inter_broker_listener_name: str | None = setting(
        "inter.broker.listener.name", None, "The listener for other brokers; it must be one of listeners."
    )
    security_inter_broker_protocol: str | None = setting(
        "security.inter.broker.protocol",
        None,
        "The protocol of the listener for other brokers, if that has its name: an older way to say "
        "inter.broker.listener.name. Without both, brokers use the first of listeners.",
        check=one_of(*PROTOCOLS),
    )
    inter_broker_listeners_more: str = setting(
        "flakelog.inter.broker.listeners.more",
        "",
        "More listeners that serve other brokers, with a comma between, while inter.broker.listener.name changes from "
        "one broker to the next. With an authorizer all listeners do, because access rules decide.",
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "sasl.mechanism.inter.broker.protocol",
        GSSAPI,
        "Mechanism by which brokers log in to each other, if their listener asks for a login. GSSAPI, Kafka's default, "
        "is not served. User and password are in listener.name.NAME.MECHANISM.sasl.jaas.config.",
    )
    zookeeper_connect: str | None = setting(
        "zookeeper.connect",
        None,
        "host:port,host:port/chroot of the ZooKeeper through which servers are one cluster; without it a server is "
        "alone. Credentials and TLS are those of flakelog.ids.zookeeper.*. Worker numbers are kept there too, unless "
        "flakelog.ids.zookeeper.connect names another.",
        check=an_ensemble,
    )
    zookeeper_session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms",
        18_000,
        "How long after its last sign of life a broker counts as dead.",
        check=between(1_000, 600_000),
        unit="ms",
    )
    zookeeper_set_acl: bool = setting(
        "zookeeper.set.acl",
        False,
        "Whether only brokers may change the nodes of the cluster in ZooKeeper, and read those of users and brokers. "
        "It needs flakelog.ids.zookeeper.credentials.file, or a keystore for TLS. Brokers with certificates alone need "
        "one subject, because ZooKeeper lets only the name that made a node change it. `flakelog cluster "
        "zookeeper-acl` does the same to nodes that exist.",
    )
    password_encoder_secret: str | None = setting(
        SECRET,
        None,
        "The secret with which passwords in settings that are altered at run time are encrypted in ZooKeeper. Without "
        "it a cluster refuses to alter such a setting. The text is Kafka 3.9's.",
    )
    password_encoder_old_secret: str | None = setting(
        OLD_SECRET,
        None,
        "The secret of before, so that a new one can be set: passwords that it encrypted are read. Unlike Kafka, no "
        "start encrypts them anew: delete each and set it again before this setting goes.",
    )
    controlled_shutdown_enable: bool = setting(
        "controlled.shutdown.enable", True, "Whether a stop first asks the controller to move what the broker leads."
    )
    controlled_shutdown_max_retries: int = setting(
        "controlled.shutdown.max.retries", 3, "How often a stop asks the controller.", check=between(1, 100)
    )
    controlled_shutdown_retry_backoff_ms: int = setting(
        "controlled.shutdown.retry.backoff.ms",
        5_000,
        "The pause before a stop asks the controller again.",
        check=at_least(1),
        unit="ms",
    )
    controller_listener_names: str | None = setting(
        "controller.listener.names",
        None,
        "Listeners for a quorum of controllers: they are not opened, for nobody would speak there.",
    )
    log_dirs: str | None = setting(
        "log.dirs",
        None,
        "The data directory; --data-dir goes before it. By default ~/.local/state/flakelog.",
        check=_one_directory,
    )
    processes: int = setting(
        "flakelog.processes",
        1,
        "Brokers that the server runs, each as a process with a core of its own; --processes is the same. Broker ids "
        "and the ports of listeners count up from those that are set.",
        check=between(1, PROCESSES_MAX),
    )
    shutdown_grace_ms: int = setting(
        "flakelog.shutdown.grace.ms",
        0,
        "How long a stop goes on serving once /health/ready says no, so that a load balancer can look elsewhere; a "
        "second SIGTERM or Ctrl-C ends it at once.",
        check=at_least(0),
        unit="ms",
    )
    http_listener: str = setting(
        "flakelog.http.listener",
        "127.0.0.1:8609",
        "host:port of ids over HTTP, metrics and health; empty turns it off.",
        check=an_address,
    )
    http_ssl_enable: bool = setting(
        "flakelog.http.ssl.enable",
        False,
        "Whether the HTTP port speaks HTTPS, and nothing else. Its key, certificates and client authentication are "
        "those of ssl.*; flakelog.http.ssl.x sets ssl.x for this port alone, such as "
        "flakelog.http.ssl.keystore.location.",
    )
    http_max_connections: int = setting(
        "flakelog.http.max.connections",
        10_000,
        "Connections of the HTTP port; one more is closed at once.",
        check=at_least(1),
    )
    http_idle_ms: int = setting(
        "flakelog.http.idle.ms",
        60_000,
        "A connection of the HTTP port on which nothing comes is closed after this time, or up to twice of it.",
        check=at_least(100),
        unit="ms",
    )
    http_request_ms: int = setting(
        "flakelog.http.request.ms",
        10_000,
        "A request of the HTTP port must arrive whole, head and body, in this time; a later one is answered 408, and "
        "its connection is closed.",
        check=at_least(100),
        unit="ms",
    )
    http_hosts: str = setting(
        "flakelog.http.hosts",
        "",
        "More names by which clients reach the HTTP port, with a comma between; * is every name. The host names of "
        "loopback, of flakelog.http.listener and of advertised.listeners, and the name of this machine, are known; on "
        "every interface, each IP address is. A request for another Host is answered 421, because a web page can point "
        "a name of its own here.",
        check=_parsed_by(parse_hosts),
    )
    http_health_open: bool = setting(
        "flakelog.http.health.open",
        True,
        "Whether everyone who reaches the HTTP port sees /health, and the details of /health/ready. If not, both need "
        "flakelog.console.token as `Authorization: Bearer`. Probes send no secret, so that /health/live, and whether "
        "the server is ready, stay open.",
    )
    http_metrics_open: bool = setting(
        "flakelog.http.metrics.open",
        True,
        "Whether everyone who reaches the HTTP port sees /metrics. If not, it needs flakelog.console.token as "
        "`Authorization: Bearer`, which Prometheus sends.",
    )
    console_enable: bool = setting(
        "flakelog.console.enable",
        True,
        "Whether the HTTP port serves the web console at /. Without flakelog.console.token it is served only where "
        "the HTTP port listens on loopback, because its pages show messages and change topics.",
    )
    console_token: str | None = setting(
        "flakelog.console.token",
        None,
        f"The secret that opens the web console, at least {TOKEN_CHARACTERS_MIN} characters; a browser asks for it "
        "once, other programs send it as `Authorization: Bearer`. Without flakelog.http.ssl.enable all who read along "
        "read it too.",
    )
    console_principal: str | None = setting(
        "flakelog.console.principal",
        None,
        "With authorizer.class.name: the principal of the web console, as User:console. Access rules decide what its "
        "pages show and what its actions do. Without one the console is closed then, so that it has no right by "
        "accident.",
        check=_a_user,
    )
    console_page_records: int = setting(
        "flakelog.console.page.records",
        100,
        "Messages that one page of the web console reads and shows.",
        check=between(1, 1_000),
    )
    console_page_bytes: int = setting(
        "flakelog.console.page.bytes",
        (1 << 20) + (64 << 10),
        "Bytes that such a page reads, and that a batch on it unpacks to: a message of 1 MiB with its headers. A "
        "larger batch is named and not shown.",
        check=at_least(1 << 10),
        unit="bytes",
    )
    console_page_timeout_ms: int = setting(
        "flakelog.console.page.timeout.ms",
        10_000,
        "How long a page of the web console may read messages. It then shows those that it has, or says that it took "
        "too long. A visitor seldom waits longer, and two such pages keep all others waiting.",
        check=between(100, 600_000),
        unit="ms",
    )
    console_search_bytes: int = setting(
        "flakelog.console.search.bytes",
        1 << 28,
        "Bytes that a search of the web console reads before it asks whether to go on. A forgotten one thus ends.",
        check=at_least(1 << 10),
        unit="bytes",
    )
    console_search_timeout_ms: int = setting(
        "flakelog.console.search.timeout.ms",
        60_000,
        "How long a search of the web console reads before it asks whether it is to go on.",
        check=between(100, 3_600_000),
        unit="ms",
    )
    console_max_streams: int = setting(
        "flakelog.console.max.streams",
        20,
        "Pages of the web console that get live figures at a time; each keeps one connection open.",
        check=at_least(0),
    )
    metrics_partitions_max: int = setting(
        "flakelog.metrics.partitions.max",
        10_000,
        "Partitions, and topics, of which /metrics has samples, the oldest first; flakelog_partitions_left_out counts "
        "the others. So many make a page of 6 MB, which takes 0.5 s of CPU time, in slices of a few ms.",
        check=at_least(0),
        unit="partitions",
    )
    busy_poll_us: int = setting(
        "flakelog.busy.poll.us",
        30,
        "How long the process polls again before it sleeps, while one event follows soon after another. A client with "
        "sequential requests may be answered sooner. 0 turns it off; with one processor it is off.",
        check=between(0, 1_000),
        unit="us",
    )
    start_timeout_ms: int = setting(
        "flakelog.start.timeout.ms",
        60_000,
        "How long a start waits for the registry of worker numbers, and for a configured number, which rests up to "
        "flakelog.ids.lead.ms after a crash. Where all numbers are taken it waits on, until there is one.",
        check=at_least(100),
        unit="ms",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        token = self.console_token
        if token is not None and not (len(token) >= TOKEN_CHARACTERS_MIN and token.isascii() and token.isprintable()):
            wanted = f"must have at least {TOKEN_CHARACTERS_MIN} characters, all of them printable ASCII"
            raise InvalidSetting("flakelog.console.token", "(hidden)", wanted)
        for page, is_open in (("health", self.http_health_open), ("metrics", self.http_metrics_open)):
            if not is_open and token is None:
                wanted = "needs flakelog.console.token, because only who sends that would see the page"
                raise InvalidSetting(f"flakelog.http.{page}.open", "false", wanted)
        served = self.broker_listeners
        if self.listeners and not served:
            raise InvalidSetting("listeners", self.listeners, "all are controllers'; give one that clients connect to")
        refused = refusal(served, parse_protocols(self.listener_security_protocol_map))
        if refused:
            raise InvalidSetting("listeners", self.listeners, refused)
        self._check_names([listener.name for listener in served])
        for listener in served:
            self._check_reachable(listener)

    def _check_names(self, served: list[str]) -> None:
        """Raise InvalidSetting for a setting that names a listener which `listeners` does not have.

        An empty `listeners` turns the broker off, so no names are checked.
        """
        wanted = f"must be of listeners, which are {', '.join(served)}"
        controllers = parse_names(self.controller_listener_names)
        for listener in parse_listeners(self.advertised_listeners or ""):
            if served and listener.name not in served + controllers:
                raise InvalidSetting("advertised.listeners", self.advertised_listeners, wanted)
        name, protocol = self.inter_broker_listener_name, self.security_inter_broker_protocol
        if name and protocol:
            other = f"security.inter.broker.protocol={protocol} is given too; give one of both"
            raise InvalidSetting("inter.broker.listener.name", name, other)
        if served and name and name.upper() not in served:
            raise InvalidSetting("inter.broker.listener.name", name, wanted)
        for more in parse_names(self.inter_broker_listeners_more):
            if served and more not in served:
                raise InvalidSetting("flakelog.inter.broker.listeners.more", more, wanted)
        if served and protocol and protocol not in served:
            raise InvalidSetting("security.inter.broker.protocol", protocol, f"its listener {wanted}")

    def _check_reachable(self, listener: Listener) -> None:
        """Raise InvalidSetting if clients would receive an address that they cannot connect to, as Kafka does.

        A listener without a host is accepted, because clients receive the machine's name.
        """
        advertised = self.advertised.get(listener.name, listener)
        if advertised.host not in EVERYWHERE or (not advertised.host and advertised is listener):
            return
        example = f"advertised.listeners={listener.name}://my-host.example:{advertised.port}"
        raise InvalidSetting(
            "advertised.listeners",
            self.advertised_listeners or self.listeners,
            "clients are told to connect there and reach themselves; give the name they know this host by, as in "
            + example,
        )

    @property
    def broker_listeners(self) -> list[Listener]:
        """The listeners to open: all but the controllers'."""
        controllers = parse_names(self.controller_listener_names)
        return [listener for listener in parse_listeners(self.listeners) if listener.name not in controllers]

    @property
    def protocols(self) -> Mapping[str, str]:
        """What each listener speaks, by its name."""
        return parse_protocols(self.listener_security_protocol_map)

    @property
    def tls_listeners(self) -> list[str]:
        """The names of the opened listeners that speak TLS."""
        return [listener.name for listener in self.broker_listeners if self.protocols[listener.name] in (SSL, SASL_SSL)]

    @property
    def sasl_listeners(self) -> list[str]:
        """The names of the opened listeners that ask by SASL who a client is."""
        asking = (SASL_PLAINTEXT, SASL_SSL)
        return [listener.name for listener in self.broker_listeners if self.protocols[listener.name] in asking]

    @property
    def plain_listeners(self) -> list[str]:
        """The names of the opened listeners that speak plain text and ask nothing."""
        others = {*self.tls_listeners, *self.sasl_listeners}
        return [listener.name for listener in self.broker_listeners if listener.name not in others]

    @property
    def advertised(self) -> Mapping[str, Listener]:
        """The addresses in advertised.listeners, by listener name."""
        return {listener.name: listener for listener in parse_listeners(self.advertised_listeners or "")}

    @property
    def open_listeners(self) -> list[Listener]:
        """The opened listeners that other machines may reach."""
        return [listener for listener in self.broker_listeners if not is_local(listener.host)]

    def unproved(self, listeners: Iterable[Listener], tls: Mapping[str, TlsConfig]) -> list[str]:
        """Return the names of those listeners at which clients prove nothing.

        `tls` has the settings of the listeners that speak TLS.
        """
        names = [listener.name for listener in listeners if listener.name not in self.sasl_listeners]
        return [name for name in names if name not in tls or tls[name].client_auth != REQUIRED]

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener on which brokers reach each other: by default the first one."""
        name = self.inter_broker_listener_name or self.security_inter_broker_protocol or self.broker_listeners[0].name
        return name.upper()

    def danger_of_inter_broker(self, name: str, *, has_authorizer: bool) -> str | None:
        """Return the danger of the listener on which brokers reach each other.

        There is none if access rules hold, if only this machine reaches it, or if a setting names one of several: the
        others are for clients. While `flakelog.inter.broker.listeners.more` names others, these are in danger too.
        """
        reached = [listener.name for listener in self.open_listeners]
        more = [other for other in parse_names(self.inter_broker_listeners_more) if other != name and other in reached]
        if more and not has_authorizer:
            return (
                f"every client of the listener {more[0]} can delete the cluster's data, because brokers may use it "
                f"too: empty flakelog.inter.broker.listeners.more once all of them use {name}"
            )
        named = self.inter_broker_listener_name or self.security_inter_broker_protocol
        is_brokers_own = named is not None and len(self.broker_listeners) > 1
        if has_authorizer or is_brokers_own or name not in reached:
            return None
        return (
            f"every client of the listener {name} can delete the cluster's data, because brokers use it too: give "
            "them a listener of their own by inter.broker.listener.name, in a network that clients cannot reach"
        )

    @property
    def http_address(self) -> tuple[str, int] | None:
        return split_address(self.http_listener)

    @property
    def http_scheme(self) -> str:
        """The scheme of addresses of the HTTP port: http or https."""
        return "https" if self.http_ssl_enable else "http"
