"""Jobs that wait for the disk run at the same time, and each tells how it has ended."""

from threading import Barrier, current_thread

from broker.log.storage.port import StorageError
from broker.net.jobs_at_once import JOBS_AT_ONCE, run_at_once
from tests.patience import SECONDS


class Job:
    def __init__(self, work):
        self.run = work


def test_jobs_run_at_the_same_time():
    all_run = Barrier(JOBS_AT_ONCE)
    jobs = [Job(lambda: all_run.wait(SECONDS)) for _ in range(JOBS_AT_ONCE)]
    assert list(run_at_once(jobs)) == [None] * JOBS_AT_ONCE


def test_the_errors_of_the_disk_come_back_in_the_order_of_the_jobs():
    error = StorageError("a", "Input/output error")

    def fail():
        raise error

    assert list(run_at_once([Job(lambda: None), Job(fail), Job(lambda: None)])) == [None, error, None]


def test_a_single_job_needs_no_thread():
    threads = []
    assert list(run_at_once([Job(lambda: threads.append(current_thread()))])) == [None]
    assert threads == [current_thread()]
