"""Checks of the replicas of a simulated cluster that is healed, but for one broker perhaps.

    offline         a partition has no leader, although a member of its ISR or ELR lives and is trusted
    not in sync     a replica is not in the ISR, although the cluster is healed
    copies differ   two replicas of a partition have other records, offsets or ids. Each compacts its own log, so that
                    one may have records that another has removed already: then the last records of all keys are equal

An unclean election may take the record by which a replica has removed earlier ones of its key. That replica has no
record of the key then, as with Kafka, so only the keys that all replicas have are compared.
"""

from broker.cluster.documents import DELETE_TOPICS, NO_LEADER, LeaderAndIsr, broker_path, state_path
from broker.log import log_reader
from broker.record.batch import walk
from broker.record.records import decode_records
from tests.simulation.replicated_members import is_trusted


def check_leaders(ensemble, safe_members):
    """Check that partitions have leaders, given the nodes of a cluster in which a broker may be dead.

    `safe_members` returns the members that a partition's ELR must have by the oracle's own account, with their lives.
    """
    deleted = set(ensemble.names(DELETE_TOPICS))
    for partition, replicas in ensemble.replicas().items():
        if partition.topic in deleted:
            continue
        name = f"{partition.topic}-{partition.partition}"
        path, nodes = state_path(partition), ensemble.nodes
        if path not in nodes:
            live = [replica for replica in replicas if broker_path(replica) in nodes]
            assert not live, f"offline: {name} has no leader yet, and {live} are live"
            continue
        state = LeaderAndIsr.decode(path, nodes[path])
        members = [(member, state.lives.get(member)) for member in state.members]
        members += safe_members(partition).items()
        trusted = {member for member, life in members if is_trusted(life, member, nodes.get(broker_path(member)))}
        is_led = state.leader != NO_LEADER and broker_path(state.leader) in nodes
        assert is_led or not trusted, f"offline: {name} has no leader, and {trusted} are trusted: {state}"


def check_copies(image, processes, unclean):
    """Check that all replicas are in sync and have the same logs, given the image of the nodes.

    `unclean` has the (topic id, partition) whose committed records an election may have lost.
    """
    by_id = {process.id: process for process in processes}
    for partition, row in image.items():
        name = f"{partition.topic}-{partition.partition}"
        assert set(row.isr) == set(row.replicas), f"not in sync: {name} has the ISR {row.isr} of {row.replicas}"
        logs = [by_id[broker_id].broker.services.logs.get(*partition) for broker_id in row.replicas]
        # A leader that was told to delete records may have died before the others began later, as in Kafka.
        start = max(log.log_start_offset for log in logs)
        if all(_is_whole(log, start) for log in logs):
            contents = [content_of(log, start) for log in logs]
        else:
            contents = [latest_of(log, start) for log in logs]
            if (logs[0].topic_id, logs[0].partition) in unclean:
                contents = with_common_keys(contents)
        for broker_id, content in zip(row.replicas, contents, strict=True):
            message = f"copies differ: {name} of {broker_id} and of {row.replicas[0]}: {content}, {contents[0]}"
            assert content == contents[0], message


def _is_whole(log, start):
    """Return True if nothing was compacted from an offset on, and no marker has a time for that."""
    if not log.config.compacts:
        return True
    headers = [header for segment in log.segments.all for _, header in segment.batches()]
    from_start = [header for header in headers if header.last_offset >= start]
    if any(header.delete_horizon_ms is not None for header in from_start):
        return False
    first = min([header.base_offset for header in from_start], default=log.log_end_offset)
    return first <= start and sum(header.record_count for header in from_start) == log.log_end_offset - first


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


def latest_of(log, start):
    """Return where a log ends, and the last record of each key outside of transactions, with its id."""
    ids, latest = {}, {}
    for segment in log.segments.all:
        for entry in segment.ids.entries():
            ids.update((entry.offset + n, entry.first_id + n) for n in range(entry.length))
        data = segment.log.read(0, segment.size)
        for position, header in walk(data):
            if not (header.is_control or header.is_transactional):  # a cleaner may have removed it
                for record in decode_records(data, position):
                    if record.offset >= start:
                        latest[record.key] = record.offset, record.value, ids[record.offset]
    return log.log_end_offset, log.high_watermark, log.last_id, latest


def with_common_keys(contents):
    """Return the contents of `latest_of` without the keys that one of them lacks."""
    common = set.intersection(*(set(latest) for *_, latest in contents))
    return [(*ends, {key: latest[key] for key in common}) for *ends, latest in contents]
