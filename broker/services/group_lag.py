"""Where consumer groups stand: the committed offset and the lag of each partition, limited in number."""

from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from broker.log.partition_log import PartitionLog
from broker.services.context import BrokerServices


class GroupPosition(NamedTuple):
    """A group's committed offset in a partition. The lag counts up to the end that consumers see."""

    group: str
    topic: str
    partition: int
    committed: int
    lag_messages: int
    lag_bytes: int
    """An estimate: the messages that still exist, times the mean size of a message in this log."""

    @property
    def labels(self) -> tuple[str, str, int]:
        return self.group, self.topic, self.partition


def group_positions(services: BrokerServices) -> tuple[list[GroupPosition], int]:
    """Return the positions of all groups, and the number of positions left out.

    At most `flakelog.metrics.group.partitions.max` committed offsets are looked at. Offsets in partitions without an
    open log are in neither number.
    """
    offsets_number = services.coordinators.group_offsets_number()
    if not offsets_number:
        return [], 0
    most = services.group_config.metrics_group_partitions_max
    logs = {(log.topic, log.partition): log for log in services.logs.all()}
    return list(_positions(services, logs, most)), max(offsets_number - most, 0)


def _positions(
    services: BrokerServices, logs: dict[tuple[str, int], PartitionLog], most: int
) -> Iterator[GroupPosition]:
    for group, topic, partition, committed in islice(services.coordinators.group_offsets(), most):
        log = logs.get((topic, partition))
        if log is None or log.offline is not None:
            continue
        lag = max(log.high_watermark - committed, 0)
        stored_lag = max(log.high_watermark - max(committed, log.log_start_offset), 0)
        stored = log.log_end_offset - log.segments.all[0].base_offset
        lag_bytes = stored_lag * log.segments.size // stored if stored else 0
        yield GroupPosition(group, topic, partition, committed, lag, lag_bytes)
