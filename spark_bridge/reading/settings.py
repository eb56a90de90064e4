"""Settings of a read. The driver makes them from the options; Spark pickles them to the tasks."""

from dataclasses import dataclass, field

from spark_bridge.reading.id_clock import IdClock

CLIENT_ID = "flakelog-spark"


@dataclass(frozen=True, slots=True)
class Patience:
    """The retries of a request to a cluster: about 12 s in total, enough to elect a new leader."""

    attempts: int = 8
    pause_ms: int = 100  # Kafka's retry.backoff.ms; doubled after each attempt
    pause_ms_max: int = 5_000

    def pause_after(self, failures: int) -> int:
        """Return the milliseconds to wait after the given number of failures in a row, the first being 1."""
        return min(self.pause_ms << (failures - 1), self.pause_ms_max)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Settings of a read, on the driver and in the tasks."""

    fetch_bytes: int = 4 << 20  # bounds a task's memory; beyond about ten thousand rows a fetch, Spark gains nothing
    fetch_wait_ms: int = 500  # Kafka's fetch.max.wait.ms
    patience: Patience = Patience()  # limits attempts without progress
    compacted: bool | None = None  # whether offsets may be missing, as the user says; None: by compacted_topics
    compacted_topics: frozenset[str] = frozenset()  # topics whose cleanup.policy has `compact`
    require_ids: bool = False  # if False, the column is null for a broker that keeps no ids
    skip_poison: bool = False  # leave out batches that cannot be decoded; if False, fail
    read_committed: bool = False  # leave out the records of aborted transactions
    fail_on_data_loss: bool = True  # if False, missing offsets are reported, and the rest is read
    client_id: str = CLIENT_ID  # Kafka's client.id, by which a broker's quotas and logs name the client
    request_timeout_ms: int = 30_000  # Kafka's request.timeout.ms
    id_clock: IdClock = IdClock()  # for the column id_time
    security: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # properties of Kafka's clients

    def may_lack_offsets(self, topic: str) -> bool:
        """Return True if offsets of a topic may be missing, as after compaction."""
        return topic in self.compacted_topics if self.compacted is None else self.compacted
