"""TLS, logins and access rules, beside Apache Kafka with the same protocol, key type and cipher, and beside plain text.

The servers also have a listener in plain text, over which topics, users and rules are made. TLS is 1.3, with
TLS_AES_256_GCM_SHA384, which both sides prefer, and a key of ECDSA P-256 unless a row says otherwise.
"""

import functools
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from threading import Event
from typing import NamedTuple

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from benchmarks import bulk, clusters, replicas
from benchmarks.apache import NAME, Peer, run_kafka, why_not
from benchmarks.brokers import SETTINGS, Topics
from benchmarks.load import Load, check_stored, options_of, play, run_load
from benchmarks.measure import OURS, Contenders, Figures, Row, Scale, await_idle
from benchmarks.plan import leader_acks, logins, one_each, produce_then_fetch
from coordination.free_port import FreePort
from flakelog.testing.authority import Authority
from tests.compat.raw_connection import RawConnection, frame
from tests.compat.sasl_connection import SaslConnection
from tests.compat.sasl_users import PLAIN_MODULE, SCRAM_MODULE, listener_jaas, set_password
from tests.compat.server_process import ServerProcess

SSL, SSL_RSA, SASL_SSL, SASL_PLAINTEXT = "SSL", "RSA", "SASL_SSL", "SASL_PLAINTEXT"
PROTOCOLS = {SSL: "SSL", SSL_RSA: "SSL", SASL_SSL: "SASL_SSL", SASL_PLAINTEXT: "SASL_PLAINTEXT"}
"""The listeners with their protocols, besides that for administrators, which is PLAINTEXT."""
SCRAM = "SCRAM-SHA-512"
USERS = {f"user{number}": f"secret-{number}" for number in range(50)}
RULES = 1_000
THREADS = 4  # that connect at the same time
STRANGERS_PER_SECOND = 200
PARTITIONS = 50
API_VERSIONS = 18


class Secured(NamedTuple):
    """A broker: its address in plain text, and those of the other listeners by their names."""

    plain: Peer
    addresses: Mapping[str, str]

    def at(self, listener: str) -> Peer:
        return self.plain._replace(address=self.addresses[listener])


@functools.cache
def _files() -> Path:
    """Make the keys and certificates for this process. The directory has ca.pem, broker.pem and rsa.pem."""
    directory = Path(mkdtemp(prefix="flakelog-bench-tls-"))
    authority = Authority()
    authority.write_pem(directory / "ca.pem")
    authority.issue("broker").write_pem(directory / "broker.pem")
    authority.issue("broker", kind="rsa").write_pem(directory / "rsa.pem")
    return directory


def _settings() -> dict[str, str]:
    """Return the settings that both kinds of brokers have."""
    jaas = {"plain": listener_jaas(tuple(USERS.items())), SCRAM.lower(): f"{SCRAM_MODULE} required;"}
    return {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(_files() / "broker.pem"),
        f"listener.name.{SSL_RSA.lower()}.ssl.keystore.type": "PEM",
        f"listener.name.{SSL_RSA.lower()}.ssl.keystore.location": str(_files() / "rsa.pem"),
        "ssl.enabled.protocols": "TLSv1.3",
        "sasl.enabled.mechanisms": f"PLAIN,{SCRAM}",
    } | {
        f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config": text
        for listener in (SASL_SSL, SASL_PLAINTEXT)
        for mechanism, text in jaas.items()
    }  # fmt: skip


def _protocol_map(**more: str) -> str:
    return ",".join(f"{name}:{protocol}" for name, protocol in {"PLAINTEXT": "PLAINTEXT", **PROTOCOLS, **more}.items())


@contextmanager
def _ours(**more: str) -> Iterator[Secured]:
    settings = SETTINGS | _settings() | {
        "listeners": ",".join(f"{name}://127.0.0.1:0" for name in ("PLAINTEXT", *PROTOCOLS)),
        "listener.security.protocol.map": _protocol_map(),
        "flakelog.authentications.max.per.address": "1000",
        "flakelog.tls.handshakes.max.per.address": "1000",
    }  # fmt: skip
    settings |= {name.replace("_", "."): value for name, value in more.items()}
    with TemporaryDirectory(prefix="flakelog-bench-") as directory:
        with ServerProcess(Path(directory) / "data", settings) as server:
            addresses = {name: server.addresses[f"broker.{name}"] for name in PROTOCOLS}
            yield Secured(Peer(server.address, server.pid), addresses)


