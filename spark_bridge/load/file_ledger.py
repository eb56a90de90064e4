"""A chain of loads as files of a storage: plans, written parts, decisions and receipts.

    _flakelog/flights/00000000000000000003.plan.json        the load, saved before anything of it is written
    _flakelog/flights/00000000000000000003.decision.json    its receipt: the load will be published
    _flakelog/flights/00000000000000000003.receipt.json     its receipt again: every file it names is in place
    _flakelog/flights/staging/00000000000000000003/         files of parts, and a record of each part that is written
    _flakelog/flights/newest.json                           the number of a load, the newest when it was published

Each file but the last is created exclusively and never changed. `newest.json` spares a run the list of all plans, which
grows with each load: the plans after that number have the next numbers. Spark and pyarrow skip names with an
underscore, and no file in `staging` ends in .parquet, so that readers by pattern skip them too.

A new chain of loads in the place (--start-over) has files like these in a directory of its own, beside those of the
chain before it. Its number is the highest of the files that begin a chain:

    _flakelog/flights/chain-1.json                          the chain is begun
    _flakelog/flights/chain-1/                              its plans, decisions and receipts

Sinks of table formats keep plans and records of parts here, and decide by a commit of the table.
"""

from collections.abc import Callable, Iterator

from spark_bridge.load import load as loads
from spark_bridge.load import receipt as receipts
from spark_bridge.load.load import Load, LoadError
from spark_bridge.load.receipt import Receipt, WrittenPart
from spark_bridge.load.sink import LoadTaken
from spark_bridge.output.file_name import chain_of, file_name
from spark_bridge.output.storage import Storage
from spark_bridge.reading.offset_range import OffsetRange
from spark_bridge.selection.record_file import Record, read_record

FOLDER = "_flakelog"
_PLAN, _DECISION, _RECEIPT = ".plan.json", ".decision.json", ".receipt.json"
_SENDING = "sending.json"  # in the staging directory
_NEWEST = "newest.json"
_WAY_OUT = "Put it back from a copy, because the loads after it build on it; or load into a new place"


