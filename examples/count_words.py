"""A topology on the embedded engine that counts words, each message once, in spite of failures and kills.

    flakelog server --data-dir data
    flakelog produce lines < some.txt
    python examples/count_words.py [HOST:PORT [TOPIC [DIRECTORY]]]     # until Ctrl-C; a second start resumes

A message can be delivered more than once (at least once). So `CountWords` stores the Snowflake ids it has counted in
the same transaction as the counts, and its tuples are acked after the commit.
"""

import sqlite3
import sys
from pathlib import Path

from flakelog import BatchBolt, LogSpout, StringScheme, Topology, run


class CountWords(BatchBolt):
    batch_size = 100

    def __init__(self, database: Path) -> None:
        self.database = database

    def prepare(self) -> None:
        self.db = sqlite3.connect(self.database)
        self.db.execute("CREATE TABLE IF NOT EXISTS counted (id INTEGER PRIMARY KEY)")
        self.db.execute("CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, n INTEGER)")

    def process_batch(self, batch) -> None:
        with self.db:
            for line in batch:
                if self.db.execute("INSERT OR IGNORE INTO counted VALUES (?)", (line["id"],)).rowcount:
                    for word in (line["value"] or "").split():
                        self.db.execute(
                            "INSERT INTO words VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1", (word.lower(),)
                        )
        lines, words = self.db.execute("SELECT (SELECT count(*) FROM counted), sum(n) FROM words").fetchone()
        print(f"{words} words in {lines} lines", flush=True)


def main(servers: str = "127.0.0.1:9092", topic: str = "lines", directory: str = "count-words") -> None:
    state = Path(directory)
    state.mkdir(parents=True, exist_ok=True)
    topology = Topology("count-words")
    spout = LogSpout(topic, servers=servers, store=str(state / "progress"), scheme=StringScheme())
    topology.spout("lines", spout)
    topology.bolt("count", CountWords(state / "words.db")).global_("lines")
    run(topology)


if __name__ == "__main__":
    main(*sys.argv[1:])
