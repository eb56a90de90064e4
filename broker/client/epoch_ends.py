"""Where leader epochs end (OffsetForLeaderEpoch, KIP-101, KIP-320), for many partitions at once."""

from collections.abc import Iterable, Mapping

from broker.client.api_versions import OFFSET_FOR_LEADER_EPOCH
from broker.client.core import PARTITIONS_AT_ONCE, Address, ClientCore, Partition, Steps, batched
from broker.client.errors import BadAnswer, BrokerError, ClientError, Unreachable


def find_epoch_ends(
    core: ClientCore, epochs: Mapping[Partition, int], failed: dict[Partition, ClientError]
) -> Steps[dict[Partition, tuple[int, int]]]:
    """Return the largest epoch of each partition that is not above the one given, and the offset after its last record.

    Both are -1 if the broker does not know. Put the errors of the other partitions into `failed`.
    One request asks a leader for up to PARTITIONS_AT_ONCE partitions. Raise Unsupported for a broker before Kafka 2.0.
    """
    leaders = yield from core.leaders_of(epochs, failed)
    ends: dict[Partition, tuple[int, int]] = {}
    for address, led in leaders.items():
        for some in batched(led, PARTITIONS_AT_ONCE):
            try:
                ends |= yield from _ask(core, address, {key: epochs[key] for key in some}, failed)
            except (Unreachable, BadAnswer) as error:
                failed |= dict.fromkeys(some, error)
    return ends


def _ask(
    core: ClientCore, address: Address, epochs: Mapping[Partition, int], failed: dict[Partition, ClientError]
) -> Steps[dict[Partition, tuple[int, int]]]:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, partition), epoch in epochs.items():
        current = core.known_epoch(topic, partition)
        asked = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        topics.setdefault(topic, []).append(asked)
    named = [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()]
    response = yield from core.ask(address, OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": named})
    ends = {}
    for topic_answer in response.topics:
        for row in topic_answer.partitions:
            key = str(topic_answer.topic), int(row.partition)
            try:
                core.check(*key, int(row.error_code))
            except BrokerError as error:
                failed[key] = error
            else:
                ends[key] = int(row.leader_epoch), int(row.end_offset)
    _check_all(address, epochs, ends, failed)
    return ends


def _check_all(address: Address, asked: Iterable[Partition], *answered: Mapping[Partition, object]) -> None:
    missing = set(asked).difference(*answered)
    if missing:
        names = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(missing)[:10])
        raise BadAnswer(f"the broker at {address} gave no end of the epochs of {names}, which it was asked for")
