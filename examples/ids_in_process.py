"""Ids made in this process, without a server: unique among all programs that use the same directory (or ZooKeeper).

    python examples/ids_in_process.py
"""

import tempfile
from datetime import UTC, datetime

from flakelog import Layout, Snowflake


def main() -> None:
    # A real program names a permanent directory, or zookeeper="host:2181".
    with tempfile.TemporaryDirectory() as directory, Snowflake(directory=directory) as snowflake:
        first = snowflake.next_id()
        many = snowflake.next_ids(10_000)
        print(f"{snowflake.worker_number=}, unique in {snowflake.scope.split()[0]} ...")

        assert first < many[0] and many == sorted(set(many))
        parts = snowflake.decode(first)
        print(f"{first} is of {datetime.fromtimestamp(parts.time_ms / 1000, UTC):%Y-%m-%d}, sequence {parts.sequence}")

    # The range of ids that belongs to a time range.
    layout = Layout()
    noon = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000)
    start, end = layout.id_range(noon, noon + 60_000)
    print(f"the ids of that minute: {start} <= id < {end}")


if __name__ == "__main__":
    main()
