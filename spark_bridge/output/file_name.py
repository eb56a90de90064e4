"""Names of the files that a job writes."""

from spark_bridge.reading.offset_range import OffsetRange


def file_name(one: OffsetRange) -> str:
    """Return a file name that depends only on the range; names sort in the order of the ranges."""
    return f"{one.topic}-{one.partition:05d}-{one.start:020d}-{one.end:020d}.parquet"
