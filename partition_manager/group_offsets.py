"""Offset documents as committed offsets of a consumer group: watermark, leader epoch, and the rest as metadata."""

from broker.client.group_requests import CommittedOffset
from partition_manager.offset_document import OffsetDocument
from partition_manager.progress import Progress
from partition_manager.progress_metadata import (
    METADATA_CHARACTERS_MAX,
    CommittedProgress,
    decode_metadata,
    encode_metadata,
)


class TooManyRanges(ValueError):
    """Progress whose ranges do not fit into the metadata of a committed offset; none of them may be dropped."""


def committed_offset(document: OffsetDocument) -> CommittedOffset:
    """Return the offset to commit for a document. Raise TooManyRanges if its metadata is too long."""
    metadata = encode_metadata(document.progress, document.topic_id)
    if len(metadata) > METADATA_CHARACTERS_MAX:
        ranges = f"the {len(document.progress.done)} settled ranges of {document.topic}-{document.partition}"
        raise TooManyRanges(f"{ranges} take {len(metadata)} characters, {METADATA_CHARACTERS_MAX} can be committed")
    return CommittedOffset(document.progress.offset, document.leader_epoch, metadata)


def committed_progress(committed: CommittedOffset) -> tuple[CommittedProgress, str]:
    """Return the progress in a committed offset, and a line for the log, or "" if there is nothing to say.

    Raise BadMetadata if the metadata is damaged.
    """
    stored = decode_metadata(committed.offset, committed.metadata)
    if stored is not None:
        return stored, ""
    text = f"the metadata of committed offset {committed.offset} is not of this program, only the offset is used"
    return CommittedProgress(Progress(committed.offset), ""), f"{text}: {committed.metadata[:100]!r}"
