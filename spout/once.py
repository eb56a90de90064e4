"""SHELL (SQLite): a bolt whose state counts each message once, in spite of retries and restarts.

    class CountWords(OncePerMessage):
        schema = "CREATE TABLE IF NOT EXISTS words (word TEXT PRIMARY KEY, n INTEGER)"

        def apply(self, tup):
            add = "INSERT INTO words VALUES (?, 1) ON CONFLICT (word) DO UPDATE SET n = n + 1"
            self.db.execute(add, (tup["word"],))

    topology.bolt("count", CountWords("words.db")).fields("split", "word")

The state and the origins of the tuples that made it change in one transaction. A tuple whose origin is there has been
applied before. It is acked and changes nothing.
"""

import json
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

from spout.api import Tuple, Unavailable
from spout.bolts import BatchBolt
from spout.work import EXITS, Interruption

LOCK_WAIT_SECONDS = 1.0  # longest wait for another process's transaction, during which nothing else runs here
FORGET_MS = 1_000  # how often origins below the watermarks are deleted

_ORIGINS = """
CREATE TABLE IF NOT EXISTS flakelog_origins (
  spout TEXT, topic TEXT, partition INTEGER, position, path TEXT,
  PRIMARY KEY (spout, topic, partition, position, path)) WITHOUT ROWID;
"""


class OncePerMessage(BatchBolt):
    """A bolt that applies each tuple once to a state in the SQLite database at `database`.

    A subclass defines `schema`, run at each start, and `apply`. All tasks of the component share the database. It
    belongs to one process: a partition that moves to another process leaves its origins behind.

    The spouts and bolts upstream must be deterministic: for the same message, each emits the same tuples in the same
    order at every attempt. Put no bolt between that batches, samples, reads a clock, or emits in the order in which
    answers arrive. Otherwise a repeated tuple may look new, and a new one repeated. After a change to the bolts
    upstream or their names, let the old topology settle its messages before the new one starts.

    Origins are deleted when the stored progress of their partition has passed them, because a restart repeats no
    message below it. So the table stays as small as the messages in flight. A spout without stored progress (see
    `Spout.watermarks`) has all its origins kept.

    A tuple of an attempt that has ended, by a timeout for example, is not applied. A later attempt brings it again.
    Nothing is emitted for a tuple: a message that is repeated because a later bolt failed would not emit again.
    """

    schema: ClassVar[str] = ""

    db: sqlite3.Connection

    def __init__(self, database: str | Path) -> None:
        self.database = Path(database)

    def apply(self, tup: Tuple) -> None:
        """Change the state by one tuple, with `self.db` and without a commit. If it raises, this change is undone."""
        raise NotImplementedError(f"{type(self).__name__}.apply")

    def apply_again(self, tup: Tuple) -> None:
        """React to a tuple that is applied already, in the same transaction; by default, do nothing."""

    # --- the engine's methods

    def prepare(self) -> None:
        """Open the database. Raise ValueError if the bolt has threads, because transactions on it run one by one."""
        if self.threads:
            raise ValueError(f"{self.context.component} has threads, and a OncePerMessage works without: remove them")
        self.db = sqlite3.connect(self.database, timeout=LOCK_WAIT_SECONDS, isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute("PRAGMA synchronous=FULL")  # a tuple is acked after the commit, so the commit must be durable
        self.db.executescript(_ORIGINS + self.schema)
        self._forget_at_ms = 0
        self._applied = self.context.counter("applied")
        self._repeated = self.context.counter("repeated")

    def process_batch(self, batch: list[Tuple]) -> None:
        """Apply the tuples in one transaction. A tuple that cannot be applied fails alone."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self.database}: {error}") from error
        try:
            outcomes = [self._apply_one(tup) for tup in batch]
            self._forget()
            self.db.execute("COMMIT")
        except BaseException as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise Unavailable(f"{self.database}: {error}") from error
            raise
        self._applied.add(outcomes.count(True))
        self._repeated.add(outcomes.count(False))

    def cleanup(self) -> None:
        """Close the database."""
        self.db.close()

    # --- internals

    def _apply_one(self, tup: Tuple) -> bool | None:
        """Return True if the tuple is applied, False if it was applied before, None if it is not applied."""
        if not self.collector.is_open(tup):
            return None
        self.db.execute("SAVEPOINT one_tuple")
        try:
            key = _key(tup)
            new: int = self.db.execute("INSERT OR IGNORE INTO flakelog_origins VALUES (?, ?, ?, ?, ?)", key).rowcount
            if new:
                self.apply(tup)
            else:
                self.apply_again(tup)
        except (*EXITS, Interruption):
            raise
        except BaseException as error:
            self.db.execute("ROLLBACK TO one_tuple")
            self.collector.report_error(error, (tup,))
            self.fail(tup, error)
            return None
        finally:
            self.db.execute("RELEASE one_tuple")
        return bool(new)

    def _forget(self) -> None:
        if self.context.now_ms < self._forget_at_ms:
            return
        self._forget_at_ms = self.context.now_ms + FORGET_MS
        delete = "DELETE FROM flakelog_origins WHERE spout = ? AND topic = ? AND partition = ? AND position < ?"
        self.db.executemany(delete, [(*partition, offset) for partition, offset in self.context.watermarks().items()])


def _key(tup: Tuple) -> tuple[str, str, int, Any, str]:
    origin = tup.origin
    if len(origin.messages) != 1:
        text = f"{tup!r} comes from {len(origin.messages)} messages"
        raise ValueError(f"{text}: OncePerMessage needs tuples that are anchored to one message each")
    message = origin.messages[0]
    position = message.offset if isinstance(message.offset, (int, str, bytes)) else repr(message.offset)
    (spout, number), *path = origin.path
    return spout, message.topic, message.partition, position, json.dumps([number, *path], separators=(",", ":"))
