"""The headers that a mirror adds to records, if its options say so.

`flakelog-source-id` is the Snowflake id that the record has at the source, as decimal text (--source-id).

`flakelog-clusters` names the clusters where a record has been, by their ids with commas between (--two-way). A mirror
copies no record into a cluster where it has been, so two mirrors in opposite directions copy each record once.
"""

from broker.client.mirror.source_batch import RecordEdit
from broker.record.id_header import id_of
from broker.record.records import Headers, StoredRecord

SOURCE_ID_HEADER = "flakelog-source-id"
CLUSTERS_HEADER = "flakelog-clusters"


def record_edit(source_cluster: str, target_cluster: str, *, source_id: bool, two_way: bool) -> RecordEdit | None:
    """Return what the mirror does to each record; None if the records stay as they are."""
    if not source_id and not two_way:
        return None
    target = target_cluster.encode()

    def edit(record: StoredRecord, id: int | None) -> StoredRecord | None:
        headers = record.headers
        if two_way:
            clusters = _clusters(headers)
            if target in clusters:
                return None
            clusters = clusters if source_cluster.encode() in clusters else [*clusters, source_cluster.encode()]
            headers = _with(headers, CLUSTERS_HEADER, b",".join(clusters))
        if source_id:
            known = id_of(headers) if id is None else id
            if known is not None:
                headers = _with(headers, SOURCE_ID_HEADER, b"%d" % known)
        return record._replace(headers=headers)

    return edit


def _clusters(headers: Headers) -> list[bytes]:
    for name, value in headers:
        if name == CLUSTERS_HEADER and value:
            return value.split(b",")
    return []


def _with(headers: Headers, name: str, value: bytes) -> Headers:
    """Return the headers with one of this name, in place of an older one."""
    return (*(header for header in headers if header[0] != name), (name, value))
