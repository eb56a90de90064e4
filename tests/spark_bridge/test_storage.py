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

    def place(self):
        return ObjectStorage("s3://bucket/flights", self.system, "bucket/flights", self.put)


@pytest.fixture(params=["local", "objects"])
def place(request, tmp_path):
    return Storage.at(tmp_path / "flights") if request.param == "local" else ObjectsInMemory().place()


def put(place, name, data):
    with place.write(name) as file:
        file.write(data)


def test_a_file_is_read_as_it_was_written_and_replaces_an_older_one(place):
    put(place, "a.parquet", b"old")
    put(place, "a.parquet", b"new")
    assert (place.read("a.parquet"), place.size("a.parquet"), place.exists("b")) == (b"new", 3, False)


def test_a_file_whose_writer_fails_is_not_there(place):
    with pytest.raises(RuntimeError), place.write("a.parquet") as file:
        file.write(b"half")
        raise RuntimeError
    assert place.names() == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EFBIG, errno.EMFILE])
def test_a_disk_that_refuses_is_named_with_the_file(place, number):
    with pytest.raises(CannotWrite, match=r"flights/day=1/a\.parquet.*: [A-Z]"), place.write("day=1/a.parquet"):
        raise OSError(number, "the system names no file")
    assert place.names() == []


def test_other_errors_of_a_writer_stay_as_they_are(place):
    with pytest.raises(ConnectionResetError), place.write("a.parquet"):
        raise ConnectionResetError(errno.ECONNRESET, "a broker, not the disk")


def test_a_path_through_a_file_is_named(tmp_path):
    (tmp_path / "flights").write_text("mine")
    with pytest.raises(CannotWrite, match=r"flights/below/a: Not a directory"):
        LocalStorage(tmp_path / "flights" / "below").create("a", b"")


def test_an_exclusive_create_succeeds_once(place):
    place.create("_receipt.json", b"first")
    with pytest.raises(FileExistsError):
        place.create("_receipt.json", b"second")
    assert place.read("_receipt.json") == b"first"


def test_names_are_listed_by_prefix_whatever_the_depth(place):
    for name in ("_loads/1.json", "_loads/2.json", "_load", "data/x/y.parquet"):
        place.create(name, b"{}")
    assert place.names() == ["_load", "_loads/1.json", "_loads/2.json", "data/x/y.parquet"]
    assert place.names("_loads/") == ["_loads/1.json", "_loads/2.json"]
    assert place.names("_load") == ["_load", "_loads/1.json", "_loads/2.json"]
    assert place.names("none/") == []
    assert place.under("data").names() == ["x/y.parquet"]


def test_a_deleted_file_is_gone_and_may_be_deleted_again(place):
    place.create("a", b"")
    place.delete("a")
    place.delete("a")
    assert place.names() == []
    with pytest.raises(FileNotFoundError):
        place.read("a")


def test_a_file_moves_in_place_of_another(place):
    place.create("_staging/a", b"new")
    put(place, "a", b"old")
    place.move("_staging/a", "a")
    assert (place.names(), place.read("a")) == (["a"], b"new")
    with pytest.raises(FileNotFoundError):
        place.move("_staging/a", "a")


def test_all_files_of_a_directory_are_removed_with_those_half_written(place):
    for name in ("1/a", "1/b/c", "10/a"):
        place.create(name, b"")
    if isinstance(place, LocalStorage):
        (place.root / "1" / ".a.partial").touch()
    for _ in range(2):
        place.delete_under("1")
    assert place.names() == ["10/a"]
    assert not isinstance(place, LocalStorage) or not (place.root / "1").exists()


@pytest.mark.parametrize("name", ["", "/etc/passwd", "a/../b", "a//b", ".."])
def test_a_name_stays_in_its_place(place, name):
    with pytest.raises(ValueError, match="is no name in a place"):
        place.create(name, b"")


def test_a_file_that_is_being_written_is_not_listed(tmp_path):
    place = Storage.at(tmp_path)
    with place.write("a") as file:
        file.write(b"x")
        assert place.names() == []
    assert place.names() == ["a"]


def test_a_local_place_renames_a_directory_once(tmp_path):
    place = Storage.at(tmp_path)
    for name in ("one/a", "two/a"):
        place.create(name, b"")
    place.rename("one", "out")
    with pytest.raises(FileExistsError):
        place.rename("two", "out")
    assert place.can_rename and place.names() == ["out/a", "two/a"]


def test_a_store_has_no_rename_and_says_so():
    place = ObjectsInMemory().place()
    assert not place.can_rename
    with pytest.raises(StorageError, match="has no rename"):
        place.rename("a", "b")


def test_without_a_conditional_write_a_store_creates_nothing():
    place = ObjectStorage("s3://bucket", fs._MockFileSystem(), "bucket", None)
    assert not place.can_create_exclusively
    with pytest.raises(StorageError, match=r"pip install 'flakelog\[object-store\]'"):
        place.create("a", b"")


def test_a_store_where_the_created_object_is_not_seen_is_refused():
    """obstore and pyarrow read the environment each by its own rules, so they could address two stores."""
    place = ObjectStorage("s3://bucket", fs._MockFileSystem(), "bucket", lambda path, data: None)
    with pytest.raises(StorageError, match="see different stores"):
        place.create("a", b"1")


@pytest.mark.parametrize("text", ["flights", "/tmp/flights", "file:///tmp/flights"])
def test_a_path_or_a_file_uri_is_a_local_directory(text):
    place = Storage.at(text)
    assert isinstance(place, LocalStorage) and place.root == Path(text.removeprefix("file://"))
    assert pickle.loads(pickle.dumps(place)).uri == place.uri


def test_a_uri_of_no_file_system_is_refused_by_name():
    with pytest.raises(StorageError, match="gopher://there is no place to write to"):
        Storage.at("gopher://there")


def test_a_name_and_a_password_in_a_uri_are_not_shown():
    place = ObjectStorage("s3://key:secret@bucket/flights?region=x", fs._MockFileSystem(), "bucket/flights", None)
    assert str(place.under("a")) == "s3://bucket/flights/a?region=x"
