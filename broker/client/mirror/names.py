"""Which topics a mirror copies, and the names of the topics and of its group at the two clusters."""

import re
from collections.abc import Iterable, Mapping

from broker.client.errors import ClientError

GROUP_PREFIX = "flakelog-mirror."
COPY_PREFIX = "flakelog-mirror-copy."
INTERNAL_PREFIX = "__"  # Kafka's internal topics, such as __consumer_offsets
LEADING_FLAGS = re.compile(r"(\(\?[aiLmsux]+\))+")  # as in (?i)web.*


class MirrorRefused(ClientError):
    """A mirror cannot run so; the text says what would be right."""


def mirror_group(name: str, target_cluster_id: str) -> str:
    """Return the group of a mirror at its source. The names of mirrors may have dots, cluster ids have none."""
    return f"{GROUP_PREFIX}{name}.{target_cluster_id}"


def copy_group(name: str, source_cluster_id: str) -> str:
    """Return the group under which a mirror keeps its progress at its target, where it has no members."""
    return f"{COPY_PREFIX}{name}.{source_cluster_id}"


def is_mirror_group(group_id: str) -> bool:
    """Return True for the groups of any mirror."""
    return group_id.startswith((GROUP_PREFIX, COPY_PREFIX))


def leads_to(group_id: str, cluster_id: str) -> bool:
    """Return True for the group of a mirror whose target is this cluster."""
    return group_id.startswith(GROUP_PREFIX) and group_id.rpartition(".")[2] == cluster_id


def topic_pattern(topics: re.Pattern[str], left_out: str = "") -> re.Pattern[str]:
    """Return the pattern of the topics that are copied: without Kafka's internal ones, and those with this prefix."""
    excluded = "|".join(re.escape(prefix) for prefix in (INTERNAL_PREFIX, left_out) if prefix)
    flags = LEADING_FLAGS.match(topics.pattern)
    rest = topics.pattern[flags.end() :] if flags else topics.pattern  # Python takes flags at the beginning only
    return re.compile(f"(?!{excluded})(?:{rest})", topics.flags)


def check_opposite(group_id: str, copied_back: Iterable[str], targets: Iterable[str]) -> None:
    """Raise MirrorRefused if a mirror in the opposite direction copies topics that this one writes to.

    `copied_back` are the topics that its group, `group_id`, reads at the target.
    """
    common = sorted({*copied_back} & {*targets})
    if common:
        raise MirrorRefused(
            f"the mirror in the opposite direction with the group {group_id} copies {', '.join(common[:10])} back, so "
            "records would go round without end; give both mirrors --two-way, or other topics"
        )


def check_sources(clusters: Mapping[str, str]) -> None:
    """Raise MirrorRefused if two sources are one cluster; `clusters` has the cluster id of each source."""
    owners: dict[str, str] = {}
    for source, cluster_id in clusters.items():
        other = owners.setdefault(cluster_id, source)
        if other != source:
            raise MirrorRefused(
                f"the sources {other} and {source} are one cluster ({cluster_id}), so each would get a share of its "
                "topics; give it once, with all its brokers"
            )


class TargetNames:
    """The names of the target's topics, each with the source that it is copied from. All mirrors of a process share it.

    A source that was first keeps a name. Among several processes, the progress that each source has at the target, in
    a group of its own, tells which source was first.
    """

    def __init__(self) -> None:
        self._sources: dict[str, str] = {}
        self._groups: dict[str, str] = {}

    def add(self, source: str, group: str) -> None:
        """Add a source, and the group that keeps its progress at the target."""
        self._groups[source] = group

    def others(self, source: str) -> dict[str, str]:
        """Return the other sources, with the groups that keep their progress at the target."""
        return {other: group for other, group in self._groups.items() if other != source}

    def claim(self, source: str, targets: Iterable[str]) -> None:
        """Take names for a source. Raise MirrorRefused at the first one that another source has."""
        for target in targets:
            other = self._sources.setdefault(target, source)
            if other != source:
                raise MirrorRefused(both_have(other, source, target))


def both_have(other: str, source: str, target: str) -> str:
    """Return why a topic of `source` is not copied to the topic `target`, which is a copy from another source."""
    return (
        f"the sources {other} and {source} both have a topic for {target} at the target; "
        "give each source a --prefix of its own"
    )
