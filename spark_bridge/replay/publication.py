"""SHELL (files, locks): how the files of a replay become the result: all of them in one step, or none.

    with run_of(storage, manifest, Writer.usual()) as run:
        ...                                   tasks write the file of each range into run.storage
        run.publish(receipt)

A local directory is complete or absent. Each run writes into a staging directory beside it. After all files are
written, the proof holds and each file has the bytes that the receipt names, one rename makes it the result.

A store of objects has no rename. The files get their names at once, and the receipt publishes them: it is written last,
by an exclusive create, so without a receipt there is no result. Several runs may write at once, because a file's bytes
depend only on the manifest and on the writer (the versions of Flakelog and pyarrow). The first run notes both there,
and a run with others is refused.

If the result is there already, from the same manifest, the run is compared with it and discarded.
"""

import fcntl
import glob
import json
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from broker.version import VERSION
from spark_bridge.output.replay_topic import ReplayTopic
from spark_bridge.output.storage import LocalStorage, Storage, StorageError
from spark_bridge.replay import receipt as receipts
from spark_bridge.replay.receipt import Receipt, ReplayError
from spark_bridge.selection import manifest as manifests
from spark_bridge.selection.manifest import Manifest
from spark_bridge.selection.record_file import read_record

MANIFEST_FILE = "_manifest.json"  # Spark skips names with _ when it reads the directory
RECEIPT_FILE = "_receipt.json"
WRITER_FILE = "_writer.json"
_STAGING_ENDING = ".staging"
MOVE_AWAY = "Put it back from a copy, or move it away if no replay is to be repeated by it"
_AGAIN = "Put it back from a copy, or write the replay again into another place"


class Differs(ReplayError):
    """The replay is not equal to an earlier replay of its manifest."""


class Damaged(ReplayError):
    """A published file is gone, its bytes differ from the receipt, or the receipt does not have it."""


class LocationRefused(ReplayError):
    """The place is not one for this replay; nothing was written."""


class Writer(NamedTuple):
    """The versions on which the bytes of files depend, beside the manifest."""

    flakelog: str
    pyarrow: str
    transformation: str | None = None

    @classmethod
    def usual(cls) -> "Writer":
        return cls(VERSION, pa.__version__)

    @classmethod
    def transforming(cls) -> "Writer":
        """Return a writer that equals no other, because a transformation may be any program."""
        return cls(VERSION, pa.__version__, uuid.uuid4().hex)

    def to_json(self) -> str:
        return json.dumps(self._asdict(), indent=1, sort_keys=True) + "\n"


