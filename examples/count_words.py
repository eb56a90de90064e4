"""A topology on the embedded engine that counts words, each message once, in spite of failures and kills.

    flakelog server --data-dir data
    flakelog produce lines < some.txt
    flakelog spout run examples/count_words.py:count_words             # until Ctrl-C; a second start resumes
    python examples/count_words.py [HOST:PORT [TOPIC [DIRECTORY]]]     # the same without the live view

A message can be delivered more than once (at least once). So `CountWords` is a OncePerMessage: it stores the origins of
the lines it has counted in the same SQLite transaction as the counts, and its tuples are acked after the commit.
"""

import os
import sys
from pathlib import Path

from flakelog import LogSpout, OncePerMessage, StringScheme, Topology, run


class CountWords(OncePerMessage):
    schema = "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, n INTEGER)"
    batch_size = 100

    def apply(self, line) -> None:
        for word in (line["value"] or "").split():
            self.db.execute("INSERT INTO words VALUES (?, 1) ON CONFLICT DO UPDATE SET n = n + 1", (word.lower(),))

    def process_batch(self, batch) -> None:
        super().process_batch(batch)
        (words,) = self.db.execute("SELECT sum(n) FROM words").fetchone()
        print(f"{words} words", flush=True)


def count_words(servers: str | None = None, topic: str = "lines", directory: str = "count-words") -> Topology:
    state = Path(directory)
    state.mkdir(parents=True, exist_ok=True)
    servers = servers or os.environ.get("FLAKELOG_SERVERS", "127.0.0.1:9092")
    topology = Topology("count-words")
    spout = LogSpout(topic, servers=servers, store=str(state / "progress"), scheme=StringScheme())
    topology.spout("lines", spout)
    topology.bolt("count", CountWords(state / "words.db")).global_("lines")
    return topology


if __name__ == "__main__":
    run(count_words(*sys.argv[1:]))
