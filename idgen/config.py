"""The settings of the id service, and of its access to ZooKeeper."""

from dataclasses import dataclass

from coordination.access import SESSION_TIMEOUT_MS, Access, an_ensemble
from idgen.layout import TWITTER_EPOCH_MS, Layout
from idgen.sequence_start import KINDS, ZERO
from idgen.settings import InvalidSetting, an_address, at_least, between, check_settings, one_of, setting, split_address
from idgen.worker import MAX_AHEAD_MS


@dataclass(frozen=True, kw_only=True)
class ZooKeeperConfig:
    """The settings `flakelog.ids.zookeeper.*`: access to the ensemble that keeps worker numbers.

    A setting for a secret names a file, because settings can be queried and printed.
    """

    ids_zookeeper_connect: str | None = setting(
        "flakelog.ids.zookeeper.connect",
        None,
        "host:port,host:port/chroot of the ensemble that keeps worker numbers; --zookeeper goes before it. By default "
        "the data directory keeps them.",
        check=an_ensemble,
    )
    ids_zookeeper_session_timeout_ms: int = setting(
        "flakelog.ids.zookeeper.session.timeout.ms",
        SESSION_TIMEOUT_MS,
        "how long after its last sign of life a process is shown as one that lives; ids do not depend on it",
        check=between(1_000, 600_000),
        unit="ms",
    )
    ids_zookeeper_credentials_file: str | None = setting(
        "flakelog.ids.zookeeper.credentials.file",
        None,
        "a file with one line, user:password: who we say to be (ZooKeeper's digest scheme)",
    )
    ids_zookeeper_set_acl: bool = setting(
        "flakelog.ids.zookeeper.set.acl",
        False,
        "nodes we make may be changed only with the same credentials, and read by everyone",
    )
    ids_zookeeper_ssl_client_enable: bool = setting(
        "flakelog.ids.zookeeper.ssl.client.enable", False, "connect by TLS, to the servers' secureClientPort"
    )
    ids_zookeeper_ssl_truststore_location: str | None = setting(
        "flakelog.ids.zookeeper.ssl.truststore.location",
        None,
        "PEM file of authorities to trust, besides the system's; only with flakelog.ids.zookeeper.ssl.client.enable",
    )
    ids_zookeeper_ssl_keystore_location: str | None = setting(
        "flakelog.ids.zookeeper.ssl.keystore.location",
        None,
        "PEM file with our key, not encrypted, and our certificate, where servers ask for one; readable by us alone",
    )
    ids_zookeeper_ssl_hostname_verification: bool = setting(
        "flakelog.ids.zookeeper.ssl.hostname.verification",
        True,
        "a server's certificate must name the host we connect to",
    )

    def _check_zookeeper(self) -> None:
        """Refuse a setting that needs another one to have an effect. InvalidSetting."""
        if self.ids_zookeeper_set_acl:
            self.check_zookeeper_identity("flakelog.ids.zookeeper.set.acl")
        for name in ("truststore", "keystore"):
            given = getattr(self, f"ids_zookeeper_ssl_{name}_location")
            if given and not self.ids_zookeeper_ssl_client_enable:
                wanted = "needs flakelog.ids.zookeeper.ssl.client.enable=true, else nothing would be encrypted"
                raise InvalidSetting(f"flakelog.ids.zookeeper.ssl.{name}.location", given, wanted)

    @property
    def has_zookeeper_identity(self) -> bool:
        """True if ZooKeeper learns who we are."""
        return bool(self.ids_zookeeper_credentials_file or self.ids_zookeeper_ssl_keystore_location)

    def check_zookeeper_identity(self, set_acl: str) -> None:
        """Raise InvalidSetting for the setting `set_acl`, which is true, if we cannot say who we are."""
        if not self.has_zookeeper_identity:
            wanted = (
                "needs flakelog.ids.zookeeper.credentials.file, or flakelog.ids.zookeeper.ssl.keystore.location: "
                "nobody else could be let in by it"
            )
            raise InvalidSetting(set_acl, "true", wanted)

    @property
    def ids_zookeeper_access(self) -> Access:
        """These settings in the coordinator's form."""
        return Access(
            self.ids_zookeeper_session_timeout_ms,
            self.ids_zookeeper_credentials_file,
            self.ids_zookeeper_set_acl,
            self.ids_zookeeper_ssl_client_enable,
            self.ids_zookeeper_ssl_truststore_location,
            self.ids_zookeeper_ssl_keystore_location,
            self.ids_zookeeper_ssl_hostname_verification,
        )


