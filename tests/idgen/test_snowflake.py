"""idgen.snowflake: ids made in the test's process, from a directory."""

import copy
import pickle
import subprocess
import sys
import threading

import pytest

from coordination.directory import DirectoryCoordinator
from coordination.port import Children, CoordinatorUnavailable
from idgen.config import IdgenConfig
from idgen.errors import Fenced, NoWorkerNumber
from idgen.snowflake import Snowflake
from tests.patience import SECONDS, until


def test_ids_rise_and_decode_to_the_workers_number(tmp_path):
    with Snowflake(directory=tmp_path, worker=7) as snowflake:
        ids = [snowflake.next_id(), *snowflake.next_ids(10_000), next(iter(snowflake))]
        assert ids == sorted(set(ids))
        assert {snowflake.decode(id).worker_number for id in ids} == {snowflake.worker_number} == {7}
        assert snowflake.scope == f"directory {tmp_path}"


def test_two_in_one_directory_have_two_numbers_and_a_closed_one_gives_its_back(tmp_path):
    with Snowflake(directory=tmp_path) as first, Snowflake(directory=tmp_path) as second:
        assert (first.worker_number, second.worker_number) == (0, 1)
        assert not set(first.next_ids(5_000)) & set(second.next_ids(5_000))
    with Snowflake(directory=tmp_path) as again:
        assert again.worker_number == 0
    coordinator = DirectoryCoordinator(tmp_path)
    assert coordinator.execute(Children("/snowflake-servers")) == ()
    coordinator.close()


def test_threads_may_share_one(tmp_path):
    """Threads share a Snowflake in the one documented way, without a lock of the caller."""
    batches = []
    with Snowflake(directory=tmp_path) as snowflake:

        def take():
            batches.append([snowflake.next_id() for _ in range(5_000)])

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({id for batch in batches for id in batch}) == 20_000
    assert all(batch == sorted(batch) for batch in batches)


