"""SHELL (files, object stores): the place that a replay or a load writes to.

    storage = Storage.at("s3://bucket/flights")         or a path, file:///..., gs://..., abfs://...
    with storage.write("a.parquet") as file: ...        the object appears whole at the end of the block, or not at all
    storage.create("_receipt.json", data)               exclusive: FileExistsError if it is there already

A place is named by a path or by a URI of pyarrow.fs. Names in it are relative, with `/` between their parts. A local
place has a rename and creates exclusively by a hard link. An object store has no rename, and pyarrow's streams replace
an object that is there. So `create` uses a conditional write of the store (If-None-Match on S3), by the package
obstore; without that package a place creates exclusively nowhere, and `can_create_exclusively` is False.
"""

import errno
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from pyarrow import fs

from coordination.errors import FlakelogError

_PARTIAL_ENDING = ".partial"  # of a local file that is being written; its name begins with a dot
_CREATED_BYTES_MAX = 64 << 20
"""Most bytes of an object that `create` makes: it goes out in one request. Manifests and receipts are a few MB."""

_READ_BYTES = 8 << 20
_WRITE_ERRORS = {
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR,
    errno.EMFILE, errno.ENFILE,
}  # fmt: skip
"""The causes of a failed write that lie in the disk, the directory or its limits, and not in the rows."""
_USER = re.compile(r"://[^/?@]*@")

ExclusivePut = Callable[[str, bytes], None]
"""Create an object at a path of the store, or raise FileExistsError."""


class StorageError(FlakelogError):
    """A URI that names no place, or a place without a needed operation; the message says what to do."""


class CannotWrite(StorageError, OSError):
    """A file could not be written: its disk is full, read-only or broken. The message names the file and the cause."""


def without_user(uri: str) -> str:
    """Return a URI for people, without a name and password in it."""
    return _USER.sub("://", uri)


def store_config(uri: str) -> tuple[str, dict[str, str]]:
    """Return a URI without the settings in it, and these by the names of the library object_store (obstore, delta-rs).

    Credentials and region come from the environment (AWS_..., GOOGLE_..., AZURE_...), as for pyarrow. A URI of S3 may
    name `region`, `scheme` and `endpoint_override`, as pyarrow reads them.
    """
    parts = urlsplit(uri)
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    scheme = query.get("scheme", "https")
    config = {}
    if "endpoint_override" in query:
        config["endpoint"] = f"{scheme}://{query['endpoint_override']}"
    if scheme == "http":
        config["allow_http"] = "true"
    if "region" in query:
        config["region"] = query["region"]
    if parts.username:
        config |= {"access_key_id": unquote(parts.username), "secret_access_key": unquote(parts.password or "")}
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}", config


def read_file(location: str) -> bytes:
    """Return the bytes of a file that a path or a URI names. Raise StorageError, or OSError if it cannot be read."""
    if "://" not in location:
        return Path(location).read_bytes()
    try:
        system, path = fs.FileSystem.from_uri(location)
    except (ValueError, ImportError) as error:
        raise StorageError(f"{without_user(location)} names no file: {error}") from None
    with system.open_input_file(path) as file:
        return bytes(file.read())


