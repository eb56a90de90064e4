"""The settings of a mirror. Those of the source and of the target are apart, because the clusters differ."""

import re
from dataclasses import dataclass, field

from broker.client.group_config import instance_fault
from broker.client.leaders import Partition
from broker.client.security.client_security import Security

NAME_CHARACTERS_MAX = 200  # the ids of transactions have it, and the name of a topic
PREFIX_CHARACTERS_MAX = 200
LEGAL_PREFIX = re.compile(rf"[a-zA-Z0-9._-]{{0,{PREFIX_CHARACTERS_MAX}}}")
EVERY_TOPIC = re.compile(".*")


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """How to reach one of the two clusters."""

    servers: str
    security: Security = field(default=None, repr=False)
    """Properties of a Kafka client for TLS and a login; None for a plain cluster. They may hold a password."""


@dataclass(frozen=True, kw_only=True)
class MirrorSettings:
    """A mirror from one source into the target."""

    source: ClusterSettings
    target: ClusterSettings
    name: str = "mirror"
    topics: re.Pattern[str] = EVERY_TOPIC
    prefix: str = ""
    """Put before the names of topics at the target."""
    instance: str | None = None
    """A name of this process that survives a restart: then it has its partitions again at once (KIP-345)."""
    skip_lost: bool = False
    """Go on after records that the source lost before they were copied, and with a topic that was made again."""
    source_id: bool = False
    """Keep the source's id of each record as a header."""
    two_way: bool = False
    """Copy no record into a cluster where it has been, and add a header that says so."""
    exactly_once: bool = False
    """Copy in transactions of the target, with the source's offsets in them."""
    session_ms: int = 10_000
    """The mirrors of one name share out the partitions of one that was killed so long after its end."""
    commit_ms: int = 1_000
    refresh_ms: int = 5_000
    """How often the mirror looks for new topics and partitions."""
    settings_ms: int = 600_000
    """How often the settings of topics are copied again, as MirrorMaker 2 does; 0: only when a topic is made."""
    groups_ms: int = 5_000
    """How often the offsets of groups are translated."""
    control_ms: int = 2_000
    """How often the mirror looks for orders to pause, and publishes its figures."""
    queue_bytes_max: int = 64 << 20
    """Once so many bytes wait for the target, no more are read."""

    def __post_init__(self) -> None:
        """Raise ValueError for settings that do not go together."""
        if not self.name or len(self.name) > NAME_CHARACTERS_MAX:
            raise ValueError(f"--name {self.name[:80]!r}: give 1 to {NAME_CHARACTERS_MAX} characters")
        if not LEGAL_PREFIX.fullmatch(self.prefix):
            raise ValueError(
                f"--prefix {self.prefix[:80]!r}: names of topics have letters and digits of ASCII, dots, dashes and "
                f"underscores; give at most {PREFIX_CHARACTERS_MAX} of them"
            )
        if self.prefix.startswith("__"):
            raise ValueError(f"--prefix {self.prefix!r}: topics that begin with __ are internal; give another")
        fault = None if self.instance is None else instance_fault(self.instance)
        if fault is not None:
            raise ValueError(f"--instance {str(self.instance)[:80]!r} {fault}")
        if self.two_way and self.prefix:
            raise ValueError(
                "--two-way copies topics of one name in both directions, and --prefix gives the copies other names; "
                "for two mirrors with prefixes, let the --topics of each leave out the prefix of the other"
            )

    def target_of(self, key: Partition) -> Partition:
        """Return the target's partition of one of the source."""
        return self.prefix + key[0], key[1]
