"""A cluster as the planner of a stream sees it: the topics and partitions that the options select."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from broker.client.offset_spec import AtId
from spark_bridge.reading.cluster import Description, NoSuchTopic
from spark_bridge.selection.option_table import OptionError
from spark_bridge.selection.pinned import Assigned, Log, describe_topics, refuse_other_topics, require_ids
from spark_bridge.selection.selector import SelectionError, starts, topic_offsets, topics_of
from spark_bridge.selection.stream_offsets import Positions
from spark_bridge.selection.stream_options import StreamOptions
from spark_bridge.selection.stream_planner import StreamSnapshot


@dataclass(frozen=True, slots=True)
class SelectedSnapshot:
    """The StreamSnapshot port: the selected topics and partitions at one time."""

    description: Description
    view: Assigned
    committed: bool

    def earliest(self, topic: str) -> Mapping[int, int]:
        return self.view.earliest(topic)

    def latest(self, topic: str) -> Mapping[int, int]:
        return self.view.latest(topic, committed=self.committed)


class SelectedLog:
    """The StreamLog port over a cluster. A start outside the log is moved into it, and `on_moved` gets the reason."""

    def __init__(
        self, log: Log, options: StreamOptions, on_moved: Callable[[str], object] = lambda reason: None
    ) -> None:
        self._log = log
        self._options = options
        self._topics = options.read.topics
        self._on_moved = on_moved

    def snapshot(self) -> SelectedSnapshot:
        """Look at the topics of this stream that exist now; a deleted one is not an error here."""
        description = self._described()
        view = Assigned(self._log.snapshot(description), self._topics.partitions)
        return SelectedSnapshot(description, view, self._options.read.read_committed)

    def initial(self, snapshot: StreamSnapshot) -> Positions:
        """Return the starts by the options. Raise OptionError, SelectionError or NoSuchTopic."""
        bound, description = self._options.start, snapshot.description
        refuse_other_topics(topics_of(bound), description)
        self._require_all(description)
        if isinstance(bound, AtId):
            require_ids(description.topics, self._log)
        committed = self._options.read.read_committed
        view = Assigned(self._log.snapshot(description), self._topics.partitions)
        offsets: dict[str, dict[int, int]] = {}
        for topic in sorted(description.topics):
            here = topic_offsets(topic, view, committed=committed)
            offsets[topic] = {
                partition: self._inside(f"{topic}-{partition}", start, here.first[partition], here.last[partition])
                for partition, start in sorted(starts(bound, here).items())
            }
        return offsets

    def _described(self) -> Description:
        if self._topics.pattern is not None:
            return describe_topics(self._topics, self._log)
        names = self._topics.names or tuple(self._topics.partitions)
        try:
            return self._log.describe(names)
        except NoSuchTopic:
            everything = self._log.describe(None)
            kept = {name: topic for name, topic in everything.topics.items() if name in names}
            return replace(everything, topics=kept)

    def _require_all(self, description: Description) -> None:
        for name in self._topics.names or tuple(self._topics.partitions):
            if name not in description.topics:
                raise NoSuchTopic(f"there is no topic {name!r}")
        for name, partitions in self._topics.partitions.items():
            missing = set(partitions) - set(description.topics[name].leaders)
            if missing:
                raise OptionError(f"assign: topic {name!r} has no partitions {sorted(missing)}")

    def _inside(self, name: str, start: int, first: int, last: int) -> int:
        inside = min(max(start, first), last)
        if inside == start:
            return start
        reason = f"{name} has offsets {first} to {last}; the stream was to start at {start}"
        if self._options.read.fail_on_data_loss:
            raise SelectionError(reason)
        self._on_moved(f"{reason}, and starts at {inside}")
        return inside