class Storage(ABC):
    """A place for files: `uri` names it in messages, and `Storage.at(uri)` finds it again in another process."""

    can_rename = False
    """True if `rename` is there: then a directory of finished files is published by one rename."""
    can_create_exclusively = False

    def __init__(self, uri: str) -> None:
        self.uri = uri

    @staticmethod
    def at(location: "str | os.PathLike[str]") -> "Storage":
        """Return the place that a path or a URI names; it need not exist. Raise StorageError if it names none."""
        text = os.fspath(location)
        scheme, separator, _ = text.partition("://")
        if not separator:
            return LocalStorage(Path(text))
        if scheme == "file":
            return LocalStorage(Path(urlsplit(text).path))
        try:
            system, root = fs.FileSystem.from_uri(text)
        except (ValueError, OSError, ImportError) as error:
            raise StorageError(f"{without_user(text)} is no place to write to: {error}") from None
        return ObjectStorage(text, system, root, _exclusive_put(text))

    def __str__(self) -> str:
        """Return the URI for people, without a name and password in it."""
        return without_user(self.uri)

    def name_of(self, name: str) -> str:
        """Return the path or URI of an object, for people."""
        return str(self.under(name))

    def check_directory(self) -> None:
        """Raise StorageError if a file is where the directory of this place would be. A store has no directories."""

    @abstractmethod
    def under(self, name: str) -> "Storage":
        """Return the place below this one."""

    @abstractmethod
    def create(self, name: str, data: bytes) -> None:
        """Write a new object, whole or not at all. Raise FileExistsError if the name is taken.

        If the answer to a first attempt was lost, this call itself may have taken the name, so callers compare the
        contents. Raise StorageError unless `can_create_exclusively`.
        """

    @abstractmethod
    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """Yield a file to write to. It gets its name after the block, in place of an older object of that name.

        An exception in the block leaves no object.
        """
        yield  # type: ignore[misc]

    @abstractmethod
    def open(self, name: str) -> Any:
        """Return a file to read, as pyarrow has them. Raise FileNotFoundError."""

    def read(self, name: str) -> bytes:
        """Return an object's bytes. Raise FileNotFoundError."""
        with self.open(name) as file:
            return bytes(file.read())

    def sha256(self, name: str) -> str:
        """Return the hash of an object's bytes, in hexadecimal. Raise FileNotFoundError."""
        digest = hashlib.sha256()
        with self.open(name) as file:
            while part := file.read(_READ_BYTES):
                digest.update(part)
        return digest.hexdigest()

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return an object's size in bytes; None if there is no such object."""

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    @abstractmethod
    def names(self, prefix: str = "") -> list[str]:
        """Return the names of all objects that begin with `prefix`, sorted. Files being written are not among them."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove an object; do nothing if it is not there."""

    def rename(self, name: str, to: str) -> None:
        """Rename an object or a directory in one step. Raise FileExistsError if `to` is taken.

        Raise StorageError unless `can_rename`.
        """
        raise StorageError(f"{self} has no rename")

    @abstractmethod
    def move(self, name: str, to: str) -> None:
        """Give an object another name, in place of an older object of that name. Raise FileNotFoundError.

        A store without a rename copies the object inside the store, and a kill may leave both.
        """

    def delete_under(self, name: str) -> None:
        """Remove all objects below `name`, and files that killed processes left there half written."""
        for file in self.names(f"{name}/"):
            self.delete(file)


class LocalStorage(Storage):
    """A directory; it is made when the first file is written."""

    can_rename = True
    can_create_exclusively = True

    def __init__(self, root: Path) -> None:
        super().__init__(str(root))
        self.root = root

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalStorage, (self.root,)

    def check_directory(self) -> None:
        if self.root.exists() and not self.root.is_dir():
            raise StorageError(f"{self} is a file; name a directory")

    def under(self, name: str) -> "LocalStorage":
        return LocalStorage(self.path(name))

    def path(self, name: str) -> Path:
        return self.root / _checked(name)

    def create(self, name: str, data: bytes) -> None:
        with self._finished(name) as file:
            file.write(data)
            self._sync(file)
            os.link(file.name, self.path(name))  # unlike open(path, "x"), never half a file after a power cut
        sync_directory(self.path(name).parent)

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        with self._finished(name) as file:
            yield file
            self._sync(file)
            os.replace(file.name, self.path(name))
        sync_directory(self.path(name).parent)

    @contextmanager
    def _finished(self, name: str) -> Iterator[BinaryIO]:
        """Yield a file beside `name`, and remove it at the end if it is still there."""
        path = self.path(name)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PARTIAL_ENDING}")
        with _naming(str(path)):
            _make_directory(path.parent)
            try:
                with _new_file(partial, path) as file:
                    yield file
            finally:
                partial.unlink(missing_ok=True)

    @staticmethod
    def _sync(file: BinaryIO) -> None:
        file.flush()
        os.fsync(file.fileno())

    def open(self, name: str) -> Any:
        return fs.LocalFileSystem().open_input_file(str(self.path(name)))

    def size(self, name: str) -> int | None:
        path = self.path(name)
        return path.stat().st_size if path.is_file() else None

    def names(self, prefix: str = "") -> list[str]:
        directory = self.root / prefix.rpartition("/")[0]
        files = (path for path in directory.rglob("*") if path.is_file() and not path.name.endswith(_PARTIAL_ENDING))
        names = (path.relative_to(self.root).as_posix() for path in files)
        return sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)

    def rename(self, name: str, to: str) -> None:
        try:
            os.rename(self.path(name), self.path(to))
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                raise
            raise FileExistsError(f"{self.path(to)} is there already") from None
        sync_directory(self.path(to).parent)

    def move(self, name: str, to: str) -> None:
        self.path(to).parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.path(name), self.path(to))
        sync_directory(self.path(to).parent)

    def delete_under(self, name: str) -> None:
        shutil.rmtree(self.path(name), ignore_errors=True)