@functools.cache
def _kafka() -> Secured:
    """Run Apache Kafka to the end of this process, because a JVM is slow in its first seconds."""
    ports = {name: FreePort() for name in PROTOCOLS}
    secure = ",".join(f"{name}://{port.address}" for name, port in ports.items())
    peer = run_kafka(_settings() | {
        "listeners": "PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}," + secure,
        "advertised.listeners": "PLAINTEXT://127.0.0.1:{broker}," + secure,
        "listener.security.protocol.map": _protocol_map(CONTROLLER="PLAINTEXT"),
    })  # fmt: skip
    return Secured(peer, {name: port.address for name, port in ports.items()})


@contextmanager
def _both(scale: Scale) -> Iterator[dict[str, Secured]]:
    with _ours() as ours:
        yield {OURS: ours} | ({NAME: _kafka()} if scale.kafka and why_not() is None else {})


# --- bulk over TLS ---------------------------------------------------------------------------------------------------


def _tls() -> tuple[str, ...]:
    return "security.protocol=SSL", f"ssl.ca.location={_files() / 'ca.pem'}"


@contextmanager
def _bulk_produce_row(messages: int, scale: Scale) -> Iterator[Contenders]:
    count, size = scale.of(messages), 1024

    def run(peer: Peer, topics: Topics, settings: tuple[str, ...]) -> Figures:
        with topics.fresh() as topic:
            bulk.ready_memory(bulk.kept_bytes(count, size))
            return bulk.produce(peer, topic, count, size, 1, "", *settings)

    with _both(scale) as peers:
        topics = {who: Topics(secured.plain.address) for who, secured in peers.items()}
        over_tls = {who: partial(run, peers[who].at(SSL), topics[who], _tls()) for who in peers}
        plain = {f"{who}, plain": partial(run, peers[who].plain, topics[who], ()) for who in peers}
        yield {**over_tls, **plain}


@contextmanager
def _bulk_fetch_row(messages: int, scale: Scale) -> Iterator[Contenders]:
    """The messages are in the page cache, because they were just written."""
    count = scale.of(messages)
    settings = "group.id=bench", "enable.auto.commit=false"
    with _both(scale) as peers, ExitStack() as stack:
        contenders: dict[str, Callable[[], Figures]] = {}
        for who, secured in peers.items():
            topic = stack.enter_context(Topics(secured.plain.address).fresh())
            bulk.produce(secured.plain, topic, count, 1024, 1)
            contenders[who] = partial(bulk.fetch, secured.at(SSL), topic, count, "assign", *settings, *_tls())
            contenders[f"{who}, plain"] = partial(bulk.fetch, secured.plain, topic, count, "assign", *settings)
        yield contenders


# --- small requests of clients that have logged in -------------------------------------------------------------------


def _run_load(secured: Secured, listener: str, topics: Topics, directory: Path, load: Load, requests: int) -> Figures:
    """Send small requests on connections that have logged in, each as another user."""
    with topics.fresh(load.partitions) as topic:
        options = options_of(load) | {"tls": int(PROTOCOLS[listener].endswith("SSL"))}
        plan = load.plan(topic, load.partitions)
        played = play(secured.at(listener), directory, plan, login=logins(USERS), requests=requests, **options)
        check_stored(secured.plain, topic, load.partitions, played)
        return played.figures


@contextmanager
def _sasl_ssl_row(requests: int, scale: Scale) -> Iterator[Contenders]:
    load = Load(leader_acks, partitions=PARTITIONS, step=1)
    count = scale.of(requests, PARTITIONS)
    with _both(scale) as peers, TemporaryDirectory() as directory:
        yield {
            f"{who}{', ' + listener if listener != SASL_SSL else ''}": partial(
                _run_load, secured, listener, Topics(secured.plain.address), Path(directory), load, count
            )
            for listener in (SASL_SSL, SASL_PLAINTEXT)
            for who, secured in peers.items()
        }


@contextmanager
def _rules_row(load: Load, requests: int, scale: Scale) -> Iterator[Contenders]:
    """Compare a server whose access rules are checked with one that has none, at a listener that asks for a login."""
    count = scale.of(requests, load.partitions)
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    with TemporaryDirectory() as directory, ExitStack() as stack:
        ruled = stack.enter_context(_ours(authorizer_class_name=authorizer, super_users="User:ANONYMOUS"))
        free = stack.enter_context(_ours())
        _add_rules(ruled.plain.address, scale.of(RULES, 2 * len(USERS)))
        yield {
            who: partial(
                _run_load, secured, SASL_PLAINTEXT, Topics(secured.plain.address), Path(directory), load, count
            )
            for who, secured in {f"{OURS}, {RULES:,} rules": ruled, f"{OURS}, no authorizer": free}.items()
        }


