"""The start of a broker: its logs are opened, and its coordinators loaded.

    open_logs          before the broker is reachable
    Coordinators.load  once it can stamp ids (broker.services.coordinators)
    adopt_late_logs    while it serves: logs that a full disk kept from being opened
"""

from broker.membership.hosted_partitions import without_leaders
from broker.metadata.change import Change
from broker.metadata.topic import TRANSACTIONS_TOPIC
from broker.now import Now
from broker.services.context import BrokerServices
from broker.services.image_consequences import begin_epoch


def open_logs(services: BrokerServices) -> None:
    """Open the logs of all topics, and recover batches that a crash left in the journal.

    Raise CheckpointDamaged, JournalUnreadable or StorageError.
    """
    logs, local, hosted = services.logs, services.local, services.hosted
    logs.load_checkpoint()
    if services.member is not None:
        from broker.services.replicas import begin_life  # a server alone needs none of it

        begin_life(services, services.member)
        hosted.apply([Change(services.member.with_settings(hosted.topics()))])
    local.put_away(logs.finish_deletions(local.deleting))
    for topic in hosted.topics():
        config = services.config_of(topic)
        for number in topic.copies_on(services.node.id):
            logs.open_at_start(topic.name, number, config, topic.id, topic.partitions[number].leader_epoch)
            if services.replication is not None:
                services.replication.opened(topic, number)
    if services.is_alone:
        _begin_epochs(services)
    else:
        hosted.apply([Change(without_leaders(hosted.topics()))])
        coordinates = hosted.topic(TRANSACTIONS_TOPIC) is not None
        local.begin_in_cluster(services.producer_ids, doubts=coordinates and not logs.stopped_cleanly)
    logs.opened()


def _begin_epochs(services: BrokerServices) -> None:
    """Continue each partition in its leader epoch. After a crash begin a new one, as a new leader does in Kafka.

    A crash may have lost the end of a log. Without a new epoch no reader could see that, once other records are at
    these offsets (KIP-101). A log can be ahead of the metadata: after a start on a full disk, or after an operator
    put an older file back.
    """
    crashed = not services.logs.stopped_cleanly
    logs = {(log.topic, log.partition): log for log in services.logs.all()}
    begun = []
    for topic in services.metadata.topics():
        epochs = [state.leader_epoch for state in topic.partitions]
        for partition, epoch in enumerate(epochs):
            log = logs.get((topic.name, partition))
            epochs[partition] = max(epoch, -1 if log is None else log.leader_epoch) + crashed
            if log is not None:
                log.start_leader_epoch(epochs[partition])
        if epochs != [state.leader_epoch for state in topic.partitions]:
            begun.append(topic.in_epochs(epochs))
    services.local.begin(begun, not crashed)


def adopt_late_logs(services: BrokerServices, now: Now) -> None:
    """Load what coordinators keep in logs that the start could not open (a full disk), as a start does."""
    opened = services.logs.take_opened_late()
    hosted = [(log, topic) for log in opened if (topic := services.hosted.topic(log.topic)) is not None]
    for log, topic in hosted:
        if services.replication is not None:
            services.replication.opened(topic, log.partition)
        begin_epoch(services, log, topic.partitions[log.partition], now)
    if services.local.lacks_space and not services.logs.disk.is_full:
        services.file_executor.store_again()
    if opened:
        services.coordinators.load_late(opened, now)