def test_threads_share_one_that_makes_batches_too(tmp_path):
    """Each id is larger than all that were returned before its call, whichever thread and method made them."""
    largest, all_ids, faults = [0], [], []
    with Snowflake(directory=tmp_path) as snowflake:

        def take(count):
            for _ in range(1_000):
                before = largest[0]
                ids = snowflake.next_ids(count) if count else [snowflake.next_id() for _ in range(20)]
                if not before < ids[0] or ids != sorted(ids):
                    faults.append((before, ids))
                largest[0] = max(largest[0], ids[-1])
                all_ids.extend(ids)

        threads = [threading.Thread(target=take, args=(count,)) for count in (0, 0, 7, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert faults == []
    assert len(all_ids) == len(set(all_ids)) == 1_000 * (20 + 20 + 7 + 300)


def test_ids_one_by_one_take_the_lock_once_for_a_run(tmp_path):
    with Snowflake(directory=tmp_path) as snowflake:
        worker = stopped_clock(snowflake)
        first = snowflake.next_id()
        assert worker.last_id == first + 255, "one run"
        assert [snowflake.next_id() for _ in range(256)] == list(range(first + 1, first + 257))
        assert worker.last_id > first + 256, "another run"
        assert snowflake.next_ids(2) == [first + 257, first + 258], "a batch begins where the last id ended"


def test_an_id_is_of_the_time_of_its_call(tmp_path):
    """A run ends with its millisecond, so no id is older than its call."""
    with Snowflake(directory=tmp_path) as snowflake:
        for _ in range(20):
            snowflake.next_id()
            before_ms = snowflake._clock.now_ms()
            until(lambda: snowflake._clock.now_ms() > before_ms, "the next millisecond")  # noqa: B023
            assert snowflake.decode(snowflake.next_id()).time_ms > before_ms


def stopped_clock(snowflake):
    """Stop the clock of a Snowflake, so that a run lasts until it is used up or taken back. Return its worker."""
    now_ns = snowflake._clock.steady_ns()
    snowflake._clock.steady_ns = snowflake._steady_ns = lambda: now_ns
    snowflake._clock.now_ms()
    return snowflake._claim.worker


def test_a_run_ends_when_its_holder_closes(tmp_path):
    snowflake = Snowflake(directory=tmp_path)
    stopped_clock(snowflake)
    last = [snowflake.next_id() for _ in range(10)][-1]
    snowflake.close()
    with pytest.raises(Fenced, match="closed"):
        snowflake.next_id()
    with Snowflake(directory=tmp_path) as successor:
        assert successor.worker_number == 0 and successor.next_id() > last


FORKS_IN_C = """
import ctypes, os, sys
from idgen.errors import Fenced
from idgen.snowflake import Snowflake
from tests.idgen.test_snowflake import stopped_clock
sys.setswitchinterval(3600)  # a thread of the parent that asks for the GIL would have the child wait for it for ever
with Snowflake(directory=sys.argv[1]) as snowflake:
    stopped_clock(snowflake)
    snowflake.next_id()
    if ctypes.PyDLL(None).fork() == 0:
        try:
            print(snowflake.next_id(), flush=True)
        except Fenced:
            print("Fenced", flush=True)
        finally:
            os._exit(0)
    os.wait()
"""


def test_a_child_that_forks_in_c_gets_no_id_of_a_run(tmp_path):
    """The child runs no hook of Python's, and its clock still shows the run's millisecond."""
    command = [sys.executable, "-c", FORKS_IN_C, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=SECONDS).stdout == "Fenced\n"


def test_a_closed_one_issues_nothing_and_may_be_closed_again(tmp_path):
    snowflake = Snowflake(directory=tmp_path)
    snowflake.close()
    snowflake.close()
    with pytest.raises(Fenced, match="closed"):
        snowflake.next_id()


@pytest.mark.parametrize("spoil", [copy.copy, copy.deepcopy, pickle.dumps])
def test_it_is_not_copied(tmp_path, spoil):
    with Snowflake(directory=tmp_path) as snowflake, pytest.raises(TypeError, match="make another one"):
        spoil(snowflake)


def test_where_numbers_are_kept_must_be_said_once(tmp_path):
    for options in ({}, {"directory": tmp_path, "zookeeper": "127.0.0.1:2181"}):
        with pytest.raises(ValueError, match="one of both"):
            Snowflake(**options)
    with pytest.raises(ValueError, match="flakelog.ids.worker=3"):
        Snowflake(directory=tmp_path, worker=4, config=IdgenConfig(ids_worker=3))


def test_arguments_that_cannot_work_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match='directory="": name a directory'):
        Snowflake(directory="")
    with pytest.raises(ValueError, match="timeout_ms=-1: give a number of at least 0"):
        Snowflake(directory=tmp_path / "ids", timeout_ms=-1)
    assert not any(tmp_path.iterdir())


def test_the_time_limit_holds_for_a_zookeeper_that_does_not_answer():
    with pytest.raises(CoordinatorUnavailable, match="no ZooKeeper answered at 127.0.0.1:1 in 50 ms"):
        Snowflake(zookeeper="127.0.0.1:1", timeout_ms=50)


def test_a_closed_one_holds_no_number(tmp_path):
    with Snowflake(directory=tmp_path) as snowflake:
        assert snowflake.worker_number == 0
    assert snowflake.worker_number is None


def test_a_number_that_is_held_is_waited_for_and_then_named(tmp_path):
    with Snowflake(directory=tmp_path, worker=7):
        with pytest.raises(NoWorkerNumber, match="after 0 ms: worker number 7 is held by"):
            Snowflake(directory=tmp_path, worker=7, timeout_ms=0)


def test_its_mark_is_raised_while_it_lives(tmp_path):
    with Snowflake(directory=tmp_path, config=IdgenConfig(ids_raise_interval_ms=20)) as snowflake:
        first = snowflake._claim.worker.limit_ms
        until(lambda: snowflake._claim.worker.limit_ms >= first + 200, "a higher mark")
        snowflake.next_id()