def _add_rules(address: str, count: int) -> None:
    """Let each user write and read the topics of the benchmarks. Add rules for other topics, up to `count` in all."""
    prefixes = [("bench", user, operation) for user in USERS for operation in (AclOperation.WRITE, AclOperation.READ)]
    names = list(USERS)
    others = [(f"own-{number}", names[number % len(names)], AclOperation.READ) for number in range(count)]
    bindings = [
        AclBinding(
            ResourceType.TOPIC, topic, ResourcePatternType.PREFIXED, f"User:{user}", "*", operation,
            AclPermissionType.ALLOW,
        )
        for topic, user, operation in (prefixes + others)[:count]
    ]  # fmt: skip
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_acls(bindings).values():
        made.result()


# --- handshakes and logins -------------------------------------------------------------------------------------------


def _timed(peer: Peer, count: int, unit: str, connect: Callable[[], None]) -> Figures:
    """Make connections on several threads, and measure the broker's processor time for each."""
    before, began = peer.cpu_seconds(), time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for made in [pool.submit(connect) for _ in range(count)]:
            made.result()
    seconds = time.perf_counter() - began
    await_idle(peer.pids)
    return {f"{unit}s/s": count / seconds, f"CPU us/{unit}": (peer.cpu_seconds() - before) / count * 1e6}


def _handshakes(peer: Peer, count: int, resumes: bool) -> Figures:
    """Shake hands `count` times. Kafka's network threads share no sessions, so some of its handshakes are full ones."""
    context = ssl.create_default_context(cafile=_files() / "ca.pem")
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    session = _session(peer, context) if resumes else None
    resumed: list[bool] = []

    def connect() -> None:
        with RawConnection(peer.address) as connection:
            secured = context.wrap_socket(connection.socket, server_hostname="localhost", session=session)
            resumed.append(bool(secured.session_reused))
            connection.socket = secured

    return {**_timed(peer, count, "handshake", connect), "resumed %": sum(resumed) / count * 100}


def _session(peer: Peer, context: ssl.SSLContext) -> ssl.SSLSession | None:
    """Return a session to resume. The tickets of TLS 1.3 come after the handshake."""
    with RawConnection(peer.address) as connection:
        secured = context.wrap_socket(connection.socket, server_hostname="localhost")
        connection.socket = secured
        secured.sendall(frame(API_VERSIONS, 0, 1, b"", flexible=False))
        connection.read_frame()
        return secured.session


@contextmanager
def _handshakes_row(handshakes: int, scale: Scale) -> Iterator[Contenders]:
    count = scale.of(handshakes, THREADS)
    kinds = {"ECDSA P-256": (SSL, False), "ECDSA P-256, resumed": (SSL, True), "RSA 2048": (SSL_RSA, False)}
    with _both(scale) as peers:
        yield {
            f"{who}, {kind}": partial(_handshakes, secured.at(listener), count, resumed)
            for kind, (listener, resumed) in kinds.items()
            for who, secured in peers.items()
        }


@contextmanager
def _strangers(peer: Peer) -> Iterator[list[float]]:
    """Let clients come at a steady rate, shake hands and leave. Yield the times when they have shaken hands."""
    context = ssl.create_default_context(cafile=_files() / "ca.pem")
    has_ended, times = Event(), []

    def come() -> None:
        began = time.perf_counter()
        while not has_ended.wait(max(began + len(times) / STRANGERS_PER_SECOND - time.perf_counter(), 0)):
            with RawConnection(peer.address) as connection:
                connection.socket = context.wrap_socket(connection.socket, server_hostname="localhost")
            times.append(time.perf_counter())

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(come)
        try:
            yield times
        finally:
            has_ended.set()
            coming.result()


