"""coordination.directory: what a power cut, or the end of a process, leaves of an operation at each of its steps."""

import os
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordination import stored_nodes, transaction_numbers
from coordination.directory import DirectoryCoordinator
from coordination.port import (
    ANY_VERSION,
    PERSISTENT,
    Check,
    Children,
    CoordinationError,
    CoordinatorUnavailable,
    Create,
    Delete,
    Get,
    Multi,
    Node,
    NoNode,
    Set,
    child,
)

LARGE = bytes(range(250)) * 40


class PowerCut(BaseException):
    """The machine stops."""


class Disk:
    """What survives of a folder: the content of files and the entries of folders at their last sync.

    A descriptor of each synced inode stays open, so that its number is not given to another one.
    """

    def __init__(self, folder, monkeypatch):
        self._folder = folder
        self._fds = {}
        self._content = {}
        self._entries = {}
        self._syncs_left = None
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self.sync)

    def sync(self, fd):
        if self._syncs_left is not None:
            if self._syncs_left == 0:
                raise PowerCut
            self._syncs_left -= 1
        inode = os.fstat(fd).st_ino
        if inode not in self._fds:
            self._fds[inode] = os.dup(fd)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            self._entries[inode] = {entry.name: entry.inode() for entry in os.scandir(fd)}
        else:
            self._content[inode] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def sync_all(self):
        for folder, _, files in os.walk(self._folder, topdown=False):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                fd = os.open(path, os.O_RDONLY)
                self.sync(fd)
                os.close(fd)

    def cut_after(self, syncs):
        """Let the power fail at a later sync, before it has done anything; None for never."""
        self._syncs_left = syncs

    def write_survivors(self, target):
        """Write what survives to a new folder."""
        self._restore(os.stat(self._folder).st_ino, target)

    def _restore(self, inode, target):
        if inode in self._content:
            target.write_bytes(self._content[inode])
        elif inode in self._entries:
            target.mkdir()
            for name, below in self._entries[inode].items():
                self._restore(below, target / name)

    def close(self):
        for fd in self._fds.values():
            os.close(fd)


def tree(coordinator, path="/"):
    """Return all nodes: (path, data, version, whether it is ephemeral, czxid)."""
    nodes = set()
    for name in coordinator.execute(Children(path)):
        below = child(path, name)
        node = coordinator.execute(Get(below))
        nodes |= {(below, node.data, node.version, node.owner != PERSISTENT, node.czxid), *tree(coordinator, below)}
    return nodes


def persistent(nodes):
    return {node for node in nodes if not node[3]}


MULTI = Multi(
    (
        Set("/alone", b"new", ANY_VERSION),
        Create("/a"),
        Create("/a/b", LARGE),
        Set("/packed0", LARGE, ANY_VERSION),
        Delete("/packed1"),
        Delete("/deleted"),
        Create("/e", b"x", ephemeral=True),
        Delete("/again"),
        Create("/again", b"again"),
        Create("/packed2/n", sequential=True),
    )
)
AFTER = Multi((Create("/late"), Delete("/a/b"), Delete("/packed0"), Set("/again", b"later", ANY_VERSION)))


def prepare(session):
    for name in ("alone", "deleted", "again"):
        session.execute(Create(f"/{name}", b"old"))
    session.execute(Set("/deleted", b"older", 0))
    session.execute_all([Create(f"/packed{number}", b"old") for number in range(8)])
    session.execute(Set("/packed0", b"in a file of its own", 0))


@pytest.fixture
def cut(tmp_path, monkeypatch):
    """Return a function: prepare, carry out, cut the power after some syncs, and return (before, after, survived)."""
    disks = []

    def cut(operations, syncs, execute=DirectoryCoordinator.execute):
        folder = tmp_path / f"nodes{len(disks)}"
        session = DirectoryCoordinator(folder)
        prepare(session)
        disks.append(disk := Disk(folder, monkeypatch))
        for operation in operations[:-1]:
            session.execute(operation)
        disk.sync_all()
        before = tree(session)
        disk.cut_after(syncs)
        try:
            execute(session, operations[-1])
        except PowerCut:
            pass
        else:
            syncs = None
        disk.cut_after(None)
        after = tree(session)
        session.close()
        disk.write_survivors(tmp_path / f"left{len(disks)}")
        survivor = DirectoryCoordinator(tmp_path / f"left{len(disks)}")
        return before, after, survivor, syncs is None

    yield cut
    for disk in disks:
        disk.close()


CASES = {
    "multi": (MULTI,),
    "the next multi": (MULTI, AFTER),
    "set of a packed node": (MULTI, Set("/packed0", b"", ANY_VERSION)),
    "delete of a packed node": (MULTI, Delete("/packed0")),
    "ephemeral for a file": (Multi((Delete("/again"), Create("/again", ephemeral=True))),),
    "ephemeral for a packed node": (Multi((Delete("/packed3"), Create("/packed3", ephemeral=True))),),
    "ephemeral over a file that is gone": (
        Delete("/packed0"),
        Create("/packed0", ephemeral=True),
        Multi((Create("/x"), Create("/y"))),
    ),
    "file above a folder": (Create("/e/f/below"), Create("/e/f/e", ephemeral=True), Set("/e/f", b"x", 0)),
}