class FileLedger:
    """The files of one topic's chain.

    If the storage cannot create exclusively, this ledger is for one driver at a time.
    """

    def __init__(self, storage: Storage, topic: str) -> None:
        self._storage = storage
        self._topic = topic
        self._base = self._home = f"{FOLDER}/{topic}/"
        self.chain = 0
        """The number of the chain. `newest` looks for it, so that every run begins with the last one."""

    def begin_chain(self, after: int) -> None:
        """Begin the chain after the one of this number, unless another driver did. Nothing of the old one is changed.
        """
        self._create(self._chain_name(after + 1), "{}\n")

    def chain_now(self) -> int:
        """Return the number of the chain that is the last now."""
        chain = self.chain
        while self._storage.exists(self._chain_name(chain + 1)):
            chain += 1
        return chain

    def newest(self) -> int | None:
        """Return the highest number of a plan in the last chain, None without a plan."""
        self.chain = self.chain_now()
        self._home = f"{self._base}chain-{self.chain}/" if self.chain else self._base
        number = self._noted()
        if number is None or not self._storage.exists(self._name(number, _PLAN)):
            names = (name.removeprefix(self._home) for name in self._storage.names(self._home))
            plans = (name.removesuffix(_PLAN) for name in names if name.endswith(_PLAN) and "/" not in name)
            return max(map(int, plans), default=None)
        while self._storage.exists(self._name(number + 1, _PLAN)):
            number += 1
        return number

    def save(self, load: Load) -> None:
        """Save a plan. Raise LoadTaken if there is one of its number."""
        if not self._create(self._name(load.number, _PLAN), load.to_json()):
            raise LoadTaken(f"load {load.number} of {self._topic!r} in {self._storage} is planned already")

    def plan(self, number: int) -> Load | None:
        load = self._record(self._name(number, _PLAN), loads.from_json)
        if load is None:
            return None
        if (load.topic, load.chain, load.number) != (self._topic, self.chain, number):
            raise LoadError(f"{self._name(number, _PLAN)} holds load {load.number} of {load.topic!r}")
        return load

    # --- parts ------------------------------------------------------------------------------------------------------

    def staging(self, load: Load) -> str:
        """Return the directory of a load's unpublished files, with a slash at its end."""
        return f"{self._home}staging/{load.number:020d}/"

    def record(self, load: Load, written: WrittenPart) -> WrittenPart:
        """Record that a part is written. Return the record there is: this one, or that of a driver that was first."""
        name = self._part_name(load, written.range)
        if self._create(name, written.to_json()):
            return written
        return self.recorded(load, written.range) or written

    def recorded(self, load: Load, part: OffsetRange) -> WrittenPart | None:
        return self._record(self._part_name(load, part), receipts.part_from_json)

    def note_sending(self, load: Load) -> None:
        """Note that messages of a load may be in its target from now on; a sink that sends messages asks for it."""
        self._create(self.staging(load) + _SENDING, "{}\n")

    def is_sending(self, load: Load) -> bool:
        return self._storage.exists(self.staging(load) + _SENDING)

    def clear_staging(self, load: Load) -> None:
        """Remove the unpublished files of this load, and of loads before it, to which a slow driver still wrote."""
        staging = f"{self._home}staging/"
        older = {name.removeprefix(staging).partition("/")[0] for name in self._storage.names(staging)}
        for number in sorted(
            {f"{load.number:020d}"} | {older_name for older_name in older if int(older_name) < load.number}
        ):
            self._storage.delete_under(staging + number)

    # --- decision and receipt ---------------------------------------------------------------------------------------

    def decide(self, receipt: Receipt) -> Receipt:
        """Decide that a load is published. Return the receipt of the first decision."""
        if self._create(self._name(receipt.number, _DECISION), receipt.to_json()):
            return receipt
        decided = self.decision(receipt.number)
        if decided is None:
            raise LoadError(f"{self._name(receipt.number, _DECISION)} was there and is gone")
        return decided

    def decision(self, number: int) -> Receipt | None:
        """Return the receipt of a load that is to be published, None before the decision."""
        return self._record(self._name(number, _DECISION), receipts.from_json)

    def put_receipt(self, receipt: Receipt) -> None:
        self._create(self._name(receipt.number, _RECEIPT), receipt.to_json())
        self.note_newest(receipt.number)

    def note_newest(self, number: int) -> None:
        """Note the number of a finished load, from which the next run looks for newer ones."""
        with self._storage.write(self._home + _NEWEST) as file:
            file.write(f"{number}\n".encode())

    def receipt(self, number: int) -> Receipt | None:
        return self._record(self._name(number, _RECEIPT), receipts.from_json)

    # --- files ------------------------------------------------------------------------------------------------------

    def _chain_name(self, chain: int) -> str:
        return f"{self._base}chain-{chain}.json"

    def _name(self, number: int, ending: str) -> str:
        return f"{self._home}{number:020d}{ending}"

    def _part_name(self, load: Load, part: OffsetRange) -> str:
        return f"{self.staging(load)}{file_name(part)}.json"

    def _create(self, name: str, text: str) -> bool:
        """Create a file. Return False if it is there already."""
        if not self._storage.can_create_exclusively:
            if self._storage.exists(name):
                return False
            with self._storage.write(name) as file:
                file.write(text.encode())
            return True
        try:
            self._storage.create(name, text.encode())
        except FileExistsError:
            return False
        return True

    def _noted(self) -> int | None:
        text = self._read(self._home + _NEWEST)
        return int(text) if text is not None and text.strip().isdigit() else None

    def _record(self, name: str, parse: Callable[[bytes], Record]) -> Record | None:
        """Return what a file records, None if there is no such file. Raise DamagedRecord."""
        try:
            return read_record(self._storage, name, parse, _WAY_OUT)
        except FileNotFoundError:
            return None

    def _read(self, name: str) -> bytes | None:
        try:
            return self._storage.read(name)
        except FileNotFoundError:
            return None


def data_files(storage: Storage, topic: str, chain: int = 0) -> Iterator[str]:
    """Yield the names of a topic's data files that readers see, of this chain of loads and those after it."""
    for name in storage.names():
        folder, _, last = name.rpartition("/")
        of_chain = chain_of(topic, last)
        if not folder.startswith("_") and of_chain is not None and of_chain >= chain:
            yield name