@contextmanager
def _strangers_row(requests: int, scale: Scale) -> Iterator[Contenders]:
    """Clients at a listener in plain text, alone, and while others shake hands at a listener of TLS."""
    load = Load(leader_acks, partitions=PARTITIONS)
    count = scale.of(requests, PARTITIONS)

    def run(secured: Secured, listener: str | None, directory: Path) -> Figures:
        clients = partial(run_load, secured.plain, Topics(secured.plain.address), directory, load, count)
        if listener is None:
            return clients()
        with _strangers(secured.at(listener)) as times:
            figures = clients()
        return {**figures, "handshakes/s": len(times) / (times[-1] - times[0])}

    kinds = {"alone": None, "ECDSA P-256": SSL, "RSA 2048": SSL_RSA}
    with _both(scale) as peers, TemporaryDirectory() as directory:
        yield {
            f"{who}, {kind}": partial(run, secured, listener, Path(directory))
            for kind, listener in kinds.items()
            for who, secured in peers.items()
        }


@contextmanager
def _logins_row(count: int, scale: Scale) -> Iterator[Contenders]:
    user, password = next(iter(USERS.items()))

    def run(secured: Secured, mechanism: str, logins: int) -> Figures:
        def connect() -> None:
            with SaslConnection(secured.addresses[SASL_PLAINTEXT]) as connection:
                answer = connection.log_in(user, password, mechanism)
                if answer.error_code:
                    raise RuntimeError(f"the broker refuses a login: {answer.error_message}")

        return _timed(secured.plain, logins, "login", connect)

    with _both(scale) as peers:
        for secured in peers.values():
            set_password(secured.plain.address, user, password)
        yield {
            f"{who}, {mechanism}": partial(run, secured, mechanism, scale.of(count, THREADS))
            for mechanism in (SCRAM, "PLAIN")
            for who, secured in peers.items()
        }


# --- three copies ----------------------------------------------------------------------------------------------------


@contextmanager
def _copies_row(requests: int, scale: Scale) -> Iterator[Contenders]:
    """Three copies, over SASL_SSL among the brokers and in plain text; clients speak plain text."""
    load = Load(one_each, partitions=PARTITIONS)
    among_brokers = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(_files() / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(_files() / "ca.pem"),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BROKERS:SASL_SSL",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.brokers.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required username="broker" password="secret" user_broker="secret";'
        ),
    }
    with ExitStack() as stack:
        directories = [Path(stack.enter_context(TemporaryDirectory(prefix="flakelog-bench-"))) for _ in range(3)]
        started = {
            f"{OURS}, {protocol}": clusters.OurCluster(directory, stack, replicas.OURS_REPLICATED | more)
            for protocol, more, directory in zip(
                ("SASL_SSL", "PLAINTEXT"), (among_brokers, {}), directories[:2], strict=True
            )
        }
        yield {
            who: partial(
                replicas.small, cluster, replicas.topics_of(cluster, replicas.COPIES), directories[2], load,
                scale.of(requests, PARTITIONS),
            )
            for who, cluster in started.items()
        }  # fmt: skip


ROWS = [
    Row("tls-produce-1k", "bulk produce over TLS, 1 KiB, 1 partition, librdkafka", partial(_bulk_produce_row, 300_000)),
    Row("tls-fetch-1k", "fetch over TLS, 1 KiB, from the page cache, librdkafka", partial(_bulk_fetch_row, 1_000_000)),
    Row(
        "sasl-ssl-turn-50p",
        f"one 100 B record per request, {len(USERS)} connections with a user each, {PARTITIONS} partitions in turn, "
        "SASL_SSL",
        partial(_sasl_ssl_row, 200_000),
    ),
    Row(
        "rules-turn-50p",
        f"one 100 B record per request, {len(USERS)} connections with a user each, {PARTITIONS} partitions in turn",
        partial(_rules_row, Load(leader_acks, partitions=PARTITIONS, step=1), 200_000),
    ),
    Row(
        "rules-produce-and-fetch",
        f"pairs of a Produce and a Fetch of its record, {len(USERS)} connections with a user each",
        partial(_rules_row, Load(produce_then_fetch, partitions=PARTITIONS), 200_000),
    ),
    Row("tls-handshakes", f"TLS 1.3 handshakes, {THREADS} at once", partial(_handshakes_row, 2_000)),
    Row(
        "tls-strangers",
        f"one 100 B record per request in plain text, 50 connections, while {STRANGERS_PER_SECOND} others a second "
        "shake hands",
        partial(_strangers_row, 200_000),
    ),
    Row("sasl-logins", f"logins over plain connections, {THREADS} at once", partial(_logins_row, 1_000)),
    Row(
        "replicas-secured",
        "one 100 B record per request with acks=all, three copies: the brokers among themselves over SASL_SSL, and in "
        "plain text",
        partial(_copies_row, 100_000),
    ),
]
