"""The topics in a broker's directory that its cluster does not know under their id.

A coordinator that was restored to an older state has forgotten the topics made since. The brokers keep their records,
which no client can read. A topic that is then made under such a name has another id. A broker with the old records
refuses to lead or to follow it (INCONSISTENT_TOPIC_ID, as Kafka 3.9), because a log never continues another topic's.
Nothing here deletes the old records. The deletion of a topic of this name does.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from broker.cluster.orders import FULL
from broker.metadata.image import Image
from broker.metadata.topic import Topic
from broker.now import Now
from coordination.listing import listed

DELETION_MS = 30_000
"""A topic that was deleted while this broker was away is deleted here within this time of the first order. Until then
the broker cannot tell it from a topic that the cluster has forgotten."""
NAMED_MAX = 10
"""The names in a line, and the lines about topics with another id."""


class UnknownTopics:
    """See the module. `image` is the cluster's, and `hosted` what this broker's directory has."""

    def __init__(self, broker_id: int, image: Image) -> None:
        self._broker_id = broker_id
        self._image = image
        self.hosted = Image()
        self._unnamed: dict[str, Topic] = {}
        """The topics that the last order about all topics did not name, until `tick`."""
        self._forgotten: dict[str, Topic] = {}
        """The unnamed topics that the directory still had at the tick."""
        self._tick_ms: int | None = None
        self._with_other_id: dict[str, None] = {}
        """The names of topics that have another id in the cluster."""

    def compare(self, order: Any, now: Now) -> None:
        """Compare the directory with an UpdateMetadata, which the image has taken."""
        names = {str(topic.topic_name) for topic in order.topic_states}
        if order.type_ == FULL:
            unnamed = {topic.name: topic for topic in self.hosted.topics() if topic.name not in names}
            self._forgotten = {name: topic for name, topic in self._forgotten.items() if name in unnamed}
            self._unnamed = {name: topic for name, topic in unnamed.items() if name not in self._forgotten}
            self._tick_ms = now.ms + DELETION_MS if self._unnamed else None
        self._with_other_id.update((name, None) for name in names if self._differs(name) is not None)

    def _differs(self, name: str) -> tuple[Topic, Topic] | None:
        """Return the topic in the directory and the cluster's of this name, if this broker is to have copies of the
        latter and their ids differ."""
        own, topic = self.hosted.topic(name), self._image.topic(name)
        if own is None or topic is None or own.id == topic.id or not topic.copies_on(self._broker_id):
            return None
        return own, topic

    def _differing(self) -> Iterator[tuple[Topic, Topic]]:
        return (both for name in self._with_other_id if (both := self._differs(name)) is not None)

    @property
    def offline(self) -> dict[str, str]:
        """Return why partitions of the cluster are not served here, by their names."""
        return {
            f"{topic.name}-{partition}": f"the records in its directory have another id ({own.id}) than the topic "
            f"({topic.id})"
            for own, topic in self._differing()
            for partition in topic.copies_on(self._broker_id)
        }

    @property
    def problems(self) -> list[str]:
        """Return a line for all topics that the cluster does not know, and one for each that it knows as another."""
        lines = [self._line_of(own, topic) for own, topic in islice(self._differing(), NAMED_MAX)]
        forgotten = [topic for topic in self._forgotten.values() if self._is_forgotten(topic)]
        if forgotten:
            names = listed([f"{topic.name} (id {topic.id})" for topic in forgotten], NAMED_MAX)
            lines.append(
                f"the directory of broker {self._broker_id} has records of topics that the cluster does not know: "
                f"{names}. They are neither served nor deleted. To delete them, create a topic of this name and delete "
                "it"
            )
        return lines

    def _line_of(self, own: Topic, topic: Topic) -> str:
        partitions = listed([f"{topic.name}-{partition}" for partition in topic.copies_on(self._broker_id)], NAMED_MAX)
        return (
            f"broker {self._broker_id} does not serve {partitions}: its directory has records of another topic "
            f"{topic.name}, with id {own.id}, and the cluster's has id {topic.id}. To begin anew, delete the topic, "
            "and these records with it, and create it again"
        )

    def _is_forgotten(self, topic: Topic) -> bool:
        own = self.hosted.topic(topic.name)
        return own is not None and own.id == topic.id and self._image.topic(topic.name) is None

    # --- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: Now) -> None:
        if self._tick_ms is not None and self._tick_ms <= now.ms:
            self._forgotten.update(self._unnamed)
            self._unnamed, self._tick_ms = {}, None

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due."""
        return self._tick_ms
