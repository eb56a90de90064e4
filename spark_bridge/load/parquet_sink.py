"""A directory of Parquet files as a destination.

    flights-00000-00000000000000000017-00000000000000000042.parquet
    day=2013-01-01/flights-00000-00000000000000000042-00000000000000000064.parquet

A file is named after its partition and its range of offsets, half-open; with --partition-by it holds the range's rows
of one value. Rows are in the order of their offsets.

Each message is in once, although drivers are killed and run side by side, because:

1. Ranges of loads never overlap: load n + 1 is planned only after load n is published, from n's ends, and only one plan
   of a number is ever saved (exclusive creation).
2. Each attempt to write a part has its own directory in `staging`. The record of a part, created exclusively, chooses
   one attempt. The decision, created exclusively, holds all records and is the moment of publication. Until then a
   plain reader sees no file of the load.
3. After the decision each chosen file is moved into place, by a rename or, in a store of objects, by a copy. A file has
   one source and one place, so drivers that move side by side, or again after a kill, do no harm.
4. The receipt is created after the last move. Readers that want a load whole read the files of receipts only.

So a plain reader sees each message at most once at any time. After a kill between decision and receipt it misses files
until the next run has moved them; then it sees each message exactly once. Files are moved and merged by others only
while no load runs.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from spark_bridge.load.decoding import decoding_of
from spark_bridge.load.file_ledger import FOLDER, FileLedger, data_files
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.part_files import KeptApart, write_files
from spark_bridge.load.partitioning import check_division
from spark_bridge.load.receipt import DataFile, Receipt, WrittenPart, receipt_of
from spark_bridge.load.rejections import OnRejected
from spark_bridge.load.sink import Contents, LoadState, Rows, StoredLoad, ignore
from spark_bridge.load.target import Commit, Target
from spark_bridge.load.target_check import WAYS_OUT, OtherTarget
from spark_bridge.output.file_name import is_file_of
from spark_bridge.output.storage import Storage
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.reading.row import arrow_schema

LOOK_BACK_MAX = 100
"""Loads without files, after which a run no longer looks for the last one that has some: each costs a read."""
REJECTED_FOLDER = "rejected/"
_STAGED = ".staged"  # no reader takes such a file for Parquet


class ParquetSink:
    """A Sink of one topic. `new_attempt` returns a name that no other attempt has.

    Values become columns as the plan of a load says, and messages whose values do not decode are kept apart in
    `_flakelog/TOPIC/rejected/`.
    """

    keeps_column = False
    """True if the column of --partition-by stays in the files."""

    def __init__(self, storage: Storage, topic: str, new_attempt: Callable[[], str]) -> None:
        self._topic = topic
        self.move_to(storage)
        self._new_attempt = new_attempt

    def move_to(self, storage: Storage) -> None:
        """Keep files and the record of loads in another place, of which nothing is known yet."""
        self._storage = storage
        self._ledger = FileLedger(storage, self._topic)

    @property
    def location(self) -> str:
        return str(self._storage)

    @property
    def exclusive(self) -> bool:
        return self._storage.can_create_exclusively

    def newest(self) -> StoredLoad | None:
        number = self._ledger.newest()
        if number is None and (stray := next(self._files(), None)):
            number = self._ledger.newest()  # another driver may have written the file after the first look
            if number is None:
                raise OtherTarget(
                    f"{self._storage} has files of {self._topic!r}, such as {stray}, and no record of loads in "
                    "_flakelog: their rows would come twice. Name another place, or put _flakelog back"
                )
        return None if number is None else self.find(number)

    def find(self, number: int) -> StoredLoad | None:
        load = self._ledger.plan(number)
        if load is None:
            return None
        if (receipt := self._ledger.receipt(number)) is not None:
            return StoredLoad(load, LoadState.PUBLISHED, receipt)
        receipt = self._ledger.decision(number)
        if receipt is None:
            return StoredLoad(load, LoadState.PLANNED)
        return StoredLoad(load, LoadState.WITHDRAWN if receipt.withdrawn else LoadState.DECIDED, receipt)

    def check(self, newest: StoredLoad | None) -> Target | None:
        """Raise OtherTarget if the last load has files, and the place has no file of Parquet any more.

        A part of the files may be gone, since others merge files or remove old ones.
        """
        receipt = None if newest is None else self._last_with_files(newest)
        if receipt is not None and not self.held([receipt]) and next(self._visible(), None) is None:
            raise OtherTarget(
                f"{self.location} has none of the files that its record in _flakelog names: the next load would be all "
                f"that it has. Nothing was written. {WAYS_OUT}"
            )
        return None

    def schema_of(self, load: Load) -> pa.Schema:
        """Return the columns of a load's rows. A killed load may have fewer than the next ones."""
        decoding = decoding_of(load.layout)
        return arrow_schema(load.manifest.columns or ()) if decoding is None else decoding.row_schema()

    def prepared(self, load: Load) -> Load:
        check_division(self.schema_of(load), load.layout.partition_by)
        return replace(load, chain=self._ledger.chain)

    def held(self, receipts: Sequence[Receipt]) -> set[int]:
        return {receipt.number for receipt in receipts if any(map(self._storage.exists, receipt.files))}

    def begin_chain(self, after: int) -> None:
        self._ledger.begin_chain(after)

    def save(self, load: Load) -> None:
        self._ledger.save(load)

    def written(self, load: Load, part: OffsetRange) -> WrittenPart | None:
        return self._ledger.recorded(load, part)

    def write(
        self,
        load: Load,
        part: OffsetRange,
        rows: Rows,
        lost: tuple[OffsetRange, ...] = (),
        on_rejected: OnRejected = ignore,
    ) -> WrittenPart:
        attempt = self._new_attempt()
        staged = self._staged(load, attempt)

        def write(name: str) -> AbstractContextManager[BinaryIO]:
            return self._storage.write(staged(name))

        with KeptApart(part, f"{FOLDER}/{self._topic}/{REJECTED_FOLDER}", write, load.chain) as apart:
            def keep_apart(messages: pa.RecordBatch) -> None:
                apart.add(messages)
                on_rejected(messages)

            decoding = decoding_of(load.layout)
            decoded = rows if decoding is None else decoding.decode(rows, keep_apart)
            adapted = self.adapt(decoded)
            by = load.layout.partition_by
            files = write_files(part, adapted, by, write, load.chain, keeps_column=self.keeps_column)
        written = WrittenPart(part, attempt, files, tuple(sorted(rows.skipped)), apart.described(), lost)
        return self._ledger.record(load, written)

    def publish(self, load: Load, parts: Sequence[WrittenPart]) -> Receipt:
        self.check_chain(load)
        receipt = self._ledger.decide(receipt_of(load, parts))
        if receipt.withdrawn:
            raise LoadError(f"another run withdrew load {load.number} of {self.location}")
        for part in receipt.parts:
            staged = self._staged(load, part.attempt)
            for name, file in [*part.files.items(), *part.rejected.items()]:
                self._move(staged(name), name, file)
        receipt = replace(receipt, commit=self.commit(load, receipt))
        self._ledger.put_receipt(receipt)
        self._ledger.clear_staging(load)
        return receipt

    def withdraw(self, load: Load) -> None:
        decision = self._ledger.decide(Receipt(load.topic, load.number, load.sha256, (), withdrawn=True))
        if decision.withdrawn:
            self._ledger.note_newest(load.number)
            self._ledger.clear_staging(load)

    def contents(self, receipts: Sequence[Receipt]) -> Contents:
        problems = tuple(self.file_problems(receipts))
        return Contents(sum(map(self._rows_of, self._visible())), problems)

    def file_problems(self, receipts: Sequence[Receipt], kept: Container[str] | None = None) -> Iterator[str]:
        """Yield the files that are gone or were changed; `kept` are those that must be there, None for all."""
        for receipt in receipts:
            files = {name: file for name, file in receipt.files.items() if kept is None or name in kept}
            for name, file in sorted((files | receipt.rejected).items()):
                size = self._storage.size(name)
                if size is None:
                    yield f"{name} is gone"
                elif size != file.bytes or self._storage.sha256(name) != file.sha256:
                    yield f"{name} was changed after it was written"

    def rows(self) -> int | None:
        return None

    def _rows_of(self, name: str) -> int:
        """Return the rows of a file; 0 for one that is no Parquet, which `strays` or `file_problems` name."""
        try:
            with self._storage.open(name) as source:
                return int(pq.read_metadata(source).num_rows)
        except pa.ArrowInvalid:
            return 0

    def strays(self, named: Container[str]) -> Iterator[str]:
        return (name for name in self._visible() if name not in named)

    def check_chain(self, load: Load) -> None:
        """Raise OtherTarget if another run began a new chain: it takes the messages of this load too."""
        if self._ledger.chain_now() != load.chain:
            raise OtherTarget(f"another run began a new chain of loads in {self.location}; load {load.number} is void")

    def adapt(self, rows: Rows) -> Rows:
        """Return the rows with the types that the destination has."""
        return rows

    def commit(self, load: Load, receipt: Receipt) -> Commit | None:
        """Make the files of a load visible after they are in place. Plain files are visible already, without a commit.
        """
        return None

    def commit_before(self, newest: StoredLoad) -> Commit | None:
        """Return the last commit of a load that the record knows, None if no load has files."""
        before: StoredLoad | None = newest
        while before is not None:
            if before.state is LoadState.PUBLISHED and before.receipt is not None and before.receipt.files:
                return before.receipt.commit or Commit(before.load.number)
            if before.load.target is not None or not before.load.number:
                return None if before.load.target is None else before.load.target.commit
            before = self.find(before.load.number - 1)  # a load of an older version
        return None

    def _last_with_files(self, newest: StoredLoad) -> Receipt | None:
        """Return the receipt of the last published load that has files, if it is among the last LOOK_BACK_MAX."""
        for number in range(newest.load.number, max(-1, newest.load.number - LOOK_BACK_MAX), -1):
            receipt = self._ledger.receipt(number)
            if receipt is not None and receipt.files:
                return receipt
        return None

    def _files(self) -> Iterator[str]:
        """Yield the names of data files that are no earlier chain's."""
        return data_files(self._storage, self._topic, self._ledger.chain)

    def _visible(self) -> Iterator[str]:
        """Yield the files of Parquet that readers see, without those of other topics and of places below this one."""
        names = self._storage.names()
        others = {name.split("/")[1] for name in names if name.startswith(f"{FOLDER}/")} - {self._topic}
        below = {home for name in names if (home := name.partition(f"/{FOLDER}/")[0]) != name}
        for name in names:
            folders, _, last = name.rpartition("/")
            hidden = any(part.startswith(("_", ".")) for part in name.split("/"))
            if hidden or not name.endswith(".parquet") or any(folders.startswith(home) for home in below):
                continue
            if not any(is_file_of(topic, last) for topic in others):
                yield name

    def _staged(self, load: Load, attempt: str) -> Callable[[str], str]:
        home = self._ledger.staging(load)
        return lambda name: f"{home}{attempt}/{name}{_STAGED}"

    def _move(self, staged: str, name: str, file: DataFile) -> None:
        """Move a file into place, unless it is there."""
        if self._is_there(name, file):
            return
        try:
            self._storage.move(staged, name)
        except FileNotFoundError:
            if not self._is_there(name, file):
                raise LoadError(f"{self._storage} has lost {staged}, which a decided load wrote") from None

    def _is_there(self, name: str, file: DataFile) -> bool:
        size = self._storage.size(name)
        if size not in (None, file.bytes):
            raise LoadError(f"{name} in {self._storage} is not the file that the load wrote: {size} bytes")
        return size is not None
