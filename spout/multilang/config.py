"""Settings of a process inside Storm. They come from the topology's configuration in Storm."""

from dataclasses import dataclass

from idgen.settings import at_least, check_settings, setting

MEBIBYTE = 1 << 20


@dataclass(frozen=True)
class StormConfig:
    """Settings of a spout's or a bolt's process inside Storm. Raise InvalidSetting if a value is out of range."""

    storm_emits_per_next: int = setting(
        "flakelog.storm.emits.per.next",
        100,
        "tuples that a spout emits in answer to one `next` of Storm, within topology.max.spout.pending: 10 give twice "
        "the rate of 1, more than 100 gain nothing",
        check=at_least(1),
    )
    storm_idle_ms: int = setting(
        "flakelog.storm.idle.ms",
        10,
        "how long a spout that has nothing to emit, and nothing in flight, holds its answer to `next`: Storm asks 880 "
        "times a second otherwise",
        check=at_least(0),
        unit="ms",
    )
    storm_frame_max_bytes: int = setting(
        "flakelog.storm.frame.max.bytes",
        64 * MEBIBYTE,
        "the largest frame from or to Storm: a larger tuple is refused where it is emitted, before Storm has it in "
        "memory many times",
        check=at_least(64 * 1024),
        unit="B",
    )
    storm_log_lines_max: int = setting(
        "flakelog.storm.log.lines.max",
        1_000,
        "lines of log and output that wait for Storm, which takes a spout's only in answer to a command; further ones "
        "are counted and dropped",
        check=at_least(10),
    )
    storm_stop_ms: int = setting(
        "flakelog.storm.stop.ms",
        5_000,
        "at a stop, how long a spout may take to store its progress; Storm's supervisor kills a worker after 3 s",
        check=at_least(0),
        unit="ms",
    )
    storm_unavailable_pause_max_ms: int = setting(
        "flakelog.storm.unavailable.pause.max.ms",
        5_000,
        "longest pause before a tuple for which a bolt raised Unavailable is executed again, within "
        "topology.message.timeout.secs: the first is 100 ms, and each doubles the one before",
        check=at_least(1),
        unit="ms",
    )
    storm_metrics: str = setting(
        "flakelog.storm.metrics",
        "",
        "names, with commas, of the counters and gauges that are sent to Storm once a second: only those that Java "
        "code has registered there, because Storm ends a worker that sends another name",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def metric_names(self) -> frozenset[str]:
        """Return the names of `flakelog.storm.metrics`."""
        return frozenset(name.strip() for name in self.storm_metrics.split(",") if name.strip())