class Run(ABC):
    """A run that writes files into `storage`."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @abstractmethod
    def publish(self, receipt: Receipt) -> None:
        """Make the files the result. Raise Differs if there is an unequal result already, Damaged for a lost file."""


@contextmanager
def run_of(out: Storage, manifest: Manifest, writer: Writer, *, single_writer: bool = False) -> Iterator[Run]:
    """Yield a run that writes to `out`. Raise LocationRefused if `out` is not a replay of this manifest.

    `single_writer` is the caller's word that no other run writes there; it is needed for a store without an exclusive
    create.
    """
    check_out(out, manifest, single_writer=single_writer)
    if isinstance(out, LocalStorage):
        with _staging(out.root) as staging:
            storage = LocalStorage(staging)
            storage.create(MANIFEST_FILE, manifest.to_json().encode())
            yield _LocalRun(storage, out)
        return
    if _published(out) is None:
        _note(out, MANIFEST_FILE, manifest.to_json(), single_writer)
        _note(out, WRITER_FILE, writer.to_json(), single_writer)
        yield _ObjectRun(out, out, single_writer)
        return
    again = out.under(f".{uuid.uuid4().hex}{_STAGING_ENDING}")
    try:
        yield _ObjectRun(again, out, single_writer)
    finally:
        for name in again.names():
            again.delete(name)


def check_place(out: Storage, *, single_writer: bool = False) -> None:
    """Raise LocationRefused if `out` cannot hold a replay, or holds something else; StorageError if it is a file.

    Nothing is written.
    """
    out.check_directory()
    if isinstance(out, LocalStorage):
        parent = out.root.absolute().parent
        while not parent.exists():
            parent = parent.parent
        if not parent.is_dir() or not os.access(parent, os.W_OK):
            raise LocationRefused(f"{out} cannot be made: {parent} is no directory that this user may write to")
    elif not out.can_create_exclusively and not single_writer:
        raise LocationRefused(
            f"{out} has no exclusive create here, so two runs could replace each other's files: "
            "pip install 'flakelog[object-store]', or say --single-writer if no other run writes there"
        )
    if not out.exists(MANIFEST_FILE) and (isinstance(out, LocalStorage) and out.root.exists() or out.names()):
        raise LocationRefused(f"{out} is there and is no replay; name another directory")


def check_out(out: Storage, manifest: Manifest, *, single_writer: bool = False) -> None:
    """Raise LocationRefused as `check_place`, and if `out` is the replay of another manifest."""
    check_place(out, single_writer=single_writer)
    stored = stored_manifest(out)
    if stored is not None and stored != manifest:
        raise LocationRefused(
            f"{out} is the replay of another manifest ({stored.sha256}): {manifests.differences(stored, manifest)}. "
            f"Name another directory, or repeat that replay with --manifest {out.name_of(MANIFEST_FILE)}"
        )


def stored_manifest(out: Storage) -> Manifest | None:
    """Return the manifest in a place, or None. Raise DamagedRecord."""
    if not out.exists(MANIFEST_FILE):
        return None
    beside = f"; a directory has the same text beside it, in {out}.manifest.json"
    return read_record(out, MANIFEST_FILE, manifests.load, _AGAIN + (beside if isinstance(out, LocalStorage) else ""))


def announce(topic: ReplayTopic, out: Storage, manifest: Manifest, receipt: Receipt | None = None) -> None:
    """Publish a replay in the topic of replays: before its tasks without a receipt, and at its end with it.

    Without a receipt, publish nothing of a replay that is done, because a second run does not undo it.
    """
    if receipt is None and _published(out) is not None:
        return
    announcement = None if receipt is None else receipt.to_json()
    topic.publish(f"{out}/{manifest.sha256}", "replay", str(out), manifest.to_json(), announcement)


def save_manifest(manifest: Manifest, path: Path) -> None:
    """Write the manifest once, or accept an identical one.

    Raise FileExistsError if another manifest exists, DamagedRecord if the file there is none.
    """
    data = manifest.to_json().encode()
    storage = LocalStorage(path.parent)
    try:
        storage.create(path.name, data)
    except FileExistsError:
        if storage.read(path.name) != data:
            different = manifests.differences(read_record(storage, path.name, manifests.load, MOVE_AWAY), manifest)
            raise FileExistsError(
                f"{path} holds another manifest, and a manifest is never changed: {different or 'its text differs'}. "
                f"Finish or repeat that replay with --manifest {path}, or name another directory with --out"
            ) from None


def verify(out: Storage) -> Receipt:
    """Verify a published replay: its files against its receipt, and that readers of the place see no others.

    Return the receipt. Raise Damaged, DamagedRecord or ReplayError.
    """
    receipt = _published(out)
    if receipt is None:
        raise ReplayError(f"{out} has no {RECEIPT_FILE}: it is no replay, or one that did not end")
    _verify_files(out, receipt)
    for name in out.names():
        if name not in receipt.files and not _is_hidden(name):
            raise Damaged(
                f"{out.name_of(name)} is a file that the replay did not write, and readers of {out} read it too; "
                "move it to another place"
            )
    manifest = stored_manifest(out)
    if manifest is None or manifest.sha256 != receipt.manifest_sha256:
        raise Damaged(f"{out.name_of(MANIFEST_FILE)} is not the manifest of the receipt beside it")
    return receipt


def _verify_files(storage: Storage, receipt: Receipt) -> None:
    for name, file in receipt.files.items():
        if not storage.exists(name):
            raise Damaged(f"{storage.name_of(name)} is gone")
        if storage.sha256(name) != file.sha256:
            raise Damaged(f"{storage.name_of(name)} was changed after it was written")


def _is_hidden(name: str) -> bool:
    """Return True for a name that Spark and pyarrow skip when they read a directory."""
    return any(part.startswith(("_", ".")) for part in name.split("/"))


def _published(out: Storage) -> Receipt | None:
    return read_record(out, RECEIPT_FILE, receipts.load, _AGAIN) if out.exists(RECEIPT_FILE) else None


def _compare(out: Storage, receipt: Receipt) -> None:
    different = receipts.differences(verify(out), receipt)
    if different:
        raise Differs(f"this replay differs from the one in {out}: {'; '.join(different)}")


# --- a local directory -----------------------------------------------------------------------------------------------


class _LocalRun(Run):
    def __init__(self, storage: LocalStorage, out: LocalStorage) -> None:
        super().__init__(storage)
        self._staging = storage.root
        self._out = out

    def publish(self, receipt: Receipt) -> None:
        for leftover in self._staging.glob(".*"):  # of failed task attempts, and the reports of skipped batches
            leftover.unlink()
        self.storage.create(RECEIPT_FILE, receipt.to_json().encode())
        _verify_files(self.storage, receipt)
        try:
            LocalStorage(self._out.root.absolute().parent).rename(self._staging.name, self._out.root.name)
        except FileExistsError:
            _compare(self._out, receipt)


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Make a directory for this run's files beside `out`, and remove it at the end.

    A run holds a lock on its directory. Directories without a lock are of drivers that were killed, and are removed.
    """
    parent = out.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    for path in parent.glob(f".{glob.escape(out.name)}.*{_STAGING_ENDING}"):
        with suppress(OSError), _locked(path):
            shutil.rmtree(path, ignore_errors=True)
    staging = parent / f".{out.name}.{uuid.uuid4().hex}{_STAGING_ENDING}"
    new = staging.with_suffix(".new")  # another run could take a directory without a lock for that of a killed driver
    new.mkdir()
    try:
        with _locked(new):
            new.rename(staging)
            yield staging
    finally:
        shutil.rmtree(new, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Hold a lock on a directory. Raise BlockingIOError if another process holds it."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


# --- a store of objects ----------------------------------------------------------------------------------------------


class _ObjectRun(Run):
    def __init__(self, storage: Storage, out: Storage, single_writer: bool) -> None:
        super().__init__(storage)
        self._out = out
        self._single_writer = single_writer

    def publish(self, receipt: Receipt) -> None:
        _verify_files(self.storage, receipt)
        if _published(self._out) is None:
            with suppress(FileExistsError):
                _create(self._out, RECEIPT_FILE, receipt.to_json(), self._single_writer)
                return
        _compare(self._out, receipt)


def _note(out: Storage, name: str, text: str, single_writer: bool) -> None:
    """Write a file of this run, or check that an earlier run wrote the same."""
    if not out.exists(name):
        with suppress(FileExistsError):
            _create(out, name, text, single_writer)
            return
    if out.read(name) != text.encode():
        raise LocationRefused(
            f"{out} was begun by a run with another {name}, {' '.join(out.read(name).decode().split())}, and its files "
            "could differ from this run's: finish it in the same way, or name another directory"
        )


def _create(out: Storage, name: str, text: str, single_writer: bool) -> None:
    if out.can_create_exclusively:
        out.create(name, text.encode())
    elif single_writer:
        with out.write(name) as file:
            file.write(text.encode())
    else:
        raise StorageError(f"{out} has no exclusive create")
