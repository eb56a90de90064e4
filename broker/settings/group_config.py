"""Settings of the group coordinator, under Kafka's names (GroupCoordinatorConfig)."""

from dataclasses import dataclass

from idgen.settings import InvalidSetting, at_least, between, check_settings, setting

MINUTE_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """Settings of groups and their committed offsets. Raises InvalidSetting if a value cannot work."""

    group_min_session_timeout_ms: int = setting(
        "group.min.session.timeout.ms",
        6_000,
        "Shortest session timeout a member may ask for.",
        check=at_least(1),
        unit="ms",
    )
    group_max_session_timeout_ms: int = setting(
        "group.max.session.timeout.ms",
        1_800_000,
        "Longest session timeout a member may ask for.",
        check=at_least(1),
        unit="ms",
    )
    group_initial_rebalance_delay_ms: int = setting(
        "group.initial.rebalance.delay.ms",
        3_000,
        "How long an empty group waits for more members before its first rebalance.",
        check=at_least(0),
        unit="ms",
    )
    group_max_size: int = setting(
        "group.max.size",
        10_000,
        "Most members of a group, and most members that were given an id and have not come back with it. Kafka has no "
        "limit here; ten times the largest groups known keeps one client's mistake from filling the memory.",
        check=at_least(1),
        unit="members",
    )
    group_new_member_join_timeout_ms: int = setting(
        "flakelog.group.new.member.join.timeout.ms",
        300_000,
        "A new member whose first join is not answered in this time is forgotten, for its client may be gone; Kafka "
        "has the same five minutes, not as a setting.",
        check=at_least(1),
        unit="ms",
    )
    groups_max: int = setting(
        "flakelog.groups.max",
        100_000,
        "Most groups at a time; a join or a commit that would make one more is refused with POLICY_VIOLATION.",
        check=at_least(1),
        unit="groups",
    )
    offset_metadata_max_bytes: int = setting(
        "offset.metadata.max.bytes",
        4_096,
        "Longest metadata string of a committed offset; Kafka counts characters, whatever the name says. At four bytes "
        "each the string of a record holds 8,191.",
        check=between(0, 8_191),
        unit="characters",
    )
    offsets_retention_minutes: int = setting(
        "offsets.retention.minutes",
        7 * 24 * 60,
        "How long offsets are kept once nobody uses them.",
        check=at_least(1),
        unit="minutes",
    )
    offsets_retention_check_interval_ms: int = setting(
        "offsets.retention.check.interval.ms",
        10 * MINUTE_MS,
        "How often offsets and groups are looked through for what has expired.",
        check=at_least(1),
        unit="ms",
    )
    offsets_topic_num_partitions: int = setting(
        "offsets.topic.num.partitions",
        50,
        "Partitions of __consumer_offsets, counted when it is made: a group's place in it depends on this.",
        check=at_least(1),
        unit="partitions",
    )
    offsets_topic_replication_factor: int = setting(
        "offsets.topic.replication.factor",
        3,
        "Copies of __consumer_offsets, when it is made. A server alone makes one, and `--processes 2` makes two.",
        check=at_least(1),
        unit="copies",
    )
    offsets_topic_segment_bytes: int = setting(
        "offsets.topic.segment.bytes",
        100 << 20,
        "Size of a segment of __consumer_offsets, when it is made; smaller ones are compacted sooner.",
        check=at_least(1 << 10),
        unit="bytes",
    )

    offsets_commit_timeout_ms: int = setting(
        "offsets.commit.timeout.ms",
        5_000,
        "How long a commit, or a step of a transaction, waits for the disk where the topic it is kept in has "
        "flakelog.durable.acks; then the client is to try again. The end of a transaction waits so long for its "
        "markers, and is answered then, as it is decided.",
        check=at_least(1),
        unit="ms",
    )

    metrics_group_partitions_max: int = setting(
        "flakelog.metrics.group.partitions.max",
        2_000,
        "Committed offsets whose lag /metrics shows, the groups known longest first; "
        "flakelog_group_partitions_left_out counts the others. So many add 30 ms of CPU time to a scrape.",
        check=at_least(0),
        unit="offsets",
    )

    def __post_init__(self) -> None:
        check_settings(self)
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            wanted = f"must be at most group.max.session.timeout.ms ({self.group_max_session_timeout_ms})"
            raise InvalidSetting("group.min.session.timeout.ms", self.group_min_session_timeout_ms, wanted)

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * MINUTE_MS
