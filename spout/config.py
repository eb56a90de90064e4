"""Settings of a topology, with Storm's names if Storm has them, and of a spout that reads a log."""

from dataclasses import dataclass

from idgen.settings import at_least, check_settings, setting
from partition_manager.config import SpoutConfig

__all__ = ["SpoutConfig", "TopologyConfig"]


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
        "at a stop, how long tuples in flight may take to complete before they are left to come again",
        check=at_least(0),
        unit="ms",
    )
    topology_max_tasks: int = setting(
        "topology.max.task.parallelism", 1_000, "tasks of one component; they share one thread", check=at_least(1)
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def message_timeout_ms(self) -> int:
        """Return `topology.message.timeout.secs` in milliseconds."""
        return self.topology_message_timeout_secs * 1000
