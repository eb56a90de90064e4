"""Settings of a member of a consumer group, under Kafka's names (ConsumerConfig)."""

import re
from dataclasses import dataclass, replace
from hashlib import sha256

from idgen.settings import InvalidSetting, at_least, check_settings, setting

INSTANCE_CHARACTERS_MAX = 249  # Kafka's clients refuse longer names
LONG_WAIT_MS = 5_000
"""Figures name a member's wait for its group that is at least this long; a rebalance without trouble takes 3 s."""


def instance_fault(name: str, characters_max: int = INSTANCE_CHARACTERS_MAX) -> str | None:
    """Return what a valid name of a static member would be, or None if Kafka's clients take `name`."""
    if re.fullmatch(r"[A-Za-z0-9._-]+", name) and name not in (".", "..") and len(name) <= characters_max:
        return None
    return f"must be 1 to {characters_max} letters and digits of ASCII, dots, dashes and underscores"


@dataclass(frozen=True, kw_only=True)
class GroupMemberConfig:
    """Settings of a group member. Raise InvalidSetting if a value cannot work."""

    session_timeout_ms: int = setting(
        "session.timeout.ms",
        45_000,
        "a member that sends no heartbeat for so long has left the group; it drops its partitions by its own clock",
        check=at_least(1),
        unit="ms",
    )
    heartbeat_interval_ms: int = setting(
        "heartbeat.interval.ms",
        3_000,
        "how often a member sends a heartbeat; it also learns of a rebalance so soon",
        check=at_least(1),
        unit="ms",
    )
    max_poll_interval_ms: int = setting(
        "max.poll.interval.ms",
        300_000,
        "a member whose program does not work on for so long leaves the group; also the rebalance timeout, so long "
        "the group waits for a member to join again",
        check=at_least(1),
        unit="ms",
    )
    metadata_max_age_ms: int = setting(
        "metadata.max.age.ms",
        60_000,
        "how often the group's leader looks for new partitions; Kafka's clients look every five minutes",
        check=at_least(1),
        unit="ms",
    )
    retry_backoff_ms: int = setting(
        "retry.backoff.ms", 100, "pause after a failed request, doubled at each failure", check=at_least(1), unit="ms"
    )
    retry_backoff_max_ms: int = setting(
        "retry.backoff.max.ms", 1_000, "longest pause after a failed request", check=at_least(1), unit="ms"
    )
    group_instance_id: str | None = setting(
        "group.instance.id",
        None,
        "name of a static member (KIP-345): a restart within the session timeout keeps its partitions; none: dynamic",
        check=instance_fault,
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.heartbeat_interval_ms * 3 > self.session_timeout_ms:
            wanted = f"must be at most a third of session.timeout.ms ({self.session_timeout_ms})"
            raise InvalidSetting("heartbeat.interval.ms", self.heartbeat_interval_ms, wanted)

    @property
    def request_timeout_ms(self) -> int:
        """Return the longest wait for an answer: a third of the session, so that two failed requests end no session."""
        return self.session_timeout_ms // 3


def member_of(config: GroupMemberConfig, instance: str | None, part: str) -> GroupMemberConfig:
    """Return the settings of the static member `instance`-`part`, where a process `instance` has several members.

    The name ends with a checksum of the part if Kafka's clients would refuse its characters or the length. Without an
    instance return `config`.
    """
    if not instance:
        return config
    name = f"{instance}-{part}"
    if instance_fault(name) is not None:
        name = f"{instance}-{sha256(part.encode()).hexdigest()[:16]}"
    return replace(config, group_instance_id=name)