class ObjectStorage(Storage):
    """A place in a store of objects, behind a file system of pyarrow."""

    def __init__(self, uri: str, system: fs.FileSystem, root: str, exclusive_put: ExclusivePut | None) -> None:
        super().__init__(uri)
        self._system = system
        self._root = root.rstrip("/")
        self._put = exclusive_put
        self.can_create_exclusively = exclusive_put is not None

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage.at, (self.uri,)

    def under(self, name: str) -> "ObjectStorage":
        parts = urlsplit(self.uri)
        uri = parts._replace(path=f"{parts.path.rstrip('/')}/{_checked(name)}").geturl()
        return ObjectStorage(uri, self._system, self._path(name), self._put)

    def _path(self, name: str) -> str:
        return f"{self._root}/{_checked(name)}"

    def create(self, name: str, data: bytes) -> None:
        if self._put is None:
            raise StorageError(
                f"{self} has no exclusive create here, so two writers could replace each other's files; "
                "pip install 'flakelog[object-store]'"
            )
        if len(data) > _CREATED_BYTES_MAX:
            raise StorageError(f"{name} of {self} has {len(data)} bytes; at most {_CREATED_BYTES_MAX} are created")
        self._put(self._path(name), data)
        if self.size(name) != len(data):  # the package reads the environment by its own rules
            raise StorageError(f"{name} was created, and is not in {self}: obstore and pyarrow see different stores")

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        # A stream of pyarrow that is closed after an error publishes what it has, so the file is finished here first.
        with _naming(f"{self.name_of(name)}, by a file in {tempfile.gettempdir()}"):
            descriptor, path = tempfile.mkstemp(prefix="flakelog-", suffix=_PARTIAL_ENDING)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    yield file
                fs.copy_files(path, self._path(name), fs.LocalFileSystem(), self._system, use_threads=False)
            finally:
                os.unlink(path)

    def open(self, name: str) -> Any:
        return self._system.open_input_file(self._path(name))

    def size(self, name: str) -> int | None:
        info = self._system.get_file_info(self._path(name))
        return int(info.size) if info.type == fs.FileType.File else None

    def names(self, prefix: str = "") -> list[str]:
        directory = f"{self._root}/{prefix}".rpartition("/")[0]
        selector = fs.FileSelector(directory, recursive=True, allow_not_found=True)
        files = (info for info in self._system.get_file_info(selector) if info.type == fs.FileType.File)
        names = (info.path.removeprefix(f"{self._root}/") for info in files)
        return sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.delete_file(self._path(name))

    def move(self, name: str, to: str) -> None:
        self._system.copy_file(self._path(name), self._path(to))
        self.delete(name)


@contextmanager
def _naming(file: str) -> Iterator[None]:
    """Turn an error of the disk into CannotWrite, because the system's text seldom names the file."""
    try:
        yield
    except OSError as error:
        if error.errno not in _WRITE_ERRORS:
            raise
        raise CannotWrite(f"cannot write {file}: {os.strerror(error.errno)}") from error


def _new_file(partial: Path, path: Path) -> BinaryIO:
    """Create the file that becomes `path`. Raise CannotWrite if its directory takes no files, as /proc."""
    try:
        return partial.open("xb")
    except FileNotFoundError as error:
        raise CannotWrite(f"cannot write {path}: no file can be made in {path.parent}") from error


def _make_directory(path: Path) -> None:
    """Make a directory if it is not there. A file in its way is no FileExistsError: that says a name is taken."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), error.filename) from None


def sync_directory(path: Path) -> None:
    """Make the names of a local directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exclusive_put(uri: str) -> ExclusivePut | None:
    """Return the conditional write of a URI's store; None without the package obstore."""
    try:
        import obstore
        from obstore.exceptions import AlreadyExistsError
        from obstore.store import from_url
    except ImportError:
        return None
    bare, configured = store_config(uri)
    allow_http = configured.pop("allow_http", None) is not None
    config: Any = configured
    parts = urlsplit(bare)
    store = from_url(f"{parts.scheme}://{parts.netloc}", config=config, client_options={"allow_http": allow_http})

    def put(path: str, data: bytes) -> None:
        try:
            obstore.put(store, path.partition("/")[2], data, mode="create")
        except AlreadyExistsError:
            raise FileExistsError(f"{path} is there already") from None

    return put


def _checked(name: str) -> str:
    """Return a name that stays in its place. Raise ValueError for others."""
    parts = name.split("/")
    if not all(parts) or {".", ".."} & set(parts):
        raise ValueError(f"{name!r} is no name in a place: parts with / between them, none of them . or ..")
    return name
