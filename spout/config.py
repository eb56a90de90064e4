"""Settings of a topology, with Storm's names if Storm has them, and of a spout that reads a log."""

from dataclasses import dataclass

from broker.client.group_config import instance_fault
from idgen.settings import at_least, check_settings, setting
from partition_manager.config import SpoutConfig

__all__ = ["SpoutConfig", "TopologyConfig"]

INSTANCE_CHARACTERS_MAX = 128  # leaves room for the name of a spout in that of a group's member


@dataclass(frozen=True)
class TopologyConfig:
    """Settings of a running topology. Raise InvalidSetting if a value is out of range."""

    topology_max_spout_pending: int = setting(
        "topology.max.spout.pending",
        5_000,
        "tuples of one spout task whose trees are not yet complete; Storm has no limit, we have: each holds a message",
        check=at_least(1),
    )
    topology_message_timeout_secs: int = setting(
        "topology.message.timeout.secs",
        30,
        "a tuple whose tree is not complete after so long has failed; in Storm after 1 to 2 times that",
        check=at_least(1),
        unit="s",
    )
    topology_executor_receive_buffer_size: int = setting(
        "topology.executor.receive.buffer.size",
        1_024,
        "tuples waiting at one task; a full one holds up whoever emits to it, so queues are bounded by this and by "
        "what one execute emits",
        check=at_least(1),
    )
    topology_spout_wait_ms: int = setting(
        "topology.sleep.spout.wait.strategy.time.ms",
        1,
        "how soon a spout that emitted nothing is asked again, unless it says when",
        check=at_least(1),
        unit="ms",
    )
    topology_drain_ms: int = setting(
        "flakelog.topology.drain.ms",
        10_000,
        "at a stop, how long tuples in flight may take to complete before they are left to come again; after a signal "
        "the process ends then even if a component blocks, and else after at most 10 s more for the last commit",
        check=at_least(0),
        unit="ms",
    )
    topology_publish: bool = setting(
        "flakelog.topology.publish",
        True,
        "publish the topology's graph and figures every two seconds to the topic __flakelog_topologies of the clusters "
        "that its spouts read, so that a console elsewhere can show them",
    )
    topology_instance: str = setting(
        "flakelog.topology.instance",
        "",
        "a name of this process that survives a restart, such as a pod's; --instance sets it. A restart within "
        "session.timeout.ms keeps the partitions of its groups; a second process of the name ends the first. Each "
        "spout's group.instance.id is made of it, and it goes before flakelog.sink.instance; empty: no name",
        check=lambda name: instance_fault(name, INSTANCE_CHARACTERS_MAX) if name else None,
    )
    topology_max_tasks: int = setting(
        "topology.max.task.parallelism", 1_000, "tasks of one component; they share one thread", check=at_least(1)
    )

    bolt_max_concurrent: int = setting(
        "flakelog.bolt.max.concurrent",
        100,
        "coroutines of one task of an async bolt at once, unless its class says: each may hold a connection",
        check=at_least(1),
    )
    bolt_threads_max: int = setting(
        "flakelog.bolt.threads.max",
        64,
        "threads that one task of a blocking bolt may ask for: more gain nothing in Python, and each takes memory",
        check=at_least(1),
    )
    bolt_blocking_ms: int = setting(
        "flakelog.bolt.blocking.ms",
        100,
        "an execute that takes longer in the reactor's thread is logged, once a minute for each task: nothing else "
        "runs meanwhile",
        check=at_least(10),
        unit="ms",
    )
    bolt_metrics_max: int = setting(
        "flakelog.bolt.metrics.max",
        100,
        "counters and gauges of one task: each is a series in the metrics, so names made from data would grow for ever",
        check=at_least(1),
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def message_timeout_ms(self) -> int:
        """Return `topology.message.timeout.secs` in milliseconds."""
        return self.topology_message_timeout_secs * 1000
