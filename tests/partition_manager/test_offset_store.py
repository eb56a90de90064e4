"""Offset documents over the coordination port: another owner's write fences, a lost answer does not."""

from coordination.memory import Ensemble, MemoryCoordinator
from coordination.port import Delete, run
from partition_manager.offset_document import OffsetDocument
from partition_manager.offset_store import CoordinatedOffsetStore, blocking, load, save
from partition_manager.ports import Failed, Fenced, Loaded, LoadOffset, Saved, SaveOffset
from partition_manager.progress import Progress

PATH = "/spouts/x"
NODE = "/spouts/x/partition_2"


def document(owner, offset=0):
    return OffsetDocument("t", "t", "flights", 2, Progress(offset), owner=owner).encode()


def session():
    return MemoryCoordinator(Ensemble())


def saved(coordinator, text, version):
    return run(coordinator, save(NODE, SaveOffset("flights", 2, text, version)))


def test_nothing_stored_is_loaded_as_nothing():
    assert run(session(), load(NODE)) == Loaded(None, -1)


def test_each_write_names_the_version_before():
    coordinator = session()
    assert saved(coordinator, document("a", 1), -1) == Saved(0)
    assert saved(coordinator, document("a", 2), 0) == Saved(1)
    assert run(coordinator, load(NODE)) == Loaded(document("a", 2), 1)


def test_another_owners_write_fences():
    coordinator = session()
    saved(coordinator, document("a"), -1)
    saved(coordinator, document("b"), 0)
    answer = saved(coordinator, document("a", 5), 0)
    assert isinstance(answer, Fenced) and "was written by run b" in answer.error
    assert run(coordinator, load(NODE)) == Loaded(document("b"), 1)


def test_another_owners_first_write_fences_too():
    coordinator = session()
    saved(coordinator, document("a"), -1)
    assert isinstance(saved(coordinator, document("b"), -1), Fenced)


def test_a_document_without_an_owner_is_nobodys_own():
    """Two owners with documents of 0.9.3, which have no owner field, do not take each other's writes for their own."""
    coordinator = session()
    saved(coordinator, document(""), -1)
    assert isinstance(saved(coordinator, document("", 5), -1), Fenced)


def test_a_document_removed_under_us_fences():
    coordinator = session()
    saved(coordinator, document("a"), -1)
    coordinator.execute(Delete(NODE))
    answer = saved(coordinator, document("a", 1), 0)
    assert isinstance(answer, Fenced) and "removed" in answer.error


def test_a_write_whose_answer_was_lost_is_built_upon():
    coordinator = session()
    saved(coordinator, document("a"), -1)
    coordinator.lose_answers = 1
    assert isinstance(saved(coordinator, document("a", 1), 0), Failed)
    assert saved(coordinator, document("a", 2), 0) == Saved(2)


def test_a_first_write_whose_answer_was_lost_is_built_upon():
    coordinator = session()
    coordinator.lose_answers = 1
    assert isinstance(saved(coordinator, document("a"), -1), Failed)
    assert saved(coordinator, document("a"), -1) == Saved(1)


def test_a_write_that_never_arrived_is_made_again():
    coordinator = session()
    coordinator.lose_requests = 1
    assert isinstance(saved(coordinator, document("a"), -1), Failed)
    assert saved(coordinator, document("a"), -1) == Saved(0)


def test_a_load_that_failed_says_so():
    coordinator = session()
    coordinator.cut()
    assert run(coordinator, load(NODE)) == Failed("ConnectionLost: the connection is cut")


def test_the_store_keeps_each_partition_under_its_name_as_0_9_3_does():
    coordinator = session()
    closed = []
    store = CoordinatedOffsetStore(PATH, blocking(coordinator), lambda: closed.append(True))
    answers = []
    store.ask(SaveOffset("flights", 2, document("a"), -1), answers.append)
    store.ask(LoadOffset("flights", 2), answers.append)
    store.close()
    assert answers == [Saved(0), Loaded(document("a"), 0)] and closed == [True]
    assert run(coordinator, load("/spouts/x/partition_2")) == Loaded(document("a"), 0)