def as_a_group(session, operation):
    """Carry out an operation as brokers do, who take all that wait."""
    return session.execute_all([operation])


@pytest.mark.parametrize("execute", [DirectoryCoordinator.execute, as_a_group])
@pytest.mark.parametrize("operations", CASES.values(), ids=CASES)
def test_a_power_cut_leaves_an_operation_whole_or_absent(cut, operations, execute):
    outcomes = []
    for syncs in range(100):
        before, after, survivor, done = cut(operations, syncs, execute)
        nodes = tree(survivor)
        assert nodes in (persistent(before), persistent(after)), syncs
        outcomes.append(nodes != persistent(before))
        if done:
            break
        survivor.execute(Create("/later", ephemeral=True))
        assert survivor.execute(Get("/later")).czxid > max(node[4] for node in before), "no number comes twice"
        assert tree(survivor) - nodes == {node for node in tree(survivor) if node[0] == "/later"}
        survivor.close()
    assert done and outcomes[-1] and not outcomes[0]


PATHS = st.sampled_from(["/alone", "/packed0", "/packed3", "/deleted", "/again", "/x", "/x/y"])
DATA = st.sampled_from([b"", b"1", LARGE])
PARTS = st.one_of(
    st.builds(Create, PATHS, DATA, st.booleans()),
    st.builds(Set, PATHS, DATA, st.just(ANY_VERSION)),
    st.builds(Delete, PATHS),
)
OPERATIONS = st.one_of(PARTS, st.builds(Multi, st.lists(PARTS, min_size=1, max_size=3).map(tuple)))


@settings(max_examples=15)
@given(st.lists(OPERATIONS, min_size=1, max_size=12), st.integers(0, 40))
def test_whatever_was_acknowledged_before_a_power_cut_is_there_after_it(tmp_path_factory, operations, syncs):
    folder = tmp_path_factory.mktemp("cut") / "nodes"
    session = DirectoryCoordinator(folder)
    prepare(session)
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(folder, patch)
        disk.sync_all()
        disk.cut_after(syncs)
        before = after = tree(session)
        try:
            for operation in operations:
                before = after
                try:
                    session.execute(operation)
                except CoordinationError:
                    continue
                after = tree(session)
        except PowerCut:
            disk.cut_after(None)
            after = tree(session)
        disk.cut_after(None)
    session.close()
    disk.write_survivors(folder.parent / "left")
    survivor = DirectoryCoordinator(folder.parent / "left")
    survived = {node for node in tree(survivor) if not is_parent_of(node, operation)}
    states = [{node for node in persistent(state) if not is_parent_of(node, operation)} for state in (before, after)]
    assert survived in states
    survivor.close()
    disk.close()


def is_parent_of(node, operation):
    """A Create makes missing parents first, each by itself, so that a power cut may leave them without the node."""
    path, data = node[:2]
    return isinstance(operation, Create) and not data and operation.path.startswith(f"{path.rstrip('/')}/")


def test_a_missing_parent_may_be_all_that_a_power_cut_leaves_of_a_create(tmp_path_factory):
    for syncs in range(6):
        operations = [Create("/x/y")]
        test_whatever_was_acknowledged_before_a_power_cut_is_there_after_it.hypothesis.inner_test(
            tmp_path_factory, operations, syncs
        )


def test_a_number_that_only_another_disk_has_seen_never_comes_again(tmp_path, monkeypatch):
    """A broker keeps its epoch, the czxid of its ephemeral node, on its own disk; the power cut takes the rest."""
    disk = None
    epochs, folder = [], tmp_path / "0"
    for life in range(5):
        session = DirectoryCoordinator(folder)
        monkeypatch.setattr(transaction_numbers, "BOOT_ID_FILE", tmp_path / f"boot{life}")
        (tmp_path / f"boot{life}").write_text(f"kernel-{life}")
        session.close()
        session = DirectoryCoordinator(folder)
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(folder, patch)
            disk.sync_all()
            for _ in range(3):
                session.execute(Create("/broker", ephemeral=True))
                epochs.append(session.execute(Get("/broker")).czxid)
                session.execute(Delete("/broker"))
        session.close()
        folder = tmp_path / f"{life + 1}"
        disk.write_survivors(folder)
        disk.close()
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize("boot_id, syncs", [("one kernel", 0), (None, 3)], ids=["a boot id", "no boot id"])
def test_numbers_cost_no_sync_where_the_kernel_can_be_told_from_the_next(tmp_path, monkeypatch, boot_id, syncs):
    monkeypatch.setattr(transaction_numbers, "BOOT_ID_FILE", tmp_path / "boot_id")
    if boot_id:
        (tmp_path / "boot_id").write_text(boot_id)
    numbers = transaction_numbers.TransactionNumbers(tmp_path)
    assert numbers.next() == 1
    counted = []
    monkeypatch.setattr(os, "fsync", counted.append)
    again = transaction_numbers.TransactionNumbers(tmp_path)
    assert [numbers.next(), again.next(), numbers.next()] == [2, 3, 4]
    assert len(counted) == syncs


