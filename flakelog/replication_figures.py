"""The figures of partitions with several copies, under names that follow Kafka's MBeans (docs/metrics.md maps them).

A server alone, and a cluster without `flakelog.replication.enable`, has none of them.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from prometheus_client.core import Metric

from broker.cluster.controller import Controller
from broker.cluster.controller_context import ControllerContext, ReplicaState
from broker.cluster.documents import TopicPartition
from broker.cluster.preferred_leaders import led_by_others
from broker.log.partition_log import PartitionLog
from broker.membership.coordinator_outage import CoordinatorOutage
from broker.membership.replica_manager import ReplicaManager
from broker.metrics import TopicFigures
from broker.services.context import BrokerServices
from flakelog.metric_table import sample, samples

NAMED_MAX = 50
"""Partitions that a metric names of each problem, so that an outage of thousands does not flood what scrapes it."""


def split_name(name: str) -> tuple[str, str]:
    """Return the topic and the number of a partition's name."""
    topic, _, number = name.rpartition("-")
    return topic, number


def replication_figures(services: BrokerServices, total: TopicFigures, partitions_max: int) -> Iterator[Metric]:
    """Yield the figures, with the lag of `partitions_max` partitions that are led here, and as many followed."""
    replication, member = services.replication, services.member
    if replication is None or member is None:
        return
    offline = member.controller.context.partitions_with_offline_leader() if member.controller.is_active else []
    yield from _partitions(replication, led_here(services))
    yield samples("flakelog_partition_problem", _problems(replication, offline))
    yield from _isr_changes(replication)
    yield from _lags(replication, partitions_max)
    yield sample("flakelog_replication_in_bytes_total", total.replication_in)
    yield sample("flakelog_replication_out_bytes_total", total.replication_out)
    yield from _controller(member.controller, len(offline))
    yield from _session(member.coordinator_outage)
    yield sample("flakelog_image_stale", member.stale_image.problem is not None)


def led_here(services: BrokerServices) -> int:
    """Return how many partitions this broker leads."""
    own = services.node.id
    return sum(state.leader == own for topic in services.hosted.topics() for state in topic.partitions)


def _partitions(replication: ReplicaManager, led: int) -> Iterator[Metric]:
    partitions = replication.led.all()
    yield sample("flakelog_partitions_led", led)
    yield sample("flakelog_under_replicated_partitions", sum(partition.is_under_replicated for partition in partitions))
    yield sample("flakelog_under_min_isr_partitions", sum(not partition.has_min_isr for partition in partitions))
    one_copy = led - len(partitions)  # its only copy is the minimum
    yield sample("flakelog_at_min_isr_partitions", one_copy + sum(partition.is_at_min_isr for partition in partitions))
    yield sample("flakelog_failed_partitions", len(replication.followed.failed))


def _problems(
    replication: ReplicaManager, offline: Iterable[TopicPartition]
) -> Iterator[tuple[tuple[str, str, str], int]]:
    """Yield the labels of partitions with a problem. The controller alone knows which ones of the cluster are offline.
    """
    led = replication.led.all()
    names = {
        "under_replicated": (partition.log.name for partition in led if partition.is_under_replicated),
        "under_min_isr": (partition.log.name for partition in led if not partition.has_min_isr),
        "failed": iter(replication.followed.failed),
        "no_leader": map(str, offline),
    }
    for problem, some in names.items():
        for name in islice(some, NAMED_MAX):
            yield (*split_name(name), problem), 1


def _isr_changes(replication: ReplicaManager) -> Iterator[Metric]:
    changes = replication.led.isr_figures
    yield sample("flakelog_isr_shrinks_total", changes.shrinks)
    yield sample("flakelog_isr_expands_total", changes.expands)
    yield sample("flakelog_failed_isr_updates_total", changes.failed)


def _lags(replication: ReplicaManager, partitions_max: int) -> Iterator[Metric]:
    fetched = islice(replication.followed.lags().items(), partitions_max)
    yield samples("flakelog_fetcher_lag_messages", ((key, lag) for key, lag in fetched if lag is not None))
    led = islice(replication.led.all(), partitions_max)
    lags = ((_labels(partition.log, id), lag) for partition in led for id, lag in partition.follower_lags().items())
    yield samples("flakelog_follower_lag_messages", lags)


def _labels(log: PartitionLog, follower_id: int) -> tuple[str, int, int]:
    return log.topic, log.partition, follower_id


def _controller(controller: Controller, offline: int) -> Iterator[Metric]:
    context, is_active = controller.context, controller.is_active
    yield sample("flakelog_active_controller", is_active)
    yield sample("flakelog_controller_offline_partitions", offline)
    yield sample("flakelog_controller_preferred_replica_imbalance", led_by_others(context) if is_active else 0)
    yield from _deletions(context)
    yield sample("flakelog_unclean_leader_elections_total", controller.unclean_elections)
    yield sample("flakelog_controller_live_brokers", len(context.brokers) if is_active else 0)
    yield sample("flakelog_controller_topics", len(context.assignments) if is_active else 0)
    partitions = sum(map(len, context.assignments.values())) if is_active else 0
    yield sample("flakelog_controller_partitions", partitions)
    yield sample("flakelog_controller_unreached_brokers", len(controller.unreached))


def _deletions(context: ControllerContext) -> Iterator[Metric]:
    """Yield the figures of deletions that have not ended. A broker that is not the controller knows of none."""
    replicas = [
        replica
        for topic in context.topics_to_delete
        for replica in context.replicas_of(context.partitions_of(topic))
        if context.replica_states.get(replica) is not ReplicaState.DELETION_SUCCESSFUL
    ]
    waiting = context.deletion_ineligible
    ineligible = sum(replica.broker_id in waiting.get(replica.partition.topic, ()) for replica in replicas)
    yield sample("flakelog_controller_topics_to_delete", len(context.topics_to_delete))
    yield sample("flakelog_controller_topics_ineligible_to_delete", len(waiting))
    yield sample("flakelog_controller_replicas_to_delete", len(replicas))
    yield sample("flakelog_controller_replicas_ineligible_to_delete", ineligible)


def _session(session: CoordinatorOutage) -> Iterator[Metric]:
    yield sample("flakelog_zookeeper_connected", session.is_connected)
    yield sample("flakelog_zookeeper_disconnects_total", session.disconnects)
    yield sample("flakelog_zookeeper_expirations_total", session.expirations)
