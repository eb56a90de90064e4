"""The oracle of a simulated cluster's replicas: high watermarks do not fall, and a quiet cluster has equal copies.

    HW falls        the high watermark of a leader falls within an epoch and a life of the leader. A leader that is
                    started again begins with the high watermark on its disk, perhaps in the same epoch (KIP-207)
    not in sync     a replica is not in the ISR, although the cluster is healed
    copies differ   two replicas of a partition have other records, offsets or ids
"""

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


def check_copies(image, processes):
    """Check that all replicas are in sync and have the same logs, given the image of the nodes."""
    by_id = {process.id: process for process in processes}
    for partition, row in image.items():
        name = f"{partition.topic}-{partition.partition}"
        assert set(row.isr) == set(row.replicas), f"not in sync: {name} has the ISR {row.isr} of {row.replicas}"
        logs = [by_id[broker_id].broker.services.logs.get(*partition) for broker_id in row.replicas]
        contents = {broker_id: content_of(log) for broker_id, log in zip(row.replicas, logs, strict=True)}
        leader = contents[row.leader]
        for broker_id, content in contents.items():
            assert content == leader, f"copies differ: {name} of {broker_id} and of {row.leader}: {content}, {leader}"


def content_of(log):
    """Return where a log starts and ends, its batches as they are and its ids."""
    start, end = log.log_start_offset, log.log_end_offset
    batches = []
    for segment in log.segments.all:
        data = segment.log.read(0, segment.size)
        for position, header in walk(data):
            if header.last_offset >= start:
                batches.append(bytes(data[position : position + header.size]))
    ids = [first + n for first, length in log_reader.ids_of(log, start, end) for n in range(length)]
    return start, end, log.high_watermark, log.last_id, ids, batches