def test_numbers_go_on_above_all_that_were_reserved(tmp_path, monkeypatch):
    monkeypatch.setattr(transaction_numbers, "RESERVED", 3)
    numbers = transaction_numbers.TransactionNumbers(tmp_path)
    assert [numbers.next() for _ in range(8)] == [1, 2, 3, 4, 5, 6, 7, 8]
    monkeypatch.setattr(transaction_numbers, "BOOT_ID_FILE", tmp_path / "boot_id")
    (tmp_path / "boot_id").write_text("another kernel")
    assert transaction_numbers.TransactionNumbers(tmp_path).next() == 10


def test_a_damaged_number_is_named(tmp_path):
    session = DirectoryCoordinator(tmp_path)
    session.execute(Create("/a"))
    (tmp_path / "transactions").write_bytes(b"\0" * 80)
    with pytest.raises(CoordinatorUnavailable, match="transactions is damaged"):
        session.execute(Create("/b"))
    session.close()


def test_a_directory_of_the_former_format_opens_unchanged(tmp_path):
    """Nodes had no czxid: in files of their own, and packed; a directory has no numbers yet."""
    for name, text in {"alone": b"3 0\nx", "both": b"9 0\nnewer", "dir/below": b"0 0\n", "dir": b"0 0\n"}.items():
        (tmp_path / "nodes" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "nodes" / name / ".node").write_bytes(text)
    entries = b"4 5 /both\nolder\n1 1 /packed\ny\n"
    (tmp_path / "packed").write_bytes(b"flakelog packed nodes 1 7 %d\n" % crc32(entries) + entries)
    before = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    session = DirectoryCoordinator(tmp_path)
    assert tree(session) == {
        ("/alone", b"x", 3, False, 0),
        ("/both", b"newer", 9, False, 0),
        ("/dir", b"", 0, False, 0),
        ("/dir/below", b"", 0, False, 0),
        ("/packed", b"y", 1, False, 0),
    }
    assert all((tmp_path / path).read_bytes() == content for path, content in before.items())
    session.execute(Multi((Check("/alone", 3), Set("/both", b"z", 9), Delete("/packed", 1), Delete("/dir/below"))))
    session.execute(Create("/packed"))
    assert session.execute(Get("/both"))[:2] == (b"z", 10)
    assert session.execute(Get("/packed")) == Node(b"", 0, PERSISTENT, 1)
    assert session.execute(Children("/dir")) == ()
    session.close()


def test_a_large_node_does_not_stay_packed_and_a_node_that_is_gone_loses_its_file(tmp_path):
    session = DirectoryCoordinator(tmp_path)
    session.execute(Create("/gone", b"x"))
    session.execute(Multi((Create("/large", bytes(stored_nodes.PACKED_BYTES_MAX + 1)), Create("/a"), Delete("/gone"))))
    assert (tmp_path / "nodes/gone/.node").exists() and not (tmp_path / "nodes/large").exists()
    with pytest.raises(NoNode):
        session.execute(Get("/gone"))
    session.execute(Multi((Create("/b"), Create("/c"))))
    assert not (tmp_path / "nodes/gone").exists() and (tmp_path / "nodes/large/.node").exists()
    assert (tmp_path / "packed").stat().st_size < 200
    assert session.execute(Children("/")) == ("a", "b", "c", "large")
    session.close()


def test_a_process_killed_inside_a_multi_leaves_it_whole_or_absent(tmp_path):
    """Two processes; one is killed at each of its syncs, and the other goes on."""
    other = DirectoryCoordinator(tmp_path / "nodes")
    prepare(other)
    for syncs in range(20):
        before = tree(other)
        if (pid := os.fork()) == 0:
            _carry_out_and_die(tmp_path / "nodes", syncs)
        _, status = os.waitpid(pid, 0)
        after = persistent(tree(other))
        changed = {node[0] for node in after ^ persistent(before)}
        assert changed in (set(), {f"/new{syncs}", "/alone", "/packed3"})
        if os.waitstatus_to_exitcode(status) == 0:
            assert changed
            break
    else:
        pytest.fail("the operation has no end")
    other.close()


def _carry_out_and_die(folder: Path, syncs):
    count = 0

    def fsync(fd):
        nonlocal count
        count += 1
        if count > syncs:
            os._exit(1)

    try:
        session = DirectoryCoordinator(folder)
        os.fsync = fsync  # of this process only
        create = Create(f"/new{syncs}", LARGE)
        set_both = Set("/alone", b"%d" % syncs, ANY_VERSION), Set("/packed3", b"%d" % syncs, ANY_VERSION)
        session.execute(Multi((create, *set_both, Create("/e", ephemeral=True))))
        os._exit(0)
    finally:
        os._exit(2)
