"""The oracle of a simulated cluster's replicas: high watermarks do not fall, and a quiet cluster has equal copies.

    HW falls        the high watermark of a leader falls within an epoch and a life of the leader. A leader that is
                    started again begins with the high watermark on its disk, perhaps in the same epoch (KIP-207)
    offline         a partition has no leader, although a member of its ISR or ELR lives and is trusted
    not in sync     a replica is not in the ISR, although the cluster is healed
    copies differ   two replicas of a partition have other records, offsets or ids
"""

from broker.cluster.documents import (
    DELETE_TOPICS,
    NO_LEADER,
    NO_LIFE,
    LeaderAndIsr,
    Registration,
    broker_path,
    state_path,
)
from broker.log import log_reader
from broker.record.batch import walk


def check_high_watermarks(process, highest):
    """Check that no high watermark of a leader has fallen; `highest` are those of before, and is updated."""
    for partition in process.broker.services.replication.led.all():
        log, state = partition.log, partition.state
        if state is None:
            continue
        key = process, log.topic_id, log.partition, state.leader_epoch
        before, now = highest.get(key, 0), log.high_watermark
        name = f"{log.name} of {process.id} in epoch {state.leader_epoch}"
        assert now >= before, f"HW falls: that of {name} from {before} to {now}"
        highest[key] = now


def check_leaders(ensemble):
    """Check that partitions have leaders, given the nodes of a cluster in which a broker may be dead."""
    deleted = set(ensemble.names(DELETE_TOPICS))
    for partition, row in ensemble.image().items():
        if partition.topic in deleted:
            continue
        path = state_path(partition)
        state = LeaderAndIsr.decode(path, ensemble.nodes[path])
        trusted = [member for member in state.members if _is_trusted(ensemble, state, member)]
        name = f"{partition.topic}-{partition.partition}"
        is_led = row.leader != NO_LEADER and broker_path(row.leader) in ensemble.nodes
        assert is_led or not trusted, f"offline: {name} has no leader, and {trusted} are trusted: {state}"


def _is_trusted(ensemble, state, member):
    """Return True if a broker is registered, and may lead by its membership (rule W2)."""
    node = ensemble.nodes.get(broker_path(member))
    if node is None:
        return False
    life, recorded = Registration.decode(broker_path(member), node.data).life, state.lives.get(member)
    return recorded == node.czxid or (life.whole and recorded != NO_LIFE and life.last >= (recorded or -1))


def check_copies(image, processes):
    """Check that all replicas are in sync and have the same logs, given the image of the nodes."""
    by_id = {process.id: process for process in processes}
    for partition, row in image.items():
        name = f"{partition.topic}-{partition.partition}"
        assert set(row.isr) == set(row.replicas), f"not in sync: {name} has the ISR {row.isr} of {row.replicas}"
        logs = [by_id[broker_id].broker.services.logs.get(*partition) for broker_id in row.replicas]
        # A leader that was told to delete records may have died before the others began later, as in Kafka.
        start = max(log.log_start_offset for log in logs)
        contents = {broker_id: content_of(log, start) for broker_id, log in zip(row.replicas, logs, strict=True)}
        leader = contents[row.leader]
        for broker_id, content in contents.items():
            assert content == leader, f"copies differ: {name} of {broker_id} and of {row.leader}: {content}, {leader}"


def content_of(log, start):
    """Return where a log ends, and its batches and ids from an offset on."""
    end = log.log_end_offset
    batches = []
    for segment in log.segments.all:
        data = segment.log.read(0, segment.size)
        for position, header in walk(data):
            if header.last_offset >= start:
                batches.append(bytes(data[position : position + header.size]))
    ids = [first + n for first, length in log_reader.ids_of(log, start, end) for n in range(length)]
    return end, log.high_watermark, log.last_id, ids, batches
