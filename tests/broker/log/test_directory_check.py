"""`flakelog check` names each damage, and changes nothing on the disk."""

import pytest

from broker.log.directory_check import DirectoryCheck
from broker.log.log_manager import LogManager
from broker.log.storage.overlay_storage import OverlayStorage
from broker.log.storage.port import StorageError
from broker.settings.config import BrokerConfig
from tests.broker.engine_client import EngineBroker
from tests.broker.log.integrity.mutations import TOPICS, copy_of, stopped


def checked(storage):
    """Return the damages of a storage, and the check."""
    overlay = OverlayStorage(storage)
    logs = LogManager(overlay, BrokerConfig(), lambda line: None)
    logs.load_checkpoint()
    for topic in EngineBroker(copy_of(storage)).services.metadata.topics():
        logs.open(topic.name, 0, BrokerConfig().topic_defaults, topic.id)
    logs.opened()
    check = DirectoryCheck(logs)
    return list(check.damages()), check


@pytest.mark.parametrize("clean", [True, False])
def test_a_whole_directory_has_no_damage_and_stays_as_it_is(clean):
    storage, _, _ = stopped(clean)
    before = {path: bytes(content.data) for path, content in storage.files.items()}
    damages, check = checked(storage)
    assert damages == [] and check.partitions == len(TOPICS) and check.segments > 2 * len(TOPICS) and check.bytes > 0
    assert {path: bytes(content.data) for path, content in storage.files.items()} == before


@pytest.mark.parametrize("suffix, at", [(".log", 3), (".log", 100), (".idindex", 5), (".index", 7), (".timeindex", 3)])
def test_a_flipped_bit_is_one_line_that_names_the_place(suffix, at):
    storage, _, _ = stopped(True)
    damaged = copy_of(storage)
    damaged.files[f"plain-0/{0:020d}{suffix}"].data[at] ^= 16
    (line,), _ = checked(damaged)
    assert line.startswith("plain-0: ")


def test_changes_of_an_overlay_are_seen_by_it_alone():
    below = copy_of(stopped(True)[0])
    path = f"plain-0/{0:020d}.log"
    data = bytes(below.files[path].data)
    overlay = OverlayStorage(below)
    file = overlay.open(path)
    file.truncate(10)
    file.append(b"new")
    assert file.read(8, 99) == data[8:10] + b"new" and file.size == 13 and file.read_now(12, 9) is None
    file.truncate(11)
    assert overlay.open(path).read(9, 9) == data[9:10] + b"n"
    overlay.rename(path, "plain-0/other")
    assert not overlay.exists(path) and overlay.sizes("plain-0")["other"] == 11
    overlay.remove("aborted-0")
    overlay.replace("aborted-0/x", b"1")
    assert overlay.list("aborted-0") == ["x"] and overlay.exists("aborted-0")
    with pytest.raises(StorageError):
        overlay.open(path)
    assert bytes(below.files[path].data) == data