@dataclass(frozen=True, kw_only=True)
class IdgenConfig(ZooKeeperConfig):
    """The settings `flakelog.ids.*`, with those of its ZooKeeper. InvalidSetting if a value, or two together, cannot
    work."""

    ids_listener: str = setting(
        "flakelog.ids.listener",
        "127.0.0.1:7609",
        "host:port of the id service (Thrift, framed); empty turns it off",
        check=an_address,
    )
    ids_ssl_enable: bool = setting(
        "flakelog.ids.ssl.enable",
        False,
        "the id service speaks TLS, and nothing else; its key, certificates and client authentication are those of "
        "ssl.*, and flakelog.ids.ssl.x sets ssl.x for this port alone, such as flakelog.ids.ssl.client.auth. It also "
        "asks its peers by TLS (flakelog.ids.sanity.check), with the same certificates",
    )
    ids_advertised_address: str | None = setting(
        "flakelog.ids.advertised.address", None, "host:port shown to peers in the registry; default the listener's"
    )
    ids_worker: int | None = setting(
        "flakelog.ids.worker", None, "this process's worker number; default the lowest free one", check=at_least(0)
    )
    ids_datacenter: int | None = setting(
        "flakelog.ids.datacenter", None, "claim only numbers of this datacenter", check=at_least(0)
    )
    ids_registry_path: str = setting(
        "flakelog.ids.registry.path",
        "/snowflake-servers",
        "node of the live workers, as Twitter's; the high-water marks are beside it, in <path>-marks",
        check=lambda path: None if path.startswith("/") and path.strip("/") else "must be a path like /a/b",
    )
    ids_directory_network_allow: bool = setting(
        "flakelog.ids.directory.network.allow",
        False,
        "keep worker numbers in a directory on a network file system; its locks must hold among all machines that "
        "mount it, and outlast none that holds them, which most do not promise",
    )
    ids_lead_ms: int = setting(
        "flakelog.ids.lead.ms",
        30_000,
        "how far the high-water mark is kept ahead: ids go on so long without the registry, and after a crash the "
        "number rests so long",
        check=at_least(100),
        unit="ms",
    )
    ids_raise_interval_ms: int = setting(
        "flakelog.ids.raise.interval.ms",
        10_000,
        "how often the high-water mark is raised; by chance up to a fifth sooner",
        check=at_least(10),
        unit="ms",
    )
    ids_retry_ms: int = setting(
        "flakelog.ids.retry.ms",
        1_000,
        "pause before a registry that did not answer is asked again",
        check=at_least(1),
        unit="ms",
    )
    ids_max_ahead_ms: int = setting(
        "flakelog.ids.max.ahead.ms",
        MAX_AHEAD_MS,
        "how far ids may run ahead of the clock; below 1000 it keeps k below one second",
        check=between(0, 900),
        unit="ms",
    )
    ids_log_max_ahead_ms: int = setting(
        "flakelog.ids.log.max.ahead.ms",
        0,
        "how far a partition's last id may be ahead of the clock for the partition to go on with ids of that future "
        "time, from a second worker number; 0: it waits for the clock. Set it after the clock was ahead, and take it "
        "off when flakelog_partitions_ahead_of_clock is 0",
        check=between(0, 10 * 365 * 86_400_000),
        unit="ms",
    )
    ids_sequence_start: str = setting(
        "flakelog.ids.sequence.start",
        ZERO,
        "the sequence a millisecond begins with: zero; spread, each of the first few in turn; or random among them. "
        "Where ids are sharded by a modulus, zero sends nearly all of a slow worker's to one shard",
        check=one_of(*KINDS),
    )
    ids_sequence_starts: int = setting(
        "flakelog.ids.sequence.starts",
        256,
        "how many sequences a millisecond may begin with, unless flakelog.ids.sequence.start is zero: at least the "
        "number of shards; a full millisecond has up to so many ids less",
        check=at_least(2),
    )
    ids_sanity_check: bool = setting(
        "flakelog.ids.sanity.check",
        True,
        "before it serves, a process asks the other id services of its registry whether they have the numbers they are "
        "shown with, and whether its clock agrees with theirs; it does not start when not. Who does not answer in a "
        "second counts for nothing: so do those that start at the same moment, which ask each other in vain",
    )
    ids_sanity_max_offset_ms: int = setting(
        "flakelog.ids.sanity.max.offset.ms",
        10_000,
        "how far the clock may be from the mean of the peers' at start, as in Twitter's Snowflake",
        check=at_least(1),
        unit="ms",
    )
    ids_sanity_max_peers: int = setting(
        "flakelog.ids.sanity.max.peers",
        32,
        "how many of the other id services are asked: enough for a mean, and a load for nobody",
        check=between(1, 1_024),
    )
    ids_sanity_timeout_ms: int = setting(
        "flakelog.ids.sanity.timeout.ms",
        1_000,
        "how long a peer may take for each step of an answer before it counts for nothing: a start waits for it",
        check=between(10, 60_000),
        unit="ms",
    )
    ids_sanity_interval_ms: int = setting(
        "flakelog.ids.sanity.interval.ms",
        60_000,
        "how often the peers' clocks are asked while it serves; the offset is shown by /metrics and /health",
        check=at_least(1_000),
        unit="ms",
    )
    ids_max_skew_ms: int = setting(
        "flakelog.ids.max.skew.ms",
        10_000,
        "the id service refuses while its clock is further than this ahead of a wall clock that was set back",
        check=at_least(0),
        unit="ms",
    )
    ids_max_batch: int = setting(
        "flakelog.ids.max.batch",
        100_000,
        "most ids one request may ask for: 0.8 MB of answer",
        check=between(1, 1_000_000),
    )
    ids_max_connections: int = setting(
        "flakelog.ids.max.connections",
        10_000,
        "connections of the id service; one more is closed at once",
        check=at_least(1),
    )
    ids_max_frame_bytes: int = setting(
        "flakelog.ids.max.frame.bytes",
        4_096,
        "largest Thrift request; real ones have below 200 bytes",
        check=at_least(64),
        unit="bytes",
    )
    ids_look_calls: int = setting(
        "flakelog.ids.look.calls",
        256,
        "calls answered, to all id connections together, before all other connections have been looked at: some 0.3 ms "
        "that a log in the same process waits at most; 64 ids of a batch count as one call",
        check=at_least(1),
    )
    ids_max_user_agents: int = setting(
        "flakelog.ids.max.user.agents",
        1_000,
        "user agents counted by name; the rest are counted together",
        check=at_least(1),
    )
    ids_epoch_ms: int = setting(
        "flakelog.ids.epoch.ms", TWITTER_EPOCH_MS, "Unix ms the layout counts from", check=at_least(0), unit="ms"
    )
    ids_time_bits: int = setting("flakelog.ids.time.bits", 41, "bits of the time", unit="bits")
    ids_datacenter_bits: int = setting("flakelog.ids.datacenter.bits", 5, "bits of the datacenter", unit="bits")
    ids_worker_bits: int = setting("flakelog.ids.worker.bits", 5, "bits of the worker", unit="bits")
    ids_sequence_bits: int = setting("flakelog.ids.sequence.bits", 12, "bits of the sequence", unit="bits")

    def __post_init__(self) -> None:
        check_settings(self)
        self._check_zookeeper()
        if self.ids_raise_interval_ms * 2 > self.ids_lead_ms:
            wanted = f"must be at most half of flakelog.ids.lead.ms ({self.ids_lead_ms}), so that one raise may fail"
            raise InvalidSetting("flakelog.ids.raise.interval.ms", self.ids_raise_interval_ms, wanted)
        try:
            layout = self.layout
            numbers = layout.numbers_of(self.ids_datacenter)
        except ValueError as error:
            raise InvalidSetting("flakelog.ids.*", "layout", str(error)) from None
        if self.ids_sequence_start != ZERO and self.ids_sequence_starts > (layout.max_sequence + 1) // 2:
            wanted = f"must be at most {(layout.max_sequence + 1) // 2}, half of the sequences there are"
            raise InvalidSetting("flakelog.ids.sequence.starts", self.ids_sequence_starts, wanted)
        if self.ids_worker is not None and self.ids_worker not in numbers:
            wanted = f"must be between {numbers[0]} and {numbers[-1]}"
            raise InvalidSetting("flakelog.ids.worker", self.ids_worker, wanted)

    @property
    def ids_address(self) -> tuple[str, int] | None:
        """The host and port of the id service, or None if it is off."""
        return split_address(self.ids_listener)

    @property
    def layout(self) -> Layout:
        """The layout these settings describe."""
        return Layout(
            self.ids_time_bits,
            self.ids_datacenter_bits,
            self.ids_worker_bits,
            self.ids_sequence_bits,
            self.ids_epoch_ms,
        )
