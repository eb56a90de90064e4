"""The place that a replay or a load writes to: a local directory, and a store of objects (here in memory)."""

import errno
import pickle
from pathlib import Path

import pytest
from pyarrow import fs

from spark_bridge.output.storage import CannotWrite, LocalStorage, ObjectStorage, Storage, StorageError


class ObjectsInMemory:
    """pyarrow's file system in memory, and a conditional write beside it."""

    def __init__(self):
        self.system = fs._MockFileSystem()
        self.system.create_dir("bucket/flights")

    def put(self, path, data):
        if self.system.get_file_info(path).type != fs.FileType.NotFound:
            raise FileExistsError(path)
        self.system.create_dir(path.rpartition("/")[0])
        with self.system.open_output_stream(path) as stream:
            stream.write(data)

    def storage(self):
        return ObjectStorage("s3://bucket/flights", self.system, "bucket/flights", self.put)


@pytest.fixture(params=["local", "objects"])
def storage(request, tmp_path):
    return Storage.at(tmp_path / "flights") if request.param == "local" else ObjectsInMemory().storage()


def put(storage, name, data):
    with storage.write(name) as file:
        file.write(data)


def test_a_file_is_read_as_it_was_written_and_replaces_an_older_one(storage):
    put(storage, "a.parquet", b"old")
    put(storage, "a.parquet", b"new")
    assert (storage.read("a.parquet"), storage.size("a.parquet"), storage.exists("b")) == (b"new", 3, False)


def test_a_file_whose_writer_fails_is_not_there(storage):
    with pytest.raises(RuntimeError), storage.write("a.parquet") as file:
        file.write(b"half")
        raise RuntimeError
    assert storage.names() == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no file can be made in /proc of Linux")
def test_a_directory_in_which_no_file_can_be_made_is_named():
    with pytest.raises(CannotWrite, match=r"cannot write /proc/a\.json: no file can be made in /proc"):
        LocalStorage(Path("/proc")).create("a.json", b"")


def test_a_file_is_no_place_for_files(tmp_path):
    (tmp_path / "in.txt").touch()
    with pytest.raises(StorageError, match=r"in\.txt is a file; name a directory"):
        Storage.at(tmp_path / "in.txt").check_directory()
    Storage.at(tmp_path).check_directory()
    Storage.at(tmp_path / "new").check_directory()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.EMFILE])
def test_a_disk_that_refuses_is_named_with_the_file(storage, number):
    with pytest.raises(CannotWrite, match=r"flights/day=1/a\.parquet.*: [A-Z]"), storage.write("day=1/a.parquet"):
        raise OSError(number, "the system names no file")
    assert storage.names() == []


def test_other_errors_of_a_writer_stay_as_they_are(storage):
    with pytest.raises(ConnectionResetError), storage.write("a.parquet"):
        raise ConnectionResetError(errno.ECONNRESET, "a broker, not the disk")


def test_a_path_through_a_file_is_named(tmp_path):
    (tmp_path / "flights").write_text("mine")
    with pytest.raises(CannotWrite, match=r"flights/below/a: Not a directory"):
        LocalStorage(tmp_path / "flights" / "below").create("a", b"")


def test_an_exclusive_create_succeeds_once(storage):
    storage.create("_receipt.json", b"first")
    with pytest.raises(FileExistsError):
        storage.create("_receipt.json", b"second")
    assert storage.read("_receipt.json") == b"first"


def test_names_are_listed_by_prefix_whatever_the_depth(storage):
    for name in ("_loads/1.json", "_loads/2.json", "_load", "data/x/y.parquet"):
        storage.create(name, b"{}")
    assert storage.names() == ["_load", "_loads/1.json", "_loads/2.json", "data/x/y.parquet"]
    assert storage.names("_loads/") == ["_loads/1.json", "_loads/2.json"]
    assert storage.names("_load") == ["_load", "_loads/1.json", "_loads/2.json"]
    assert storage.names("none/") == []
    assert storage.under("data").names() == ["x/y.parquet"]


def test_a_deleted_file_is_gone_and_may_be_deleted_again(storage):
    storage.create("a", b"")
    storage.delete("a")
    storage.delete("a")
    assert storage.names() == []
    with pytest.raises(FileNotFoundError):
        storage.read("a")


def test_a_file_moves_in_place_of_another(storage):
    storage.create("_staging/a", b"new")
    put(storage, "a", b"old")
    storage.move("_staging/a", "a")
    assert (storage.names(), storage.read("a")) == (["a"], b"new")
    with pytest.raises(FileNotFoundError):
        storage.move("_staging/a", "a")


def test_all_files_of_a_directory_are_removed_with_those_half_written(storage):
    for name in ("1/a", "1/b/c", "10/a"):
        storage.create(name, b"")
    if isinstance(storage, LocalStorage):
        (storage.root / "1" / ".a.partial").touch()
    for _ in range(2):
        storage.delete_under("1")
    assert storage.names() == ["10/a"]
    assert not isinstance(storage, LocalStorage) or not (storage.root / "1").exists()


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../b", "a//b", ".."])
def test_a_name_stays_in_its_place(storage, name):
    with pytest.raises(ValueError, match="is no name in a place"):
        storage.create(name, b"")


def test_a_file_that_is_being_written_is_not_listed(tmp_path):
    storage = Storage.at(tmp_path)
    with storage.write("a") as file:
        file.write(b"x")
        assert storage.names() == []
    assert storage.names() == ["a"]


def test_a_local_place_renames_a_directory_once(tmp_path):
    storage = Storage.at(tmp_path)
    for name in ("one/a", "two/a"):
        storage.create(name, b"")
    storage.rename("one", "out")
    with pytest.raises(FileExistsError):
        storage.rename("two", "out")
    assert storage.can_rename and storage.names() == ["out/a", "two/a"]


def test_a_store_has_no_rename_and_says_so():
    storage = ObjectsInMemory().storage()
    assert not storage.can_rename
    with pytest.raises(StorageError, match="has no rename"):
        storage.rename("a", "b")


def test_without_a_conditional_write_a_store_creates_nothing():
    storage = ObjectStorage("s3://bucket", fs._MockFileSystem(), "bucket", None)
    assert not storage.can_create_exclusively
    with pytest.raises(StorageError, match=r"pip install 'flakelog\[object-store\]'"):
        storage.create("a", b"")


def test_a_store_where_the_created_object_is_not_seen_is_refused():
    """obstore and pyarrow read the environment each by its own rules, so they could address two stores."""
    storage = ObjectStorage("s3://bucket", fs._MockFileSystem(), "bucket", lambda path, data: None)
    with pytest.raises(StorageError, match="see different stores"):
        storage.create("a", b"1")


@pytest.mark.parametrize("text", ["flights", "/tmp/flights", "file:///tmp/flights"])
def test_a_path_or_a_file_uri_is_a_local_directory(text):
    storage = Storage.at(text)
    assert isinstance(storage, LocalStorage) and storage.root == Path(text.removeprefix("file://"))
    assert pickle.loads(pickle.dumps(storage)).uri == storage.uri


def test_a_uri_of_no_file_system_is_refused_by_name():
    with pytest.raises(StorageError, match="gopher://there is no place to write to"):
        Storage.at("gopher://there")


def test_a_name_and_a_password_in_a_uri_are_not_shown():
    storage = ObjectStorage("s3://key:secret@bucket/flights?region=x", fs._MockFileSystem(), "bucket/flights", None)
    assert str(storage.under("a")) == "s3://bucket/flights/a?region=x"
