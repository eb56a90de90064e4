"""The work that opening a log took, and the line that tells an operator what was cut."""

from dataclasses import dataclass

from broker.log.partition_log import PartitionLog


@dataclass(slots=True)
class RecoveryReport:
    """The work that opening a log took, for the log line."""

    batches_read: int = 0
    bytes_cut: int = 0
    id_bytes_cut: int = 0
    """Bytes of ids without batches, where nothing of the .log was cut."""
    segments_removed: int = 0
    segment_bytes_removed: int = 0
    """Bytes of the .log files of these segments."""
    reason: str | None = None
    from_journal: int = 0
    """Batches that the log lacked and the journal had."""
    epochs_fault: str | None = None
    """The reason if the file of leader epochs could not be right, and the epochs are those of the batches."""

    @property
    def cut(self) -> bool:
        return bool(self.bytes_cut or self.id_bytes_cut or self.segments_removed)

    def without_batches(self, id_bytes: int, reason: str) -> None:
        """Note ids that were cut because they have no batches."""
        self.id_bytes_cut += id_bytes
        self.reason = reason

    def removed(self, segments: int, log_bytes: int, reason: str) -> None:
        """Note segments past the log's end that were removed. `reason` counts if nothing was cut before them."""
        self.segments_removed, self.segment_bytes_removed = segments, log_bytes
        if segments:
            self.reason = self.reason or reason

    def line(self, log: PartitionLog) -> str:
        """Return the line for the operator."""
        line = f"partition {log.name} recovered: ends at offset {log.log_end_offset}, "
        line += f"{self.batches_read} batches past the checkpoint"
        if self.from_journal:
            line += f", {self.from_journal} from the journal"
        if self.epochs_fault is not None:
            line += f"; its leader epochs were read from its batches ({self.epochs_fault})"
        if not self.cut:
            return line
        line += f"; cut {self.bytes_cut} bytes"
        if self.id_bytes_cut:
            line += f", {self.id_bytes_cut} bytes of ids"
        line += f" and {self.segments_removed} segments"
        if self.segments_removed:
            line += f" of {self.segment_bytes_removed} bytes"
        return f"{line} ({self.reason})"
